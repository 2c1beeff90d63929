"""Widgets as they looked when a chapter had run: the last picture of a chart, and a list of labels
with values.

A committed notebook keeps such a list beside a picture, under a type of its own that JupyterLab
passes over.
"""

import html
import re
from collections.abc import Iterator

from workbook.views.live import received

FORM = "application/vnd.workbook.controls+json"
# made for another page
UNSAFE = re.compile(r'<(style|script)\b.*?</\1>|\s(?:style|on\w+)="[^"]*"', re.DOTALL)
PREFIX = "IPY_MODEL_"
# a heatmap's state: what a page without a kernel draws it from
TOKENS = "application/vnd.workbook.tokens+json"
TOKEN_STATE = (
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
NOTE = "A static copy: these controls answer where the chapter runs."


def last_form(states: dict[str, dict], model: str) -> tuple[dict | None, list[list[str]]]:
    """Return the spec of a widget's first chart with its last rows, and its [label, value] pairs,
    in order.

    states: {id: state} of all widgets, as they were last.  A pair without a label is a sentence, in
    HTML.
    """
    spec, pairs = None, []
    for state in _shown(states, model):
        if "spec" in state and "data" in state:
            tables = {name: received(rows) for name, rows in state["data"].items()}
            spec = spec or {**state["spec"], "datasets": tables}
        elif (name := state.get("_model_name", "")) in ("HTMLModel", "LabelModel") and state.get(
            "value"
        ):
            words = UNSAFE.sub("", state["value"])
            pairs.append(["", words if name == "HTMLModel" else html.escape(words)])
        elif "_options_labels" in state:
            index = state.get("index")
            places = index if isinstance(index, list | tuple) else [] if index is None else [index]
            pairs.append(
                [
                    state.get("description", ""),
                    ", ".join(state["_options_labels"][k] for k in places),
                ]
            )
        elif "value" in state and state.get("description"):
            value = state["value"]
            pairs.append(
                [state["description"], f"{value:.4g}" if isinstance(value, float) else str(value)]
            )
    return spec, pairs


def last_tokens(state: dict, buffers: dict) -> dict | None:
    """Return a heatmap's state as a page can draw it, with its binary parts as [path, base64]; None
    of another widget.

    state, buffers: of a widget as nbclient keeps them.  What only a kernel can do is left out:
    other groups and steps.
    """
    if not str(state.get("_anywidget_id")).endswith(".TokenHeatmap"):
        return None
    kept = {name: state[name] for name in TOKEN_STATE if name in state}
    kept["choices"] = [choice for choice in state["choices"] if choice.startswith("column ")]
    kept["compare"] = state["compare"] if state["compare"] in kept["choices"] else ""
    parts = [[list(path), part["data"]] for path, part in buffers.items() if path[0] in TOKEN_STATE]
    return {"state": kept, "buffers": parts}


def form_html(pairs: list[list[str]]) -> str:
    """Write [label, value] pairs as a table, and sentences below it."""
    row = "<tr><th scope=row>{}</th><td>{}</td></tr>"
    rows = "".join(row.format(*map(html.escape, pair)) for pair in pairs if pair[0])
    words = "".join(f"<div>{value}</div>" for label, value in pairs if not label)
    return f'<details class="form"><summary>{NOTE}</summary><table>{rows}</table></details>{words}'


def _shown(states: dict[str, dict], model: str) -> Iterator[dict]:
    """The states of a widget and of all that is shown inside it, in the order of the page."""
    state = states.get(model.removeprefix(PREFIX))
    if state is None:
        return
    layout = states.get(str(state.get("layout")).removeprefix(PREFIX), {})
    if layout.get("display") == "none" or layout.get("visibility") == "hidden":
        return
    yield state
    for child in state.get("children") or ():
        yield from _shown(states, child)
