"""Laboratory: choose an experiment, see at once whether it makes sense, try it, forecast it, start it, watch it,
compare it, take it away.

Slow questions (what a task's file says, whether the model can read it, memory, time) are answered by threads, which
only set traits; training, the trial behind the forecast of time and the samples of Try it are processes of their own.
"""

from __future__ import annotations

import threading
import time

import ipywidgets

from workbook.places import runs_folder
from workbook.topics.laboratory.choices import Choices
from workbook.topics.laboratory.examine import Examination, examine
from workbook.topics.laboratory.forecast import Forecast
from workbook.topics.laboratory.loading import load_choices, recent_runs
from workbook.topics.laboratory.monitor import ExperimentMonitor
from workbook.topics.laboratory.results import Results
from workbook.topics.laboratory.settings import Plan, forecast_chart, plan
from workbook.topics.laboratory.try_it import TryIt
from workbook.training.checks import Problem
from workbook.training.memory import at_peak, forecast_run
from workbook.training.run_config import RunConfig
from workbook.training.runs import start_run
from workbook.training.sweep_run import as_yaml, start_sweep
from workbook.views.explorer import Snippet, menu
from workbook.views.live import LiveChart, close, show
from workbook.views.style import notice

SETTLE_S = 0.3  # after a change, before a hub or a file is asked
CHECKING = "Checking model, prompts and memory ..."
WIDE = {"max_width": "860px"}


