"""Chapter 02 in the browser: rollouts added one by one, estimators side by side, two controls, and parts of a step."""

import pytest

from workbook.topics.groups.expected import compute_parts
from workbook.topics.groups.toy import compute_estimators, compute_growing, compute_intervention


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("02")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def drawn_shares(table):
    return ((row[:2], row[2]) for row in table[["category", "part", "share"]].itertuples(index=False, name=None))


def test_the_explorers_show_what_python_computes(chapter):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 4

    def bars(nth, keys, value):
        """{the bar's texts for `keys`: its number for `value`}, of the bars that have one."""
        marks = chapter.marks(explorers.nth(nth).locator("svg.marks").first, "bar")
        named = {tuple(mark[key] for key in keys): mark for mark in marks if value in mark}
        return {key: chapter.number(mark[value].rstrip("%")) for key, mark in named.items()}

    def same(table, keys, value):
        rows = table[keys].itertuples(index=False, name=None)
        return pytest.approx(dict(zip(rows, table[value], strict=True)), abs=1e-5)

    def growing(**settings):
        table = compute_growing(**settings)["net"]
        assert bars(0, ["word"], "push") == same(table, ["word"], "push")

    def estimators(**settings):
        value = "moved per rollout (advantage × probability)"
        table = compute_estimators(**settings)
        assert bars(1, ["estimator", "class"], value) == same(table, ["estimator", "class"], "moved")
        percent = table.assign(share=100 * table["share"])
        shares = bars(1, ["estimator", "class"], "share of what it moves")
        assert shares == same(percent, ["estimator", "class"], "share")

    def intervention(**settings):
        sizes = compute_intervention(**settings)["sizes"]
        assert bars(2, ["class"], "moved per rollout") == same(sizes, ["class"], "moved")

    def parts(**settings):
        table = compute_parts(**settings)
        drawn = bars(3, ["category", "part"], "share")
        assert drawn == pytest.approx({key: round(100 * value, 1) for key, value in drawn_shares(table)}, abs=0.06)

    growing()
    estimators()
    intervention()
    parts()
    with chapter.no_flicker():
        chapter.drag("rollouts added", 1.0)
        growing(so_far=32)
        chapter.press("random draw", "ArrowRight", 3)
        chapter.choose("estimator", "positive_only")
        growing(so_far=32, draw=3, estimator="positive_only")
        chapter.shot("02-growing", explorers.nth(0))
        chapter.drag("spread of difficulty", 0.0)
        estimators(spread=0.0)
        chapter.press("openings to choose from", "ArrowRight", 2)
        estimators(spread=0.0, styles=5)
        chapter.shot("02-estimators", explorers.nth(1))
        chapter.choose("signs (R3)", "shuffled")
        intervention(signs="shuffled")
        chapter.drag("verifier's error rate", 1.0)
        intervention(signs="shuffled", noise=0.5)
        explorers.nth(2).get_by_text("match frequencies (R1)").click()
        chapter.settle()
        intervention(signs="shuffled", noise=0.5, matched=True)
        chapter.choose("signs (R3)", "all positive")
        assert "here all are positive" in explorers.nth(2).get_by_role("status").first.inner_text()
        intervention(signs="shuffled", noise=0.5, matched=True)
        chapter.shot("02-intervention", explorers.nth(2))
        chapter.click("Reset", 2)
        intervention()
        chapter.drag("prompts in the step", 1.0)
        chapter.choose("estimator", "positive_only", nth=1)
        parts(prompts=8, estimator="positive_only")
        chapter.shot("02-parts", explorers.nth(3))
