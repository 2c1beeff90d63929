"""Chapter 14 in the browser: a card per figure, its widget below, and one of them computed anew by its controls."""

from workbook.book.gallery import figures


def test_chapter_14(open_chapter):
    chapter = open_chapter("14")
    chapter.run_all()
    cards = chapter.panel.locator(".jp-RenderedHTMLCommon", has_text="What the ledger says.")
    assert cards.count() == len(figures())
    for card, one in zip(cards.all(), figures().values(), strict=True):
        assert one.names in card.inner_text()
        assert card.locator("li").count() == len(one.keys)
    chapter.shot("14-card", cards.first)
    studies = chapter.panel.locator(".workbook-live-study")
    assert studies.count() == sum(len(one.live) for one in figures().values()) - 2  # two are explorers
    assert chapter.panel.locator(".workbook-explorer").count() == 3  # coupling, the residual meter, measured curves

    labels = studies.all_inner_texts()
    nth = next(k for k, text in enumerate(labels) if "updates on the batch" in text and "movement by a step" in text)
    chapter.press("updates on the batch", "ArrowLeft", 4)
    study = chapter.run_study(nth=nth)
    assert "steps=4" in study.locator(".workbook-code pre").inner_text()
    assert "this policy, now:" in study.inner_text()
    chapter.shot("14-repeated", study)
    chapter.choose("place", "pairs, template confidence 0.8")
    chapter.shot("14-curves", chapter.panel.locator(".workbook-explorer").nth(2))
    assert chapter.errors == []
