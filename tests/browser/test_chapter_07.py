"""Chapter 07 in the browser: gaps by sign and band, as Python computes them, and what a larger sample buys."""

import pytest

from browser.explorers import try_explorers
from workbook.topics.credit.exact_gaps import FIXED
from workbook.topics.credit.settings import compute_budget, compute_gap


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("07")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_the_explorers_show_what_python_computes(chapter, capsys):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 3  # the gap, what a sample buys, and credit recovered

    def bars(nth, keys, value):
        """{the bar's texts for `keys`: its number for `value`}, of the bars that have one."""
        marks = chapter.marks(explorers.nth(nth).locator("svg.marks").first, "bar")
        named = {tuple(mark[key] for key in keys): mark for mark in marks if value in mark}
        return {key: chapter.number(mark[value]) for key, mark in named.items()}

    def same(table, keys):
        rows = table[keys].itertuples(index=False, name=None)
        return pytest.approx(dict(zip(rows, table["mean"], strict=True)), abs=1e-5)

    def gap(**settings):
        shown = bars(0, ["sign of the rollout's advantage", "band"], "boosted − suppressed (reward)")
        assert shown == same(compute_gap(**settings), ["sign", "band"])

    def budget(**settings):
        marks = chapter.marks(explorers.nth(1).locator("svg.marks").first, "point")
        shown = sorted(chapter.number(mark["boosted − suppressed (reward)"]) for mark in marks)
        assert shown == pytest.approx(sorted(compute_budget(**settings)["mean"]), rel=0.01, abs=1e-3)

    gap()
    budget()
    with chapter.no_flicker():
        chapter.choose("gap in", "credit, known")
        gap(column="credit")
        chapter.choose("optimizer", "adamw", 0)
        gap(column="credit", optimizer="adamw")
        chapter.shot("07-gap", explorers.nth(0))
        chapter.choose("what grows", FIXED)
        budget(axis=FIXED)
        chapter.choose("alike in", "prompt")
        budget(axis=FIXED, matched="prompt")
        chapter.shot("07-budget", explorers.nth(1))
        chapter.click("Reset", 1)
        budget()
    assert chapter.panel.locator(".th-cell").count() > 0
    chapter.press("seed of prompts, rollouts", "ArrowRight")
    study = chapter.run_study()
    assert "seed=1" in study.locator(".workbook-code pre").inner_text()
    chapter.shot("07-live", study)
    try_explorers(chapter, capsys)
