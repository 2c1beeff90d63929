"""Explorers of the toys, chapters 00 to 03, that move in a page of the book, without a kernel and without the net.

What they compute stands in `static/*.js`, once more, as the same formulas over the same random numbers: a page draws
what `compute()` returns in a notebook, at every setting (tests/browser/test_book.py compares tables and sentences).
Controls, chart and words come from the explorer itself.
"""

from __future__ import annotations

import html
import json
import math
import re
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import ipywidgets
import vl_convert

from workbook.book.parts import attributes, control, plain_text
from workbook.views.explorer import Explorer, value_of
from workbook.views.renderer import vegalite_version

STATIC = Path(__file__).with_name("static")
ROOMS = {  # what each topic offers
    "softmax": "explore_pair explore_map explore_tied",
    "groups": "explore_gradients_meet explore_growing explore_estimators explore_intervention explore_parts",
    "exchange": "explore_exchange explore_transforms explore_kl_drift explore_solutions",
}
EXPLORERS = {name: f"workbook.topics.{room}:{name}" for room, names in ROOMS.items() for name in names.split()}
SCRIPTS = ("vega.js", "explorers.js")  # of a page with explorers
PARTS = ("numbers", *ROOMS, "explorer")  # of explorers.js, in this order
BOX = """<div class="explorer" data-toy="{name}"><form class="controls" aria-label="Settings of: {title}">{controls}
<div><button type="reset" title="Back to the first settings">Reset</button></div></form>
<p class="sentence" role="status">{sentence}</p>
<div class="chart wide" tabindex="0" role="img" aria-label="{description}">{image}</div>
<pre tabindex="0">{code}</pre>
<button type="button" class="copy" title="Copy these lines, to run them in a cell of your own">Copy as code</button>
<span class="copied soft" role="status"></span>
<p class="soft">This one moves: computed in the page, by the formulas and random numbers of
<code>{module}</code>.</p><script type="application/json">{data}</script></div>"""


def named_explorer(source: str) -> str | None:
    """The explorer that a cell ends with, if it moves without a kernel.

    >>> named_explorer("from workbook import x\\n\\nexplore_pair()"), named_explorer("explore_cut()")
    ('explore_pair', None)
    """
    last = re.search(r"^(explore_\w+)\(\)$", source.strip().rsplit("\n", 1)[-1])
    return last[1] if last and last[1] in EXPLORERS else None


@cache
def make_explorer(name: str) -> Explorer:
    """The notebook's explorer of this name."""
    return resolve_name(EXPLORERS[name])()


def explorer_html(name: str, image: str) -> str:
    """An explorer as HTML; image: what stands in its place until it is drawn, and where scripts don't run."""
    explorer = make_explorer(name)
    spec, compute = explorer.chart.spec, explorer.compute
    own = {key: rows for key, rows in explorer.chart.data.items() if key not in explorer.tables}  # of lines at a value
    whole = [key for key, widget in explorer.controls.items() if type(widget.value) is int]
    data = {"spec": spec | {"datasets": own}, "module": compute.__module__, "compute": compute.__name__, "whole": whole}
    return BOX.format(
        name=name,
        controls="".join(
            control_html(widget, key, f"{name}-{key}", value_of(widget)) for key, widget in explorer.controls.items()
        ),
        sentence=html.escape(plain_text(explorer.sentence.value)),
        title=html.escape(spec["description"].partition(".")[0]),
        description=html.escape(spec["description"]),
        image=image,
        code=html.escape(explorer.code),
        module=compute.__module__,
        data=json.dumps(data).replace("<", "\\u003c"),
    )


def control_html(widget: ipywidgets.Widget, name: str, id: str, value) -> str:
    """A slider, menu or switch as HTML that answers to `name`, at this value."""
    label, hint = widget.description, getattr(widget, "tooltip", None)
    if isinstance(widget, ipywidgets.Checkbox):
        field = f'<input type="checkbox"{attributes(id=id, name=name, checked=value)}>'
        return control(id, label, field, hint or "")
    if isinstance(widget, ipywidgets.Dropdown | ipywidgets.SelectionSlider):
        pairs = [pair if isinstance(pair, tuple) else (str(pair), pair) for pair in widget.options]
        options = "".join(
            f"<option{attributes(value=json.dumps(one), selected=one == value)}>{html.escape(text)}</option>"
            for text, one in pairs
        )
        field = f"<select{attributes(id=id, name=name)}>{options}</select>"
        return control(id, label, field, hint or "")
    log = isinstance(widget, ipywidgets.FloatLogSlider)
    return control(id, label, _slider(widget, name, id, log), _sentences(hint, _bounds(widget, log)), f"{value:g}")


def _slider(widget, name: str, id: str, log: bool) -> str:
    """A slider; one of a logarithm slides over the exponent."""
    value = math.log10(widget.value) if log else widget.value
    numbers = {key: f"{number:.10g}" for key, number in (("min", widget.min), ("max", widget.max), ("value", value))}
    step = f"{widget.step:.10g}"
    return f'<input type="range"{attributes(id=id, name=name, **numbers, step=step)}{" data-log" if log else ""}>'


def _bounds(widget, log: bool) -> str:
    """What a slider may be, in words."""
    low, high = (10**widget.min, 10**widget.max) if log else (widget.min, widget.max)
    return f"From {low:g} to {high:g}{'' if log else f' in steps of {widget.step:g}'}."


def _sentences(*texts: str | None) -> str:
    return " ".join(text for text in texts if text)


def scripts() -> dict[str, str]:
    """The two scripts of a page with explorers: Vega, and the explorers themselves."""
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vegalite_version())
    own = "\n".join((STATIC / f"{part}.js").read_text(encoding="utf-8") for part in PARTS)
    return dict(zip(SCRIPTS, (f"(() => {{\n{vega}\n}})();\n", own), strict=True))
