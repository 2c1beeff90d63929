"""Chapter 05 in the browser: tokens in place after a real step, committed curves by menu, and a step taken now."""

import pytest
from playwright.sync_api import expect


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("05")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_tokens_in_place_and_curves_by_menu(chapter):
    heatmap = chapter.panel.locator(".token-heatmap").first
    heatmap.scroll_into_view_if_needed()
    heatmap.locator(".th-cell").first.click()
    expect(heatmap).to_contain_text("To first order, through all weights", timeout=60_000)
    chapter.shot("05-heatmap", heatmap)
    assert chapter.panel.locator(".workbook-explorer").count() == 2  # whose sign tokens follow, by tokens and by policy
    chapter.press("seed of prompts, rollouts", "ArrowRight")
    study = chapter.run_study()
    assert "seed=1" in study.locator(".workbook-code pre").inner_text()
    chapter.shot("05-live", study)
