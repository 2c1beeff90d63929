"""Charts of token values: along one rollout, by sign and band, against the sampling budget and along repeated steps."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.credit.gaps import BANDS, SIGNS
from workbook.topics.credit.settings import BATCHES, COLUMNS, POOLS, compute_budget, compute_gap
from workbook.topics.groups.charts import beside, small
from workbook.views.explorer import Explorer, log_slider, menu, slider
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES, color_and_shape, finish, require, visible

BAND_COLORS = [NEUTRAL, "#9ecae1", "#4f97c9", "#174a7e"]  # all, then from low to high values
ZERO = alt.Chart().mark_rule(color="#999999").encode(y=alt.datum(0))


def explore_gap() -> Explorer:
    """Sliders over eps, optimizer, prompts and what is compared: the gap by the rollout's sign and by band of value."""
    return Explorer(
        compute_gap,
        gap_chart,
        {
            "eps": log_slider(0.01, -4, -1.3, "eps (nats)"),
            "optimizer": menu("sgd", ["sgd", "adamw"], "optimizer"),
            "pool": menu("training", list(POOLS), "prompts"),
            "column": menu(
                "value", [*zip(("value", "credit, sampled", "credit, known"), COLUMNS, strict=True)], "gap in"
            ),
            "band_by": menu("value", [("value after", "value"), ("value before", "value_before")], "bands by"),
        },
        say_gap,
    )


def say_gap(table: pd.DataFrame) -> str:
    """The two gaps that the claim speaks of, in words."""
    rows = table[table["band"] == "all"].set_index("sign")
    told = [
        f"{sign} rollouts {rows.loc[sign, 'mean']:+.3f} ({rows.loc[sign, 'low']:+.3f} to {rows.loc[sign, 'high']:+.3f})"
        for sign in ("positive", "negative")
        if sign in rows.index
    ]
    return f"Gap between boosted and suppressed tokens: {'; '.join(told) or 'too few tokens of either sign'}."


