"""Widgets as they looked when a chapter had run: their labels, values and pictures as a tree, and the tree as HTML.

A committed notebook holds no widget's state. Beside the picture of a widget's chart it keeps such a tree, under a type
of its own, which JupyterLab and code hosts pass over: a few kilobytes, enough for the book to show a form with content.
"""

from __future__ import annotations

import html
import math
import re

from workbook.book.parts import attributes, control, picture, plain_text, scrolling
from workbook.views.live import received
from workbook.views.renderer import picture as draw

FORM = "application/vnd.workbook.form+json"
PREFIX = "IPY_MODEL_"
CHART = "workbook.views.live.LiveChart"
KINDS = {  # of ipywidgets' models; the rest is no part of a form
    "slider": "FloatSlider FloatLogSlider IntSlider",
    "menu": "Dropdown Select ToggleButtons RadioButtons SelectionSlider SelectMultiple",
    "switch": "Checkbox ToggleButton",
    "text": "Text Textarea IntText FloatText BoundedIntText BoundedFloatText Combobox",
    "button": "Button FileUpload",
    "words": "HTML HTMLMath Label",
    "progress": "IntProgress FloatProgress",
    "box": "VBox HBox Box GridBox Accordion Tab",
}
KIND_OF = {f"{model}Model": kind for kind, models in KINDS.items() for model in models.split()}
NOTE = '<p class="soft">A static copy: these controls answer where the chapter runs.</p>'


# --- from the widgets' states


def form_tree(states: dict[str, dict], model: str) -> dict | None:
    """What a widget shows, as plain values: its kind, label and value, or its parts. None for nothing.

    states: {id: state} of all widgets, as they were last.  The first chart stands for the picture beside the tree.
    """
    tree = _node(states, model)
    for k, chart in enumerate(_nodes(tree, "picture")):
        spec = chart.pop("spec", None)
        if k and spec:
            data, about = draw(spec)
            chart |= {"png": data.get("image/png"), **about.get("image/png", {})}
    return tree


def is_form(tree: dict | None) -> bool:
    """Whether there is anything but pictures."""
    return any(_nodes(tree, kind) for kind in KINDS if kind != "box")


def first_chart(states: dict[str, dict], model: str) -> dict | None:
    """The spec of the first chart in a widget, with its last rows."""
    charts = [chart for chart in _nodes(_node(states, model), "picture") if "spec" in chart]
    return charts[0]["spec"] if charts else None


def _node(states: dict[str, dict], model: str) -> dict | None:
    state = states.get(model.removeprefix(PREFIX))
    if state is None or _is_hidden(states, state):
        return None
    if "_esm" in state:
        return _drawn(state)
    kind, label = KIND_OF.get(state.get("_model_name")), state.get("description") or ""
    if kind == "box":
        return _box(states, state)
    if kind == "menu":
        return {"kind": kind, "label": label, "value": _chosen(state)}
    if kind == "button":
        return {"kind": kind, "label": label, "off": bool(state.get("disabled"))}
    if kind == "words":
        value = html.escape(state["value"]) if state["_model_name"] == "LabelModel" else _words(state["value"])
        return {"kind": kind, "label": label, "value": value} if plain_text(value) else None
    limits = {key: state[key] for key in ("min", "max", "step", "base") if key in state}
    return {"kind": kind, "label": label, "value": state.get("value"), **limits} if kind else None


def _is_hidden(states: dict[str, dict], state: dict) -> bool:
    layout = states.get(str(state.get("layout")).removeprefix(PREFIX), {})
    return layout.get("display") == "none" or layout.get("visibility") == "hidden"


def _drawn(state: dict) -> dict:
    """A widget with a script of its own: a chart, lines of code, or another that its picture stands for."""
    if "spec" in state and "data" in state:
        tables = {name: received(rows) for name, rows in state["data"].items()}
        return {"kind": "picture", "spec": {**state["spec"], "datasets": tables}}
    return {"kind": "code", "value": state["text"]} if "text" in state else {"kind": "picture"}


