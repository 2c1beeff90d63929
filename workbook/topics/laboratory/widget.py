"""Laboratory: choose an experiment, see at once whether it makes sense, forecast it, start it, watch it.

Slow questions (what a task's file says, memory, time) are answered by a thread, which only sets traits; training and
the trial behind the forecast of time are processes of their own.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path

import ipywidgets
import pandas as pd

from workbook.tasks import get_task
from workbook.topics.laboratory.controls import Choices
from workbook.topics.laboratory.monitor import ExperimentMonitor
from workbook.topics.laboratory.settings import Plan, duration, forecast_chart, plan
from workbook.training.checks import Problem
from workbook.training.memory import at_peak, forecast_run
from workbook.training.plan import batches, fits, forecast_seconds, measure_throughput, start_trial, trial_is_done
from workbook.training.run_config import RunConfig
from workbook.training.runs import Run, start_run
from workbook.training.sweep_run import as_yaml, start_sweep
from workbook.views.explorer import Snippet
from workbook.views.live import LiveChart, close, show
from workbook.views.monitor import KILL_AFTER_S, STOPPING, kill
from workbook.views.style import notice

NO_MEMORY = pd.DataFrame({"part": ["weights"], "mib": [0.0]})


class Laboratory:
    """Choices, what is wrong with them, a forecast, the YAML of it, and a monitor whose Start trains it.

    What is forecast not to fit into memory is neither tried nor started, unless that is asked for a second time.

    start: choices to begin with, as for `experiment`.  Attributes: `choices`; `monitor`; `started`, the runs and sweeps
    begun so far, oldest first.
    """

    def __init__(self, jobs: int = 1, target: float | None = None, **start):
        self.jobs, self.started, self._trial, self._thread, self._asked = jobs, [], None, None, 0
        self._task_problem = self._warned_of = self._stopping_since = None
        self._lock, self._forecasting = threading.Lock(), False
        self.choices = Choices(**start)
        wide = {"max_width": "860px"}
        self.problem, self.task_line, self.forecast_line = (ipywidgets.HTML(layout=wide) for _ in range(3))
        self.snippet = Snippet()
        tooltips = {"Forecast": "Memory, and time by a trial", "Forecast anyway": "Try what is forecast not to fit"}
        self.forecast_button, self.anyway_button = (
            ipywidgets.Button(description=name, icon="clock-o", tooltip=tooltip) for name, tooltip in tooltips.items()
        )
        self.forecast_button.on_click(lambda _: self.forecast())
        self.anyway_button.on_click(lambda _: self.forecast(anyway=True))
        self.memory = LiveChart(forecast_chart(NO_MEMORY))
        self.memory_box = ipywidgets.VBox([self.memory], layout={"display": "none"})
        self.monitor = ExperimentMonitor(start=self.start, target=target)
        config = ipywidgets.Accordion([self.snippet], selected_index=None)
        config.set_title(0, "The same as a file for python -m workbook train (or sweep)")
        lines = [self.problem, self.task_line, config]
        forecast = ipywidgets.HBox([self.forecast_button, self.anyway_button, self.forecast_line])
        self.box = ipywidgets.VBox([self.choices.box, *lines, forecast, self.memory_box, self.monitor.box])
        self.box.add_class("workbook-laboratory")
        self.choices.observe(self._changed)
        self._changed()

    def plan(self) -> Plan:
        """The plan of the choices as they are now; its problems hold what can't be read, too."""
        try:
            return plan(**self.choices.values())
        except ValueError as error:
            return Plan(None, None, [Problem("error", str(error))])

    def start(self):
        """Start the run, or the sweep, that the choices say; ValueError, in the sentences shown, if it can't be.

        Where it is forecast not to fit into memory, the first call says so, and the second one starts it.
        """
        planned = self.plan()
        if planned.config is None:
            raise ValueError(_errors(planned))
        if self._task_problem:
            raise ValueError(self._task_problem)
        if self._warned_of != planned.config and (sentence := fits(planned.config)):
            self._warned_of, self.monitor.start_button.description = planned.config, "Start anyway"
            raise ValueError(f"{sentence} Nothing was started; Start anyway would.")
        run = start_sweep(planned.config, planned.grid, n_jobs=self.jobs) if planned.grid else start_run(planned.config)
        self.started.append(run)
        return run

    def forecast(self, anyway: bool = False) -> None:
        """Forecast memory and, where that suffices or anyway, time by a trial, in a thread.

        A second call stops the trial after the step in hand; one that comes KILL_AFTER_S seconds later kills it.
        """
        with self._lock:
            if self._forecasting:
                self._end_trial()
                return
        planned = self.plan()
        if planned.config is None:
            _show(self.forecast_line, _errors(planned), error=True)
            return
        self._stopping_since, self._forecasting = None, True
        self.anyway_button.layout.display = "none"
        self.forecast_button.description, self.forecast_button.icon = "Stop", "stop"
        self._thread = threading.Thread(target=self._forecast, args=(planned, anyway), daemon=True)
        self._thread.start()

    def display(self) -> None:
        """Put it on the page, with the monitor's empty chart as its picture."""
        show(self.box, self.monitor.chart)

    def _ipython_display_(self, **_) -> None:
        self.display()

    def close(self) -> None:
        """Take it off the page and free it; a trial stops, and what was started goes on."""
        self._stopping_since = self._stopping_since or time.monotonic()
        close(self.box)

    def _changed(self) -> None:
        """Show the problems of the choices, or their YAML; ask the task in a thread."""
        planned = self.plan()
        _show(self.problem, *(problem.sentence for problem in planned.problems), error=planned.config is None)
        self._warned_of, self.monitor.start_button.description = None, "Start"
        self.anyway_button.layout.display = "none"
        if planned.config is None:
            return
        self.snippet.text = as_yaml(planned.config, planned.grid)
        if not self._forecasting:
            _show(self.forecast_line, f"{planned.runs} {'run' if planned.runs == 1 else 'runs'}, not forecast yet.")
            self.memory_box.layout.display = "none"
        self._asked, self._task_problem = self._asked + 1, None
        threading.Thread(target=self._ask_task, args=(planned.config, self._asked), daemon=True).start()

    def _ask_task(self, config: RunConfig, asked: int) -> None:
        """Ask whether the task is there and has so many prompts; the newest question alone is answered."""
        try:
            task = get_task(config.task, **config.task_options)
            answer, problem = task.describe_split(config.num_prompts, config.eval_prompts, config.seed), None
        except Exception as error:  # whatever it is, the page should say it
            answer = problem = str(error)
        if asked == self._asked:
            self._task_problem = problem
            _show(self.task_line, *answer.split("\n"), error=problem is not None)

    def _forecast(self, planned: Plan, anyway: bool) -> None:
        folder = Path(tempfile.mkdtemp(prefix="workbook-trial-"))
        try:
            _show(self.forecast_line, "Memory ...")
            memory = at_peak(forecast_run(planned.config))
            self.memory.update(forecast_chart(memory))
            self.memory_box.layout.display = ""
            peak = f"Peak memory about {memory['mib'].sum():,.0f} MiB beside Python and its libraries."
            if not anyway and (sentence := fits(planned.config)):
                _show(self.forecast_line, peak, f"{sentence} No trial was started.", error=True)
                self.anyway_button.layout.display = ""
            elif self._stopping_since is None:
                self._trial = start_trial(planned.config, folder / "trial", anyway=True)
                _show(self.forecast_line, peak, self._measure(planned, self._trial, peak))
            else:
                _show(self.forecast_line, peak, "Stopped before its trial began: time is not forecast.")
        except Exception as problem:
            _show(self.forecast_line, str(problem), error=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with self._lock:  # a click is a Stop before, and a Forecast afterwards
                self._trial, self._forecasting = None, False
                self.forecast_button.description, self.forecast_button.icon = "Forecast", "clock-o"
                self.forecast_button.disabled, self.forecast_button.button_style = False, ""

    def _measure(self, planned: Plan, trial: Run, peak: str) -> str:
        """Follow a trial to its end; the forecast of time that it gives, in words."""
        while trial.running:
            if self._stopping_since is None:
                _show(self.forecast_line, peak, f"Time: a trial. {trial.status()['message']}")
            elif time.monotonic() - self._stopping_since >= KILL_AFTER_S:
                self.forecast_button.description, self.forecast_button.disabled = "Kill", False
                self.forecast_button.button_style = "danger"
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
            self.forecast_button.description, self.forecast_button.disabled = "Stopping", True
            _show(self.forecast_line, STOPPING)
        elif self._trial is not None and time.monotonic() - self._stopping_since >= KILL_AFTER_S:
            kill(self._trial)


def forecast_sentence(planned: Plan, measured) -> str:
    """A forecast of time in words, with what it rests on."""
    total = duration(forecast_seconds(planned.config, measured, planned.runs))
    runs = "one run" if planned.runs == 1 else f"{planned.runs} runs one after the other"
    return (
        f"Time about {total} for {runs}: {measured.start:.1f} s to start, then {batches(planned.config)} generation "
        f"batches of {measured.per_batch:.2g} s each. Measured on {measured.batches} of this very setting's batches, "
        "in a process of its own; held-out prompts come on top."
    )


def _errors(planned: Plan) -> str:
    return " ".join(problem.sentence for problem in planned.problems if problem.severity == "error")


def _show(line: ipywidgets.HTML, *sentences: str, error: bool = False) -> None:
    line.value = notice(*sentences, error=error)
