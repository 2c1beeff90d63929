"""Two contexts in one softmax layer: how a step on one token moves the other, each figure with its explorer.

The numbers come from `workbook.topics.softmax.toy`; here they are only drawn.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.softmax.pair import CONTEXTS, PARTS, READS, TRAINED
from workbook.topics.softmax.toy import GRID, SOURCES, UNSURE, compute_map, compute_pair, compute_tied, map_verdict
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.figures import bars, cells, forest, panels, rule
from workbook.views.style import NEUTRAL, SERIES, diverging, finish, panel_title, titled

SIGNS = [("+1, a better answer", 1.0), ("0, not updated", 0.0), ("−1, a worse answer", -1.0)]
KINDS = [("the same token", True), ("another token", False)]
MOVED = "dlogp of B per unit of learning rate (nats)"


# --- one step on the output layer


def pair_chart(
    moves: pd.DataFrame, kernel: pd.DataFrame, vectors: pd.DataFrame, coordinates: pd.DataFrame
) -> alt.VConcatChart:
    """What one step does to both tokens, beside K, the hidden states, and the words that make up <e - p, e - p>."""
    upper = alt.hconcat(_moves(moves), _kernel(kernel), spacing=30)
    lower = alt.hconcat(_products(coordinates), _arrows(vectors), spacing=30)
    return panels(
        [upper, lower],
        "One step on the output layer, and what it does to both tokens",
        "blue and +: more likely; orange and −: less likely",
        "Bars: change of both log-probabilities, predicted and real. Squares: K. Bars below: contributions of the "
        "words to the product of both scores. Arrows: the hidden states of both contexts.",
        spacing=24,
        vertical=True,
    )


def _moves(table: pd.DataFrame) -> alt.LayerChart:
    rows = [f"{context}, {source}" for context in CONTEXTS for source in SOURCES]
    return _signed_bars(
        table,
        alt.Y("row:N", sort=rows, title=None).axis(labelFontSize=12, labelLimit=200),
        _x("dlogp:Q", "dlogp (nats, bars end at ±2)", 2),
        outlined=f"datum.source === '{SOURCES[2]}'",
        mark={"height": 20},
        shown=["token", "source"],
        height=alt.Step(28),
        title="change of both tokens' log-probability",
    )


def _products(table: pd.DataFrame) -> alt.LayerChart:
    return _signed_bars(
        table,
        alt.Y("word:N", sort=None, title=None).axis(labelFontSize=12, minExtent=160),
        _x("product:Q", "what the word adds to the product of both e − p", 1),
        mark={"height": 24},
        height=alt.Step(40),
        title="product of both scores, word by word",
    )


def _signed_bars(table: pd.DataFrame, y: alt.Y, x: alt.X, **look) -> alt.LayerChart:
    """Bars coloured around zero, the number of each at the right of the panel."""
    field = x.shorthand
    numbers = alt.Chart(table).mark_text(align="left", fontSize=12, dx=6)
    numbers = numbers.encode(y=y, x=alt.value(280), text=alt.Text(field, format="+.3f"))
    color = alt.Color(field, legend=None).scale(diverging(1))
    return bars(table, y, x, color=color, over=[numbers], form="+.5f", width=280, **look)


def _kernel(table: pd.DataFrame) -> alt.LayerChart:
    return cells(
        table,
        alt.X("by:N", title=None).axis(orient="top", labelAngle=0, labelFontSize=12),
        alt.Y("moved:N", title="moves").axis(labelFontSize=13),
        alt.Color("K:Q", legend=None).scale(diverging(1)),
        alt.Text("K:Q", format="+.3f"),
        dark="abs(datum.K) > 0.8",
        size=15,
        width=230,
        height=160,
        title="K: dlogp per lr and advantage",
    )


def _arrows(table: pd.DataFrame) -> alt.LayerChart:
    plane = alt.Scale(domain=[-2.3, 2.3], nice=False)
    ticks = alt.Axis(values=[-2, -1, 0, 1, 2])
    x, y = (alt.X("x:Q", title=None, scale=plane, axis=ticks), alt.Y("y:Q", title=None, scale=plane, axis=ticks))
    layers = []
    for context, width, below in zip(CONTEXTS, (7, 3), (18, -14), strict=True):
        base = alt.Chart(table).transform_filter(alt.datum.context == context).encode(x=x, y=y)
        color = SERIES[2 + CONTEXTS.index(context)]
        layers += [
            base.mark_rule(strokeWidth=width, color=color).encode(x2=alt.datum(0), y2=alt.datum(0)),
            base.mark_point(filled=True, size=8 * width + 40, opacity=1, color=color),
            base.mark_text(fontSize=13, dy=below, color=color).encode(text="context:N"),
        ]
    return alt.layer(*layers).properties(width=190, height=190, title=panel_title("hidden states"))


def describe_pair(moves: pd.DataFrame, kernel: pd.DataFrame, vectors: pd.DataFrame, coordinates: pd.DataFrame) -> str:
    """Both tokens' real moves beside their first-order forecasts, and K."""
    first, _, real = (moves[moves["source"] == source].set_index("token")["dlogp"] for source in SOURCES)
    steps = "; ".join(
        f"{token} moves by {real[token]:+.3f} nats (first order {first[token]:+.3f})" for token in real.index
    )
    return f"{steps}. K of the pair is {kernel['K'].iloc[1]:+.3f}."


