"""Charts of two contexts in one softmax layer: tables of `toy`, and of a real policy's pairs."""

import altair as alt
import pandas as pd

from workbook.chapters.softmax.toy import CONTEXTS, GRID, SOURCES
from workbook.theory.coupling import BELOW_HALF
from workbook.views.figures import bars, cells, forest, panels, rule, series
from workbook.views.style import NEUTRAL, SERIES, diverging, panel_title, titled

SIDE = 256  # pixels of a square map; two are as wide as a page's text


def pair_chart(
    moves: pd.DataFrame, kernel: pd.DataFrame, coordinates: pd.DataFrame
) -> alt.VConcatChart:
    """Draw what one step does to both tokens, K, and the words that make up <e - p, e - p>."""
    rows = [f"{context}, {source}" for context in CONTEXTS for source in SOURCES]
    steps = _signed_bars(
        moves,
        alt.Y("row:N", sort=rows, title=None).axis(labelLimit=200),
        alt.X("dlogp:Q", title="dlogp (nats, bars end at ±2)").scale(domain=[-2, 2], clamp=True),
        outlined=f"datum.source === '{SOURCES[2]}'",
        shown=["token", "source"],
        height=alt.Step(28),
        title="change of both tokens' log-probability",
    )
    couplings = cells(
        kernel,
        alt.X("by:N", title=None).axis(orient="top", labelAngle=0),
        alt.Y("moved:N", title="moves"),
        alt.Color("K:Q", legend=None).scale(diverging(1)),
        alt.Text("K:Q", format="+.3f"),
        dark="abs(datum.K) > 0.8",
        size=15,
        width=188,
        height=160,
        title="K: dlogp per lr and advantage",
    )
    products = _signed_bars(
        coordinates,
        alt.Y("word:N", sort=None, title=None).axis(minExtent=160),
        alt.X("product:Q", title="what the word adds to the product of both e − p").scale(
            domain=[-1, 1], clamp=True
        ),
        height=alt.Step(40),
        title="product of both scores, word by word",
    )
    return panels(
        [alt.hconcat(steps, couplings, spacing=30), products],
        "One step on the output layer, and what it does to both tokens",
        "blue and +: more likely; orange and −: less likely",
        "Bars: change of both log-probabilities, predicted and real. Squares: K. Bars below:"
        " contributions of the words to the product of both scores.",
        spacing=24,
        vertical=True,
    )


def _signed_bars(table: pd.DataFrame, y: alt.Y, x: alt.X, **look) -> alt.LayerChart:
    """Bars coloured around zero, the number of each at the right of the panel."""
    numbers = alt.Chart(table).mark_text(align="left", dx=6)
    numbers = numbers.encode(y=y, x=alt.value("width"), text=alt.Text(x.shorthand, format="+.3f"))
    color = alt.Color(x.shorthand, legend=None).scale(diverging(1))
    return bars(
        table,
        y,
        x,
        color=color,
        over=[numbers],
        mark={"height": 20},
        form="+.5f",
        width=228,
        **look,
    )


def coupling_map_chart(map: pd.DataFrame, here: pd.DataFrame) -> alt.HConcatChart:
    """Draw K over both probabilities, for the same token and for different ones.

    The diamond is the present setting.
    """
    unit = alt.Scale(domain=[0, 1], nice=False)
    where = {
        "x": alt.X("p_a:Q", title="p of A's token").scale(unit),
        "y": alt.Y("p_b:Q", title="p of B's token").scale(unit),
    }
    hints = [
        alt.Tooltip("p_a:Q", format=".2f"),
        alt.Tooltip("p_b:Q", format=".2f"),
        alt.Tooltip("K:Q", format="+.4f"),
    ]
    color = alt.Color("K:Q", title="K").scale(diverging(1))
    # the sign stands in every cell that is not near 0, white on dark colours
    ink = alt.when("abs(datum.K) > 0.8").then(alt.value("white")).otherwise(alt.value("black"))
    signs = alt.when("datum.K > 0").then(alt.value("+")).otherwise(alt.value("−"))
    charts = []
    for kind, title in {"same": "the same token", "different": "different tokens"}.items():
        cell = alt.Chart(map).transform_filter(alt.datum.token == kind).encode(**where)
        squares = cell.mark_square(size=(SIDE / GRID + 1) ** 2, opacity=1)
        squares = squares.encode(color=color, tooltip=hints)
        marked = cell.transform_filter("abs(datum.K) > 0.05").mark_text()
        marked = marked.encode(color=ink, text=signs)
        halves = [rule(BELOW_HALF, axis, dashed=True, color=NEUTRAL) for axis in "xy"]
        point = alt.Chart(here).transform_filter(alt.datum.token == kind).encode(**where)
        diamond = point.mark_point(
            shape="diamond",
            filled=True,
            size=160,
            color="black",
            stroke="white",
            opacity=1,
            aria=False,
        )
        layers = alt.layer(squares, marked, *halves, diamond)
        charts.append(layers.properties(width=SIDE, height=SIDE, title=panel_title(title)))
    return panels(
        charts,
        "Coupling K of two tokens, by how sure the model is of each",
        "blue and +: pushed the same way; orange and −: against each other; diamond: your setting;"
        " dashed: p = 0.5",
        "Two heat maps over the probabilities of A's and B's token: the same token, and different"
        " tokens.",
        spacing=30,
    )


def learning_rate_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw first order against the exact step over the learning rate.

    Table of `compute_learning_rates`.
    """
    # a row per learning rate, token and order
    lines = table.rename(columns={"first": "first order"})
    lines = lines.assign(token="token of " + table["token"])
    lines = lines.melt(["lr", "token"], ["exact", "first order"], "order", "dlogp")
    chart = series(
        lines,
        alt.X("lr:Q", title="learning rate"),
        alt.Y("dlogp:Q", title="dlogp (nats)"),
        by="token",
        colors=SERIES[1:3],
        dash="order",
        spread=None,
        points=False,
        zero=True,
    )
    return titled(
        chart,
        "A real step lies below its first-order forecast, for both tokens",
        "dashed: forecast; solid: exact; the gap is the KL divergence of the new softmax seen from"
        " the old one",
        "Lines over the learning rate: the forecast is straight, the exact change bends down.",
    )


def cells_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw mean |K| with its interval by kind of pair and confidence.

    Columns kind, confidence, mean, low, high.
    """
    order = ["both below one half", "one below one half", "none below one half"]
    y = alt.Y("confidence:N", sort=order, title=None)
    x = alt.X("mean:Q", title="mean |K| of a pair (nats per unit of learning rate, log scale)")
    x = x.scale(type="log").axis(values=[10.0**k for k in range(-6, 5)])
    chart = forest(
        table,
        y,
        x,
        by="kind",
        names=sorted(table["kind"].unique()),
        height=220,
        legend={"columns": 2},
    )
    return titled(
        chart,
        "Coupling of real token pairs, by confidence",
        "points: means; lines: 95% bootstrap intervals over prompts",
        "Points: mean size of the coupling for pairs of the same and of different tokens, in one or"
        " two contexts.",
    )
