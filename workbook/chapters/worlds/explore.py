"""Worlds under their dials, for chapter 04: what a prompt looks like there, and how its policies
start.
"""

import json
import random
from itertools import pairwise

import altair as alt
import pandas as pd

from workbook.places import data_path
from workbook.statistics import t_interval
from workbook.tasks.chain import Chain
from workbook.tasks.walk import END, Walk
from workbook.tasks.worlds import worlds
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.figures import cells, forest, panels, series
from workbook.views.style import ACCENT, SERIES, describe_rows, finish

TEXTS, WRONG = ("the right chain", "a demonstration that errs"), "result whose likeliest is wrong"
CLASSES = {
    "result": "#c6bbeb",
    WRONG: "#f3a6a0",
    "style": "#b7e0a5",
    "template": "#e3d3d0",
    "copy": "#ecd9f1",
}
_STARTS = {
    "value": "value",
    "greedy": "value of likeliest words",
    "wrong_modes": "wrong modes",
    "mixed": "mixed groups",
}
_REWARDS = {
    "answer": {},
    "each step": {"reward_by": "steps"},
    "four of five answers": {"false_negative_rate": 0.2},
}
LINE, TRIES = 12, 200  # words of a line, demonstrations until one errs


def compute_world(
    prompt: int = 0, reward: str = "answer", steps: int = 4, **dials
) -> dict[str, pd.DataFrame]:
    """A prompt in a world of these levels: its right chain and a wrong demonstration, with the
    demonstrator's values.

    reward: of REWARDS.  dials: more fields of `Chain`, whose ValueErrors these are.  Tables: words,
    a row per word of both TEXTS; start, t intervals of STARTS over the policies that are committed
    for these levels.
    """
    task, rng, rows = (
        Chain(operands=steps + 1, **dials, **_REWARDS[reward]),
        random.Random(prompt),
        [],
    )
    asked = task.dataset(1, prompt)["prompt"][0]
    right, shifts = (
        task.render(asked, task.some_styles(asked, 1, rng)[0]),
        task.step_shifts(*task.parse_prompt(asked)),
    )
    written = (task.demonstrate(asked, rng) for _ in range(TRIES))
    wrong = next((text for text in written if task.stated(text) != task.stated(right)), right)
    for name, text in zip(TEXTS, (right, wrong), strict=True):
        value, line, place = task.to_come(asked), 0, -1
        known = zip(
            task.parsed(text), task.annotate(asked, task.solve(asked), text.split()), strict=True
        )
        for position, ((word, slot), (_, credit)) in enumerate(known, 1):
            line, place = (line + 1, 0) if word == ";" or place == LINE - 1 else (line, place + 1)
            kind, value = (
                WRONG if slot.field == "result" and shifts[slot.step] else slot.category,
                value + credit,
            )
            rows.append((name, position, word, kind, credit, value, line, place))
    levels = [
        name for name, world in worlds().items() if world.made() == task and len(world_start(name))
    ]
    start = [
        (name, _STARTS[one], *t_interval(world_start(name)[one]))
        for name in levels
        for one in _STARTS
    ]
    words = pd.DataFrame(
        rows, columns=["text", "position", "word", "class", "credit", "value", "line", "place"]
    )
    return {
        "words": words,
        "start": pd.DataFrame(start, columns=["world", "measure", "mean", "low", "high"]),
    }


def world_start(name: str) -> pd.DataFrame:
    """The starts of a world's units, as `describe_start` describes them, a row each; empty while
    there are none.
    """
    path = data_path("worlds", name, "members.json")
    members = json.loads(path.read_text(encoding="utf-8"))["members"] if path.exists() else []
    return pd.DataFrame([one["start"] for one in members if one["role"] == "unit"])


def world_chart(words: pd.DataFrame, start: pd.DataFrame):
    """Both texts word by word, coloured by class, the value along them, and the world's start."""
    color = alt.Color("class:N", legend=alt.Legend(orient="bottom", title=None, labelLimit=300))
    color = color.scale(domain=[*CLASSES], range=[*CLASSES.values()])
    grid = alt.X("place:O", axis=None), alt.Y("line:O", axis=None), color, "word:N"
    look = {
        "shown": ["word", "class", "credit", "value"],
        "width": alt.Step(61),
        "height": alt.Step(20),
    }
    texts = [
        cells(words, *grid, title=name, **look).transform_filter(alt.datum.text == name)
        for name in TEXTS
    ]
    value = alt.Y("value:Q", title="expected reward").scale(domain=[0, 1])
    look = {
        "points": False,
        "spread": None,
        "names": TEXTS,
        "colors": SERIES[::3],
        "width": 308,
        "height": 130,
    }
    path = series(
        words,
        alt.X("position:Q", title="words"),
        value,
        "text",
        title="Value along the words",
        **look,
    )
    measure = alt.Y("measure:N", title=None).scale(domain=[*_STARTS.values()]).axis(labelLimit=200)
    share = alt.X("mean:Q", title="reward, or share").scale(domain=[0, 1])
    begun = forest(
        start, measure, share, number=".2f", width=185, title="The start of ten policies"
    )
    return panels(
        [alt.vconcat(*texts), alt.hconcat(path, begun, spacing=20)],
        "A prompt in this world, and what its demonstrator makes of it",
        "values are the demonstrator's, exact",
        describe_rows(start, "world", "measure", form=".2f"),
        vertical=True,
    ).resolve_scale(color="independent")


