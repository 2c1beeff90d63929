"""Charts of token values: gaps by sign and band, the sampling budget, repeated steps, one rollout, and movement."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.statistics import unit_curve
from workbook.topics.credit.exact_gaps import AXES, GROWING
from workbook.topics.credit.gaps import ALL_BANDS, ALL_SIGNS
from workbook.topics.credit.settings import COLUMNS, POOLS, compute_budget, compute_gap, measured_tokens
from workbook.views.curves import PAPER_COLOR, curve_chart
from workbook.views.explorer import Explorer, log_slider, menu
from workbook.views.figures import bars, forest, rule, series
from workbook.views.style import NEUTRAL, SERIES, describe_rows, finish, require, titled, visible

BAND_COLORS = [NEUTRAL, "#cfc4f0", "#9480dc", "#4b30a3"]  # all, then from low to high values
MOVEMENT = "mean change of log-probability (nats)"


# --- the gap by sign and band


def explore_gap(tokens: pd.DataFrame | None = None) -> Explorer:
    """Sliders over eps, optimizer, prompts and what is compared: the gap by the rollout's sign and by band of value.

    tokens: of `moved_tokens`, measured in the chapter; None: those of the study's first seed, with sampled credit too.
    """
    gaps = zip(("value", "credit, known", "credit, sampled"), COLUMNS, strict=True)
    gaps = [pair for pair in gaps if tokens is None or pair[1] in tokens]
    controls = {
        "eps": log_slider(0.01, -4, -1.3, "eps (nats)"),
        "optimizer": menu("sgd", ["sgd", "adamw"], "optimizer"),
        "pool": menu("training", list(POOLS), "prompts"),
        "column": menu("value", gaps, "gap in"),
        "band_by": menu("value", [("value after", "value"), ("value before", "value_before")], "bands by"),
    }
    variables = {"moved": measured_tokens() if tokens is None else tokens}
    return Explorer(compute_gap, gap_chart, controls, describe_gap, variables)


def describe_gap(table: pd.DataFrame) -> str:
    """The two gaps that the claim speaks of, in words."""
    rows = table[table["band"] == "all"].set_index("sign")
    gaps = [
        f"{sign} rollouts {rows.loc[sign, 'mean']:+.3f} ({rows.loc[sign, 'low']:+.3f} to {rows.loc[sign, 'high']:+.3f})"
        for sign in ("positive", "negative")
        if sign in rows.index
    ]
    return f"Gap between boosted and suppressed tokens: {'; '.join(gaps) or 'too few tokens of either sign'}."


def gap_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Gap by sign and band; columns sign, band, mean, low, high."""
    require(table, ("sign", "band", "mean", "low", "high"), "gap_chart")
    sign = alt.X("sign:N", sort=list(ALL_SIGNS), title="sign of the rollout's advantage").axis(labelAngle=0)
    look = {"names": ALL_BANDS, "colors": BAND_COLORS, "legend": {"title": "band", "orient": "right"}}
    return titled(
        bars(table, sign, "boosted − suppressed (reward)", "band", vertical=True, form="+.4f", height=240, **look),
        "How much better the boosted tokens are",
        "mean over prompts with two standard errors; bands are thirds of the pool's tokens",
        describe_rows(table, "sign", "band", form="+.3f"),
    )


# --- the sampling budget


def explore_budget() -> Explorer:
    """Menus over what grows, the prompts and what is alike in the tokens compared: what a larger sample buys."""
    controls = {
        "axis": menu(GROWING, list(AXES), "what grows"),
        "pool": menu("training", list(POOLS), "prompts"),
        "matched": menu("position", [("prompt and position", "position"), ("prompt", "prompt")], "alike in"),
    }
    return Explorer(compute_budget, budget_chart, controls, describe_budget)


def describe_budget(table: pd.DataFrame) -> str:
    """The ends of the curve, in words."""
    first, last = (
        f"{row['mean']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}] at {row['size']:.0f}"
        for _, row in table.iloc[[0, -1]].iterrows()
    )
    return f"Gap in exact value: {first}, {last}."


def budget_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Gap against the size of the sample; a table of `compute_budget`, whose place of the paper is shaded."""
    require(table, ("size", "mean", "low", "high", "paper_low", "paper_high"), "budget_chart")
    x = alt.X("size:Q", title="rollouts per prompt, or prompts").scale(type="log", base=2, domain=[1, 96], nice=False)
    x = x.axis(values=[1, 2, 4, 8, 16, 32, 64], grid=False)
    place = alt.Chart(table).transform_filter("isValid(datum.paper_low)").mark_rect(color=PAPER_COLOR, opacity=0.7)
    under = [place.encode(x="paper_low:Q", x2="paper_high:Q"), rule(0, "y", dashed=True, color=NEUTRAL)]
    return titled(
        series(table, x, "boosted − suppressed (reward)", under=under, zero=True, form="+.3f", shown=["units"]),
        "What a larger sample buys",
        "gap in exact value; band: 95 % t interval over policies; shaded: the paper's rollouts per prompt, or batches",
        describe_rows(table, "size", interval=True),
    )


# --- what was measured


def repeated_chart(table: pd.DataFrame) -> alt.LayerChart:
    """How much wider the gap is than after the first update, a line for each rate; columns seed, step, rate, gap."""
    require(table, ("seed", "step", "rate", "gap"), "repeated_chart")
    table = table.reset_index(drop=True)
    first = table.sort_values("step").groupby(["seed", "rate"])["gap"].transform("first")
    curve = unit_curve(table.assign(wider=table["gap"] - first), "step", "wider", by="rate")
    titles = {"x_title": "updates on the same batch", "y_title": "gap minus that after the first (reward)"}
    return curve_chart(curve, "step", series="rate", title="Repeated updates on one batch", log2=False, **titles)


def shares_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Shares of movement by category under estimators; columns category, estimator, mean, low, high."""
    require(table, ("category", "estimator", "mean", "low", "high"), "shares_chart")
    share = alt.Y("mean:Q", title="share of the movement").scale(domainMin=0)
    return titled(
        bars(table, "category", share, "estimator", vertical=True, number=".2f", form=".3f"),
        "Which tokens an update moves",
        "share of the sum of |change of log-probability|, mean over prompts; lines: 95 % intervals",
        describe_rows(table, "category", "estimator", form=".2f"),
    )


