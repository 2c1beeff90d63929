"""Laboratory: choose an experiment, see at once whether it makes sense, forecast it, start it, watch it.

Slow questions (what a task's file says, memory, time) are answered by a thread, which only sets traits; training and
the trial behind the forecast of time are processes of their own.
"""

from __future__ import annotations

import html
import shutil
import tempfile
import threading
import time
from pathlib import Path

import ipywidgets
import pandas as pd

from workbook.tasks import get_task
from workbook.training.checks import Problem
from workbook.training.memory import at_peak, forecast_run
from workbook.training.plan import batches, forecast_seconds, long_enough, pace, start_trial
from workbook.training.run_config import RunConfig
from workbook.training.runs import start_run
from workbook.training.sweep_run import SweepRun, as_yaml, start_sweep
from workbook.views.choices import Choices
from workbook.views.experiment import Plan, duration, forecast_chart, plan
from workbook.views.live import LiveChart, show
from workbook.views.monitor import ENDED, NOTHING, RunMonitor
from workbook.views.monitor_chart import monitor_frame, monitor_rows
from workbook.views.snippet import Snippet

NO_MEMORY = pd.DataFrame({"part": ["weights"], "mib": [0.0]})


class ExperimentMonitor(RunMonitor):
    """A `RunMonitor` that also watches sweeps: each of its runs is a curve, the one that trains now the thick one."""

    def start(self) -> None:
        """Begin what the choices say and watch it; what went before stays as curves. Nothing while one is going on."""
        if self.run is not None and self.run.status()["state"] not in ENDED:
            return
        run = self._start()
        self.beside = self._with_beside(self._drawn() if self.run is not None else [])
        self.run, self.started = run, self.started + 1
        self.label = f"your run {self.started}"
        self._metrics, self._total, self._seen = NOTHING, 0, None
        self._follow()

    def _drawn(self) -> list[pd.DataFrame]:
        """Metrics of this run, or of each of a sweep's, the newest last, with a column run."""
        if not isinstance(self.run, SweepRun):
            return [self.run.metrics().assign(run=self.label)]
        curves = self.run.curves()
        if not len(curves):
            return []
        name = f"{self.label}: " + curves["setting"] + ", seed " + curves["seed"].astype(str)
        each = [table for _, table in curves.assign(run=name).groupby("run", sort=False)]
        return sorted(each, key=lambda table: table["time"].max())

    def _with_beside(self, more: list[pd.DataFrame]) -> pd.DataFrame | None:
        if not more:
            return self.beside
        return pd.concat([*([] if self.beside is None else [self.beside]), *more], ignore_index=True)

    def _tables(self, total: int) -> dict[str, pd.DataFrame]:
        if not isinstance(self.run, SweepRun):
            return super()._tables(total)
        *others, newest = self._drawn() or [NOTHING.assign(run=self.label)]
        beside = self._with_beside(others)
        label = newest["run"].iloc[0] if len(newest) else self.label
        rows = monitor_rows(newest.drop(columns="run"), label, beside)
        steps = self.run.config.trainer.get("max_steps", 0)
        return {"rows": rows, "frame": monitor_frame(rows[rows["mine"]], steps, self.target, label)}