def explore_pair() -> Explorer:
    """Slide both probabilities, the hidden states, the advantages and the learning rate."""
    controls = {
        "p_a": slider(0.2, 0.02, 0.98, 0.02, "probability of A's token"),
        "p_b": slider(0.2, 0.02, 0.98, 0.02, "probability of B's token"),
        "angle": slider(30, 0, 180, 5, "angle (degrees)"),
        "same": menu(True, KINDS, "B says"),
        "length_a": slider(1.0, 0.0, 2.0, 0.1, "length of A's hidden state"),
        "length_b": slider(1.0, 0.0, 2.0, 0.1, "length of B's hidden state"),
        "advantage_a": menu(1.0, SIGNS, "advantage of A"),
        "advantage_b": menu(0.0, SIGNS, "advantage of B"),
        "rivalry": slider(0.0, 0.0, 0.98, 0.02, "rivalry of both words"),
        "lr": slider(0.5, 0.1, 10.0, 0.1, "learning rate"),
    }
    return Explorer(compute_pair, pair_chart, controls, describe_pair)


# --- coupling over both probabilities


def map_chart(map: pd.DataFrame, here: pd.DataFrame) -> alt.HConcatChart:
    """K over both probabilities, for the same token and for different ones; the diamond is the present setting."""
    return panels(
        [_map_panel(map, here, kind) for kind in ("same", "different")],
        "Coupling K of two tokens, by how sure the model is of each",
        "blue and +: pushed the same way; orange and −: against each other; diamond: your setting; dashed: p = 0.5",
        "Two heat maps over the probabilities of A's and B's token: the same token, and different tokens.",
        spacing=30,
    )


def _map_panel(map: pd.DataFrame, here: pd.DataFrame, kind: str) -> alt.LayerChart:
    unit = alt.Scale(domain=[0, 1], nice=False)
    shown = alt.datum.token == kind
    cells = alt.Chart(map).transform_filter(shown)
    where = {
        "x": alt.X("p_a:Q", title="p of A's token").scale(unit),
        "y": alt.Y("p_b:Q", title="p of B's token").scale(unit),
    }
    square = cells.mark_square(size=(300 / GRID) ** 2, opacity=1).encode(
        **where,
        color=alt.Color("K:Q", title="K").scale(diverging(1)),
        tooltip=[alt.Tooltip(field, format=".2f") for field in ("p_a:Q", "p_b:Q")]
        + [alt.Tooltip("K:Q", format="+.4f")],
    )
    ink = alt.when("abs(datum.K) > 0.8").then(alt.value("white")).otherwise(alt.value("black"))
    sign = (
        cells.transform_filter("abs(datum.K) > 0.05")
        .mark_text(fontSize=11)
        .encode(**where, color=ink, text=alt.when("datum.K > 0").then(alt.value("+")).otherwise(alt.value("−")))
    )
    dashes = [
        alt.Chart(here).mark_rule(strokeDash=[4, 3], color=NEUTRAL).encode(**{axis: alt.datum(UNSURE)}) for axis in "xy"
    ]
    point = (
        alt.Chart(here)
        .transform_filter(shown)
        .mark_point(shape="diamond", filled=True, size=160, color="black", stroke="white", opacity=1)
    )
    title = {"same": "the same token", "different": "different tokens"}[kind]
    return alt.layer(square, sign, *dashes, point.encode(**where)).properties(
        width=300, height=300, title=panel_title(title)
    )


def describe_map(map: pd.DataFrame, here: pd.DataFrame) -> str:
    """K at the present setting, and the verdict on the whole map."""
    verdict, now = map_verdict(map), here.iloc[0]
    return (
        f"Here p is {now['p_a']:.2f} and {now['p_b']:.2f}, K is {now['K']:+.3f}, and the rival has {now['rival']:.1%} "
        f"of the rest. On the whole map: of the cells above half the largest |K|, {verdict['unsure']:.0%} "
        f"have both tokens unsure; different tokens reach {verdict['other']:.0%} of the same token's largest |K|."
    )


def explore_map() -> Explorer:
    """Where coupling is large: confidence, the same token or not, and what temperature and vocabulary change."""
    controls = {
        "p_a": slider(0.2, 0.02, 0.98, 0.02, "A's p at temperature 1"),
        "p_b": slider(0.2, 0.02, 0.98, 0.02, "B's p at temperature 1"),
        "same": menu(True, KINDS, "B says"),
        "angle": slider(0, 0, 180, 5, "angle (degrees)"),
        "temperature": slider(1.0, 0.5, 2.0, 0.1, "temperature"),
        "vocabulary": menu(32, [4, 8, 32, 128, 1024, 4096], "vocabulary (words)"),
        "rivalry": slider(0.0, 0.0, 0.98, 0.02, "rivalry of both words"),
    }
    return Explorer(compute_map, map_chart, controls, describe_map)


