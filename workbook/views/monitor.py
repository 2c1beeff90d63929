"""RunMonitor: watch a run that trains in another process, stop it, resume it, or start one.

A thread reads the run's folder and sets traits of widgets already on the page; it never prints and never displays,
which from a thread would land in the wrong cell. The thread ends with the run, and the run needs neither this kernel
nor this page, so a new monitor finds it again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable

import ipywidgets
import pandas as pd
import psutil

from workbook.training.background import is_alive
from workbook.training.diagnosis import diagnose
from workbook.views.live import LiveChart, close, refresh, show
from workbook.views.monitor_chart import as_number, monitor_chart, monitor_frame, monitor_rows, numbers
from workbook.views.style import escape, notice, visible

ENDED = {"finished": "success", "stopped": "warning", "failed": "danger", "interrupted": "warning"}
RESUMABLE = ("stopped", "failed", "interrupted")
NOTHING = pd.DataFrame({"step": pd.Series(dtype=int), "reward": pd.Series(dtype=float)})
UNSTARTED = {"state": "not started", "step": 0, "total": 0, "message": "Press Start."}
STOPPING = "stopping after the step in hand ..."
MAX_DIAGNOSES = 3  # sentences below the curves of a sweep
KILL_AFTER_S = 5.0  # of stopping, after which a run may be killed instead
TABLE = "border-spacing: 8px 2px; font-size: 12px; line-height: 1.35"
TEXT = "font-family: monospace; overflow-wrap: anywhere; unicode-bidi: isolate; vertical-align: top"


def seconds_left(metrics: pd.DataFrame, total: int, recent: int = 20) -> float | None:
    """Seconds until step `total` at the mean time of the most recent steps; None where step_time is not logged."""
    metrics = numbers(metrics)
    seconds = metrics["step_time"].tail(recent).mean() if "step_time" in metrics else float("nan")
    steps = total - int(metrics["step"].max()) if len(metrics) else 0
    return seconds * steps if steps > 0 and pd.notna(seconds) else None


def sentence(status: dict, metrics: pd.DataFrame, stopping: bool = False) -> str:
    """A run's state in words: what it does, how far it is, how long it will still take.

    >>> sentence({"state": "starting", "message": "Loading the policy."}, pd.DataFrame())
    'starting: Loading the policy ...'
    """
    state, message = status["state"], status["message"]
    if stopping:
        return STOPPING
    if state == "starting":
        return f"starting: {message.rstrip('.')} ..."
    if state != "running":
        return f"{state}: {message}"
    seconds = seconds_left(metrics, status["total"])
    time_left = ""
    if seconds is not None:
        time_left = f", about {seconds:.0f} s left" if seconds < 100 else f", about {seconds / 60:.0f} min left"
    return f"running: step {status['step']} of {status['total']}{time_left}. {message}"


def diagnoses(run, metrics: pd.DataFrame) -> list[str]:
    """What is wrong with a run, as its logged numbers tell; of a sweep the worst of each run, by its name.

    metrics: of a single run, as read last.
    """
    if not hasattr(run, "runs"):
        return diagnose(numbers(metrics))
    wrong = {name: sentences for name, one in run.runs.items() if (sentences := diagnose(numbers(one.metrics())))}
    lines = [f"{name}: {sentences[0]}" for name, sentences in list(wrong.items())[:MAX_DIAGNOSES]]
    more = len(wrong) - len(lines)
    return [*lines, f"{more} more of {len(run.runs)} runs have something wrong."] if more else lines


def completions_html(samples: pd.DataFrame) -> str:
    """The newest completions as an HTML table in which a model's text is text: no markup, nothing invisible.

    samples: columns step, prompt, completion, reward, advantage, as of `Run.samples`.
    """
    if not len(samples):
        return "<i>No completions yet.</i>"
    rows = []
    for row in samples.itertuples():
        texts = (escape(visible(text, 500, space=" ")) for text in (row.prompt, row.completion))
        cells = "".join(f'<td dir="ltr" style="{TEXT}">{text}</td>' for text in texts)
        reward, advantage = as_number(row.reward), as_number(row.advantage)
        rows.append(f"<tr><td>{reward:.3g}</td><td>{advantage:+.2f}</td>{cells}</tr>")
    names = ("reward", "advantage", "prompt", "completion")
    head = "".join(f'<th style="text-align: left">{name}</th>' for name in names)
    step = escape(samples["step"].iloc[0])
    caption = f'<caption style="text-align: left">Some completions sampled for step {step}</caption>'
    return f'<table style="{TABLE}">{caption}<thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def kill(run) -> None:
    """End a run's process and all that it started, at once; its state is then interrupted, and resume() goes on.

    Nothing if it has ended.  Raises ValueError for a run that trains in this very process.
    """
    process = run.status()
    if not is_alive(process):
        return
    if (pid := process["pid"]) == os.getpid():
        raise ValueError("The run trains in this kernel's own process: interrupt the kernel instead.")
    if hasattr(os, "killpg") and os.getpgid(pid) == pid:  # so it was begun: its group is its own
        os.killpg(pid, signal.SIGKILL)
    else:
        psutil.Process(pid).kill()


class RunMonitor:
    """A run's curves, state, progress and newest completions, live, with Stop, Resume and, where it may, Start.

    A run that still stops after KILL_AFTER_S seconds may be killed: a step can take long.

    run: what to watch, a `workbook.training.Run` or anything else with its metrics(), samples(), status(), stopping,
    stop() and resume(); also one that another kernel began: `RunMonitor(latest_run("chain"))`.
    start: a callable that begins a run, for the Start button; the new run is drawn beside the one before.
    target: a reward to draw a line at.  beside: metrics of other runs with a column run, their names.
    interval: seconds between two readings of the run's folder.

    `await monitor` waits for the run's end while the buttons answer.  ValueError where there is neither run nor start.
    """

    def __init__(
        self,
        run=None,
        start: Callable | None = None,
        target: float | None = None,
        beside: pd.DataFrame | None = None,
        interval: float = 0.5,
    ):
        if run is None and start is None:
            raise ValueError("RunMonitor needs run=, a run to watch, or start=, a function that begins one.")
        if run is not None and not hasattr(run, "status"):
            raise ValueError(f"run={run!r} is no run; give what start_run, load_run or latest_run returns.")
        if start is not None and not callable(start):
            raise ValueError(f"start={start!r} must be a function that begins a run and returns it.")
        self.run, self._start, self.target, self.beside = run, start, target, beside
        self.label, self.started = "your run 1" if run is None else "this run", 0
        self.interval = interval
        self._metrics, self._total, self._seen = NOTHING, 0, None
        self._handle = self._thread = self._stopping_since = None
        legend = beside is not None or start is not None
        self.chart = LiveChart.over(lambda rows, frame: monitor_chart(rows, frame, legend), **self._tables(0))
        self.progress = ipywidgets.IntProgress(min=0, max=1, layout={"width": "320px"})
        self.line = ipywidgets.HTML(layout={"max_width": "860px"})
        self.diagnosis = ipywidgets.HTML(layout={"max_width": "860px"})
        self.completions = ipywidgets.HTML(layout={"max_width": "860px", "height": "220px", "overflow": "auto"})
        self.start_button = self._button("Start", "play", self.start, button_style="primary")
        self.stop_button = self._button("Stop", "stop", self.stop, tooltip="Stop after the step in hand")
        look = {"button_style": "danger", "tooltip": "End its process now, within its step"}
        self.kill_button = self._button("Kill", "times", self.kill, **look)
        self.resume_button = self._button("Resume", "play", self.resume, tooltip="Go on from its checkpoint")
        buttons = [self.stop_button, self.kill_button, self.resume_button, self.progress]
        controls = ipywidgets.HBox([self.start_button, *buttons] if start else buttons)
        self.box = ipywidgets.VBox([controls, self.line, self.chart, self.diagnosis, self.completions])
        self.box.add_class("workbook-monitor")
        self._answer(self._look)

    def display(self) -> None:
        """Put it on the page, and watch the run from now on."""
        self._handle = show(self.box, self.chart)
        self._follow()

    def _ipython_display_(self, **_) -> None:
        self.display()

    def close(self) -> None:
        """Take it off the page and free it; the run goes on."""
        for widget in (self.box, self.start_button):  # which is in the box only where it may start runs
            close(widget)

    def start(self) -> None:
        """Begin a new run and watch it; the one before becomes a curve beside it. Nothing while one is going on."""
        if self.run is not None and self.run.status()["state"] not in ENDED:
            return
        run = self._start()
        self.beside = self._with_beside(self._curves() if self.run is not None else [])
        self.run, self.started = run, self.started + 1
        self.label = f"your run {self.started}"
        self._metrics, self._total, self._seen = NOTHING, 0, None
        self._follow()

    def stop(self) -> None:
        """Ask the run to stop after the step in hand; nothing once it has ended (a busy kernel delays clicks)."""
        if self.run.status()["state"] not in ENDED:
            self.run.stop()
            self._look()

    def kill(self) -> None:
        """End the run's process now, within its step; nothing once it has ended."""
        if self.run.status()["state"] not in ENDED:
            kill(self.run)

    def resume(self) -> None:
        """Let a stopped run go on from its newest checkpoint, and watch it; one that already does is only watched."""
        if self.run.status()["state"] in ENDED:
            self.run.resume()
        self._follow()

    def wait(self) -> dict:
        """Block until the run ends and return its status; interrupting the kernel stops the run.

        No button answers meanwhile: in a notebook, `await monitor` instead.  Raises RuntimeError if the run failed.
        """
        self._on_page()
        try:
            while self._watching:
                self._thread.join(0.1)
        except KeyboardInterrupt:
            self.stop()
            self._thread.join()
        return self._settle()

    async def until(self, step: float = float("inf")) -> dict:
        """Wait until the run has reached a step, or ended, and return its status; buttons answer meanwhile.

        Interrupting the kernel stops the run, too.  Raises RuntimeError if the run failed.
        """
        self._on_page()
        try:
            await self._reached(step)
        except asyncio.CancelledError:  # how an interrupt arrives here
            self.stop()
            await self._reached(float("inf"))
        return self._settle()

    def __await__(self):
        return self.until().__await__()

    async def _reached(self, step: float) -> None:
        while self._watching and self.run.status()["step"] < step:
            await asyncio.sleep(0.1)  # the kernel notices clicks and interrupts in between

    @property
    def _watching(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _on_page(self) -> None:
        if self._handle is None:
            self.display()

    def _settle(self) -> dict:
        """The run's status; if it has ended, the last look and the picture that stays where no kernel runs."""
        status = self.run.status()
        if not self._watching:
            self._look()
            refresh(self._handle, self.box, self.chart)
        if status["state"] == "failed":
            raise RuntimeError(status["message"])
        return status

    def _follow(self) -> None:
        if self.run is not None and not self._watching:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        try:
            while self.box.comm is not None and not self._look():  # a closed widget has no comm
                time.sleep(self.interval)
        except Exception as error:  # _settle() meets it again, and raises it where it can be seen
            self._show_line(f"The run can't be read: {error}", error=True)

    def _look(self) -> bool:
        """Bring everything on the page up to date; True once the run has ended, or if there is none yet."""
        status = self.run.status() if self.run is not None else dict(UNSTARTED)
        self._total = status["total"] = status["total"] or self._total  # a run that starts again knows it only later
        state, ended = status["state"], status["state"] in ENDED
        if (seen := (id(self.run), status["step"], status["total"])) != self._seen:
            if self.run is not None:
                self._metrics = self.run.metrics()
                self.completions.value = completions_html(self.run.samples())
                self.diagnosis.value = notice(*diagnoses(self.run, self._metrics), error=True)
            self.chart.push(**self._tables(status["total"]))
            self._seen = seen
        self.progress.max, self.progress.value = max(status["total"], 1), status["step"]
        self.progress.bar_style = ENDED.get(state, "")
        running = self.run is not None and not ended
        self.start_button.disabled = running
        stopping = running and self.run.stopping
        self.stop_button.disabled = stopping or not running
        self._stopping_since = (self._stopping_since or time.monotonic()) if stopping else None
        overdue = stopping and time.monotonic() - self._stopping_since >= KILL_AFTER_S
        self.kill_button.layout.display = "" if overdue else "none"
        self.resume_button.disabled = state not in RESUMABLE
        self._show_line(sentence(status, self._metrics, stopping), error=state == "failed")
        return not running

    def _curves(self) -> list[pd.DataFrame]:
        """Metrics of what is watched with a column run, their name: one table for each curve, the newest last."""
        return [self._metrics.assign(run=self.label)]

    def _with_beside(self, curves: list[pd.DataFrame]) -> pd.DataFrame | None:
        """The curves to compare with, and these beside them."""
        curves = [table for table in (self.beside, *curves) if table is not None and len(table)]
        return pd.concat(curves, ignore_index=True) if curves else self.beside

    def _tables(self, steps: int) -> dict[str, pd.DataFrame]:
        """Tables of the chart: the newest curve thick, others beside it, over so many optimizer steps."""
        *others, newest = self._curves()
        label = newest["run"].iloc[0] if len(newest) else self.label
        rows = monitor_rows(newest.drop(columns="run"), label, self._with_beside(others))
        return {"rows": rows, "frame": monitor_frame(rows[rows["mine"]], steps, self.target, label)}

    def _button(self, label: str, icon: str, act: Callable, **look) -> ipywidgets.Button:
        button = ipywidgets.Button(description=label, icon=icon, **look)
        button.on_click(lambda _: self._answer(act))
        return button

    def _answer(self, act: Callable) -> None:
        """Do what a button says and show what an error says, since nobody reads a kernel's log."""
        try:
            act()
        except Exception as error:
            self._show_line(str(error), error=True)

    def _show_line(self, text: str, error: bool = False) -> None:
        self.line.value = notice(text, error=error, announced=False)
