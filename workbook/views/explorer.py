"""Explorer: sliders and menus over a pure compute() and a pure chart(), in one thin shell.

    compute(**settings) -> table, or {name: table}   numbers; ValueError where settings can't be
    chart(**tables) -> alt.Chart                     a picture of exactly these tables
    describe(**tables) -> str                        one sentence with the numbers that matter

The chart is built once and afterwards receives rows. Reset goes back to the settings it began with,
and the line of code below the chart is the setting a reader can take into a cell of their own.
"""

import functools
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path

import anywidget
import ipywidgets
import pandas as pd
import traitlets
import yaml

from workbook.places import data_path
from workbook.statistics import unit_curve
from workbook.views.charts import curve_chart
from workbook.views.live import LiveChart, close, display_widget, rows
from workbook.views.style import notice, typeset

# class of a box whose controls ask for what can't be
REFUSED_CLASS = "workbook-refused"
# what takes longer is computed when a slider is let go, not on the way
MAX_DRAG_SECONDS = 0.050


class Snippet(anywidget.AnyWidget):
    """Lines of code that a title opens, with a button that copies them."""

    _esm = (Path(__file__).parent / "snippet.js").read_text(encoding="utf-8")
    text = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode("This setting as code").tag(sync=True)

    def move(self, controls: dict[ipywidgets.ValueWidget, object]) -> None:
        """Have the page move controls to values, so that nothing it sends later overrides them."""
        moves = []
        for control, value in controls.items():
            if isinstance(control, ipywidgets.Dropdown | ipywidgets.SelectionSlider):
                index = control._options_values.index(value)
                moves.append([control.model_id, "index", index])
            else:
                moves.append([control.model_id, "value", value])
        self.send({"moves": moves})


class Shell:
    """What explorers and live studies share: `controls`, a `chart`, and the `box` of all of it."""

    @property
    def settings(self) -> dict:
        """The value of every control, by compute's keyword."""
        return {name: value_of(control) for name, control in self.controls.items()}

    def display(self, **_) -> None:
        """Put it on the page, with a picture of the chart where no kernel runs."""
        display_widget(self.box, self.chart)

    _ipython_display_ = display

    def set(self, **settings) -> None:
        """Move controls, as a reader would, one after the other; KeyError for an unknown one."""
        controls = [self.controls[name] for name in settings]
        for control, value in zip(controls, settings.values(), strict=True):
            control.value = value

    def close(self) -> None:
        """Take it off the page and free it."""
        close(self.box)

    def _preset_row(self, presets: dict[str, dict] | None) -> list[ipywidgets.Box]:
        """A row of buttons, one for each of `presets` {what it says: settings}; [] without any.

        A button moves the controls to its settings, and the others to where they began; it runs
        nothing.
        """
        start = self.settings
        self.presets = {}
        for label, changed in (presets or {}).items():
            values = {self.controls[name]: value for name, value in {**start, **changed}.items()}
            button = ipywidgets.Button(
                description=label, tooltip=f"Move the controls: {label}", layout={"width": "auto"}
            )
            button.on_click(lambda _, values=values: self.snippet.move(values))
            self.presets[label] = button
        if not presets:
            return []
        return [ipywidgets.Box([*self.presets.values()], layout={"flex_flow": "row wrap"})]


