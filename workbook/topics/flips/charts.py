"""Charts of token flipping: shares by sign of the advantage, the balance of signs, and what foretells a change."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.flips.probe import CHANGES
from workbook.topics.flips.settings import EPSILONS, FACTORS, GROUP_SIZES, OPTIMIZERS, PROMPTS, compute_flips
from workbook.topics.groups.charts import beside, small
from workbook.views.explorer import Explorer, log_slider, menu
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, color_and_shape, finish

SIGNS = ("positive", "negative")
BY_SIGN = alt.Scale(domain=list(SIGNS), range=[POSITIVE, NEGATIVE])


def explore_flips() -> Explorer:
    """Sliders over eps, optimizer, learning rate, batch and group size: how alike are the two signs' shares?"""
    return Explorer(
        compute_flips,
        flips_chart,
        {
            "eps": log_slider(0.01, -3, 0, "eps (nats)", step=0.05),
            "optimizer": menu("adamw", list(OPTIMIZERS), "optimizer"),
            "factor": menu(1.0, [(f"{factor:g} × matched", factor) for factor in FACTORS], "learning rate"),
            "prompts": menu(32, list(PROMPTS), "prompts in the batch"),
            "group_size": menu(8, list(GROUP_SIZES), "rollouts per prompt, G"),
        },
        say_flips,
    )


def say_flips(shares: pd.DataFrame, curve: pd.DataFrame) -> str:
    """The distance at the chosen eps, in words."""
    here = curve[curve["chosen"]].iloc[0]
    return (
        f"Distance between the two signs' shares at eps = {here['eps']:g}: {here['mean']:.3f} "
        f"(seeds from {here['low']:.3f} to {here['high']:.3f}); 0 alike, 1 disjoint."
    )


def flips_chart(shares: pd.DataFrame, curve: pd.DataFrame) -> alt.HConcatChart:
    """Left the shares by sign, right their distance against eps; tables of compute_flips."""
    right = alt.Chart(curve).encode(
        x=alt.X("eps:Q", title="eps (nats)").scale(type="log", domain=[EPSILONS[0], EPSILONS[-1]], nice=False)
    )
    y = alt.Y("mean:Q", title="distance").scale(domain=[0, 0.3], clamp=True)
    chosen = right.transform_filter("datum.chosen")
    panel = alt.layer(
        right.mark_area(opacity=0.2, color=POSITIVE).encode(y=alt.Y("low:Q", title="distance"), y2="high:Q"),
        right.mark_line(color=POSITIVE).encode(y=y),
        chosen.mark_rule(strokeDash=[4, 3], color=NEUTRAL),
        chosen.mark_point(filled=True, size=90, color=POSITIVE, opacity=1).encode(y=y),
    ).properties(width=300, height=200, title=small("distance between the two signs' shares, against eps"))
    return beside(
        [shares_panel(shares, 300), panel],
        "What one update does to tokens of better and of worse rollouts",
        "left: share of tokens boosted, suppressed, stable; lines span the seeds",
        "Bars: shares of boosted, suppressed and stable tokens in positive and negative rollouts.",
    )


def shares_panel(shares: pd.DataFrame, width: int, title: str = "share of tokens, by sign of the advantage"):
    """Bars of CHANGES by sign; columns change, sign, mean, low, high."""
    x = alt.X("change:N", sort=list(CHANGES), title=None).axis(labelAngle=0)
    base = alt.Chart(shares).encode(x=x, xOffset=alt.XOffset("sign:N", sort=list(SIGNS)))
    share = alt.Y("mean:Q", title="share of tokens").scale(domain=[0, 1])
    color = alt.Color("sign:N", scale=BY_SIGN, legend=alt.Legend(title="advantage", orient="top-left"))
    return alt.layer(
        base.mark_bar().encode(
            y=share, color=color, tooltip=["change:N", "sign:N", alt.Tooltip("mean:Q", format=".5f")]
        ),
        base.mark_rule(size=2).encode(y=alt.Y("low:Q", title="share of tokens"), y2="high:Q"),
        base.mark_text(dy=-10, fontSize=10).encode(y="high:Q", text=alt.Text("mean:Q", format=".2f")),
    ).properties(width=width, height=200, title=small(title))


def doses_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Change of log-probability against the balance of signs; columns scale, balance, quantity, mean, low, high."""
    panels = []
    names = list(dict.fromkeys(table["scale"]))
    look = color_and_shape("scale", names, orient="bottom")
    for quantity in dict.fromkeys(table["quantity"]):
        base = alt.Chart(table[table["quantity"] == quantity]).encode(
            x=alt.X("balance:Q", title="balance of signs on the token")
            .scale(domain=[-1, 1])
            .axis(values=[-1, -0.5, 0, 0.5, 1]),
            color=look["color"],
        )
        y = alt.Y("mean:Q", title="nats")
        panels.append(
            alt.layer(
                alt.Chart().mark_rule(color="#999999").encode(x=alt.datum(0)),
                alt.Chart().mark_rule(color="#999999").encode(y=alt.datum(0)),
                base.mark_rule(size=2, opacity=0.6).encode(y=alt.Y("low:Q", title="nats"), y2="high:Q"),
                base.mark_line(strokeWidth=1.5).encode(y=y),
                base.mark_point(filled=True, size=60, opacity=1).encode(y=y, shape=look["shape"]),
            ).properties(width=300, height=220, title=small(quantity))
        )
    return beside(
        panels,
        "The same tokens, their signs dealt anew",
        "−1: every occurrence of the token stands in a worse rollout; +1: in a better one; 0: the signs balance",
        "Lines: mean change of log-probability and its mean size against the balance of signs.",
    )


def predictors_chart(table: pd.DataFrame) -> alt.LayerChart:
    """AUROC of each predictor for a target; columns predictor, target, mean, low, high; 1/2 is a coin."""
    order = list(dict.fromkeys(table["predictor"]))
    names = list(dict.fromkeys(table["target"]))
    look = color_and_shape("target", names, title="foretells the sign of", orient="right")
    base = alt.Chart(table).encode(
        y=alt.Y("predictor:N", sort=order, title=None).axis(labelLimit=260),
        yOffset=alt.YOffset("target:N", sort=names),
        color=look["color"],
    )
    x = alt.X("mean:Q", title="AUROC, within prompts").scale(domain=[0.3, 1], clamp=True)
    chart = alt.layer(
        alt.Chart(pd.DataFrame({"coin": [0.5]})).mark_rule(strokeDash=[5, 4], color=NEUTRAL).encode(x="coin:Q"),
        base.mark_rule(size=3, opacity=0.5).encode(x=alt.X("low:Q", title="AUROC, within prompts"), x2="high:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=x, shape=look["shape"]),
        base.mark_text(dx=22, fontSize=10).encode(x="high:Q", text=alt.Text("mean:Q", format=".2f")),
    )
    told = "; ".join(f"{row.predictor}, {row.target}: {row.mean:.2f}" for row in table.itertuples())
    return finish(
        chart,
        "What foretells a token's change, and its credit",
        "chance that a token that goes up (whose credit is above 0) has the larger predictor; dashed: a coin",
        told,
        height=alt.Step(13),
    )