class Laboratory:
    """Choices, what is wrong with them, samples, a forecast, a monitor whose Start trains them, and what came of it.

    What can't be started turns Start off and says why. What should not be, since it does not fit into memory or the
    model can't read the prompts, is started by a second button alone.

    start: choices to begin with, as for `experiment`.  Attributes: `choices`; `monitor`; `started`, the runs and sweeps
    begun so far, oldest first; `try_it`, `forecasts` and `results`, the panels.
    """

    def __init__(self, jobs: int = 1, target: float | None = None, **start):
        self.jobs, self.started, self._asked, self._allowed = jobs, [], 0, None
        self._examined: tuple[RunConfig | None, Examination] = (None, Examination())
        self.choices = Choices(**start)
        self.problem, self.task_line, self.verdict = (ipywidgets.HTML(layout=dict(WIDE)) for _ in range(3))
        self.snippet = Snippet()
        self.try_it, self.forecasts, self.results = TryIt(self.plan), Forecast(self.plan), Results(self.started)
        self.monitor = ExperimentMonitor(start=self.start, target=target, ended=self.results.refresh)
        self._show_monitor("none")  # until there is something to draw
        self.anyway_button = ipywidgets.Button(description="Start anyway", icon="play", button_style="warning")
        self.anyway_button.tooltip = "Train what you were warned of"
        self.anyway_button.on_click(lambda _: self._start_anyway())
        self._make_loader()
        config = ipywidgets.Accordion([self.snippet], selected_index=None)
        config.set_title(0, "The same as a file for python -m workbook train (or sweep)")
        asking = ipywidgets.HBox([self.try_it.button, self.forecasts.button, self.forecasts.anyway_button])
        lines = [self.problem, self.task_line, asking, self.try_it.box, self.forecasts.box]
        start_line = ipywidgets.HBox([self.verdict, self.anyway_button])
        ends = [start_line, self.monitor.box, self.results.box, config]
        self.box = ipywidgets.VBox([self.loader, self.choices.box, *lines, *ends])
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
        """Start the run, or the sweep, that the choices say; ValueError, in the sentences shown, if it can't be."""
        planned = self.plan()
        if planned.config is None:
            raise ValueError(_errors(planned))
        found_for, examination = self._examined
        if found_for != planned.config:
            examination = self._examine(planned)
        if examination.errors:
            raise ValueError(" ".join(examination.errors))
        if examination.doubts and self._allowed != planned.config:
            raise ValueError(f"{' '.join(examination.doubts)} Nothing was started; Start anyway would.")
        run = start_sweep(planned.config, planned.grid, n_jobs=self.jobs) if planned.grid else start_run(planned.config)
        self.started.append(run)
        self._show_monitor("")
        self._list_runs(run.folder.name)
        return run

    def load(self, folder) -> list[str]:
        """Put the settings of a run or a sweep into the form; returns those that it has no field for.

        Raises ValueError if there is no run in the folder, or the form can't show it.
        """
        choices, dropped = load_choices(folder)
        self.choices.set(**choices)
        return dropped

    def display(self) -> None:
        """Put it on the page, with the memory that these settings need as its picture."""
        show(self.box, self._picture())

    def _ipython_display_(self, **_) -> None:
        self.display()

    def close(self) -> None:
        """Take it off the page and free it; a trial and samples stop, and what was started goes on."""
        self._asked += 1
        self.forecasts.stop()
        self.try_it.stop()
        close(self.box)

    def _show_monitor(self, display: str) -> None:
        for part in (self.monitor.chart, self.monitor.completions):
            part.layout.display = display

    def _picture(self) -> LiveChart:
        config = self.plan().config
        if config is None or config.policy != "bundled":  # of another one a hub may have to be asked
            return self.monitor.chart
        return LiveChart(forecast_chart(at_peak(forecast_run(config))))

    # --- settings of an earlier run

    def _make_loader(self) -> None:
        self.runs = menu("", [("", "")], "settings of a run")
        self.runs.tooltip = "Runs and sweeps of this workspace, the newest first"
        self.load_button = ipywidgets.Button(description="Load", icon="folder-open")
        self.load_button.tooltip = "Put the chosen run's settings into the form; nothing is started"
        self.load_button.on_click(lambda _: self._load())
        self.load_line = ipywidgets.HTML(layout=dict(WIDE))
        self.loader = ipywidgets.VBox([ipywidgets.HBox([self.runs, self.load_button]), self.load_line])
        self._list_runs()

    def _list_runs(self, chosen: str = "") -> None:
        names = [folder.name for folder in recent_runs()]
        self.runs.options = [("choose one ..." if names else "none yet", ""), *((name, name) for name in names)]
        self.runs.value = chosen if chosen in names else ""

    def _load(self) -> None:
        if not (name := self.runs.value):
            self.load_line.value = notice("Choose a run first.")
            return
        try:
            dropped = self.load(runs_folder() / name)
        except (ValueError, OSError) as error:
            self.load_line.value = notice(str(error), error=True)
            return
        without = f", but for {', '.join(dropped)}, which this form has no field for" if dropped else ""
        self.load_line.value = notice(f"These are the settings of {name}{without}.")

    # --- what the settings are worth

    def _changed(self) -> None:
        """Show the problems of the choices, or their YAML; look at model, task and memory in a thread."""
        planned = self.plan()
        failed = planned.config is None
        _show(self.problem, *(problem.sentence for problem in planned.problems), error=failed)
        self._asked, self._allowed = self._asked + 1, None
        self.anyway_button.layout.display = "none"
        self.load_line.value = ""
        self.try_it.changed(planned.config)
        self.forecasts.changed(planned)
        for button in (self.try_it.button, self.forecasts.button):
            button.disabled = failed and button.description in ("Try it", "Forecast")
        self.snippet.text = "" if failed else as_yaml(planned.config, planned.grid)
        if failed:
            self.task_line.value = ""
            self._refuse(_errors(planned))
            return
        _show(self.task_line)  # the answer was of other settings
        self._refuse(CHECKING, quiet=True)
        threading.Thread(target=self._ask, args=(planned, self._asked), daemon=True).start()

    def _ask(self, planned: Plan, asked: int) -> None:
        """Look at what was chosen, once it has been left alone; the newest question alone is answered."""
        time.sleep(SETTLE_S)
        if asked != self._asked:
            return
        examination = self._examine(planned)
        if asked == self._asked:
            self._show_examination(planned.config, examination)

    def _examine(self, planned: Plan) -> Examination:
        try:
            return examine(planned.config, min(self.jobs, planned.runs))
        except Exception as error:  # whatever it is, the page should say it
            return Examination(errors=(str(error),))

    def _show_examination(self, config: RunConfig, examination: Examination) -> None:
        self._examined = config, examination
        if examination.errors:
            _show(self.task_line, *"\n".join(examination.errors).split("\n"), error=True)
            self._refuse(" ".join(examination.errors), "See the line in red above.")
            return
        _show(self.task_line, *([examination.task] if examination.task else []), *examination.notes)
        if examination.doubts:
            self._refuse(" ".join(examination.doubts))
            self.anyway_button.layout.display = ""
        else:
            self._refuse("")

    def _refuse(self, why: str, short: str = "", quiet: bool = False) -> None:
        """Turn Start off and say why; on again for ""."""
        self.monitor.refuse(why)
        _show(self.verdict, *[why if quiet else f"Start is off. {short or why}"] * bool(why), error=not quiet)

    def _start_anyway(self) -> None:
        self._allowed = self.plan().config
        self.monitor.answer(self.monitor.start)


def _errors(planned: Plan) -> str:
    return " ".join(problem.sentence for problem in planned.problems if problem.severity == "error")


def _show(line: ipywidgets.HTML, *sentences: str, error: bool = False) -> None:
    line.value = notice(*sentences, error=error)
