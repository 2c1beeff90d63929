"""Chapter 08 in the browser: a batch cut by hand, orders trained now, and the batching study, as Python computes it."""

import pytest
from playwright.sync_api import expect
from workbook.topics.batching.cut import compute_cut


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("08")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_the_explorers_show_what_python_computes(chapter):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 2

    def cut(**settings):
        drawing, tables = explorers.nth(0).locator("svg.marks").first, compute_cut(**settings)
        bars, name = chapter.marks(drawing, "bar"), "residual (0 cancels, 1 one sign)"
        drawn = [chapter.number(mark[name]) for mark in bars if name in mark]
        assert drawn == pytest.approx(tables["batches"]["residual"].tolist(), abs=1e-5)
        signs = [mark["advantage"] for mark in chapter.marks(drawing, "rect") if "advantage" in mark]
        assert sorted(signs) == sorted(tables["cells"]["sign"])

    cut()
    with chapter.no_flicker():
        chapter.choose("strategy", "sign-partitioned")
        cut(strategy="sign_partitioned")
        chapter.drag("prompts", 1.0)
        cut(strategy="sign_partitioned", prompts=12)
        chapter.shot("08-cut", explorers.nth(0))
        chapter.choose("mini-batches", "8")
        chapter.choose("strategy", "query-preserved")
        expect(explorers.nth(0)).to_contain_text("multiple of the group size")
        chapter.click("Reset", 0)
        cut()
        chapter.choose("outcome", "grad_norm")
        chapter.shot("08-study", explorers.nth(1))
        chapter.click("Reset", 1)
    chapter.choose("order, against shuffled", "reward-balanced")
    study = chapter.run_study(nth=2)  # after the two walks, and the parts of each cut's steps
    assert "reward_balanced" in study.locator(".workbook-code pre").inner_text()
    expect(study).to_contain_text("Reward-balanced minus shuffled, now:")
    chapter.shot("08-orders", study)
    monitor = chapter.panel.locator(".workbook-monitor").last
    expect(monitor).to_contain_text("not started")