def gap_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Gap by sign and band; columns sign, band, mean, low, high."""
    require(table, ("sign", "band", "mean", "low", "high"), "gap_chart")
    order = ["all", *BANDS]
    base = alt.Chart(table).encode(
        x=alt.X("sign:N", sort=list(SIGNS), title="sign of the rollout's advantage").axis(labelAngle=0),
        xOffset=alt.XOffset("band:N", sort=order).scale(domain=order),
    )
    y = alt.Y("mean:Q", title="boosted − suppressed (reward)")
    color = alt.Color("band:N", title="band", sort=order).scale(domain=order, range=BAND_COLORS)
    shown = ["sign:N", "band:N", *[alt.Tooltip(f"{name}:Q", format="+.4f") for name in ("mean", "low", "high")]]
    chart = alt.layer(
        base.mark_bar().encode(y=y, color=color, tooltip=shown),
        base.mark_rule(size=2).encode(y=alt.Y("low:Q", title="boosted − suppressed (reward)"), y2="high:Q"),
        ZERO,
    )
    return finish(
        chart,
        "How much better the boosted tokens are",
        "mean over prompts with two standard errors; bands are thirds of the pool's tokens",
        "; ".join(f"{row.sign}, {row.band}: {row.mean:+.3f}" for row in table.itertuples()),
        height=240,
    )


def explore_budget() -> Explorer:
    """Sliders over rollouts per prompt, batch size, estimator and prompts: what a larger sample buys."""
    return Explorer(
        compute_budget,
        budget_chart,
        {
            "doublings": slider(3, 0, 3, 1, "rollouts per prompt, 2^"),
            "batch_size": menu(64, list(BATCHES), "rollouts in the batch"),
            "estimator": menu(
                "reinforce", [("reinforce (mean of the batch)", "reinforce"), ("grpo", "grpo")], "estimator"
            ),
            "pool": menu("training", list(POOLS), "prompts"),
        },
        say_budget,
    )


def say_budget(lines: pd.DataFrame, bands: pd.DataFrame) -> str:
    """The chosen cell in words."""
    cell = lines[lines["chosen"]].iloc[0]
    high = bands[bands["band"] == "high"]
    among = f"; among the third of highest value {high['mean'].iloc[0]:+.3f}" if len(high) else ""
    return (
        f"{cell['batch_size']:.0f} rollouts, {cell['group_size']:.0f} per prompt: gap {cell['mean']:+.3f} "
        f"(seeds from {cell['low']:+.3f} to {cell['high']:+.3f}){among}."
    )


def budget_chart(lines: pd.DataFrame, bands: pd.DataFrame) -> alt.HConcatChart:
    """Left the gap against batch size, a line for each G; right the chosen cell by band; tables of compute_budget."""
    base = alt.Chart(lines).encode(
        x=alt.X("batch_size:Q", title="rollouts in the batch")
        .scale(type="log", base=2, domain=[14, 110])
        .axis(values=list(BATCHES))
    )
    y = alt.Y("mean:Q", title="gap (reward)")
    legend = alt.Legend(title="rollouts per prompt", orient="bottom")
    groups = sorted(lines["group_size"].unique().tolist())
    color = alt.Color("group_size:N", legend=legend).scale(domain=groups, range=SERIES[: len(groups)])
    shape = alt.Shape("group_size:N", legend=legend).scale(domain=groups)
    chosen = base.transform_filter("datum.chosen")
    left = alt.layer(
        ZERO,
        base.mark_line(strokeWidth=2).encode(y=y, color=color),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=y, color=color, shape=shape),
        chosen.mark_rule(size=2).encode(y=alt.Y("low:Q", title="gap (reward)"), y2="high:Q"),
        chosen.mark_point(size=170, color="black", strokeWidth=2).encode(y=y),
    ).properties(width=330, height=220, title=small("gap against batch size"))
    order = ["all", *BANDS]
    bars = alt.Chart(bands).encode(x=alt.X("band:N", sort=order, title="band of value").axis(labelAngle=0))
    right = alt.layer(
        bars.mark_bar(color=POSITIVE, opacity=0.8).encode(
            y=y, tooltip=["band:N", alt.Tooltip("mean:Q", format="+.4f")]
        ),
        bars.mark_rule(size=2).encode(y=alt.Y("low:Q", title="gap (reward)"), y2="high:Q"),
        ZERO,
    ).properties(width=190, height=220, title=small("the chosen cell, by value"))
    return beside(
        [left, right],
        "What a larger sample buys",
        "gap in value after one step; lines at the chosen cell span the seeds",
        "Lines: gap against batch size for each number of rollouts per prompt. Bars: the chosen cell by band of value.",
    )


def steps_chart(table: pd.DataFrame) -> alt.LayerChart:
    """The gap along repeated steps; columns step, series, mean, low, high."""
    require(table, ("step", "series", "mean", "low", "high"), "steps_chart")
    names = list(dict.fromkeys(table["series"]))
    look, steps = color_and_shape("series", names), sorted(table["step"].unique().tolist())
    base = alt.Chart(table).encode(
        x=alt.X("step:Q", title="steps on the same batch").scale(zero=False).axis(values=steps), color=look["color"]
    )
    y = alt.Y("mean:Q", title="gap (reward)")
    chart = alt.layer(
        ZERO,
        base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="gap (reward)"), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_point(filled=True, size=40, opacity=1).encode(
            y=y,
            shape=look["shape"],
            tooltip=["series:N", "step:Q", alt.Tooltip("mean:Q", format="+.4f")],
        ),
    )
    last = table[table["step"] == table["step"].max()]
    return finish(
        chart,
        "Repeated updates on one batch",
        "gap between boosted and suppressed tokens, in value unless said, from the start; bands: 95 % intervals",
        "; ".join(f"{row.series}, after step {row.step}: {row.mean:+.3f}" for row in last.itertuples()),
        height=240,
    )


def shares_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Shares of movement by category under estimators; columns category, estimator, mean, low, high."""
    require(table, ("category", "estimator", "mean", "low", "high"), "shares_chart")
    order, names = list(dict.fromkeys(table["category"])), list(dict.fromkeys(table["estimator"]))
    base = alt.Chart(table).encode(
        x=alt.X("category:N", sort=order, title=None).axis(labelAngle=0),
        xOffset=alt.XOffset("estimator:N", sort=names).scale(domain=names),
    )
    y = alt.Y("mean:Q", title="share of the movement").scale(domainMin=0)
    color = alt.Color("estimator:N", title=None, sort=names).scale(domain=names, range=[POSITIVE, NEGATIVE])
    chart = alt.layer(
        base.mark_bar().encode(
            y=y, color=color, tooltip=["category:N", "estimator:N", alt.Tooltip("mean:Q", format=".3f")]
        ),
        base.mark_rule(size=2).encode(y=alt.Y("low:Q", title="share of the movement"), y2="high:Q"),
        base.mark_text(dy=-8, fontSize=10).encode(y="high:Q", text=alt.Text("mean:Q", format=".2f")),
    )
    return finish(
        chart,
        "Which tokens an update moves",
        "share of the sum of |change of log-probability|, mean over prompts; lines: 95 % intervals",
        "; ".join(f"{row.category}, {row.estimator}: {row.mean:.2f}" for row in table.itertuples()),
        height=220,
    )


def value_path(table: pd.DataFrame) -> alt.LayerChart:
    """The value along one rollout's tokens, with two standard errors; columns position, token, value, value_se."""
    require(table, ("position", "token", "value", "value_se"), "value_path")
    rows = table.sort_values("position").assign(
        label=[
            f"{position}|{visible(token)}" for position, token in zip(table["position"], table["token"], strict=True)
        ],
        low=lambda rows: (rows["value"] - 2 * rows["value_se"]).clip(lower=0),
        high=lambda rows: (rows["value"] + 2 * rows["value_se"]).clip(upper=1),
    )
    x = alt.X("label:N", sort=None, title="token").axis(labelExpr="split(datum.label, '|')[1]", labelAngle=-60)
    base = alt.Chart(rows).encode(x=x)
    y = alt.Y("value:Q", title="value: expected reward").scale(domain=[0, 1])
    dots = base.mark_point(filled=True, size=70, opacity=1)
    if "category" in rows and rows["category"].notna().all():
        dots = dots.encode(color=alt.Color("category:N", title=None).scale(range=SERIES))
    chart = alt.layer(
        base.mark_rule(color=NEUTRAL, size=2).encode(y=alt.Y("low:Q", title="value: expected reward"), y2="high:Q"),
        base.mark_line(color="#bbbbbb", interpolate="step-after").encode(y=y),
        dots.encode(y=y, tooltip=["token:N", "position:Q", alt.Tooltip("value:Q", format=".3f")]),
    )
    return finish(
        chart,
        "What reward to expect, token by token",
        "value after each token, by sampled continuations; lines: two standard errors",
        f"From {rows['value'].iloc[0]:.2f} after the first token to {rows['value'].iloc[-1]:.2f} after the last.",
        width=720,
        height=220,
    )
