"""Where training moved the policy, beside the credit that each token is known to deserve."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.views.style import NEUTRAL, POSITIVE, SERIES, finish, require


def movement_by_class(summary: pd.DataFrame) -> alt.LayerChart:
    """How far each class of token moved, one line per class: columns kind, mean, low, high (nats)."""
    require(summary, ("kind", "mean", "low", "high"), "movement_by_class")
    base = alt.Chart(summary).encode(y=alt.Y("kind:N", sort=None, title=None).axis(labelLimit=200))
    title = "mean change of log-probability (nats)"
    moved = alt.X("mean:Q", title=title).scale(padding=36)
    shown = ["kind:N", *[alt.Tooltip(f"{column}:Q", format="+.4f") for column in ("mean", "low", "high")]]
    chart = alt.layer(
        alt.Chart().mark_rule(color="black").encode(x=alt.datum(0)),
        base.mark_rule(size=3, color=POSITIVE, opacity=0.5).encode(x=alt.X("low:Q", title=title), x2="high:Q"),
        base.mark_circle(size=90, opacity=1, color=POSITIVE).encode(x=moved, tooltip=shown),
        base.mark_text(dy=-12, fontWeight="bold").encode(x=moved, text=alt.Text("mean:Q", format="+.3f")),
    )
    return finish(
        chart,
        "Which tokens training moved",
        "dot: mean over prompts; bar: 95 % interval; right of 0: now more likely",
        "; ".join(f"{row.kind}: {row.mean:+.3f} ({row.low:+.3f} to {row.high:+.3f})" for row in summary.itertuples()),
        height=alt.Step(44),
    )


def credit_against_movement(table: pd.DataFrame) -> alt.LayerChart:
    """Each known credit against the mean change of log-probability of the tokens that have it.

    table: a token table with the columns category, credit and dlogp; credits are gathered to two decimals.
    """
    require(table, ("category", "credit", "dlogp"), "credit_against_movement")
    rows = table.assign(credit=table["credit"].astype(float).round(2) + 0.0)
    points = (
        rows.groupby(["category", "credit"])["dlogp"]
        .agg(mean="mean", tokens="size", error="sem")
        .reset_index()
        .assign(low=lambda d: d["mean"] - 2 * d["error"].fillna(0), high=lambda d: d["mean"] + 2 * d["error"].fillna(0))
    )
    moved = "mean change of log-probability (nats)"
    base = alt.Chart(points).encode(
        x=alt.X("credit:Q", title="known credit (change of expected reward)").axis(tickCount=10).scale(padding=16),
        color=alt.Color("category:N", title=None).scale(range=SERIES),
    )
    chart = alt.layer(
        alt.Chart().mark_rule(color=NEUTRAL).encode(y=alt.datum(0)),
        alt.Chart().mark_rule(color=NEUTRAL).encode(x=alt.datum(0)),
        base.mark_rule(opacity=0.6).encode(y=alt.Y("low:Q", title=moved), y2="high:Q"),
        base.mark_circle(opacity=0.9, stroke="white").encode(
            y=alt.Y("mean:Q", title=moved).scale(padding=16),
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