# --- embeddings that are trained as well


def tied_chart(parts: pd.DataFrame, real: pd.DataFrame) -> alt.LayerChart:
    """Parts of the coupling, stacked, for three choices of what is trained; diamonds: a real step."""
    y = alt.Y("trained:N", sort=list(TRAINED.values()), title=None).axis(labelLimit=240, labelFontSize=12)
    step = alt.Chart(real).encode(x=_x("moved:Q", MOVED, 2), y=y)
    color = alt.Color("part:N", sort=PARTS, title="part of the coupling").scale(
        domain=PARTS, range=[SERIES[0], SERIES[3], SERIES[2]]
    )
    diamonds = step.mark_point(shape="diamond", filled=True, size=90, color="black", stroke="white")
    numbers = step.mark_text(align="left", dx=10, dy=-19, fontSize=11)
    chart = bars(
        parts,
        y,
        _x("K:Q", MOVED, 2),
        color=color,
        mark={"height": 26},
        form="+.4f",
        shown=["part"],
        over=[
            diamonds.encode(tooltip=[alt.Tooltip("moved:Q", format="+.4f")]),
            numbers.encode(text=alt.Text("moved:Q", format="+.3f")),
        ],
        height=alt.Step(56),
    )
    return titled(
        chart.configure_legend(orient="bottom"),
        "How a step on A moves B, by what is trained",
        "bars: closed form, part by part; diamond and number: a real SGD step",
        "Stacked bars: couplings through the output layer, through a shared input word, and between both.",
    )


def describe_tied(parts: pd.DataFrame, real: pd.DataFrame) -> str:
    """The real move of B's token, by what is trained."""
    moved = real.set_index("trained")["moved"]
    moves = "; ".join(f"{name}: {moved[name]:+.3f}" for name in TRAINED.values())
    return f"What a step on A does to B's token, in nats per unit of learning rate, by what is trained: {moves}."


def explore_tied() -> Explorer:
    """What the output layer does not see: embeddings that are trained, too, and the same matrix perhaps."""
    controls = {
        "p_a": slider(0.2, 0.02, 0.98, 0.02, "probability of A's token"),
        "p_b": slider(0.2, 0.02, 0.98, 0.02, "probability of B's token"),
        "angle": slider(90, 0, 180, 5, "angle (degrees)"),
        "same": menu(True, KINDS, "B says"),
        "b_reads": menu("the word that A reads", list(READS), "B reads"),
        "seed": slider(0, 0, 19, 1, "draw of the embeddings"),
    }
    return Explorer(compute_tied, tied_chart, controls, describe_tied)


# --- one step and its forecast; real token pairs


def learning_rate_chart(table: pd.DataFrame) -> alt.LayerChart:
    """First order against the exact step over the learning rate; table of `compute_learning_rates`."""
    lines = (
        alt.Chart(table)
        .transform_fold(["first", "exact"], ["order", "dlogp"])
        .mark_line(strokeWidth=2.5)
        .encode(
            x=alt.X("lr:Q", title="learning rate"),
            y=alt.Y("dlogp:Q", title="dlogp (nats)"),
            color=alt.Color("token:N", title="token of").scale(range=SERIES[2:4]),
            strokeDash=alt.StrokeDash("order:N", title="step").scale(domain=["exact", "first"], range=[[1, 0], [5, 4]]),
            tooltip=["token:N", "order:N", alt.Tooltip("lr:Q"), alt.Tooltip("dlogp:Q", format="+.3f")],
        )
    )
    return finish(
        alt.layer(rule(0, "y", color=NEUTRAL), lines),
        "A real step lies below its first-order forecast, for both tokens",
        "dashed: forecast; solid: exact; the gap is the KL divergence of the new softmax seen from the old one",
        "Lines over the learning rate: the forecast is straight, the exact change bends down.",
        height=240,
    )


def cells_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Mean |K| with its interval by kind of pair: columns kind, confidence, mean, low, high."""
    y = alt.Y("confidence:N", sort=["both unsure", "one unsure", "both sure"], title=None)
    x = alt.X("mean:Q", title="mean |K| of a pair (nats per unit of learning rate, log scale)").scale(type="log")
    x = x.axis(values=[10.0**k for k in range(-6, 5)])
    names = sorted(table["kind"].unique())
    return titled(
        forest(table, y, x, by="kind", names=names, height=220, legend={"columns": 2}),
        "Coupling of real token pairs, by confidence",
        "points: means; lines: 95% bootstrap intervals over prompts",
        "Points: mean size of the coupling for pairs of the same and of different tokens, in one or two contexts.",
    )


def _x(field: str, title: str, limit: float) -> alt.X:
    return alt.X(field, title=title).scale(domain=[-limit, limit], nice=False, clamp=True)
