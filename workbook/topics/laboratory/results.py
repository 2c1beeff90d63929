"""Results: a button under a form that compares what was started there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict

import altair as alt
import ipywidgets
import pandas as pd

from workbook.topics.laboratory.compare import (
    MIN_SEEDS,
    OUTCOMES,
    compare_settings,
    comparison_chart,
    curves_chart,
    effect_lines,
    run_tables,
)
from workbook.training.diagnosis import diagnose
from workbook.training.runs import Run
from workbook.training.sweep_run import SweepRun
from workbook.views.explorer import menu
from workbook.views.live import LiveChart
from workbook.views.style import notice

NO_CURVES = pd.DataFrame({"setting": [""], "seed": [0], "run": [""], "step": [0], "reward": [0.0]})
NOTHING_YET = "Nothing that was started here has finished yet."


def finished_runs(started: list) -> list[Run]:
    """Runs that have finished, those of sweeps among them; of equal settings and seeds the newest alone."""
    single = [one for run in started for one in (run.runs.values() if isinstance(run, SweepRun) else [run])]
    finished = [run for run in single if run.status()["state"] == "finished"]
    settings = [json.dumps(asdict(run.config) | {"name": ""}, sort_keys=True, default=str) for run in finished]
    return list(dict(zip(settings, finished, strict=True)).values())


def compare_started(started: list, outcome: str = "area") -> tuple[list[str], alt.Chart]:
    """Sentences and a chart that compare the finished runs among those started, the first one's setting the baseline.

    Raises ValueError where none has finished, or the outcome was not measured.
    """
    runs = finished_runs(started)
    if not runs:
        raise ValueError(NOTHING_YET)
    tables = run_tables(runs)
    curves, outcomes = tables["curves"], tables["outcomes"]
    sick = [f"{run.folder.name}: {sentences[0]}" for run in runs if (sentences := diagnose(run.metrics()))]
    settings = list(dict.fromkeys(outcomes["setting"]))
    if len(settings) == 1:
        value = f"{OUTCOMES[outcome]} {outcomes[outcome].mean():.3f}"
        hint = "Change a setting and press Start again: Compare then shows the difference."
        return [f"One setting so far, {_count(len(outcomes), 'run')}: {value}. {hint}", *sick], curves_chart(curves)
    compared = compare_settings(outcomes, outcome)
    sentences = [
        f"{OUTCOMES[outcome].capitalize()}, difference from {settings[0]}:",
        *effect_lines(compared["effects"]),
    ]
    if compared["effects"]["seeds"].min() < MIN_SEEDS:
        sentences.append(f"Below {MIN_SEEDS} seeds nothing can be told: luck alone makes such differences.")
    return [*sentences, *sick], comparison_chart(curves, **compared, outcome=outcome)


class Results:
    """A button Compare over the runs and sweeps of a list that grows.

    started: that list.  It is off until a run of it has finished: call `refresh` when one may have.
    """

    def __init__(self, started: list):
        self.started = started
        outcomes = [(title, key) for key, title in OUTCOMES.items()]
        self.outcome = menu("area", outcomes, "compare by")
        self.outcome.tooltip = "What is compared between the settings, seed by seed"
        self.compare_button = self._button("Compare", "bar-chart", self.compare)
        self.line = ipywidgets.HTML(layout={"max_width": "860px"})
        self.chart = LiveChart(curves_chart(NO_CURVES))
        self.chart_box = ipywidgets.VBox([self.chart], layout={"display": "none"})
        row = ipywidgets.HBox([self.outcome, self.compare_button])
        self.box = ipywidgets.VBox([row, self.line, self.chart_box])
        self.box.add_class("workbook-results")
        self.refresh()

    def refresh(self) -> None:
        """Turn Compare on once a run has finished."""
        finished = bool(finished_runs(self.started))
        self.compare_button.disabled = not finished
        tooltip = "Reward by step, and what a setting changes, paired by seed"
        self.compare_button.tooltip = tooltip if finished else NOTHING_YET

    def compare(self) -> None:
        """Show the finished runs side by side."""
        sentences, chart = compare_started(self.started, self.outcome.value)
        self.chart.update(chart)
        self.chart_box.layout.display = ""
        self.line.value = notice(*sentences)

    def _button(self, label: str, icon: str, act: Callable) -> ipywidgets.Button:
        button = ipywidgets.Button(description=label, icon=icon)
        button.on_click(lambda _: self._begin(button, act))
        return button

    def _begin(self, button: ipywidgets.Button, act: Callable) -> None:
        """Do what a button says in a thread, and show what an error says."""
        button.disabled = True
        self.line.value = notice("Reading ...")

        def work() -> None:
            try:
                act()
            except Exception as error:  # whatever it is, the page should say it
                self.line.value = notice(str(error), error=True)
            finally:
                button.disabled = False

        threading.Thread(target=work, daemon=True).start()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
