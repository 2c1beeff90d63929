"""Chapter 09 in the browser: one batch under every objective, arms by outcome, and a run started and stopped."""

import re

import pytest
from playwright.sync_api import expect

from workbook.topics.drift.confidence_charts import X_TITLES, compute_training

SLOW = 90_000  # ms: a new process loads its libraries, on a machine that others use, too


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("09")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_objectives_by_hand(chapter):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 4  # one batch, what groups share, every loss, training

    def residuals():
        marks = chapter.marks(explorers.nth(0).locator("svg.marks").first, "point")
        key, value = "epochs on the batch", "residual (0 cancels, 1 adds up)"
        return {int(mark[key]): chapter.number(mark[value]) for mark in marks if value in mark}

    def training(**settings):
        marks = chapter.marks(explorers.nth(3).locator("svg.marks").first, "point")
        key, value = X_TITLES["confidence"], "mean over units"
        drawn = sorted(chapter.number(mark[value]) for mark in marks if key in mark and value in mark)
        means = compute_training(**settings)["confidence"]["mean"]
        assert drawn == pytest.approx(sorted(means), rel=1e-2, abs=1e-6)

    def losses():
        marks = chapter.marks(explorers.nth(2).locator("svg.marks").first, "point")
        return {mark["loss"]: chapter.number(mark["mean"]) for mark in marks if "mean" in mark}

    free = residuals()
    assert len(free) == 9
    assert free[0] < 1e-3 < free[8]
    training()
    with chapter.no_flicker():
        chapter.choose("clipping", "asymmetric", 0)
        assert residuals()[8] > free[8], "clipping single rollouts adds to what is left"
        chapter.shot("09-reuse", explorers.nth(0))
        chapter.choose("transform", "min-replace")
        assert max(residuals().values()) < 1e-3
        chapter.press("group size", "ArrowRight", 2)
        expect(explorers.nth(1)).to_contain_text("G = 8: of a two-word slot at most 0.049")
        chapter.choose("outcome", "exact held-out value")
        training(outcome="value")
        chapter.choose("shown", "arms and twins")
        training(outcome="value", beyond=False)
        chapter.shot("09-training", explorers.nth(3))
        chapter.click("Reset", 3)
        training()
        first = losses()
        assert max(first["dr_grpo"], first["min_replace"]) < 1e-5 < 0.1 < first["entropy mask 0.2"]
        chapter.press("step on the batch", "End")
        last = losses()
        assert last["min_replace"] < 1e-5 < first["vLLM sequence_mask"] < last["dr_grpo"]
        chapter.shot("09-losses", explorers.nth(2))
    assert chapter.panel.locator(".th-cell").count() > 0

    chapter.shot("09-live", chapter.run_study(stop=True))

    monitor = chapter.panel.locator(".workbook-monitor").last
    line = monitor.locator(".widget-html").first
    expect(line).to_contain_text("not started")
    chapter.click("Start")
    expect(line).to_contain_text(re.compile("running: step [1-9]"), timeout=SLOW)
    monitor.get_by_role("button", name="Stop").click()
    expect(line).to_contain_text("stopped", timeout=SLOW)
    chapter.shot("09-monitor", monitor)
