"""Explorer: sliders and menus over a pure compute() and a pure chart(), in one thin shell.

    compute(**settings) -> table, or {name: table}      numbers; ValueError where the settings can't be
    chart(**tables) -> alt.Chart                        a picture of exactly these tables
    say(**tables) -> str                                one sentence with the numbers that matter

The chart is built once and afterwards receives rows. Reset goes back to the settings it began with, and the line of
code below the chart is the setting a reader can take into a cell of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import ipywidgets
import pandas as pd

from workbook.views.live import LiveChart, close, show
from workbook.views.snippet import Snippet
from workbook.views.style import escape

QUICK = 0.050  # seconds: what takes longer is computed when a slider is let go, not on the way
WIDTH = {"description_width": "170px"}


class Explorer:
    """Controls over a chart; `display()` puts it on the page with a picture of the chart as its fallback.

    compute, chart, say: as in the module's docstring.  controls: {keyword of compute: ipywidget with a value}.
    variables: {name in the reader's notebook: value}, what a cell has measured: compute's first arguments.

    Attributes: `settings` what the controls say, `tables` what is drawn, `code` the call that computes it. They part
    only where the controls ask for what can't be: then the sentence says so, and the rest stays as it was. `quick`:
    whether the chart follows a slider under the hand, so since compute was first seen to be fast enough.
    """

    def __init__(
        self,
        compute: Callable,
        chart: Callable,
        controls: dict[str, ipywidgets.ValueWidget],
        say: Callable[..., str] | None = None,
        variables: dict[str, object] | None = None,
    ):
        self.compute, self.controls, self._say, self._variables = compute, controls, say, variables or {}
        self._start = self.settings
        self.quick = False
        for control in controls.values():
            if control.has_trait("continuous_update"):
                control.continuous_update = False
        for _ in range(3):  # what the first call had to load is not what a drag costs
            self.tables = self._computed()
        self.chart = LiveChart.over(chart, **self.tables)
        self.sentence = ipywidgets.HTML(layout={"max_width": "860px"})
        self.snippet = Snippet()
        self.reset_button = ipywidgets.Button(description="Reset", icon="undo", tooltip="Back to the first settings")
        self.reset_button.on_click(lambda _: self.reset())
        for control in controls.values():
            control.observe(self._moved, "value")
        grid = ipywidgets.Box([*controls.values(), self.reset_button], layout={"flex_flow": "row wrap"})
        self.box = ipywidgets.VBox([grid, self.sentence, self.chart, self.snippet]).add_class("workbook-explorer")
        self._tell()

    @property
    def settings(self) -> dict:
        """The value of every control, by compute's keyword."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def code(self) -> str:
        """An import and a call that compute what is drawn."""
        values = ", ".join([*self._variables, *(f"{name}={_tidy(value)!r}" for name, value in self._drawn.items())])
        name = self.compute.__name__
        return f"from {self.compute.__module__} import {name}\n\n{name}({values})"

    def set(self, **settings) -> None:
        """Move controls, as a reader would; KeyError for a name that there is no control of."""
        for name, value in settings.items():
            self.controls[name].value = value

    def reset(self) -> None:
        """Back to the settings that it began with."""
        self.set(**self._start)

    def display(self) -> None:
        """Put it on the page."""
        show(self.box, self.chart)

    def _ipython_display_(self, **_) -> None:
        self.display()

    def close(self) -> None:
        """Take it off the page and free it."""
        close(self.box)

    def _computed(self) -> dict[str, pd.DataFrame]:
        settings, began = self.settings, time.perf_counter()
        result = self.compute(*self._variables.values(), **settings)
        if time.perf_counter() - began < QUICK and not self.quick:
            self._follow()
        self._drawn = settings
        return result if isinstance(result, dict) else {"table": result}

    def _moved(self, _) -> None:
        try:
            self.tables = self._computed()
        except ValueError as error:  # two controls may not go together; the chart stays as it was
            self._show_sentence(str(error), color="#a94400")
            return
        self.chart.push(**self.tables)
        self._tell()

    def _follow(self) -> None:
        """From now on redraw while a slider is dragged; for good, as a change of mind would pull it from the hand."""
        self.quick = True
        for control in self.controls.values():
            if control.has_trait("continuous_update"):
                control.continuous_update = True

    def _tell(self) -> None:
        self.snippet.text = self.code
        self._show_sentence(self._say(**self.tables) if self._say else "")

    def _show_sentence(self, text: str, color: str = "inherit") -> None:
        self.sentence.value = f'<div role="status" style="color: {color}; line-height: 1.4">{escape(text)}</div>'


def slider(value, low, high, step, label: str, **kwargs) -> ipywidgets.FloatSlider | ipywidgets.IntSlider:
    """A slider over numbers from low to high, whole ones if all four are."""
    whole = all(isinstance(number, int) for number in (value, low, high, step))
    kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
    return kind(value=value, min=low, max=high, step=step, description=label, **_look(), **kwargs)


def log_slider(value, low, high, label: str, step: float = 0.1) -> ipywidgets.FloatLogSlider:
    """A slider over 10**low ... 10**high, in steps of `step` decades."""
    return ipywidgets.FloatLogSlider(
        value=value, min=low, max=high, step=step, description=label, readout_format=".1e", **_look()
    )


def menu(value, options, label: str) -> ipywidgets.Dropdown:
    """A choice of one; options: values, or pairs (what is shown, value)."""
    return ipywidgets.Dropdown(value=value, options=options, description=label, **_look())


def switch(value: bool, label: str) -> ipywidgets.Checkbox:
    """On or off."""
    return ipywidgets.Checkbox(value=value, description=label, indent=True, **_look())


def _look() -> dict:
    return {"style": dict(WIDTH), "layout": {"width": "420px"}}


def _tidy(value):
    """A number without the tail that a slider's binary fractions leave: 0.30000000000000004 -> 0.3."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
