"""The monitor draws what a run logged, follows it to its end without being drawn anew, stops and
resumes it.
"""

import asyncio
import gc
import json
import threading
import time
import weakref

import numpy as np
import pandas as pd
import pytest
from IPython.utils.capture import capture_output
from ipywidgets.widgets.widget import _instances
from refusals import refused
from test_views import HOSTILE, WIDGET, shown

from workbook.app.monitor import (
    PANELS,
    RunMonitor,
    completions_html,
    monitor_chart,
    monitor_frame,
    monitor_rows,
    monitor_table,
    sentence,
)
from workbook.views.live import shared, spec_over
from workbook.views.style import png

pytestmark = pytest.mark.usefixtures("shell")


def logged(n, **columns):
    """What a run of n steps logs, four of them to a generation batch."""
    step = np.arange(1, n + 1)
    sampled = step % 4 == 1
    return pd.DataFrame(
        {
            "step": step,
            "reward": np.where(sampled, 0.4 + 0.5 * step / (n + 1), np.nan),
            "grad_norm": 0.1,
            "entropy": 0.3,
            "cancellation/batch_residual": np.where(sampled, 0.2, np.nan),
            "clip_ratio/region_mean": 0.05,
            "num_tokens": np.where(sampled, 100.0 * (step + 3) // 4, np.nan),
            "step_time": np.where(sampled, 2.0, 1.0),
            "peak_memory_mib": 800.0,
            **columns,
        }
    )


# --- what is drawn
def test_the_table_has_a_row_for_each_logged_value():
    table = monitor_table(logged(8))
    of_each = {"gradient norm": 8, "entropy": 8, "clipped": 8, "memory": 8}
    of_sampled = {"reward": 2, "residual": 2, "speed": 2}
    assert table["panel"].value_counts().to_dict() == of_each | of_sampled
    assert (table.query("panel == 'memory'")["value"] == 800).all()
    assert table.query("panel == 'reward'")["step"].tolist() == [1, 5]
    with pytest.raises(ValueError, match="reward"):
        monitor_table(logged(3).drop(columns="reward"))


def test_a_long_run_is_thinned_to_its_newest_step():
    table = monitor_table(logged(5000), max_points=100)
    counts = table["panel"].value_counts()
    assert counts.max() <= 100
    assert counts["memory"] > 50
    assert table.query("panel == 'memory'")["step"].max() == 5000


@pytest.mark.parametrize("n", [0, 1, 60])
def test_the_spec_is_the_same_at_every_step(n):
    def tables(metrics, total):
        rows = monitor_rows(metrics, "this run", logged(9, run="another") if n else None)
        return {"rows": rows, "frame": monitor_frame(monitor_table(metrics), total)}

    spec = spec_over(monitor_chart, tables(logged(n), 60))
    assert spec == spec_over(monitor_chart, tables(logged(7), 0))
    text = json.dumps(spec)
    for panel in PANELS.values():
        assert panel.title in text
    drawn = monitor_chart(**tables(logged(n), 60), legend=True).to_dict()
    assert drawn["description"]
    assert png(drawn, scale=1).startswith(b"\x89PNG")


def test_the_line_says_how_long_a_run_has_taken_and_will_take():
    status = {"state": "running", "step": 4, "total": 10, "message": "Training."}
    assert (
        sentence(status, logged(4))
        == "running: step 4 of 10, 5 s so far, about 7.5 s left. Training."
    )
    first = "the first will tell how long all take"
    assert sentence(status | {"step": 0}, logged(0)) == f"running: step 0 of 10; {first}. Training."
    starting = sentence(status | {"state": "starting", "message": "Loading the policy."}, logged(0))
    assert (
        starting == "starting: Loading the policy ... The first step will tell how long all take."
    )


def test_completions_stay_text():
    frame = pd.DataFrame(
        {"step": 3, "prompt": "2 + 2 =", "completion": HOSTILE, "reward": 0.0, "advantage": -0.5}
    )
    table = completions_html(frame)
    assert "&lt;script&gt;alert(1)" in table
    assert "<script" not in table
    assert "<img" not in table
    assert "\\u202eevil\\u2066" in table
    assert "a⏎b\\u0000\\u001b[31m" in table
    assert table.isprintable()
    assert "2 + 2 =" in table, "a space stays a space"
    assert "sampled for step 3" in table
    assert "No completions" in completions_html(frame.head(0))


# --- the shell
class FakeRun:
    """Ten steps, one per look, or until stopped."""

    def __init__(self, ends="finished", total=10):
        self.looks, self.ends, self.total, self.resumed = 0, ends, total, 0
        self._stop = threading.Event()

    def metrics(self):
        return logged(min(self.looks, self.total))

    def samples(self):
        return pd.DataFrame(
            {
                "step": [self.looks],
                "prompt": ["p"],
                "completion": ["<b>c</b>"],
                "reward": [1.0],
                "advantage": [0.5],
            }
        )

    @property
    def stopping(self):
        return self._stop.is_set()

    def status(self):
        self.looks += not self.stopping
        state = "stopped" if self.stopping else self.ends if self.looks > self.total else "running"
        return {
            "state": state,
            "step": min(self.looks, self.total),
            "total": self.total,
            "message": "<b>hello</b>",
        }

    def stop(self):
        self._stop.set()

    def resume(self):
        self.resumed += 1
        self._stop.clear()


class Endless(FakeRun):
    """At step 3 of 10 until stopped."""

    def status(self):
        state = "stopped" if self.stopping else "running"
        return {"state": state, "step": 3, "total": 10, "message": ""}

    def metrics(self):
        return logged(3)


def wait(monitor) -> dict:
    return asyncio.run(monitor.until())


def test_monitor_follows_a_run_to_its_end_without_being_drawn_anew():
    # who waits looks, too
    monitor, changes = RunMonitor(FakeRun(total=40), target=0.8, interval=0.001), []
    monitor.chart.observe(lambda change: changes.append(change["name"]))
    outputs = shown(lambda: (monitor.display(), wait(monitor)))
    assert [set(data) for data in outputs] == [{WIDGET, "image/png", "text/plain"}] * 2
    assert outputs[0]["image/png"] != outputs[1]["image/png"]
    assert "spec" not in changes
    assert changes.count("data") >= 5
    drawn = pd.DataFrame(monitor.chart.data["rows"])
    assert len(drawn.query("panel == 'memory'")) == monitor.progress.value == 40
    assert monitor.stop_button.disabled
    assert monitor.resume_button.disabled
    assert "finished: &lt;b&gt;hello" in monitor.line.value
    assert "&lt;b&gt;c&lt;/b&gt;" in monitor.completions.value
    assert not monitor._watching


def test_awaiting_a_run_lets_others_work_meanwhile():
    monitor, ticks = RunMonitor(FakeRun(total=40), interval=0.01), []

    async def tick():
        while True:
            ticks.append(await asyncio.sleep(0.01))

    async def cell():
        other = asyncio.create_task(tick())
        reached = await monitor.until(step=20)
        status = await monitor
        other.cancel()
        return reached, status

    with capture_output():
        reached, status = asyncio.run(cell())
    assert reached["state"] == "running"
    assert 20 <= reached["step"] < 40
    assert status["state"] == "finished"
    assert len(ticks) > 5


def test_a_cancelled_wait_stops_the_run():
    run = Endless()
    monitor = RunMonitor(run, interval=0.001)

    async def cell():
        waiting = asyncio.ensure_future(monitor.until())
        await asyncio.sleep(0.05)
        waiting.cancel()
        return await waiting

    with capture_output():
        assert asyncio.run(cell())["state"] == "stopped"
    assert run.stopping


def test_stop_and_resume_at_a_click():
    run = Endless()
    monitor = RunMonitor(run, interval=0.001)
    with capture_output():
        monitor.display()
        time.sleep(0.05)
        assert monitor._watching
        assert monitor.resume_button.disabled
        monitor.stop_button.click()
        assert monitor.stop_button.disabled
        assert wait(monitor)["state"] == "stopped"
        assert monitor.progress.bar_style == "warning"
        monitor.resume_button.click()
        assert run.resumed == 1
        assert monitor._watching
        monitor.stop()
        assert wait(monitor)["state"] == "stopped"


def test_what_is_wrong_is_said_below_the_curves():
    run = FakeRun()
    run.metrics = lambda: logged(12, frac_reward_zero_std=1.0, **{"completions/clipped_ratio": 1.0})
    monitor = RunMonitor(run, interval=0.001)
    assert 'role="status"' in monitor.diagnosis.value
    assert "No group held two different rewards in 12 steps" in monitor.diagnosis.value
    assert "cut off at the limit" in monitor.diagnosis.value
    run.metrics = lambda: logged(13)
    run.looks = 13
    monitor._look()
    assert monitor.diagnosis.value == ""


def test_start_begins_a_run_and_keeps_the_last_one_beside_it():
    runs = []
    monitor = RunMonitor(start=lambda: runs.append(FakeRun()) or runs[-1], interval=0.001)
    assert "not started" in monitor.line.value
    assert monitor.stop_button.disabled
    assert monitor.chart.layout.display == "none", "there is nothing to draw"
    for _ in range(2):
        monitor.start_button.click()
        monitor._thread.join()
    assert monitor.chart.layout.display == ""
    assert {row["run"] for row in monitor.chart.data["rows"]} == {"your run 1", "your run 2"}
    assert [row["mine"] for row in monitor.chart.data["rows"] if row["run"] == "your run 1"].count(
        True
    ) == 0
    with refused("run", None):
        RunMonitor()


def test_wait_raises_what_ended_the_run():
    with capture_output(), pytest.raises(RuntimeError, match="hello"):
        asyncio.run(RunMonitor(FakeRun(ends="failed"), interval=0.001).until())


def test_a_run_that_can_not_be_read():
    run = FakeRun()
    monitor = RunMonitor(run, interval=0.001)
    run.metrics = lambda: (_ for _ in ()).throw(OSError("gone"))
    with capture_output(), pytest.raises(OSError, match="gone"):
        wait(monitor)
    assert "gone" in monitor.line.value


@pytest.mark.parametrize("keywords", [{"run": FakeRun()}, {"start": FakeRun}])
def test_a_closed_monitor_is_freed(keywords):
    shared()  # which stays
    before = set(_instances)
    monitor = RunMonitor(**keywords, interval=0.001)
    monitor._follow()
    if monitor._thread:
        monitor._thread.join()
    references = [weakref.ref(monitor), weakref.ref(monitor.chart)]
    monitor.close()
    del monitor
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert set(_instances) <= before