class Explorer(Shell):
    """Controls over a chart, with a picture of the chart where no kernel runs.

    compute, chart, describe: as in the module's docstring.
    controls: {keyword of compute: ipywidget with a value}.
    variables: {name in the reader's notebook: value}, what a cell has measured: compute's first
    arguments.
    code: settings -> the lines that compute them; by default an import and a call of compute.
    presets: {what a button above the chart says: the settings that it moves to, others as in the
    beginning}.

    Attributes: `settings` what the controls say, `tables` what is drawn, `code` the call that
    computes it. Where the controls ask for what can't be, the sentence says so, and the rest stays
    as it was. The chart follows a slider under the hand where compute takes less than
    MAX_DRAG_SECONDS.
    """

    def __init__(
        self,
        compute: Callable,
        chart: Callable,
        controls: dict[str, ipywidgets.ValueWidget],
        describe: Callable[..., str] | None = None,
        variables: dict[str, object] | None = None,
        code: Callable[[dict], str] | None = None,
        presets: dict[str, dict] | None = None,
    ):
        self.compute = compute
        self.controls = controls
        self.variables = variables or {}
        self._code = code or (lambda settings: call_code(compute, self.variables, settings))
        self._describe = describe or (lambda **_: "")
        # cells and controls have threads of their own
        self._one_at_a_time = threading.RLock()
        self._start = self.settings
        self.tables = self._computed()
        # timed the second time: what the first call had to load is not what a drag costs
        began = time.perf_counter()
        self._computed()
        is_quick = time.perf_counter() - began < MAX_DRAG_SECONDS
        for control in controls.values():
            if control.has_trait("continuous_update"):
                control.continuous_update = is_quick
        self.chart = LiveChart(chart, **self.tables)
        self.sentence = ipywidgets.HTML(layout={"max_width": "860px"})
        self.snippet = Snippet()
        self.reset_button = ipywidgets.Button(
            description="Reset", icon="undo", tooltip="Back to the first settings"
        )
        first = {control: control.value for control in controls.values()}
        self.reset_button.on_click(lambda _: self.snippet.move(first))
        for control in controls.values():
            control.observe(self._moved, "value")
        grid = control_grid(*controls.values(), self.reset_button)
        parts = [grid, *self._preset_row(presets), self.sentence, self.chart, self.snippet]
        self.box = ipywidgets.VBox(parts).add_class("workbook-explorer")
        self._update_text()

    @property
    def code(self) -> str:
        """Lines of Python that compute what is drawn."""
        return self._code(self._drawn)

    def reset(self) -> None:
        """Back to the settings that it began with."""
        self.set(**self._start)

    def _computed(self) -> dict[str, pd.DataFrame]:
        settings = self.settings
        result = self.compute(*self.variables.values(), **settings)
        self._drawn = settings
        return result if isinstance(result, dict) else {"table": result}

    def _moved(self, _) -> None:
        # whoever comes last sees the newest settings
        with self._one_at_a_time:
            try:
                self.tables = self._computed()
            except ValueError as error:
                # two controls may not go together; the chart stays as it was, dimmed
                self.sentence.value = notice(str(error), error=True)
                self.box.add_class(REFUSED_CLASS)
                return
            self.box.remove_class(REFUSED_CLASS)
            self.chart.push(**self.tables)
            self._update_text()

    def _update_text(self) -> None:
        self.snippet.text = self.code
        self.sentence.value = notice(typeset(self._describe(**self.tables)))


def browse(
    table: pd.DataFrame,
    x: str,
    value: str | Sequence[str],
    start: dict[str, object],
    series: str | None = None,
    *,
    describe: Callable[[pd.DataFrame], str] | None = None,
    labels: dict[str, str] | None = None,
    presets: dict[str, dict] | None = None,
    **look,
) -> Explorer:
    """An explorer of a committed table: menus choose rows, and means over units are drawn.

        browse(load("dose/rates"), "prompts", "follows", {"tokens": "unsure"}, series="source",
               title="...")

    table: a row per unit (the column seed) and setting, as `unit_curve` takes it.
    value: what is drawn, a column or a choice of several.
    start: {column: the value that its menu begins with, or a control in its place}.
    series: the column that tells lines apart.  labels: {column: its menu's label}, of "value" too.
    presets: as of an Explorer.  look: settings of `curve_chart`.

    The intervals are t intervals. Settings of which the table has no row are refused in a sentence.
    """
    values = [value] if isinstance(value, str) else list(value)
    labels = labels or {}
    controls = {}
    for name, first in start.items():
        if isinstance(first, ipywidgets.Widget):
            controls[name] = first
            continue
        # numbers first: they don't compare with texts
        options = sorted(table[name].unique().tolist(), key=lambda one: (isinstance(one, str), one))
        controls[name] = menu(first, options, labels.get(name, name.replace("_", " ")))
    if len(values) > 1:
        controls["value"] = menu(values[0], values, labels.get("value", "shown"))
    if series and "names" not in look:
        look["names"] = table[series].drop_duplicates().tolist()

    def compute(value=values[0], **chosen) -> dict[str, pd.DataFrame]:
        is_chosen = (table[list(chosen)] == pd.Series(chosen)).all(axis=1)
        if not (is_chosen & table[value].notna()).any():
            wanted = ", ".join(f"{name} = {setting}" for name, setting in chosen.items())
            raise ValueError(f"The table has no row with {wanted}.")
        return {"curve": unit_curve(table[is_chosen], x, value, by=series)}

    def chart(curve: pd.DataFrame):
        return curve_chart(curve, x, series=series, **look)

    def code(settings: dict) -> str:
        shown = settings.get("value", values[0])
        chosen = {name: one for name, one in settings.items() if name != "value"}
        rows = " & ".join(f"(table[{name!r}] == {_rounded(one)!r})" for name, one in chosen.items())
        selection = f"table[{rows}]" if rows else "table"
        by = f", by={series!r}" if series else ""
        call = f"unit_curve({selection}, {x!r}, {shown!r}{by})"
        return f"from workbook.statistics import unit_curve\n\n{call}"

    return Explorer(compute, chart, controls, describe, code=code, presets=presets)