def _box(states: dict[str, dict], state: dict) -> dict | None:
    """A box with those of its parts that show anything; an accordion's parts have titles."""
    parts = [_node(states, child) for child in state.get("children", ())]
    titles = [*(state.get("titles") or ()), *[""] * len(parts)]
    parts = [part | ({"title": title} if title else {}) for part, title in zip(parts, titles, strict=False) if part]
    name = state["_model_name"]
    row = name == "HBoxModel" or (name == "BoxModel" and "row" in str(_layout(states, state, "flex_flow") or "row"))
    return {"kind": "box", "row": row, "parts": parts} if parts else None


def _layout(states: dict[str, dict], state: dict, name: str):
    return states.get(str(state.get("layout")).removeprefix(PREFIX), {}).get(name)


def _chosen(state: dict) -> str:
    labels, index = state.get("_options_labels", ()), state.get("index")
    places = index if isinstance(index, list | tuple) else [] if index is None else [index]
    return ", ".join(str(labels[place]) for place in places)


def _words(value: str) -> str:
    """Markup without colours, sizes and scripts of its own, which are made for another page."""
    value = re.sub(r"<(style|script)\b.*?</\1>", "", value, flags=re.DOTALL | re.IGNORECASE)
    return re.sub(r'\s(?:style|role|on\w+)="[^"]*"', "", value)


def _nodes(tree: dict | None, kind: str) -> list[dict]:
    """All nodes of a kind, in the order of the page."""
    if tree is None:
        return []
    return [tree] * (tree["kind"] == kind) + [node for part in tree.get("parts", ()) for node in _nodes(part, kind)]


# --- to the page


def form_html(tree: dict, image: str, id: str = "form") -> str:
    """A tree as HTML whose controls are switched off; image: of its first chart.  id: begins those of its controls."""
    images = iter([image])
    return f'<div class="form">{NOTE}{_html(tree, images, id)}</div>'


def _html(node: dict, images, id: str) -> str:
    kind, label, value = node["kind"], node.get("label", ""), node.get("value")
    title = f"<p><b>{html.escape(node['title'])}</b></p>" if "title" in node else ""
    if kind == "box":
        parts = "".join(_html(part, images, f"{id}-{k}") for k, part in enumerate(node["parts"]))
        return f'{title}<div class="{"row" if node["row"] else "column"}">{parts}</div>'
    return title + _SHOWN[kind](node, label, value, images, id)


def _slider(node, label, value, images, id):
    at = math.log(value, node["base"]) if "base" in node else value
    numbers = {key: f"{number:.6g}" for key, number in (("min", node["min"]), ("max", node["max"]), ("value", at))}
    field = f'<input type="range"{attributes(id=id, step="any", disabled=True, **numbers)}>'
    return control(id, label, field, readout=f"{value:.4g}")


def _menu(node, label, value, images, id):
    field = f"<select{attributes(id=id, disabled=True)}><option>{html.escape(value) or 'none'}</option></select>"
    return control(id, label or "choice", field)


def _switch(node, label, value, images, id):
    field = f'<input type="checkbox"{attributes(id=id, checked=bool(value), disabled=True)}>'
    return control(id, label or "switch", field)


def _typed(node, label, value, images, id):
    field = f'<input type="text"{attributes(id=id, value=value, disabled=True)}>'
    return control(id, label or "value", field)


def _progress(node, label, value, images, id):
    bar = f"<progress{attributes(id=id, value=value, max=node.get('max', 1))}></progress>"
    return control(id, label or "progress", bar)


_SHOWN = {
    "slider": _slider,
    "menu": _menu,
    "switch": _switch,
    "text": _typed,
    "progress": _progress,
    "button": lambda node, label, value, images, id: (
        f'<button type="button"{attributes(disabled=True)}>{html.escape(label)}</button>'
    ),
    "words": lambda node, label, value, images, id: (
        scrolling("wide", "Table", value) if "<table" in value else f"<div>{html.escape(label)} {value}</div>"
    ),
    "code": lambda node, label, value, images, id: f'<pre tabindex="0">{html.escape(value)}</pre>',
    "picture": lambda node, label, value, images, id: (
        picture(**{key: node[key] for key in ("png", "alt", "width", "height") if key in node})
        if node.get("png")
        else next(images, "")
    ),
}
