"""Forecast: memory beside what is free, and time by a trial, before a run is started."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ipywidgets
import pandas as pd

from workbook.topics.laboratory.settings import Plan, duration, forecast_chart
from workbook.training.device_memory import free_mib
from workbook.training.memory import at_peak, forecast_run, run_device
from workbook.training.plan import (
    Throughput,
    batches,
    fits,
    forecast_seconds,
    measure_throughput,
    start_trial,
    trial_is_done,
)
from workbook.training.processes import kill
from workbook.training.runs import Run
from workbook.views.live import LiveChart
from workbook.views.style import notice

KILL_AFTER_S = 5.0  # of stopping, after which a trial may be killed instead
STOPPING = "stopping after the step in hand ..."
NO_MEMORY = pd.DataFrame({"part": ["weights"], "mib": [0.0]})
STALE = "The settings have changed since: these numbers are of those before."


class Forecast:
    """Two buttons, a line and a chart; `plan` gives the settings of now.

    What is forecast not to fit into memory is tried only where the second button asks for it.
    """

    def __init__(self, plan: Callable[[], Plan]):
        self._plan, self._trial, self._stopping_since = plan, None, None
        self._lock, self._running, self._stale = threading.Lock(), False, False
        tooltips = {"Forecast": "Memory, and time by a trial", "Forecast anyway": "Try what is forecast not to fit"}
        self.button, self.anyway_button = (
            ipywidgets.Button(description=name, icon="clock-o", tooltip=tooltip) for name, tooltip in tooltips.items()
        )
        self.button.on_click(lambda _: self.forecast())
        self.anyway_button.on_click(lambda _: self.forecast(anyway=True))
        self.line = ipywidgets.HTML(layout={"max_width": "860px"})
        self.memory = LiveChart(forecast_chart(NO_MEMORY))
        self.memory_box = ipywidgets.VBox([self.memory], layout={"display": "none"})
        self.anyway_button.layout.display = "none"
        self.box = ipywidgets.VBox([self.line, self.memory_box])

    def forecast(self, anyway: bool = False) -> None:
        """Forecast memory and, where that suffices or anyway, time by a trial, in a thread.

        A second call stops the trial after the step in hand; one that comes KILL_AFTER_S seconds later kills it.
        """
        with self._lock:
            if self._running:
                self._end_trial()
                return
        planned = self._plan()
        if planned.config is None:
            sentences = [problem.sentence for problem in planned.problems if problem.severity == "error"]
            self._say(*sentences, error=True)
            return
        self._stopping_since, self._running, self._stale = None, True, False
        self.anyway_button.layout.display = "none"
        self.button.description, self.button.icon = "Stop", "stop"
        threading.Thread(target=self._forecast, args=(planned, anyway), daemon=True).start()

    def changed(self, planned: Plan) -> None:
        """Take numbers off the page that are not those of the settings of now."""
        self.anyway_button.layout.display = self.memory_box.layout.display = "none"
        self._stale = self._running
        if not self._running:
            runs = "1 run" if planned.runs == 1 else f"{planned.runs} runs"
            self._say(*[] if planned.config is None else [f"{runs}, not forecast yet."])

    def stop(self) -> None:
        """End a trial that is going on, after the step in hand."""
        self._stopping_since = self._stopping_since or time.monotonic()

    def _forecast(self, planned: Plan, anyway: bool) -> None:
        folder = Path(tempfile.mkdtemp(prefix="workbook-trial-"))
        try:
            self._say("Memory ...")
            memory, device = at_peak(forecast_run(planned.config)), run_device(planned.config)
            free = free_mib(device)
            self.memory.update(forecast_chart(memory, free=free))
            self.memory_box.layout.display = "none" if self._stale else ""
            total = f"Peak memory about {memory['mib'].sum():,.0f} MiB beside Python and its libraries"
            peak = f"{total}; {free:,.0f} MiB are free on {device.type}."
            if not anyway and (sentence := fits(planned.config)):
                self._say(f"{sentence} No trial was started.", error=True)
                self.anyway_button.layout.display = "none" if self._stale else ""
            elif self._stopping_since is None:
                self._trial = start_trial(planned.config, folder / "trial", anyway=True)
                self._say(peak, self._measure(planned, self._trial, peak))
            else:
                self._say(peak, "Stopped before its trial began: time is not forecast.")
        except Exception as problem:  # whatever it is, the page should say it
            self._say(str(problem), error=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with self._lock:  # a click is a Stop before, and a Forecast afterwards
                self._trial, self._running = None, False
                self.button.description, self.button.icon = "Forecast", "clock-o"
                self.button.disabled, self.button.button_style = False, ""

    def _measure(self, planned: Plan, trial: Run, peak: str) -> str:
        """Follow a trial to its end; the forecast of time that it gives, in words."""
        while trial.running:
            if self._stopping_since is None:
                self._say(peak, f"Time: a trial. {trial.status()['message']}")
            elif time.monotonic() - self._stopping_since >= KILL_AFTER_S:
                self.button.description, self.button.disabled = "Kill", False
                self.button.button_style = "danger"
            if (self._stopping_since is not None or trial_is_done(trial)) and not trial.stopping:
                trial.stop()
            time.sleep(0.2)
        try:
            return forecast_sentence(planned, measure_throughput(trial))
        except ValueError:
            if self._stopping_since is None:
                raise
            return "Stopped before its trial had finished a generation batch: time is not forecast."

    def _end_trial(self) -> None:
        """Stop the trial after the step in hand and say so at once; kill it once the button says so."""
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self.button.description, self.button.disabled = "Stopping", True
            self._say(STOPPING)
        elif self._trial is not None and time.monotonic() - self._stopping_since >= KILL_AFTER_S:
            kill(self._trial.status())

    def _say(self, *sentences: str, error: bool = False) -> None:
        self.line.value = notice(*sentences, *[STALE] * self._stale, error=error)


def forecast_sentence(planned: Plan, measured: Throughput) -> str:
    """A forecast of time in words, with what it rests on."""
    config = planned.config
    total = duration(forecast_seconds(config, measured, planned.runs))
    runs = "one run" if planned.runs == 1 else f"{planned.runs} runs one after the other"
    held_out = ""
    if config.eval_prompts and measured.held_out is not None:
        held_out = f", and twice {config.eval_prompts} held-out prompts of {measured.held_out:.2g} s each"
    elif config.eval_prompts:
        held_out = "; held-out prompts come on top"
    return (
        f"Time about {total} for {runs}: {measured.start:.1f} s to start, then {batches(config)} generation "
        f"batches of {measured.per_batch:.2g} s each{held_out}. Measured on {measured.batches} of this very setting's "
        "batches, in a process of its own."
    )