def frozen(explorer: Explorer, **grid: Sequence) -> dict:
    """The explorer's chart as a Vega-Lite spec that moves in a page without a kernel.

        frozen(explore_pair(), p_a=[0.1, 0.5, 0.9], angle=[0, 45, 90])

    grid: {control: the values that Vega's own slider or menu offers}, one or two of them; every
    other control stands where it is. The explorer's compute makes the rows of each setting, and all
    of them travel with the page: 25 settings of a curve take about half a megabyte. Settings that
    compute refuses show an empty chart.
    """
    tables: dict[str, list] = {}
    for values in product(*grid.values()):
        place = dict(zip(grid, values, strict=True))
        settings = {**explorer.settings, **place}
        try:
            result = explorer.compute(*explorer.variables.values(), **settings)
        except ValueError:
            continue
        at = {f"at_{key}": value for key, value in place.items()}
        named = result if isinstance(result, dict) else {"table": result}
        for name, table in named.items():
            for row in rows(table):
                short = {key: _rounded(one, 5) for key, one in row.items()}
                tables.setdefault(name, []).append({**short, **at})
    spec = _filtered(explorer.chart.spec, tables, grid)
    params = [_bound_parameter(explorer, key, list(values)) for key, values in grid.items()]
    return {
        **spec,
        "params": params + spec.get("params", []),
        "datasets": {**explorer.chart.data, **tables},
    }


def _filtered(node, tables, grid):
    """A spec with a filter to the chosen setting before each transform that reads the tables."""
    if isinstance(node, list):
        return [_filtered(one, tables, grid) for one in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _filtered(one, tables, grid) for key, one in node.items()}
    if isinstance(node.get("data"), dict) and node["data"].get("name") in tables:
        chosen = [{"filter": f"datum.at_{key} === now_{key}"} for key in grid]
        inner["transform"] = chosen + inner.get("transform", [])
    return inner


def _bound_parameter(explorer: Explorer, key: str, values: list) -> dict:
    """A Vega parameter that chooses among values; it begins at the nearest to the control's."""
    now = explorer.settings[key]
    label = explorer.controls[key].description
    is_number = all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in [*values, now]
    )
    value = now
    input_ = {"input": "select", "options": values}
    if is_number:
        value = min(values, key=lambda one: abs(one - now))
        steps = {round(b - a, 9) for a, b in pairwise(values)}
        # a slider over whole numbers is exact in JavaScript, any other value goes into a menu
        if len(steps) == 1 and min(steps) > 0 and all(isinstance(one, int) for one in values):
            input_ = {"input": "range", "min": values[0], "max": values[-1], "step": steps.pop()}
    return {"name": f"now_{key}", "value": value, "bind": {**input_, "name": f"{label} "}}