class Laboratory:
    """Choices, what is wrong with them, a forecast, the YAML of it, and a monitor whose Start trains it.

    start: choices to begin with, as for `experiment`.  Attributes: `choices`; `monitor`; `started`, the runs and sweeps
    begun so far, oldest first.
    """

    def __init__(self, jobs: int = 1, target: float | None = None, **start):
        self.jobs, self.started, self._trial, self._thread, self._asked = jobs, [], None, None, 0
        self.choices = Choices(**start)
        wide = {"max_width": "860px"}
        self.problem, self.task_line, self.forecast_line = (ipywidgets.HTML(layout=wide) for _ in range(3))
        self.snippet = Snippet()
        self.forecast_button = ipywidgets.Button(
            description="Forecast", icon="clock-o", tooltip="Memory, and time by a trial"
        )
        self.forecast_button.on_click(lambda _: self.forecast())
        self.memory = LiveChart(forecast_chart(NO_MEMORY))
        self.memory_box = ipywidgets.VBox([self.memory], layout={"display": "none"})
        self.monitor = ExperimentMonitor(start=self.start, target=target)
        config = ipywidgets.Accordion([self.snippet], selected_index=None)
        config.set_title(0, "The same as a file for python -m workbook train (or sweep)")
        lines = [self.problem, self.task_line, config]
        forecast = ipywidgets.HBox([self.forecast_button, self.forecast_line])
        self.box = ipywidgets.VBox([self.choices.box, *lines, forecast, self.memory_box, self.monitor.box])
        self.box.add_class("workbook-laboratory")
        self.choices.observe(self._changed)
        self._changed()

    def plan(self) -> Plan:
        """What the choices say now; its problems hold what can't be read, too."""
        try:
            return plan(**self.choices.values())
        except ValueError as error:
            return Plan(None, None, [Problem("error", str(error))])

    def start(self):
        """Start the run, or the sweep, that the choices say; ValueError, in the sentences shown, if it can't be."""
        planned = self.plan()
        if planned.config is None:
            raise ValueError(_errors(planned))
        begin = start_sweep if planned.grid else start_run
        arguments = {"grid": planned.grid, "n_jobs": self.jobs} if planned.grid else {}
        self.started.append(begin(planned.config, **arguments))
        return self.started[-1]

    def forecast(self) -> None:
        """Forecast memory and time in a thread; a second click ends the trial."""
        if self._thread is not None and self._thread.is_alive():
            if self._trial is not None:
                self._trial.stop()
            return
        planned = self.plan()
        if planned.config is None:
            _say(self.forecast_line, _errors(planned), error=True)
            return
        self.forecast_button.description, self.forecast_button.icon = "Stop", "stop"
        self._thread = threading.Thread(target=self._forecast, args=(planned,), daemon=True)
        self._thread.start()

    def display(self) -> None:
        """Put it on the page, with the monitor's empty chart as its picture."""
        show(self.box, self.monitor.chart)

    def _ipython_display_(self, **_) -> None:
        self.display()

    def _changed(self) -> None:
        """Say what is wrong with the choices, or give their YAML; ask the task in a thread."""
        planned = self.plan()
        _say(self.problem, *(problem.sentence for problem in planned.problems), error=planned.config is None)
        if planned.config is None:
            return
        self.snippet.text = as_yaml(planned.config, planned.grid)
        _say(self.forecast_line, f"{planned.runs} {'run' if planned.runs == 1 else 'runs'}, not forecast yet.")
        self._asked += 1
        threading.Thread(target=self._ask_task, args=(planned.config, self._asked), daemon=True).start()

    def _ask_task(self, config: RunConfig, asked: int) -> None:
        """Whether the task is there and has so many prompts; the newest question alone is answered."""
        try:
            get_task(config.task, **config.task_options).dataset(config.num_prompts, config.seed)
            said, error = f"{config.task}: {config.num_prompts} prompts.", False
        except Exception as problem:  # whatever it is, the page should say it
            said, error = str(problem), True
        if asked == self._asked:
            _say(self.task_line, *said.split("\n"), error=error)

    def _forecast(self, planned: Plan) -> None:
        folder = Path(tempfile.mkdtemp(prefix="workbook-trial-"))
        try:
            _say(self.forecast_line, "Memory ...")
            memory = at_peak(forecast_run(planned.config))
            self.memory.update(forecast_chart(memory))
            self.memory_box.layout.display = ""
            said = f"Peak memory about {memory['mib'].sum():,.0f} MiB beside Python and its libraries."
            self._trial = start_trial(planned.config, folder / "trial")
            while self._trial.running:
                _say(self.forecast_line, said, f"Time: a trial. {self._trial.status()['message']}")
                if long_enough(self._trial):
                    self._trial.stop()
                time.sleep(0.2)
            _say(self.forecast_line, said, forecast_sentence(planned, pace(self._trial)))
        except Exception as problem:
            _say(self.forecast_line, str(problem), error=True)
        finally:
            self._trial = None
            self.forecast_button.description, self.forecast_button.icon = "Forecast", "clock-o"
            shutil.rmtree(folder, ignore_errors=True)


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


def _say(line: ipywidgets.HTML, *sentences: str, error: bool = False) -> None:
    style = f"line-height: 1.4; overflow-wrap: anywhere; color: {'#a94400' if error else 'inherit'}"
    text = "<br>".join(html.escape(sentence) for sentence in sentences)
    line.value = f'<div role="status" style="{style}">{text}</div>' if text else ""
