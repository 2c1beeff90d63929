"""Explorer: sliders and menus over a pure compute() and a pure chart(), in one thin shell.

    compute(**settings) -> table, or {name: table}      numbers; ValueError where the settings can't be
    chart(**tables) -> alt.Chart                        a picture of exactly these tables
    describe(**tables) -> str                           one sentence with the numbers that matter

The chart is built once and afterwards receives rows. Reset goes back to the settings it began with, and the line of
code below the chart is the setting a reader can take into a cell of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import anywidget
import ipywidgets
import pandas as pd
import traitlets

from workbook.views.live import LiveChart, close, show
from workbook.views.style import notice

MAX_DRAG_SECONDS = 0.050  # what takes longer is computed when a slider is let go, not on the way
SNIPPET_ESM = """
function render({ model, el }) {
  const [text, button, box] = ["pre", "button", "div"].map(tag => document.createElement(tag));
  box.className = 'workbook-code';
  button.className = 'jupyter-button';
  button.textContent = 'Copy as code';
  const copied = document.createElement('span'); copied.setAttribute('role', 'status');
  const show = () => { text.textContent = model.get('text'); };   // text, never markup
  button.onclick = async () => {
    const code = model.get('text');
    try { await navigator.clipboard.writeText(code); }
    catch { const area = document.createElement('textarea'); area.value = code; document.body.append(area);
      area.select(); document.execCommand('copy'); area.remove(); }
    copied.textContent = ' copied'; setTimeout(() => { copied.textContent = ''; }, 1500);
  };
  model.on('change:text', show); show();
  box.append(button, copied, text); el.append(box);
  return () => model.off('change:text', show);
}
function initialize({ model }) {   // what is asked is answered after all that the page has sent
  const answer = message => model.send(message);
  model.on('msg:custom', answer);
  return () => model.off('msg:custom', answer);
}
export default { initialize, render };
"""
SNIPPET_CSS = """
.workbook-code pre { margin: 4px 0 0; padding: 6px 8px; max-width: 860px; white-space: pre-wrap; font-size: 12px;
  background: var(--jp-layout-color2, #f2f2f2); color: var(--jp-ui-font-color1, #222); }
"""


class Snippet(anywidget.AnyWidget):
    """A line or two of Python on the page, with a button that copies it; the page answers what it is sent."""

    _esm = SNIPPET_ESM
    _css = SNIPPET_CSS
    text = traitlets.Unicode().tag(sync=True)


class Explorer:
    """Controls over a chart; `display()` puts it on the page with a picture of the chart as its fallback.

    compute, chart, describe: as in the module's docstring.  controls: {keyword of compute: ipywidget with a value}.
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
        describe: Callable[..., str] | None = None,
        variables: dict[str, object] | None = None,
    ):
        self.compute, self.controls, self.variables = compute, controls, variables or {}
        self._one_at_a_time = threading.RLock()  # cells and controls have threads of their own
        self._setting, self._rounds = False, 0
        self._describe = describe or (lambda **_: "")
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
        self.reset_button.on_click(self._reset_clicked)
        self.snippet.on_msg(self._page_answered)
        for control in controls.values():
            control.observe(self._moved, "value")
        grid = ipywidgets.Box([*controls.values(), self.reset_button], layout={"flex_flow": "row wrap"})
        self.box = ipywidgets.VBox([grid, self.sentence, self.chart, self.snippet]).add_class("workbook-explorer")
        self._update_text()

    @property
    def settings(self) -> dict:
        """The value of every control, by compute's keyword."""
        return {name: value_of(control) for name, control in self.controls.items()}

    @property
    def code(self) -> str:
        """An import and a call that compute what is drawn."""
        return call_code(self.compute, self.variables, self._drawn)

    def set(self, **settings) -> None:
        """Move controls, as a reader would, all before anything is computed; KeyError for one that there is not."""
        controls = [self.controls[name] for name in settings]
        with self._one_at_a_time:
            before, self._setting = self.settings, True
            try:
                for control, value in zip(controls, settings.values(), strict=True):
                    control.value = value
            finally:
                self._setting = False
                if self.settings != before:
                    self._moved(None)

    def reset(self) -> None:
        """Back to the settings that it began with."""
        self.set(**self._start)

    def _reset_clicked(self, _) -> None:
        """Reset, and again after what the page had yet to send: a slider's last message waits, a click does not."""
        self._rounds = 3  # a slider that is moved from here may answer, and so may one whose first value is not a stop
        self.snippet.send({})
        self.reset()

    def _page_answered(self, *_) -> None:
        rounded = {name: _rounded(value) for name, value in self.settings.items()}
        if self._rounds and rounded != {name: _rounded(value) for name, value in self._start.items()}:
            self._rounds -= 1
            self.snippet.send({})
            self.reset()

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
        result = self.compute(*self.variables.values(), **settings)
        if time.perf_counter() - began < MAX_DRAG_SECONDS and not self.quick:
            self._follow()
        self._drawn = settings
        return result if isinstance(result, dict) else {"table": result}

    def _moved(self, _) -> None:
        with self._one_at_a_time:  # who comes last sees the newest settings
            if self._setting:
                return
            try:
                self.tables = self._computed()
            except ValueError as error:  # two controls may not go together; the chart stays as it was
                self.sentence.value = notice(str(error), error=True)
                return
            self.chart.push(**self.tables)
            self._update_text()

    def _follow(self) -> None:
        """From now on redraw while a slider is dragged; for good, as a change of mind would pull it from the hand."""
        self.quick = True
        for control in self.controls.values():
            if control.has_trait("continuous_update"):
                control.continuous_update = True

    def _update_text(self) -> None:
        self.snippet.text = self.code
        self.sentence.value = notice(self._describe(**self.tables))


def call_code(compute: Callable, variables, settings: dict) -> str:
    """An import of a function, and the call of it with variables by name and settings by value."""
    values = ", ".join([*variables, *(f"{name}={_rounded(value)!r}" for name, value in settings.items())])
    return f"from {compute.__module__} import {compute.__name__}\n\n{compute.__name__}({values})"


def slider(value, low, high, step, label: str, **kwargs) -> ipywidgets.FloatSlider | ipywidgets.IntSlider:
    """A slider over numbers from low to high, whole ones if all four are."""
    whole = all(isinstance(number, int) for number in (value, low, high, step))
    kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
    return kind(value=value, min=low, max=high, step=step, description=label, **_layout(), **kwargs)


def power_slider(value: int, most: int, label: str, least: int = 1, zero: str | None = None):
    """A slider over the powers of 2 from least to most, shown as themselves; zero: words for 0 at its low end."""
    powers = [2**k for k in range(most.bit_length()) if least <= 2**k <= most]
    numbers = sorted({*powers, *([] if zero else [value]), *([value] if value else [])})
    options = [*([(zero, 0)] if zero else []), *((str(number), number) for number in numbers)]
    index = [number for _, number in options].index(value)
    return ipywidgets.SelectionSlider(index=index, options=options, description=label, **_layout())


def log_slider(value, low, high, label: str, step: float = 0.1) -> ipywidgets.FloatLogSlider:
    """A slider over 10**low ... 10**high, in steps of `step` decades."""
    form = ".2g" if low >= -4 else ".1e"
    return ipywidgets.FloatLogSlider(
        value=value, min=low, max=high, step=step, description=label, readout_format=form, **_layout()
    )


def value_of(control: ipywidgets.ValueWidget):
    """What a control shows: its value, of a slider over powers of ten the two figures that stand beside it."""
    return float(f"{control.value:.2g}") if isinstance(control, ipywidgets.FloatLogSlider) else control.value


def menu(value, options, label: str) -> ipywidgets.Dropdown:
    """A choice of one; options: values, or pairs (what is shown, value)."""
    return Menu(options=options, value=value, description=label, **_layout())


class Menu(ipywidgets.Dropdown):
    """A menu in which None is an option as any other; ipywidgets takes it for no choice, and shows nothing."""

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
    return ipywidgets.Checkbox(value=value, description=label, indent=True, **_layout())


def _layout() -> dict:
    return {"style": {"description_width": "170px"}, "layout": {"width": "420px"}}


def _rounded(value):
    """A number without the tail that a slider's binary fractions leave: 0.30000000000000004 -> 0.3."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
