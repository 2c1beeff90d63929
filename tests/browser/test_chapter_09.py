"""Chapter 09 in the browser: one batch under every objective, whole runs by outcome, and a run started and stopped."""

import re

import pytest
from playwright.sync_api import expect

from browser.explorers import try_explorers
from workbook.topics.drift.settings import compute_objectives

SLOW = 90_000  # ms: a new process loads its libraries, on a machine that others use, too


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("09")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_objectives_by_hand(chapter, capsys):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 3

    def residuals():
        marks = chapter.marks(explorers.nth(0).locator("svg.marks").first, "point")
        key, value = "epochs on the batch", "residual (0 cancels, 1 adds up)"
        return {int(mark[key]): chapter.number(mark[value]) for mark in marks if value in mark}

    def changes(**settings):
        marks = chapter.marks(explorers.nth(2).locator("svg.marks").first, "point")
        shown = {mark["transform"]: mark for mark in marks if "difference to no transform" in mark}
        drawn = {name: chapter.number(mark["difference to no transform"]) for name, mark in shown.items()}
        table = compute_objectives(**settings)["changes"]
        assert drawn == pytest.approx(dict(zip(table["transform"], table["mean"], strict=True)), rel=1e-3, abs=1e-6)

    def losses():
        marks = chapter.marks(explorers.nth(1).locator("svg.marks").first, "point")
        return {mark["loss"]: chapter.number(mark["mean"]) for mark in marks if "mean" in mark}

    free = residuals()
    assert len(free) == 9
    assert free[0] < 1e-3 < free[8]
    changes()
    with chapter.no_flicker():
        chapter.choose("clipping", "asymmetric", 0)
        assert residuals()[8] > free[8], "clipping single rollouts adds to what is left"
        chapter.shot("09-reuse", explorers.nth(0))
        chapter.choose("transform", "min-replace")
        assert max(residuals().values()) < 1e-3
        chapter.choose("outcome", "held-out reward after training")
        changes(outcome="final")
        chapter.choose("ratio", "token", 1)
        chapter.press("reuse, 2^", "ArrowRight", 2)
        changes(outcome="final", level="token", doublings=3)
        chapter.shot("09-objectives", explorers.nth(2))
        chapter.click("Reset", 2)
        changes()
        first = losses()
        assert max(first["dr_grpo"], first["min_replace"]) < 1e-5 < 0.1 < first["entropy mask 0.2"]
        chapter.press("step on the batch", "End")
        last = losses()
        assert last["min_replace"] < 1e-5 < first["vLLM sequence_mask"] < last["dr_grpo"]
        chapter.shot("09-losses", explorers.nth(1))
    assert chapter.panel.locator(".th-cell").count() > 0

    monitor = chapter.panel.locator(".workbook-monitor").last
    line = monitor.locator(".widget-html").first
    expect(line).to_contain_text("not started")
    chapter.click("Start")
    expect(line).to_contain_text(re.compile("running: step [1-9]"), timeout=SLOW)
    chapter.click("Stop")
    expect(line).to_contain_text("stopped", timeout=SLOW)
    chapter.shot("09-monitor", monitor)
    try_explorers(chapter, capsys)
