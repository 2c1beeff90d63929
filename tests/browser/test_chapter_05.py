"""Chapter 05 in the browser: tokens in place after a real step, and the settings under the shares."""

import pytest
from playwright.sync_api import expect

from browser.explorers import try_explorers
from workbook.topics.flips.settings import compute_flips


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("05")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_tokens_in_place_and_shares_under_settings(chapter, capsys):
    heatmap = chapter.panel.locator(".token-heatmap").first
    heatmap.scroll_into_view_if_needed()
    cell = heatmap.locator(".th-cell").first
    cell.click()
    expect(heatmap).to_contain_text("To first order, through all weights", timeout=60_000)
    chapter.shot("05-heatmap", heatmap)

    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 2  # the lab's grids: whose sign tokens follow, one step at other settings
    explorer = explorers.nth(1)

    def bars(**settings):
        marks = chapter.marks(explorer.locator("svg.marks").first, "bar")
        drawn = {(mark["change"], mark["sign"]): chapter.number(mark["mean"]) for mark in marks if "mean" in mark}
        table = compute_flips(**settings)["shares"]
        keys = table[["change", "sign"]].itertuples(index=False, name=None)
        assert drawn == pytest.approx(dict(zip(keys, table["mean"], strict=True)), abs=1e-5)

    bars()
    with chapter.no_flicker():
        chapter.drag("eps (nats)", 1.0, nth=1)  # nth=0: the form that takes a step now
        bars(eps=1.0)
        chapter.choose("optimizer", "sgd", nth=1)
        chapter.choose("rollouts per prompt, G", "2", nth=1)
        chapter.choose("prompts in the batch", "4", nth=1)
        bars(eps=1.0, optimizer="sgd", group_size=2, prompts=4)
        chapter.choose("learning rate", "3 × matched")
        bars(eps=1.0, optimizer="sgd", group_size=2, prompts=4, factor=3.0)
        chapter.click("Reset", 1)
        bars()
    chapter.press("seed of prompts, rollouts", "ArrowRight")
    study = chapter.run_study()
    assert "seed=1" in study.locator(".workbook-code pre").inner_text()
    chapter.shot("05-live", study)
    try_explorers(chapter, capsys)