def call_code(compute: Callable, variables, settings: dict) -> str:
    """An import of a function, and its call with variables by name and settings by value.

    Of a generator's function it is the list of what it yields.
    """
    arguments = [*variables, *(f"{name}={_rounded(value)!r}" for name, value in settings.items())]
    call = f"{compute.__name__}({', '.join(arguments)})"
    if inspect.isgeneratorfunction(inspect.unwrap(compute)):
        call = f"list({call})"
    return f"from {compute.__module__} import {compute.__name__}\n\n{call}"


def control_grid(*controls: ipywidgets.Widget) -> ipywidgets.Box:
    """Controls in as many columns as there is room for."""
    return ipywidgets.Box(controls, layout={"flex_flow": "row wrap"}).add_class("workbook-controls")


def slider(
    value, low, high, step, label: str, **kwargs
) -> ipywidgets.FloatSlider | ipywidgets.IntSlider:
    """A slider over numbers from low to high, whole ones if all four are."""
    whole = all(isinstance(number, int) for number in (value, low, high, step))
    kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
    decimals = max(len(f"{number:.10g}".partition(".")[2]) for number in (low, step))
    form = {} if whole else {"readout_format": f".{decimals}f"}
    return kind(
        value=value,
        min=low,
        max=high,
        step=step,
        description=label,
        **form,
        **_look(label),
        **kwargs,
    )


def power_slider(value: int, most: int, label: str, least: int = 1, zero: str | None = None):
    """A slider over the powers of 2 from least to most, shown as themselves.

    zero: words for 0 at its low end.
    """
    numbers = {2**k for k in range(most.bit_length()) if least <= 2**k <= most}
    if value or not zero:
        numbers.add(value)
    options = [(str(number), number) for number in sorted(numbers)]
    if zero:
        options.insert(0, (zero, 0))
    index = [number for _, number in options].index(value)
    return ipywidgets.SelectionSlider(
        index=index, options=options, description=label, **_look(label)
    )


def log_slider(value, low, high, label: str, step: float = 0.1) -> ipywidgets.FloatLogSlider:
    """A slider over 10**low ... 10**high, in steps of `step` decades."""
    return LogSlider(value=value, min=low, max=high, step=step, description=label, **_look(label))


class LogSlider(ipywidgets.FloatLogSlider):
    """A slider over powers of ten that says 0.01, as code does.

    ipywidgets' own check knows no format without trailing zeros.
    """

    readout_format = traitlets.Unicode(".2~g").tag(sync=True)


def value_of(control: ipywidgets.ValueWidget):
    """What a control shows: its value, of a logarithmic slider in two figures."""
    if isinstance(control, ipywidgets.FloatLogSlider):
        return float(f"{control.value:.2g}")
    return control.value


def menu(value, options, label: str) -> ipywidgets.Dropdown:
    """A choice of one; options: values, or pairs (what is shown, value)."""
    return Menu(options=options, value=value, description=label, **_look(label))


class Menu(ipywidgets.Dropdown):
    """A menu in which None is an option as any other; ipywidgets takes it for no choice."""

    def __init__(self, options, value, **kwargs):
        super().__init__(options=options, value=value, **kwargs)
        if value is None and None in self._options_values:
            self.index = self._options_values.index(None)

    @traitlets.observe("value")
    def _propagate_value(self, change):
        if change.new is None and None in self._options_values:
            self.index = self._options_values.index(None)
        else:
            super()._propagate_value(change)


def switch(value: bool, label: str) -> ipywidgets.Checkbox:
    """On or off."""
    return ipywidgets.Checkbox(value=value, description=label, indent=True, **_look(label))


def _look(label: str) -> dict:
    """Width and tooltip of a control; tooltips by label stand in data/book/hints.yaml."""
    return {
        "style": {"description_width": "170px"},
        "layout": {"width": "420px", "max_width": "100%"},
        "tooltip": _hints().get(label, f"{label}."),
    }


@functools.cache
def _hints() -> dict[str, str]:
    return yaml.safe_load(data_path("book", "hints.yaml").read_text("utf-8"))


def _rounded(value, digits: int = 6):
    """A number without the tail of binary fractions: 0.30000000000000004 -> 0.3."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
