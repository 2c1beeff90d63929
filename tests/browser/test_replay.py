"""The committed run of 300 steps in the browser: its monitor and its tokens, step by step; nothing
is trained.
"""

import re

from playwright.sync_api import expect

SLOW = 30_000  # ms on a machine that others use, too
REPLAY = """
from workbook import RunMonitor
from workbook.training import load_run
run = load_run("../data/smollm2/run_300")
monitor = RunMonitor(run)
monitor
"""


def test_a_committed_run_is_watched_and_walked_without_training(run_cells):
    chapter = run_cells(REPLAY)
    monitor = chapter.panel.locator(".workbook-monitor")
    expect(monitor).to_contain_text("finished", timeout=SLOW)
    chapter.settle()
    points = [
        mark for mark in chapter.marks(monitor.locator("svg.marks"), "circle") if "reward" in mark
    ]
    assert [int(mark["step"]) for mark in points] == [*range(1, 301)]
    for name in ("Stop", "Resume"):
        expect(monitor.get_by_role("button", name=name)).to_be_disabled()
    first = monitor.locator("[aria-roledescription='circle']").first
    first.scroll_into_view_if_needed()
    first.click(force=True)
    slider = chapter.panel.get_by_role("slider", name="recorded step")
    expect(slider).to_be_visible(timeout=SLOW)
    slider.focus()
    chapter.page.keyboard.press("End")
    expect(chapter.panel.locator(".th-grid").first).to_have_attribute(
        "aria-label", re.compile(r"at step 300\b")
    )
    chapter.settle()
    assert chapter.python("monitor.rollouts.children[0].step") == 300
    chapter.shot("replay-of-300-steps", monitor)
    assert chapter.python("run.running or monitor.started > 0") is False
    assert chapter.errors == []
