"""Results: two buttons under a form that compare what was started there, and take a run away in a zip."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

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
from workbook.training.export import export_run
from workbook.training.runs import Run
from workbook.training.sweep_run import SweepRun
from workbook.views.explorer import menu
from workbook.views.live import LiveChart
from workbook.views.style import notice

EXPORTS = Path("exports")  # beside the notebook
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


def export_folder(run: Run, root: Path = EXPORTS) -> Path:
    """A folder for a run's export of which nothing is there yet, nor of its zip."""
    name = run.folder.name if not (run.folder.parent / "sweep.yaml").exists() else _of_sweep(run)
    folders = (root / (f"{name}-{i}" if i else name) for i in range(1000))
    return next(path for path in folders if not path.exists() and not path.with_name(f"{path.name}.zip").exists())


def _of_sweep(run: Run) -> str:
    return f"{run.folder.parent.name}-{run.folder.name}"


class Results:
    """Buttons Compare and Export, over the runs and sweeps of a list that grows.

    started: that list.  Both are off until a run of it has finished: call `refresh` when one may have.
    """

    def __init__(self, started: list):
        self.started = started
        outcomes = [(title, key) for key, title in OUTCOMES.items()]
        self.outcome = menu("area", outcomes, "compare by")
        self.outcome.tooltip = "What is compared between the settings, seed by seed"
        self.run = menu("", [("", "")], "run to export")
        self.run.tooltip = "A finished run: its model, config, manifest and your own files become a folder and a zip"
        self.compare_button = self._button("Compare", "bar-chart", self.compare)
        self.export_button = self._button("Export", "download", self.export)
        self.line = ipywidgets.HTML(layout={"max_width": "860px"})
        self.chart = LiveChart(curves_chart(NO_CURVES))
        self.chart_box = ipywidgets.VBox([self.chart], layout={"display": "none"})
        rows = [[self.outcome, self.compare_button], [self.run, self.export_button]]
        self.box = ipywidgets.VBox([*map(ipywidgets.HBox, rows), self.line, self.chart_box])
        self.box.add_class("workbook-results")
        self.refresh()

    def refresh(self) -> None:
        """Offer the runs that have finished."""
        runs = finished_runs(self.started)
        names = [_of_sweep(run) if (run.folder.parent / "sweep.yaml").exists() else run.folder.name for run in runs]
        options = [(name, str(run.folder)) for name, run in zip(names, runs, strict=True)] or [("none yet", "")]
        if list(self.run.options) != options:
            self.run.options, self.run.value = options, options[-1][1]
        for button, tooltip in (
            (self.compare_button, "Reward by step, and what a setting changes, paired by seed"),
            (self.export_button, "Write the chosen run beside this notebook, to take it elsewhere"),
        ):
            button.disabled, button.tooltip = not runs, tooltip if runs else NOTHING_YET

    def compare(self) -> None:
        """Show the finished runs side by side."""
        sentences, chart = compare_started(self.started, self.outcome.value)
        self.chart.update(chart)
        self.chart_box.layout.display = ""
        self.line.value = notice(*sentences)

    def export(self) -> None:
        """Write the chosen run into a new folder in EXPORTS, and a zip of it."""
        folder = export_folder(Run(self.run.value))
        zipped = export_run(Run(self.run.value), folder)
        names = sorted(path.name for path in folder.iterdir())
        size = f"{zipped.stat().st_size / 2**20:.1f} MiB"
        again = f"In {folder}, python -m workbook train config.yaml makes the run again."
        self.line.value = notice(f"{zipped} ({size}) holds {', '.join(names)}.", again)

    def _button(self, label: str, icon: str, act: Callable) -> ipywidgets.Button:
        button = ipywidgets.Button(description=label, icon=icon)
        button.on_click(lambda _: self._begin(button, act))
        return button

    def _begin(self, button: ipywidgets.Button, act: Callable) -> None:
        """Do what a button says in a thread, and show what an error says."""
        button.disabled = True
        self.line.value = notice("Writing ..." if button is self.export_button else "Reading ...")

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
