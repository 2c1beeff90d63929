"""LiveStudy: a small study that the reader runs on a policy in hand, in a thread, beside what was
measured before.

    compute(*variables, **settings) -> {name: table}    some seconds to a minute; ValueError where settings can't be
    chart(**tables) -> alt.Chart                        a picture of exactly these tables
    describe(**tables) -> str                           one sentence with the numbers that matter

Run computes the settings of the controls, one at a time: a second click does nothing meanwhile.
What compute goes through with `workbook.messages` moves the bar, and is where Stop ends it;
`show_partial` draws on the way.

A topic declares one with `live_curve`, for lines over x, or `live_tables`, for any other chart over
committed tables.
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

    compute, chart, describe: as in the module's docstring.  controls: {keyword of compute:
    ipywidget with a value}.
    tables: what the chart shows before the first run.  variables: {name in the reader's notebook:
    value}, compute's first arguments.  presets: {what a button above the chart says: the settings
    that it moves to}; Run computes them.

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
        self.compute, self.controls, self.tables, self.variables = (
            compute,
            controls,
            tables,
            variables or {},
        )
        self._describe, self._stop = describe or (lambda **_: ""), False
        self.drawn: dict | None = None
        self._thread: threading.Thread | None = None
        self.chart = LiveChart(chart, **tables)
        self.line, self.sentence = (
            ipywidgets.HTML(layout={"max_width": "860px"}) for _ in range(2)
        )
        run, stop = (
            "Compute these settings on the policy in hand",
            "Stop; the chart goes back to what was whole",
        )
        self.run_button = ipywidgets.Button(
            description="Run", icon="play", tooltip=run, button_style="primary"
        )
        self.stop_button = ipywidgets.Button(
            description="Stop", icon="stop", tooltip=stop, disabled=True
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
        return self._thread is not None and self._thread.is_alive()

    def run(self) -> LiveStudy:
        """Compute the settings of the controls in a thread, and draw them; nothing while one is
        going on.
        """
        if not self.running:
            self._stop = False
            self.run_button.disabled, self.stop_button.disabled = True, False
            self._thread = threading.Thread(target=self._work, args=(self.settings,), daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End what is going on between two of its items; the chart goes back to what was last
        computed whole.
        """
        if self.running:
            self._stop, self.stop_button.disabled = True, True
            self.line.value = notice("Stopping ...")

    def display(self, **_) -> None:
        """Put it on the page; one that runs is waited for, and its picture is of what it has
        computed.
        """
        runs, handle = self.running, display_widget(self.box, self.chart)
        if runs:
            display_widget(self.box, self.wait().chart, handle)

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
            self.bar.value, self.line.value = 0.0, notice("Starting ...")
            with reporting(self._report, self._draw):
                tables = self.compute(*self.variables.values(), **settings)
            self._draw(**tables)
            self.drawn, self.bar.value = settings, 1.0
            self.sentence.value = notice(typeset(self._describe(**self.tables)))
            self.line.value = notice("Done.")
        except Stopped:
            self._draw(**before)
            self.line.value = notice(
                "Stopped; chart and sentence are of the last setting that was computed."
            )
        except Exception as error:  # whatever it is, the page should say it
            self._draw(**before)
            self.line.value = notice(str(error), error=True)
        finally:
            self.run_button.disabled, self.stop_button.disabled = False, True

    def _report(self, done: int, total: int, what: str) -> None:
        if self._stop:
            raise Stopped
        if not done:
            self._began = time.monotonic()  # of these items: what went before them was other work
        if done >= 0 and total:
            self.bar.value = done / total
            self.line.value = notice(
                f"{what}: {pace(done, total, time.monotonic() - self._began)}", announced=False
            )

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
    """A study that adds rows measured now, on a copy of the policy, to an explorer's own tables, in
    its own chart.

        def measure_mass(policy, task, weights="output layer", prompts=8, seed=0):
            rollouts = sample_rollouts(policy, task, prompts, seed=seed)
            yield mass_shares(pair_sums(policy, rollouts), weights)    # the same tables, of it

        controls = {"weights": menu(...), "prompts": power_slider(...), "seed": slider(...)}
        live_tables(measure_mass, compute_mass, mass_chart, controls, policy, task, describe_mass)

    measure: (policy, task, **controls) -> all that was measured so far, drawn at each yield (a
    function may return one dict instead); ValueError where the settings can't be.  committed: the
    explorer's compute; it receives those controls that it names. Rows of a table that it lacks
    stand alone, and begin empty where committed gives them empty.
    now: what the column `series` calls the measured rows; None where measure names them.  chart,
    describe: of the tables, as in the module's docstring; the chart must know `now` among its
    series.  presets: as of a LiveStudy.
    """

    def joined(before: pd.DataFrame | None, measured: pd.DataFrame) -> pd.DataFrame:
        measured = measured if now is None else measured.assign(series=now)
        return (
            measured
            if before is None or before.empty
            else pd.concat([before, measured], ignore_index=True)
        )

    @functools.wraps(measure)
    def compute(*given, **settings) -> dict[str, pd.DataFrame]:
        before, tables = _given_its_own(committed, settings), None
        show_partial(**before)
        measured = measure(*given, **settings)
        for rows in [measured] if isinstance(measured, dict) else measured:
            tables = before | {
                name: joined(before.get(name), table) for name, table in rows.items()
            }
            show_partial(**tables)
        if tables is None:
            raise ValueError(
                "These settings leave nothing to measure; take more prompts, or another seed."
            )
        return tables

    start = _given_its_own(
        committed, {name: value_of(control) for name, control in controls.items()}
    )
    given = policy and {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute, chart, controls, start, describe, given, presets)


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
    """A study whose lines, measured now on a copy of the policy, are drawn over committed curves of
    the same quantity.

        def measure_dose(policy, task, prompts=16, tokens="unsure", seed=0):
            for size in progress([1, 2, 4], "prompts"):     # moves the bar, and Stop ends it here
                yield size, NOW, follows(size)              # x, name of the line, value: drawn as they arrive

        def family_dose(tokens="unsure"):                   # receives those controls that it names
            return unit_curve(rows, "prompts", "follows").assign(series="ten policies")

        controls = {"prompts": power_slider(...), "tokens": menu(...), "seed": slider(...)}
        live_curve(measure_dose, family_dose, controls, policy, task, x="prompts", y_title="...",
        title="...")

    measure: (policy, task, **controls), without a policy (**controls) -> rows (x, line, value), or
    a ValueError.
    committed: a table with the columns series, x, mean, low, high, units.  now: the line or lines
    that measure yields.
    look: settings of `curve_chart`, such as paper, reference or scale, and of the lines' names and
    order, as `names`.
    presets: as of a LiveStudy.
    The sentence says the first and last point of each line measured now.
    """
    lines = [now] if isinstance(now, str) else list(now)
    if "names" not in look:
        first = _given_its_own(
            committed, {name: value_of(control) for name, control in controls.items()}
        )
        look["names"] = [*first["series"].unique(), *lines]

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
        parts = []
        for name, rows in curve[curve["series"].isin(lines)].sort_values(x).groupby("series"):
            ends = [f"{row['mean']:.3g} at {row[x]:g}" for _, row in rows.iloc[[0, -1]].iterrows()]
            parts.append(f"{name}: {', '.join(ends)}")
        return f"{'; '.join(parts)}." if parts else ""

    return live_tables(points, curves, chart, controls, policy, task, ends, None, presets)


def _given_its_own(function: Callable, settings: dict):
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in settings.items() if name in names})
