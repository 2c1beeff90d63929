"""Chapter 04 in the browser: a run started, followed, found again after a reload, and stopped, all
by hand.
"""

import re

import pytest
from playwright.sync_api import expect

SLOW = 90_000  # ms: a new process loads its libraries, on a machine that others use, too
NOT_AWAITED = """code => {
  const kernel =
    window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  window.waiting = kernel.requestExecute({code, silent: true, store_history: false}).done }"""


def line(monitor):
    return monitor.locator(".widget-html").first


def step(monitor) -> int:
    match = re.search(r"step (\d+) of", line(monitor).inner_text())
    return int(match[1]) if match else 0


def rewards(chapter, monitor, run: str) -> dict[int, float]:
    """The points of a run's reward curve, as the chart draws them."""
    marks = chapter.marks(monitor.locator("svg.marks"), "circle")
    return {
        int(mark["step"]): float(mark["reward"])
        for mark in marks
        if mark.get("run") == run and "reward" in mark
    }


def wait_for_step(monitor, least: int) -> None:
    steps = "|".join(str(n) for n in range(least, least + 500))
    expect(line(monitor)).to_contain_text(re.compile(rf"running: step ({steps}) of"), timeout=SLOW)


def test_a_run_by_hand(open_notebook):
    chapter = open_notebook("04_a_policy_you_can_know.ipynb")
    chapter.run_all()
    done = chapter.panel.locator(".workbook-monitor").nth(1)
    expect(line(done)).to_contain_text("finished: chain: held-out reward")
    assert len(rewards(chapter, done, "this run")) == 4
    expect(done.locator("td").nth(3)).to_contain_text("the answer is")
    chart, place = done.locator("svg.marks").bounding_box(), done.bounding_box()
    assert chart["x"] + chart["width"] <= place["x"] + place["width"], "the chart is cut off"
    chapter.shot("04-monitor", done)

    monitor = chapter.panel.locator(".workbook-monitor").last
    expect(line(monitor)).to_contain_text("not started")
    chapter.execute(
        "form.controls['steps'].max = 5000; form.controls['steps'].value = 3000;"
        " form.controls['group_size'].value = 4"
    )
    with chapter.no_flicker():
        chapter.click("Start")
        expect(line(monitor)).to_contain_text("starting: Loading the policy", timeout=SLOW)
        wait_for_step(monitor, 3)
        expect(line(monitor)).to_contain_text("left")
        chapter.page.wait_for_timeout(500)
        drawn = rewards(chapter, monitor, "your run 1")
    logged = chapter.python("form.monitor.run.metrics().set_index('step')['reward'].to_dict()")
    assert len(drawn) >= 3
    assert drawn == pytest.approx({n: logged[str(n)] for n in drawn}, abs=6e-4)
    assert chapter.python("form.monitor.run.config.trainer['num_generations']") == 4
    chapter.shot("04-controls-running", monitor)

    chapter.save()
    chapter.reload()
    monitor = chapter.panel.locator(".workbook-monitor").last
    expect(monitor).to_be_visible(timeout=SLOW)
    wait_for_step(monitor, step(monitor) + 3)
    chapter.page.wait_for_timeout(500)
    assert len(rewards(chapter, monitor, "your run 1")) > len(drawn)
    chapter.shot("04-controls-reloaded", monitor)

    chapter.page.evaluate(NOT_AWAITED, "await form.monitor")  # as a cell that waits for the run
    chapter.page.wait_for_timeout(500)
    seen = step(monitor)
    monitor.get_by_role("button", name="Stop").click()
    expect(line(monitor)).to_contain_text(re.compile("^stopp"), timeout=SLOW)
    expect(line(monitor)).to_contain_text("stopped: Stopped at step", timeout=SLOW)
    assert step(monitor) >= seen
    begun = chapter.python("(form.monitor.run.metrics()[['time', 'step_time']] @ [1, -1]).tolist()")
    asked = chapter.python("(form.monitor.run.folder / 'stop').stat().st_mtime")
    assert sum(moment > asked for moment in begun) <= 1, (
        "after the step in hand, at most the one that was to begin"
    )
    assert chapter.page.evaluate("async () => (await window.waiting).content.status") == "ok"
    expect(monitor.get_by_role("button", name="Resume")).to_be_enabled()
    expect(monitor.get_by_role("button", name="Stop")).to_be_disabled()

    chapter.execute("from workbook import RunMonitor; from workbook.app import latest_run")
    chapter.execute("again = RunMonitor(latest_run())\nagain")
    assert chapter.python("again.run.folder.resolve() == form.monitor.run.folder.resolve()")
    assert chapter.python("again.progress.value") == step(monitor)
    monitor.get_by_role("button", name="Resume").click()
    wait_for_step(monitor, step(monitor) + 1)
    monitor.get_by_role("button", name="Stop").click()
    expect(line(monitor)).to_contain_text("stopped: Stopped at step", timeout=SLOW)
    chapter.shot("04-controls-stopped", monitor)
    assert chapter.errors == []
