"""Charts of what chapter 02 measures on many groups: occurrence, group size, training."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.groups.charts import beside, class_color, small
from workbook.topics.groups.toy import CLASSES
from workbook.views.style import SERIES, finish


def frequency_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Net push against the difference in occurrence, one mark a word and group; on the grey line they are equal.

    table: columns estimator, class, difference, push (divided by the group's mass of positive advantages).
    """
    line = alt.Chart(pd.DataFrame({"difference": [-1, 1], "push": [-1, 1]})).mark_line(color="#999999")
    dots = alt.Chart(table).mark_point(filled=True, size=35, opacity=0.6, clip=True)
    at = {
        "x": alt.X("difference:Q", title="rate among A > 0 minus rate among A < 0").scale(domain=[-1, 1]),
        "y": alt.Y("push:Q", title="net push ÷ mass of A > 0").scale(domain=[-1.6, 1.6]),
    }
    look = {
        "color": class_color("class:N", legend := alt.Legend(title=None, orient="bottom")),
        "shape": alt.Shape("class:N", sort=CLASSES, legend=legend).scale(domain=CLASSES),
    }
    panels = []
    for name in table["estimator"].unique():
        marks = dots.encode(**at, **look).transform_filter(alt.datum.estimator == name)
        both = alt.layer(line.encode(**at), marks)
        panels.append(both.properties(title=small(name), width=230, height=230))
    return beside(
        panels,
        "What a group pushes, and how often each word occurs on either side",
        "one mark a word and group, a few outside; on the grey line a push is the difference in occurrence",
        "Marks: net push per mass of advantage against the difference of occurrence rates.",
    )


def group_size_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Root mean square push against group size, both logarithmic; columns group_size, rms, low, high, series."""
    x = alt.X("group_size:Q", title="rollouts in a group, G").scale(type="log", base=2)
    y = alt.Y("rms:Q", title="root mean square push per rollout").scale(type="log", nice=False)
    y = y.axis(values=[0.01, 0.02, 0.05, 0.1, 0.2])
    names = list(table["series"].unique())
    color = alt.Color("series:N", title=None).scale(domain=names, range=SERIES[: len(names)])
    base = alt.Chart(table).encode(x=x, color=color)
    shape = alt.Shape("series:N", title=None).scale(domain=names)
    chart = alt.layer(
        base.mark_rule(strokeWidth=3).encode(y="low:Q", y2="high:Q"),
        base.mark_line().encode(y=y),
        base.mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=shape),
    )
    return finish(
        chart,
        "What stays on a word, against group size",
        "means over seeds with 95 % bootstrap intervals; both axes logarithmic",
        "Lines per estimator and word: root mean square net push per rollout against group size.",
        height=260,
    )


def training_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """A panel a quantity, over steps; columns step, quantity, mean, low, high, estimator, sampler."""
    below = {"title": None, "legend": alt.Legend(orient="bottom", symbolOpacity=1)}
    names = list(table["estimator"].unique())
    color = alt.Color("estimator:N", **below).scale(domain=names, range=SERIES[: len(names)])
    shape, dash = alt.Shape("estimator:N", **below).scale(domain=names), alt.StrokeDash("sampler:N", sort=None, **below)
    panels = []
    for quantity in table["quantity"].unique():
        base = alt.Chart(table).transform_filter(alt.datum.quantity == quantity)
        base = base.encode(x=alt.X("step:Q"), color=color, detail="sampler:N")
        band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=None).scale(zero=False), y2="high:Q")
        base = base.encode(y=alt.Y("mean:Q", title=None).scale(zero=False))
        line = base.mark_line().encode(strokeDash=dash)
        dots = base.mark_point(filled=True, size=40, opacity=1).encode(shape=shape)
        panels.append(alt.layer(band, line, dots).properties(title=small(quantity), width=210, height=200))
    return beside(
        panels,
        "Training with and without negative rollouts",
        "means over independent policies, with 95 % bootstrap intervals",
        "Lines over steps: probability of the template word, entropy of the opening, probability of the right result.",
    )
