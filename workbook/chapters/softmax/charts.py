"""Charts of two contexts in one softmax layer: tables of `toy`, and of a real policy's pairs."""

import altair as alt
import pandas as pd

from workbook.chapters.softmax.toy import CONTEXTS, GRID, SOURCES
from workbook.theory.coupling import BELOW_HALF
from workbook.views.figures import cells, forest, panels, rule, series
from workbook.views.style import (
    NEUTRAL,
    SERIES,
    describe_rows,
    diverging,
    panel_title,
    titled,
)

SIDE = 256  # pixels of a square map; two are as wide as a page's text


def pair_chart(
    moves: pd.DataFrame, kernel: pd.DataFrame, coordinates: pd.DataFrame, states: pd.DataFrame
) -> alt.HConcatChart:
    """Draw both hidden states, the product of both scores word by word, and what one step moves.

    The coupling (table `kernel`) is the product of the first two panels' numbers.
    """
    return panels(
        [_states_panel(states), _scores_panel(coordinates), _moves_panel(moves, kernel)],
        "A step moves a word in another context as far as contexts and scores are alike",
        "left times middle gives the coupling K; bars: blue up, orange down; tick: first-order"
        " forecast",
        "Arrows: both hidden states. Bars: what each word adds to the product of both scores, and"
        " the change of both log-probabilities.",
        spacing=26,
    )


_PANEL_HEIGHT = 150


def _states_panel(states: pd.DataFrame) -> alt.LayerChart:
    """Two arrows from one point, and their inner product."""
    reach = alt.Scale(domain=[-1.25, 1.25], nice=False)
    x = alt.X("x:Q", scale=reach, axis=None)
    y = alt.Y("y:Q", scale=reach, axis=None)
    ends = alt.Chart(states).encode(x=x, y=y)
    origin = {"x2": alt.datum(0), "y2": alt.datum(0)}
    shafts = ends.mark_rule(strokeWidth=3, color=NEUTRAL).encode(**origin)
    names = ends.mark_text(fontSize=15, fontWeight="bold", dx=9, dy=-9).encode(text="context:N")
    sums = alt.Chart(states).transform_filter(f"datum.context === '{CONTEXTS[0]}'")
    sums = sums.transform_calculate(says="'inner product ' + format(datum.product, '+.2f')")
    number = sums.mark_text(fontSize=12, fontWeight="bold").encode(
        x=alt.value(75), y=alt.value(_PANEL_HEIGHT - 6), text="says:N"
    )
    layers = alt.layer(shafts, ends.mark_circle(size=70, color=NEUTRAL), names, number)
    return layers.properties(
        width=150, height=_PANEL_HEIGHT, title=panel_title("1. contexts: hidden states")
    )


def _scores_panel(coordinates: pd.DataFrame) -> alt.LayerChart:
    """What each word adds to the inner product of both scores, and the sum."""
    rows = [*coordinates["word"], "inner product"]
    y = alt.Y("word:N", title=None).scale(domain=rows)
    x = alt.X("product:Q", title="part of the inner product").scale(domain=[-1, 1], clamp=True)
    sums = alt.Chart(coordinates).transform_aggregate(total="sum(product)")
    number = sums.mark_text(align="left", dx=4, fontSize=12, fontWeight="bold").encode(
        x=alt.datum(0), y=alt.datum("inner product"), text=alt.Text("total:Q", format="+.2f")
    )
    return _signed_bars(coordinates, y, x, "2. words: scores e − p", over=[number])


def _moves_panel(moves: pd.DataFrame, kernel: pd.DataFrame) -> alt.LayerChart:
    """The real step's change of both log-probabilities, ticks at the forecast, the pair's K."""
    y = alt.Y("token:N", sort=None, title=None)
    x = alt.X("dlogp:Q", title="change, nats").scale(domain=[-1.5, 1.5], clamp=True)
    forecast = alt.Chart(moves).transform_filter(f"datum.source === '{SOURCES[0]}'")
    forecast = forecast.mark_tick(color="black", thickness=2.5, size=30).encode(y=y, x=x)
    real = f"datum.source === '{SOURCES[2]}'"
    pair = f"datum.moved === '{CONTEXTS[0]}' && datum.by === 'step on {CONTEXTS[1]}'"
    product = alt.Chart(kernel).transform_filter(pair)
    product = product.transform_calculate(says="'K = ' + format(datum.K, '+.2f')")
    number = product.mark_text(align="left", fontSize=12, fontWeight="bold").encode(
        x=alt.value(4), y=alt.value(_PANEL_HEIGHT / 2), text="says:N"
    )
    over = [forecast, number]
    return _signed_bars(moves, y, x, "3. what the step moves", where=real, over=over)


def _signed_bars(
    table: pd.DataFrame, y: alt.Y, x: alt.X, title: str, where: str = "true", over=()
) -> alt.LayerChart:
    """Bars coloured around zero, each with its number on the other side of zero."""
    base = alt.Chart(table).transform_filter(where).encode(y=y)
    color = alt.Color(x.shorthand, legend=None).scale(diverging(1))
    drawn = base.mark_bar(height=20).encode(
        x=x.axis(tickCount=3), color=color, tooltip=[alt.Tooltip(x.shorthand, format="+.3f")]
    )
    numbers = []
    for side, align, shift in ((">=", "right", -4), ("<", "left", 4)):
        text = base.transform_filter(f"datum.{x.shorthand[:-2]} {side} 0")
        text = text.mark_text(align=align, dx=shift, fontSize=12)
        numbers.append(text.encode(x=alt.datum(0), text=alt.Text(x.shorthand, format="+.2f")))
    layers = alt.layer(rule(0, "x", color="black"), drawn, *over, *numbers)
    return layers.properties(width=150, height=_PANEL_HEIGHT, title=panel_title(title))


def example_coupling_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw the coupling of A's words with B's as a cosine: columns a, b and cosine."""
    chart = cells(
        table,
        alt.X("b:N", sort=None, title=None).axis(orient="top", labelAngle=0),
        alt.Y("a:N", sort=None, title=None),
        alt.Color("cosine:Q", legend=None).scale(diverging(1)),
        alt.Text("cosine:Q", format="+.2f"),
        dark="abs(datum.cosine) > 0.8",
        size=15,
        height=170,
    )
    return titled(
        chart,
        "“now” of A couples with “now” of B as with itself; “9” and “8” are rivals",
        "coupling of each pair as a cosine; blue: they move together; orange: against each other",
        describe_rows(table, "a", "b", value="cosine", form="+.2f"),
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
        "Sure words couple with nothing, different words only where they are rivals",
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
        alt.Y("dlogp:Q", title="change of log-probability (nats)"),
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
        "In a trained policy equal words below one half couple most",
        "points: means; lines: 95% bootstrap intervals over prompts",
        "Points: mean size of the coupling for pairs of the same and of different tokens, in one or"
        " two contexts.",
    )