def explore_world() -> Explorer:
    """The chain's dials on one prompt: right chain, wrong demonstration, values, and the start of
    such a world.
    """
    controls = {
        "prompt": slider(3, 0, 19, 1, "number of the prompt"),
        "reward": menu("answer", [*_REWARDS], "reward for"),
        "steps": slider(4, 2, 11, 1, "steps K"),
        "wrong_modes": menu(0.3333, [0.0, 0.3333, 0.6667], "wrong modes"),
        "error_rate": menu(0.1, [0.02, 0.1, 0.16, 0.2, 0.46], "errors elsewhere"),
        "free_words": menu(1, [0, 1, 4], "free words a step"),
        "forced_words": menu(2, [2, 12], "forced words a step"),
        "ways": menu(1, [1, 4], "ways"),
        "ramble": menu(0, [0, 5, 20], "rambling words"),
    }

    def describe(words: pd.DataFrame, start: pd.DataFrame) -> str:
        return f"The book's worlds at these levels: {', '.join(start['world'].unique()) or 'none'}."

    presets = {
        "twelve forced words a step": {"forced_words": 12},
        "eleven steps": {"steps": 11},
        "likeliest words all right": {"wrong_modes": 0.0, "error_rate": 0.2},
        "two thirds of them wrong": {"wrong_modes": 0.6667},
    }
    return Explorer(compute_world, world_chart, controls, describe, presets=presets)


def compute_walk(
    prompt: int = 0, way: int = 0, wrong_modes: float = 0.0, error_rate: float = 0.35
) -> dict:
    """A graph unrolled from its start, the demonstrator's exact value at each node and step, and a
    way through it.

    way: 0 the shortest right one, else the number of a demonstration.  Tables: nodes and edges, by
    step.
    """
    task = Walk(error_rate=error_rate, wrong_modes=wrong_modes)
    asked, nodes, edges = task.dataset(1, prompt)["prompt"][0], {}, {}
    words = (task.demonstrate(asked, random.Random(way)) if way else task.render(asked)).split()
    *_, start = asked.split()
    for prefix in (prefix for prefix in task.prefixes(asked) if END not in prefix):
        path, onward = [start, *prefix], task.next_words(asked, prefix)
        nodes[len(prefix), path[-1]] = (
            task.value(asked, prefix),
            "goal" if END in onward else "" if onward else "end",
        )
        edges |= {(len(prefix) - 1, path[-2], len(prefix), path[-1]): False} if prefix else {}
    edges |= {(k, a, k + 1, b): True for k, (a, b) in enumerate(pairwise([start, *words]))}
    nodes = pd.DataFrame(
        [(*at, *what) for at, what in nodes.items()], columns=["step", "node", "value", "end"]
    )
    edges = [
        dict(zip(("step", "node", "step2", "node2"), at, strict=True), taken=on)
        for at, on in edges.items()
    ]
    return {"nodes": nodes, "edges": pd.DataFrame(edges)}


def walk_chart(nodes: pd.DataFrame, edges: pd.DataFrame) -> alt.LayerChart:
    """Nodes by step with their values, and the edges between them, those of the way thick."""
    x = (
        alt.X("step:Q", title="words written")
        .scale(nice=False, padding=24)
        .axis(tickMinStep=1, grid=False)
    )
    y, on = alt.Y("node:N", title=None), alt.when("datum.taken")
    width, ink = (
        on.then(alt.value(a)).otherwise(alt.value(b)) for a, b in ((4, 1), (ACCENT, "#bbbbbb"))
    )
    dots, shade = (
        alt.Chart(nodes).encode(x=x, y=y),
        alt.Scale(domain=[0, 1], range=["#eeece7", "#63b5a5"]),
    )
    layers = [
        alt.Chart(edges)
        .mark_rule()
        .encode(x=x, y=y, x2="step2:Q", y2="node2:N", size=width, color=ink),
        dots.mark_circle(size=900, opacity=1).encode(color=alt.Color("value:Q", scale=shade)),
        dots.mark_text().encode(text=alt.Text("value:Q", format=".2f")),
        dots.mark_text(dy=23).encode(text="end:N"),
    ]
    note = (
        "each node where it can be reached, with the demonstrator's expected reward there; thick:"
        " one way"
    )
    described = describe_rows(nodes, "step", "node", value="value", form=".2f")
    return finish(alt.layer(*layers), "Ways through a graph", note, described, height=alt.Step(46))


def explore_walk() -> Explorer:
    """Graphs and ways through them, with the demonstrator's dials."""
    controls = {
        "prompt": slider(2, 0, 19, 1, "number of the prompt"),
        "way": slider(3, 0, 12, 1, "way"),
        "wrong_modes": menu(0.0, [0.0, 0.3333], "wrong modes"),
        "error_rate": slider(0.35, 0.0, 0.9, 0.05, "errors elsewhere"),
    }
    return Explorer(compute_walk, walk_chart, controls)
