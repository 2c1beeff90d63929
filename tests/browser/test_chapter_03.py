"""Chapter 03 in the browser: switches and sliders of the residual meter, the transforms, the drift and the odds."""

import re

import pytest


def values(marks, name, number):
    """{what a mark is: the number it stands for}, from marks' own labels."""
    return {
        mark[name]: float(next(v for k, v in mark.items() if k.startswith(number)).replace("−", "-")) for mark in marks
    }


def means(chapter, call, table, index):
    """A column of means as Python computes it anew, by the values of `index`."""
    module = "toy" if call.startswith(("compute_exchange", "compute_transforms")) else "drift"
    code = f"__import__('workbook.topics.exchange.{module}', fromlist=['x']).{call}"
    code = f"{code}[{table!r}]" if table else code
    return chapter.python(f"{code}.set_index({index!r})['mean'].to_dict()")


def test_chapter_03(open_chapter):
    chapter = open_chapter("03")
    chapter.run_all()
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 4
    meter, costs, kl, odds = (explorers.nth(i) for i in range(4))

    def residual():
        return values(chapter.marks(meter.locator("svg.marks"), "bar")[:8], "mechanism", "residual")

    expected = means(chapter, "compute_exchange()", "meter", "mechanism")
    assert residual() == pytest.approx(expected, abs=1e-6)
    with chapter.no_flicker():
        chapter.drag("ratio drift", 0.8)
        chapter.press("angle of gradients (°)", "ArrowRight", 2)
        chapter.choose("clipping", "asymmetric")
        chapter.choose("transform", "min-replace")
    drift = float(re.search(r"drift=([0-9.]+)", meter.inner_text()).group(1))
    assert 0.7 <= drift <= 0.9
    call = f"compute_exchange(clipping='asymmetric', transform='min-replace', drift={drift}, angle=70.0)"
    assert residual() == pytest.approx(means(chapter, call, "meter", "mechanism"), abs=1e-6)
    chapter.shot("03-meter", meter)
    meter.locator("button", has_text="Reset").click()
    chapter.settle()
    assert residual() == pytest.approx(expected, abs=1e-6)

    costs_before = costs.locator("[role=status]").first.inner_text()
    with chapter.no_flicker():
        chapter.drag("follows the reward", 0.7, nth=1)
        chapter.press("group size", "ArrowLeft", 6)
    status = costs.locator("[role=status]").first.inner_text()
    assert status.startswith("Min-replace keeps")
    assert status != costs_before
    bars = chapter.marks(costs.locator("svg.marks"), "bar")
    assert len(bars) == 15
    chapter.shot("03-transforms", costs)

    with chapter.no_flicker():
        chapter.drag("residual", 0.0)
    assert "the policy stays where it is" in kl.locator("[role=status]").first.inner_text()
    kl.locator("button", has_text="Reset").click()
    chapter.settle()
    chapter.shot("03-kl", kl)

    before = odds.locator("[role=status]").first.inner_text()
    with chapter.no_flicker():
        chapter.choose("update operator", "natural gradient")
        chapter.drag("learning rate", 0.5, nth=1)
    after = odds.locator("[role=status]").first.inner_text()
    assert before != after
    chapter.shot("03-odds", odds)
    assert chapter.errors == []
