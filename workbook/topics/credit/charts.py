"""Charts of token values: one rollout's values, shares of a step's movement, and movement in training."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.views.figures import bars, forest
from workbook.views.style import NEUTRAL, SERIES, describe_rows, finish, require, titled, visible

MOVEMENT = "mean change of log-probability (nats)"


def shares_chart(table: pd.DataFrame, by: str = "estimator", names: list[str] | None = None) -> alt.LayerChart:
    """Shares of a step's movement by category, a bar for each estimator; columns category, `by`, mean, low, high."""
    require(table, ("category", by, "mean", "low", "high"), "shares_chart")
    share = alt.Y("mean:Q", title="share of the movement").scale(domainMin=0)
    look = {"shown": ["estimator"] if by != "estimator" else [], "names": names}
    return titled(
        bars(table, "category", share, by, vertical=True, number=".2f", form=".3f", **look),
        "Which tokens an update moves",
        "share of the sum of |change of log-probability|, mean over prompts; lines: 95 % intervals",
        describe_rows(table, "category", by, form=".2f"),
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
