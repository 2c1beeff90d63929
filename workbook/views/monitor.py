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
from workbook.views.live import LiveChart, close, refresh, show
from workbook.views.monitor_chart import monitor_chart, monitor_frame, monitor_rows
from workbook.views.monitor_text import completions_html, diagnoses, sentence
from workbook.views.step_rollouts import StepRollouts
from workbook.views.style import notice

ENDED = {"finished": "success", "stopped": "warning", "failed": "danger", "interrupted": "warning"}
RESUMABLE = ("stopped", "failed", "interrupted")
NOTHING = pd.DataFrame({"step": pd.Series(dtype=int), "reward": pd.Series(dtype=float)})
UNSTARTED = {"state": "not started", "step": 0, "total": 0, "message": "Press Start."}
KILL_AFTER_S = 5.0  # of stopping, after which a run may be killed instead


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
    stop() and resume(); also one that another kernel began:

        from workbook import RunMonitor
        from workbook.training import latest_run

        RunMonitor(latest_run("chain"))

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
        self.chart.on_click(self._clicked)
        self._on_step: list[Callable[[int], None]] = []
        self.rollouts = StepRollouts(lambda: self.run)
        self.progress = ipywidgets.IntProgress(min=0, max=1, layout={"width": "320px"})
        self.line = ipywidgets.HTML(layout={"max_width": "860px"})
        self.diagnosis = ipywidgets.HTML(layout={"max_width": "860px"})
        self.completions = ipywidgets.HTML(layout={"max_width": "860px", "height": "220px", "overflow": "auto"})
        self.completions.tabbable = True  # what scrolls is reached by keys
        self.start_button = self._button("Start", "play", self.start, button_style="primary")
        self.stop_button = self._button("Stop", "stop", self.stop, tooltip="Stop after the step in hand")
        look = {"button_style": "danger", "tooltip": "End its process now, within its step"}
        self.kill_button = self._button("Kill", "times", self.kill, **look)
        self.resume_button = self._button("Resume", "play", self.resume, tooltip="Go on from its checkpoint")
        buttons = [self.stop_button, self.kill_button, self.resume_button, self.progress]
        controls = ipywidgets.HBox([self.start_button, *buttons] if start else buttons)
        self.box = ipywidgets.VBox(
            [controls, self.line, self.chart, self.diagnosis, self.rollouts.box, self.completions]
        )
        self.box.add_class("workbook-monitor")
        self._answer(self._look)

    def display(self) -> None:
        """Put it on the page, and watch the run from now on."""
        self._handle = show(self.box, self.chart)
        self._follow()

    def _ipython_display_(self, **_) -> None:
        self.display()

    def watch(self) -> None:
        """Follow the run from now on, where `box` stands in a page of its own."""
        self._follow()

    def on_step(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the step of a curve's point that is clicked, e.g. a heatmap's `show_step`.

        Without one a click shows the step's rollouts below the curves, if the run records its tokens.
        """
        if not callable(callback):
            raise ValueError(f"callback={callback!r} must be a function of a step, e.g. TokenHeatmap(run).show_step.")
        self._on_step.append(callback)

    def close(self) -> None:
        """Take it off the page and free it; the run goes on."""
        self.rollouts.close()
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
        """A table of metrics for each curve, the newest last, with columns run and, where several share it, series."""
        return [self._metrics.assign(run=self.label)]

    def _with_beside(self, curves: list[pd.DataFrame]) -> pd.DataFrame | None:
        """The curves to compare with, and these beside them."""
        curves = [table for table in (self.beside, *curves) if table is not None and len(table)]
        return pd.concat(curves, ignore_index=True) if curves else self.beside

    def _tables(self, steps: int) -> dict[str, pd.DataFrame]:
        """Tables of the chart: the newest curve thick, others beside it, over so many optimizer steps."""
        *others, newest = self._curves()
        label = newest["run"].iloc[0] if len(newest) else self.label
        rows = monitor_rows(newest, label, self._with_beside([table.assign(now=True) for table in others]))
        series = newest["series"].iloc[0] if "series" in newest and len(newest) else label
        return {"rows": rows, "frame": monitor_frame(rows[rows["mine"]], steps, self.target, series)}

    def _clicked(self, row: dict) -> None:
        """Tell those who asked which step was clicked; points that surround the curves are none."""
        if isinstance(step := row.get("step"), int | float) and "run" in row:
            for callback in self._on_step or [self._show_rollouts if row.get("mine") else self._name_curve]:
                self._answer(lambda callback=callback: callback(int(step)))

    def _show_rollouts(self, step: int) -> None:
        """Show a step's rollouts in the monitor's own heatmap, of a run that can have recorded them."""
        if hasattr(self.run, "token_steps"):
            self.rollouts.show_step(step)

    def _name_curve(self, _: int) -> None:
        raise ValueError("That curve is another run's: show its rollouts with TokenHeatmap(load_run(...)).")

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
