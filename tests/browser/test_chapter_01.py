"""Chapter 01 in the browser: its three explorers, by mouse and keyboard, against the numbers of the kernel."""

import pytest


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("01")
    chapter.run_all()
    return chapter


def explorer(chapter, nth):
    return chapter.panel.locator(".workbook-explorer").nth(nth)


def numbers(chapter, nth, kind, key, value):
    """{text of `key`: number of `value`} over the marks of an explorer's chart that have both."""
    marks = chapter.marks(explorer(chapter, nth).locator("svg.marks").first, kind)
    return {mark[key]: chapter.number(mark[value]) for mark in marks if {key, value} <= set(mark)}


def test_the_explorers_show_what_the_kernel_computes(chapter):
    check_the_pair(chapter)
    check_the_map(chapter)
    check_the_tied(chapter)
    for nth, name in enumerate(("pair", "map", "tied")):
        chapter.shot(f"01-{name}", explorer(chapter, nth))


def check_the_pair(chapter):
    def moves():
        return numbers(chapter, 0, "bar", "row", "dlogp (nats, bars end at ±2)")

    expected = "compute_pair({})['moves'].set_index('row')['dlogp'].to_dict()"
    chapter.execute("from workbook.topics.softmax.toy import compute_pair, compute_tied")
    start = moves()
    assert start == pytest.approx(chapter.python(expected.format("")), abs=1e-6)
    with chapter.no_flicker():
        chapter.drag("angle (degrees)", 1.0)
    assert moves() == pytest.approx(chapter.python(expected.format("angle=180")), abs=1e-6)
    assert moves()["B, real SGD step"] < 0 < moves()["A, real SGD step"]
    chapter.press("angle (degrees)", "ArrowLeft", 18)
    assert moves()["B, real SGD step"] == pytest.approx(0, abs=1e-9)
    chapter.choose("advantage of A", "−1, a worse answer")
    assert moves() == pytest.approx(chapter.python(expected.format("angle=90, advantage_a=-1.0")), abs=1e-6)
    chapter.click("Reset")
    assert moves() == pytest.approx(start)


def check_the_map(chapter):
    sentence = explorer(chapter, 1).locator("[role=status]").first
    lines = explorer(chapter, 1).locator("svg.marks g.mark-rule.role-mark line")
    assert lines.count() == 4  # p = 0.5, on both axes of both maps
    assert "different tokens reach 3% of" in sentence.inner_text()
    with chapter.no_flicker():
        chapter.drag("rivalry of both words", 1.0, nth=1)
    reached = chapter.python("map_verdict(compute_map(rivalry=0.98)['map'])")
    assert f"different tokens reach {reached['other']:.0%} of" in sentence.inner_text()
    chapter.click("Reset", 1)
    assert "different tokens reach 3% of" in sentence.inner_text()


def check_the_tied(chapter):
    expected = "compute_tied({})['real'].set_index('trained')['moved'].to_dict()"
    value = "dlogp of B per unit of learning rate (nats)"

    def real():
        return numbers(chapter, 2, "point", "trained", value)

    assert real() == pytest.approx(chapter.python(expected.format("")), abs=1e-6)
    chapter.drag("draw of the embeddings", 1.0)
    assert real() == pytest.approx(chapter.python(expected.format("seed=19")), abs=1e-6)
    chapter.choose("B reads", "another word")
    assert real() == pytest.approx(chapter.python(expected.format("seed=19, b_reads='another word'")), abs=1e-6)
