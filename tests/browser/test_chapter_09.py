"""Chapter 09 in the browser: one batch under every objective, a live study stopped, and a run started and stopped."""

import re

import pytest
from playwright.sync_api import expect

SLOW = 90_000  # ms: a new process loads its libraries, on a machine that others use, too


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("09")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_objectives_by_hand(chapter):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 2  # one batch, training

    def residuals():
        marks = chapter.marks(explorers.nth(0).locator("svg.marks").first, "point")
        key, value = "epochs on the batch", "residual (0 cancels, 1 adds up)"
        return {int(mark[key]): chapter.number(mark[value]) for mark in marks if value in mark}

    free = residuals()
    assert len(free) == 9
    assert free[0] < 1e-3 < free[8]
    with chapter.no_flicker():
        chapter.choose("clipping", "asymmetric", 0)
        assert residuals()[8] > free[8], "clipping single rollouts adds to what is left"
        chapter.choose("transform", "min-replace")
        assert max(residuals().values()) < 1e-3
        chapter.shot("09-reuse", explorers.nth(0))
        chapter.choose("outcome", "exact held-out value")
        chapter.shot("09-training", explorers.nth(1))
    assert chapter.panel.locator(".th-cell").count() > 0
    chapter.shot("09-live", chapter.run_study(stop=True))
    monitor = chapter.panel.locator(".workbook-monitor").last
    line = monitor.locator(".widget-html").first
    expect(line).to_contain_text("not started")
    chapter.click("Start")
    expect(line).to_contain_text(re.compile("running: step [1-9]"), timeout=SLOW)
    monitor.get_by_role("button", name="Stop").click()
    expect(line).to_contain_text("stopped", timeout=SLOW)
