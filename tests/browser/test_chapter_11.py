"""Chapter 11 in the browser: the monitor of a 4-bit run, and a run of the reader's own from its Start button."""

import pytest
from playwright.sync_api import expect

from workbook.policies.smollm2 import SMOLLM2

SLOW = 120_000  # ms


@pytest.fixture(scope="module")
def fetched():
    """SmolLM2 in the cache: fetching and converting it is no part of a chapter."""
    try:
        return SMOLLM2.folder()
    except RuntimeError as error:
        pytest.skip(str(error))


def test_the_monitor_of_a_four_bit_run_and_of_ones_own(fetched, open_chapter):
    chapter = open_chapter("11")
    chapter.run_all()
    monitors = chapter.panel.locator(".workbook-monitor")
    expect(monitors).to_have_count(3)  # while it trains, waiting for it, and the reader's own
    for monitor in (monitors.nth(0), monitors.nth(1)):
        expect(monitor).to_contain_text("finished: smollm2")
        (point,) = chapter.marks(monitor.locator("svg.marks"), "circle")[:1]
        assert chapter.number(point["reward"]) == pytest.approx(chapter.python("run.metrics()['reward'][0]"), abs=6e-4)
    shown = chapter.python("len(run.samples())")
    assert shown > 0
    expect(monitors.nth(1).locator("tbody tr")).to_have_count(shown)
    chapter.shot("11-monitor", monitors.nth(1))

    own = monitors.nth(2)
    expect(own).to_contain_text("not started")
    with chapter.no_flicker():
        own.get_by_role("button", name="Start").click()
        expect(own).to_contain_text("starting: Loading the policy")
        expect(own.get_by_role("button", name="Start")).to_be_disabled()
        expect(own).to_contain_text("finished: mine", timeout=SLOW)
    expect(own.locator("tbody")).to_contain_text("answer is")
    chapter.shot("11-own", own)
    assert chapter.errors == []
