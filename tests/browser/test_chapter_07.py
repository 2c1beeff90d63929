"""Chapter 07 in the browser: gaps by sign and band as the kernel computes them, and live steps over the study."""

import pytest

from browser.explorers import try_explorers

GAP = "compute_gap(moved, **{})[['sign', 'band', 'mean']].values.tolist()"


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("07")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_the_explorers_show_what_python_computes(chapter, capsys):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 2  # credit recovered, and the gap

    def gap(**settings):
        drawing, value = explorers.nth(1).locator("svg.marks").first, "boosted − suppressed (reward)"
        marks = [mark for mark in chapter.marks(drawing, "bar") if value in mark]
        shown = {(mark["sign of the rollout's advantage"], mark["band"]): chapter.number(mark[value]) for mark in marks}
        rows = chapter.python(GAP.format(settings))
        assert shown == pytest.approx({(sign, band): mean for sign, band, mean in rows}, abs=1e-4)

    gap()
    with chapter.no_flicker():
        chapter.choose("gap in", "credit, known", 1)  # the first menu of this name is that of the live step
        gap(column="credit")
        chapter.choose("optimizer", "adamw", 1)
        gap(column="credit", optimizer="adamw")
        chapter.shot("07-gap", explorers.nth(1))
    assert chapter.panel.locator(".th-cell").count() > 0
    chapter.press("seed of prompts, rollouts", "ArrowRight")
    chapter.choose("gap in", "credit")
    study = chapter.run_study()
    code = study.locator(".workbook-code pre").inner_text()
    assert "seed=1" in code
    assert 'of="credit"' in code or "of='credit'" in code
    chapter.shot("07-live-gap", study)
    chapter.choose("what grows", "prompts in the step")
    study = chapter.run_study(nth=1)
    chapter.shot("07-live-signal", study)
    try_explorers(chapter, capsys)
