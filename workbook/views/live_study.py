"""LiveStudy: a small study that readers run on their policy, beside what was measured before.

    compute(*variables, **settings) -> {name: table}   some seconds to a minute; ValueError where
                                                       settings can't be
    chart(**tables) -> alt.Chart                       a picture of exactly these tables
    describe(**tables) -> str                          one sentence with the numbers that matter

Run computes the settings of the controls in a thread, one at a time: a second click does nothing
meanwhile. What compute iterates over with `workbook.messages.progress` moves the bar, and is where
Stop ends it; `show_partial` draws on the way.

A chapter declares one with `live_curve`, for lines over x, or `live_tables`, for any other chart
over committed tables.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import altair as alt
import ipywidgets
import pandas as pd

from workbook.messages import Stopped, pace, reporting, show_partial
from workbook.policies.models import private_copy
from workbook.views.charts import curve_chart
from workbook.views.explorer import Shell, Snippet, call_code, control_grid, value_of
from workbook.views.live import LiveChart, display_widget
from workbook.views.style import notice, typeset

NOW = "this policy, now"
NOT_YET = "Press Run: it computes these settings on the policy of this chapter."


class LiveStudy(Shell):
    """Controls, Run, Stop and progress over a chart that begins with what was measured before.

    compute, chart, describe: as in the module's docstring.
    controls: {keyword of compute: ipywidget with a value}.
    tables: what the chart shows before the first run.
    variables: {name in the reader's notebook: value}, compute's first arguments.
    presets: {what a button above the chart says: the settings that it moves to}; Run computes them.

    Attributes: `tables`, what is drawn; `drawn`, the settings that were computed last, None before.
    """

    def __init__(
        self,
        compute: Callable[..., dict[str, pd.DataFrame]],
        chart: Callable,
        controls: dict[str, ipywidgets.ValueWidget],
        tables: dict[str, pd.DataFrame],
        describe: Callable[..., str] | None = None,
        variables: dict[str, object] | None = None,
        presets: dict[str, dict] | None = None,
    ):
        self.compute = compute
        self.controls = controls
        self.tables = tables
        self.variables = variables or {}
        self.drawn: dict | None = None
        self._describe = describe or (lambda **_: "")
        self._stop = False
        self._thread: threading.Thread | None = None
        self.chart = LiveChart(chart, **tables)
        self.line = ipywidgets.HTML(layout={"max_width": "860px"})
        self.sentence = ipywidgets.HTML(layout={"max_width": "860px"})
        self.run_button = ipywidgets.Button(
            description="Run",
            icon="play",
            tooltip="Compute these settings on the policy in hand",
            button_style="primary",
        )
        self.stop_button = ipywidgets.Button(
            description="Stop",
            icon="stop",
            tooltip="Stop; the chart goes back to what was whole",
            disabled=True,
        )
        self.bar = ipywidgets.FloatProgress(
            max=1, layout={"width": "260px"}, tooltip="How much is done"
        )
        self.snippet = Snippet()
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        for control in controls.values():
            control.observe(self._show_code, "value")
        grid = control_grid(*controls.values())
        row = [self.run_button, self.stop_button, self.bar, self.line]
        buttons = ipywidgets.Box(row, layout={"flex_flow": "row wrap"})
        tries = self._preset_row(presets)
        self.box = ipywidgets.VBox([grid, *tries, buttons, self.sentence, self.chart, self.snippet])
        self.box.add_class("workbook-live-study")
        self.line.value = notice(NOT_YET)
        self._show_code()

    @property
    def running(self) -> bool:
        """Whether settings are being computed."""
        return self._thread is not None and self._thread.is_alive()

    def run(self) -> LiveStudy:
        """Compute the settings of the controls in a thread, and draw them, unless one runs."""
        if not self.running:
            self._stop = False
            self.run_button.disabled = True
            self.stop_button.disabled = False
            self._thread = threading.Thread(target=self._work, args=(self.settings,), daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End the run between two of its items; the chart goes back to what was last whole."""
        if self.running:
            self._stop = True
            self.stop_button.disabled = True
            self.line.value = notice("Stopping ...")

    def display(self, **_) -> None:
        """Put it on the page; wait for a run, so that the picture is of what it has computed."""
        was_running = self.running
        handle = display_widget(self.box, self.chart)
        if was_running:
            self.wait()
            display_widget(self.box, self.chart, handle)

    _ipython_display_ = display

    def wait(self) -> LiveStudy:
        """Wait until nothing is going on."""
        if self._thread is not None:
            self._thread.join()
        return self

    def close(self) -> None:
        self.stop()
        super().close()

    def _work(self, settings: dict) -> None:
        before = self.tables
        try:
            self.bar.value = 0.0
            self.line.value = notice("Starting ...")
            with reporting(self._report, self._draw):
                tables = self.compute(*self.variables.values(), **settings)
            self._draw(**tables)
            self.drawn = settings
            self.bar.value = 1.0
            self.sentence.value = notice(typeset(self._describe(**self.tables)))
            self.line.value = notice("Done.")
        except Stopped:
            self._draw(**before)
            self.line.value = notice(
                "Stopped; chart and sentence are of the last setting that was computed."
            )
        # whatever it is, the page should say it
        except Exception as error:
            self._draw(**before)
            self.line.value = notice(str(error), error=True)
        finally:
            self.run_button.disabled = False
            self.stop_button.disabled = True

    def _report(self, done: int, total: int, what: str) -> None:
        if self._stop:
            raise Stopped
        # what went before these items was other work
        if not done:
            self._began = time.monotonic()
        if done >= 0 and total:
            self.bar.value = done / total
            speed = pace(done, total, time.monotonic() - self._began)
            self.line.value = notice(f"{what}: {speed}", announced=False)

    def _draw(self, **tables: pd.DataFrame) -> None:
        self.tables = self.tables | tables
        self.chart.push(**tables)

    def _show_code(self, _=None) -> None:
        self.snippet.text = call_code(self.compute, self.variables, self.settings)


def live_tables(
    measure: Callable[..., Iterable[dict[str, pd.DataFrame]]],
    committed: Callable[..., dict[str, pd.DataFrame]],
    chart: Callable[..., alt.TopLevelMixin],
    controls: dict[str, ipywidgets.ValueWidget],
    policy=None,
    task=None,
    describe: Callable[..., str] | None = None,
    now: str | None = NOW,
    presets: dict[str, dict] | None = None,
) -> LiveStudy:
    """A study that adds rows measured now to an explorer's own tables, in its own chart.

        def measure_mass(policy, task, weights="output layer", prompts=8, seed=0):
            rollouts = sample_rollouts(policy, task, prompts, seed=seed)
            # the same tables as compute_mass gives, of this policy
            yield mass_shares(pair_sums(policy, rollouts), weights)

        controls = {"weights": menu(...), "prompts": power_slider(...), "seed": slider(...)}
        live_tables(measure_mass, compute_mass, mass_chart, controls, policy, task, describe_mass)

    measure: (policy, task, **controls) -> all that was measured so far, drawn at each yield (a
    function may return one dict instead); ValueError where the settings can't be. It works on a
    copy of the policy.
    committed: the explorer's compute; it receives those controls that it names. Rows of a table
    that it lacks stand alone, and begin empty where committed gives them empty.
    chart, describe: of the tables, as in the module's docstring; the chart must know `now` among
    its series.
    now: what the column `series` calls the measured rows; None where measure names them.
    presets: as of a LiveStudy.
    """

    def joined(before: pd.DataFrame | None, measured: pd.DataFrame) -> pd.DataFrame:
        if now is not None:
            measured = measured.assign(series=now)
        if before is None or before.empty:
            return measured
        return pd.concat([before, measured], ignore_index=True)

    @functools.wraps(measure)
    def compute(*given, **settings) -> dict[str, pd.DataFrame]:
        before = _with_its_settings(committed, settings)
        show_partial(**before)
        measured = measure(*given, **settings)
        tables = None
        for rows in [measured] if isinstance(measured, dict) else measured:
            tables = dict(before)
            for name, table in rows.items():
                tables[name] = joined(before.get(name), table)
            show_partial(**tables)
        if tables is None:
            raise ValueError(
                "These settings leave nothing to measure; take more prompts, or another seed."
            )
        return tables

    first_settings = {name: value_of(control) for name, control in controls.items()}
    start = _with_its_settings(committed, first_settings)
    variables = {"policy": private_copy(policy), "task": task} if policy else None
    return LiveStudy(compute, chart, controls, start, describe, variables, presets)


def live_curve(
    measure: Callable[..., Iterable[tuple]],
    committed: Callable[..., pd.DataFrame],
    controls: dict[str, ipywidgets.ValueWidget],
    policy=None,
    task=None,
    *,
    x: str = "x",
    now: str | list[str] = NOW,
    presets: dict[str, dict] | None = None,
    **look,
) -> LiveStudy:
    """A study whose lines, measured now, are drawn over committed curves of the same quantity.

        def measure_dose(policy, task, prompts=16, tokens="unsure", seed=0):
            # progress moves the bar, and Stop ends it there
            for size in progress([1, 2, 4], "prompts"):
                # x, name of the line, value: drawn as they arrive
                yield size, NOW, follows(size)

        # it receives those controls that it names
        def family_dose(tokens="unsure"):
            return unit_curve(rows, "prompts", "follows").assign(series="ten policies")

        controls = {"prompts": power_slider(...), "tokens": menu(...), "seed": slider(...)}
        live_curve(measure_dose, family_dose, controls, policy, task, x="prompts", y_title="...",
                   title="...")

    measure: (policy, task, **controls), without a policy (**controls) -> rows (x, line, value), or
    a ValueError. It works on a copy of the policy.
    committed: a table with the columns series, x, mean, low, high, units.
    now: the line or lines that measure yields.
    look: settings of `curve_chart`, such as paper, reference or scale, and of the lines' names and
    order, as `names`.
    presets: as of a LiveStudy.

    The sentence says the first and last point of each line measured now.
    """
    lines = [now] if isinstance(now, str) else list(now)
    if "names" not in look:
        first_settings = {name: value_of(control) for name, control in controls.items()}
        curve = _with_its_settings(committed, first_settings)
        look["names"] = [*curve["series"].unique(), *lines]

    @functools.wraps(measure)
    def points(*given, **settings) -> Iterator[dict[str, pd.DataFrame]]:
        rows = []
        for row in measure(*given, **settings):
            rows.append(row)
            curve = pd.DataFrame(rows, columns=[x, "series", "mean"])
            yield {"curve": curve.assign(low=curve["mean"], high=curve["mean"], units=1)}

    @functools.wraps(committed)
    def curves(**settings) -> dict[str, pd.DataFrame]:
        return {"curve": committed(**settings)}

    def chart(curve: pd.DataFrame) -> alt.LayerChart:
        return curve_chart(curve, x, series="series", **look)

    def ends(curve: pd.DataFrame) -> str:
        measured = curve[curve["series"].isin(lines)].sort_values(x)
        parts = []
        for name, rows in measured.groupby("series"):
            points = [
                f"{row['mean']:.3g} at {row[x]:g}" for _, row in rows.iloc[[0, -1]].iterrows()
            ]
            parts.append(f"{name}: {', '.join(points)}")
        return f"{'; '.join(parts)}." if parts else ""

    return live_tables(points, curves, chart, controls, policy, task, ends, None, presets)


def _with_its_settings(function: Callable, settings: dict):
    """Call a function with those settings that it names."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in settings.items() if name in names})