def value_path(table: pd.DataFrame) -> alt.LayerChart:
    """The value along one rollout's tokens; columns position, token, value, value_se, and exact where it is known.

    The line is the exact value, else the sampled one; dots are sampled, with two standard errors.
    """
    require(table, ("position", "token", "value", "value_se"), "value_path")
    rows = table.sort_values("position").assign(
        label=[
            f"{position}|{visible(token)}" for position, token in zip(table["position"], table["token"], strict=True)
        ],
        low=lambda rows: (rows["value"] - 2 * rows["value_se"]).clip(lower=0),
        high=lambda rows: (rows["value"] + 2 * rows["value_se"]).clip(upper=1),
    )
    known = "exact" in rows
    text = "slice(datum.label, indexof(datum.label, '|') + 1)"
    x = alt.X("label:N", sort=None, title="token").axis(labelExpr=text, labelAngle=-60)
    base = alt.Chart(rows).encode(x=x)
    y = alt.Y("value:Q", title="value: expected reward").scale(domain=[0, 1])
    line = alt.Y(f"{'exact' if known else 'value'}:Q", title="value: expected reward")
    shown = ["token:N", "position:Q", alt.Tooltip("value:Q", format=".3f")]
    shown += [alt.Tooltip("exact:Q", format=".3f")] if known else []
    dots = base.mark_point(filled=True, size=70, opacity=1, color=SERIES[0])
    if "category" in rows and rows["category"].notna().all():
        dots = dots.encode(color=alt.Color("category:N", title=None).scale(range=SERIES))
    chart = alt.layer(
        base.mark_line(color="black" if known else "#bbbbbb", interpolate="step-after", strokeWidth=1.5).encode(y=line),
        base.mark_rule(color=NEUTRAL, size=2).encode(y=alt.Y("low:Q", title="value: expected reward"), y2="high:Q"),
        dots.encode(y=y, tooltip=shown),
    )
    first, last = rows["exact" if known else "value"].iloc[[0, -1]]
    return finish(
        chart,
        "What reward to expect, token by token",
        "dots: by sampled continuations, with two standard errors" + ("; line: exact" if known else ""),
        f"From {first:.2f} after the first token to {last:.2f} after the last.",
        width=620,
        height=220,
    )


# --- where training moved the policy


def movement_by_class(summary: pd.DataFrame) -> alt.LayerChart:
    """Movement of each class of token, one line per class: columns kind, mean, low, high (nats), maybe training."""
    require(summary, ("kind", "mean", "low", "high"), "movement_by_class")
    x = alt.X("mean:Q", title=MOVEMENT).scale(padding=36)
    several = {"by": "training", "height": alt.Step(20)} if "training" in summary else {"height": alt.Step(44)}
    number = "+.2f" if "training" in summary else "+.3f"
    return titled(
        forest(summary, "kind", x, number=number, zero=True, form="+.4f", **several),
        "Which tokens training moved",
        "dot: mean over prompts; bar: 95 % interval; right of 0: now more likely",
        describe_rows(summary, *(c for c in ("training", "kind") if c in summary), form="+.3f", interval=True),
    )


def credit_against_movement(table: pd.DataFrame) -> alt.LayerChart:
    """Each known credit against the mean change of log-probability of the tokens that have it.

    table: a token table with the columns category, credit and dlogp; credits are gathered to two decimals.
    """
    require(table, ("category", "credit", "dlogp"), "credit_against_movement")
    rows = table.assign(credit=table["credit"].astype(float).round(2) + 0.0)
    points = rows.groupby(["category", "credit"])["dlogp"].agg(mean="mean", tokens="size", error="sem").reset_index()
    half = 2 * points["error"].fillna(0)
    points = points.assign(low=points["mean"] - half, high=points["mean"] + half)
    base = alt.Chart(points).encode(
        x=alt.X("credit:Q", title="known credit (change of expected reward)").axis(tickCount=10).scale(padding=16),
        color=alt.Color("category:N", title=None).scale(range=SERIES),
    )
    chart = alt.layer(
        *(rule(0, axis, color=NEUTRAL) for axis in "yx"),
        base.mark_rule(opacity=0.6).encode(y=alt.Y("low:Q", title=MOVEMENT), y2="high:Q"),
        base.mark_circle(opacity=0.9, stroke="white").encode(
            y=alt.Y("mean:Q", title=MOVEMENT).scale(padding=16),
            size=alt.Size("tokens:Q", title="tokens").scale(type="log", range=[25, 500]),
            tooltip=["category:N", "credit:Q", alt.Tooltip("mean:Q", format="+.3f"), "tokens:Q"],
        ),
    )
    return finish(
        chart,
        "The credit that each token deserves, and where training moved it",
        "one dot per credit and class, its size the number of tokens; line: ±2 standard errors over tokens",
        f"{len(table)} tokens; upper right: tokens that earn reward and became more likely.",
        height=260,
    )
