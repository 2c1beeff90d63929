"""Chapter 06 in the browser: the map of real couplings, now and as measured before, and the mass of all pairs."""

import pytest

from browser.explorers import try_explorers
from workbook.topics.coupling.charts import compute_confidence


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("06")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_the_explorers_show_what_was_measured(chapter, capsys):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 1  # the map

    def confidence(**settings):
        marks = chapter.marks(explorers.nth(0).locator("svg.marks").first)
        drawn = sorted((m["token"], chapter.number(m["mean |K|"])) for m in marks if {"token", "mean |K|"} <= set(m))
        table = compute_confidence(**settings)
        expected = sorted(zip(table["token"], table["size"], strict=True))
        assert [token for token, _ in drawn] == [token for token, _ in expected]
        assert [size for _, size in drawn] == pytest.approx([size for _, size in expected], rel=1e-3)

    with chapter.no_flicker():
        chapter.choose("model", "the bundled policy")
        confidence()
        chapter.drag("bins of confidence", 1.0)
        confidence(bins=12)
        chapter.press("bins of confidence", "ArrowLeft", 10)
        chapter.choose("pairs in", "the same context")
        confidence(bins=2, place="the same context")
        chapter.choose("model", "SmolLM2-135M, chat")
        confidence(bins=2, place="the same context", scale="smollm2_chat")
        chapter.click("Reset", 0)
        chapter.choose("model", "the bundled policy")
        confidence()
    chapter.choose("gradients of", "all weights")
    chapter.press("seed of prompts, rollouts", "ArrowRight")
    study = chapter.run_study()
    assert "weights='all weights'" in study.locator(".workbook-code pre").inner_text()
    assert "seed=1" in study.locator(".workbook-code pre").inner_text()
    chapter.shot("06-live", study)
    try_explorers(chapter, capsys)
