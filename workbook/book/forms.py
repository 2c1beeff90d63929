"""Widgets as they looked when a chapter had run: a chart's last picture, and labels with values.

A committed notebook keeps the labels beside the picture, under a mime type of its own, which
JupyterLab passes over.
"""

import html
import re
from collections.abc import Iterator

from workbook.views.live import received

CONTROLS_TYPE = "application/vnd.workbook.controls+json"
# markup that was made for another page
_UNSAFE = re.compile(r'<(style|script)\b.*?</\1>|\s(?:style|on\w+)="[^"]*"', re.DOTALL)
# before the id of a widget that another one names
_REFERENCE = "IPY_MODEL_"
# the state from which a page without a kernel draws a heatmap
TOKENS_TYPE = "application/vnd.workbook.tokens+json"
_HEATMAP_STATE = (
    "title",
    "main",
    "group",
    "column",
    "mode",
    "compare",
    "choices",
    "pinned",
    "moves",
    "moves_limit",
    "details",
)
_STATIC_NOTE = "A static copy: these controls answer where the chapter runs."


def last_form(states: dict[str, dict], model: str) -> tuple[dict | None, list[list[str]]]:
    """Return a widget's first chart, as a spec with its last rows, and its [label, value] pairs.

    states: {id: state} of all widgets, as they were last.  A pair without a label is a sentence, in
    HTML.
    """
    spec = None
    pairs = []
    for state in _shown(states, model):
        if "spec" in state and "data" in state:
            if spec is None:
                tables = {name: received(rows) for name, rows in state["data"].items()}
                spec = {**state["spec"], "datasets": tables}
            continue
        pair = _labelled_value(state)
        if pair is not None:
            pairs.append(pair)
    return spec, pairs


def _labelled_value(state: dict) -> list[str] | None:
    """What a control or a sentence shows: [label, value], or ["", HTML]; None of anything else."""
    kind = state.get("_model_name", "")
    label = state.get("description", "")
    value = state.get("value")
    if kind in ("HTMLModel", "LabelModel") and value:
        words = _UNSAFE.sub("", value)
        return ["", words if kind == "HTMLModel" else html.escape(words)]
    # menus and sliders over options: index is a number, several, or None
    if "_options_labels" in state:
        index = state.get("index")
        places = [] if index is None else index
        places = places if isinstance(places, list | tuple) else [places]
        return [label, ", ".join(state["_options_labels"][k] for k in places)]
    if "value" in state and label:
        return [label, f"{value:.4g}" if isinstance(value, float) else str(value)]
    return None


def last_tokens(state: dict, buffers: dict) -> dict | None:
    """Return a heatmap's state as a page can draw it; None of another widget.

    state, buffers: of a widget as nbclient keeps them.  The buffers are returned as [path, base64].
    What only a kernel can do is left out: other groups and steps.
    """
    if not str(state.get("_anywidget_id")).endswith(".TokenHeatmap"):
        return None
    kept = {name: state[name] for name in _HEATMAP_STATE if name in state}
    kept["choices"] = [choice for choice in state["choices"] if choice.startswith("column ")]
    kept["compare"] = state["compare"] if state["compare"] in kept["choices"] else ""
    parts = [
        [list(path), part["data"]] for path, part in buffers.items() if path[0] in _HEATMAP_STATE
    ]
    return {"state": kept, "buffers": parts}


def form_html(pairs: list[list[str]]) -> str:
    """Write [label, value] pairs as a table, and sentences below it."""
    row = "<tr><th scope=row>{}</th><td>{}</td></tr>"
    rows = "".join(row.format(*map(html.escape, pair)) for pair in pairs if pair[0])
    words = "".join(f"<div>{value}</div>" for label, value in pairs if not label)
    form = f"<summary>{_STATIC_NOTE}</summary><table>{rows}</table>"
    return f'<details class="form">{form}</details>{words}'


def _shown(states: dict[str, dict], model: str) -> Iterator[dict]:
    """The states of a widget and of all that it shows, in the order of the page."""
    state = states.get(model.removeprefix(_REFERENCE))
    if state is None:
        return
    layout = states.get(str(state.get("layout")).removeprefix(_REFERENCE), {})
    if layout.get("display") == "none" or layout.get("visibility") == "hidden":
        return
    yield state
    for child in state.get("children") or ():
        yield from _shown(states, child)
