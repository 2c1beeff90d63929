"""TrainingPanel: watch a run that trains in another process, and stop it.

A thread reads the run's metrics and sets traits of widgets already on the page; it never prints and never displays,
which from a thread would land in the wrong cell. No cell need run meanwhile, so the Stop button answers at once.
"""

from __future__ import annotations

import threading
import time

import ipywidgets

from workbook.views.charts import learning_curve
from workbook.views.live import LiveChart, refresh, show

ENDED = {"finished": "success", "stopped": "warning", "failed": "danger", "interrupted": "warning"}


class TrainingPanel:
    """The learning curve of a run while it trains, with progress, a state line and Stop.

    run: anything with metrics() -> DataFrame of step and reward, status() -> dict of state, step, total and message,
    and stop().  target: a reward to draw a line at.  interval: seconds between two looks.
    """

    def __init__(self, run, target: float | None = None, interval: float = 0.5):
        self.run, self.target, self.interval = run, target, interval
        self.chart = LiveChart(self._curve(run.status()))
        self.progress = ipywidgets.IntProgress(min=0, max=1, layout={"width": "320px"})
        self.line = ipywidgets.Label()
        self.button = ipywidgets.Button(description="Stop", icon="stop", tooltip="Stop after the step in hand")
        self.button.on_click(lambda _: self.stop())
        controls = ipywidgets.HBox([self.button, self.progress])
        self.box = ipywidgets.VBox([controls, self.line, self.chart])
        self._handle, self._hint = None, ""
        self._first = None  # time and step when it was first seen past its first step
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def display(self) -> None:
        """Put the panel on the page and start watching."""
        self._handle = show(self.box, self.chart)
        self._thread.start()

    def wait(self) -> dict:
        """Block until the run ends, the chart moving on, and leave its last picture behind; returns its status.

        A kernel answers no button while a cell runs, so interrupting it is what stops the run here.

        A failed run raises a RuntimeError with its message.
        """
        if self._handle is None:
            self.display()
        try:
            self._hint = " To stop it while this cell waits, interrupt the kernel (■)."
            while self._thread.is_alive():
                self._thread.join(0.1)
        except KeyboardInterrupt:
            self.stop()
            self._thread.join()
        self._look()
        refresh(self._handle, self.box, self.chart)
        status = self.run.status()
        if status["state"] == "failed":
            raise RuntimeError(status["message"])
        return status

    def stop(self) -> None:
        """Ask the run to stop after the step in hand; nothing once it has ended (a busy kernel delays clicks)."""
        if self.run.status()["state"] in ENDED:
            return
        self.button.disabled = True
        self.line.value = "Stopping after the step in hand ..."
        self.run.stop()

    def _curve(self, status):
        return learning_curve(self.run.metrics(), target=self.target, steps=status["total"] or None)

    def _watch(self) -> None:
        try:
            while not self._look():
                time.sleep(self.interval)
        except Exception as error:  # wait() meets it again, and raises it where it can be seen
            self.line.value = f"The run can't be read: {error}"

    def _look(self) -> bool:
        """Bring everything on the page up to date; True once the run has ended."""
        status = self.run.status()
        ended = status["state"] in ENDED
        self.chart.update(self._curve(status))
        self.progress.max, self.progress.value = max(status["total"], 1), status["step"]
        self.progress.bar_style = ENDED.get(status["state"], "")
        if ended or not self.button.disabled:
            self.line.value = self._sentence(status)
        self.button.disabled = self.button.disabled or ended
        return ended

    def _sentence(self, status: dict) -> str:
        line = f"{status['state']}: step {status['step']} of {status['total']}"
        if status["state"] == "running" and 0 < status["step"] < status["total"]:
            now, step = time.monotonic(), status["step"]
            self._first = self._first or (now, step)
            if step > self._first[1]:
                pace = (now - self._first[0]) / (step - self._first[1])
                line += f", about {pace * (status['total'] - step):.0f} s left"
        return f"{line}. {status['message']}{'' if status['state'] in ENDED else self._hint}"
