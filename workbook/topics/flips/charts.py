"""Charts of token flipping: shares by sign and confidence, the balance of signs, predictors, and verdicts."""

from __future__ import annotations

from itertools import pairwise

import altair as alt
import numpy as np
import pandas as pd

from workbook.probes.step import ONE_STEP_OPTIMIZERS
from workbook.theory.choices import SIGNS
from workbook.topics.flips.probe import CHANGES, frequency_matched
from workbook.topics.flips.settings import EPSILONS, FACTORS, GROUP_SIZES, PROMPTS, compute_flips
from workbook.views.explorer import Explorer, log_slider, menu, switch
from workbook.views.figures import bars, forest, panels, series
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, describe_rows, finish, require, titled

STUDY_LINE, NOW = "measured before: AdamW, 32 prompts", "this policy, now"  # lines of a step taken now
CONFIDENCE_BINS = (1, 2, 3, 4)
CHANGE_COLORS = {"boosted": POSITIVE, "stable": "#dedede", "suppressed": NEGATIVE}  # from the bar's foot upwards


# --- one update under many settings


def explore_flips() -> Explorer:
    """Sliders over eps, optimizer, learning rate, batch and group size: how alike are the two signs' shares?"""
    return Explorer(
        compute_flips,
        flips_chart,
        {
            "eps": log_slider(0.01, -3, 0, "eps (nats)", step=0.05),
            "optimizer": menu("adamw", list(ONE_STEP_OPTIMIZERS), "optimizer"),
            "factor": menu(1.0, [(f"{factor:g} × matched", factor) for factor in FACTORS], "learning rate"),
            "prompts": menu(32, list(PROMPTS), "prompts in the batch"),
            "group_size": menu(8, list(GROUP_SIZES), "rollouts per prompt, G"),
        },
        describe_flips,
    )


def describe_flips(shares: pd.DataFrame, curve: pd.DataFrame, spread: str = "seeds") -> str:
    """The distance at the chosen eps, in words."""
    here = curve[curve["chosen"]].iloc[0]
    return (
        f"Distance between the two signs' shares at eps = {here['eps']:g}: {here['mean']:.3f} "
        f"({spread} from {here['low']:.3f} to {here['high']:.3f}); 0 alike, 1 disjoint."
    )


def flips_chart(shares: pd.DataFrame, curve: pd.DataFrame) -> alt.HConcatChart:
    """Left the shares by sign, right their distance against eps, a line for each series; tables of compute_flips."""
    size, look = {"width": 300, "height": 200}, {"names": SIGNS, "colors": [POSITIVE, NEGATIVE]}
    look |= {"legend": {"title": "advantage", "orient": "top-left"}}
    share = alt.Y("mean:Q", title="share of tokens").scale(domain=[0, 1])
    title = "share of tokens, by sign of the advantage"
    by_change = bars(
        shares, "change", share, "sign", vertical=True, number=".2f", form=".5f", title=title, **look, **size
    )
    eps = alt.X("eps:Q", title="eps (nats)").scale(type="log", domain=[EPSILONS[0], EPSILONS[-1]], nice=False)
    distance = alt.Y("mean:Q", title="distance").scale(domain=[0, 0.3], clamp=True)
    title = "distance between the two signs' shares, against eps"
    line = {"by": "series", "names": [STUDY_LINE, NOW]} if "series" in curve else {}
    by_eps = series(curve, eps, distance, points=False, chosen="chosen", title=title, **line, **size)
    return panels(
        [by_change, by_eps],
        "What one update does to tokens of better and of worse rollouts",
        "left: share of tokens boosted, suppressed, stable; lines span the seeds, or prompts of one step",
        "Bars: shares of boosted, suppressed and stable tokens in positive and negative rollouts.",
    ).resolve_scale(color="independent")


# --- what was measured


def predictors_chart(table: pd.DataFrame) -> alt.LayerChart:
    """AUROC of each predictor for a target; columns predictor, target, mean, low, high; 1/2 is chance."""
    auroc = alt.X("mean:Q", title="AUROC, within prompts").scale(domain=[0.3, 1], clamp=True)
    legend = {"title": "predicts the sign of", "orient": "right"}
    numbers = {"number": ".2f", "number_at": "end", "threshold": 0.5}
    return titled(
        forest(table, "predictor", auroc, "target", legend=legend, height=alt.Step(13), **numbers),
        "What predicts a token's change, and its credit",
        "chance that a token that goes up (whose credit is above 0) has the larger predictor; dashed: chance level",
        describe_rows(table, "predictor", "target", form=".2f"),
    )


# --- a real model's tokens


def flips_by_confidence(
    table: pd.DataFrame, eps: float = 0.01, bins: int = 2, group: int | None = None, matched: bool = False
) -> pd.DataFrame:
    """Shares of boosted, stable and suppressed tokens by sign of the advantage, in equal bins of probability.

    table: a token table with dlogp.  group: one prompt, None for all.  matched: frequency-matched first (R1).
    Columns: confidence, sign, change, share, tokens (of the bin and sign).  Raises ValueError if no token remains.
    """
    rows = table if group is None else table[table["group"] == group]
    rows = rows[rows["advantage"] != 0]
    rows = frequency_matched(rows) if matched else rows
    if rows.empty:
        raise ValueError("No token is left here: this prompt's rollouts have one reward, or share no token.")
    edges = np.linspace(0, 1, bins + 1)
    place = np.clip(np.digitize(np.exp(rows["logp"]), edges[1:-1], right=True), 0, bins - 1)
    labels = [f"{low:.2g} to {high:.2g}" for low, high in pairwise(edges)]
    tokens = pd.DataFrame(
        {
            "confidence": np.array(labels)[place],
            "sign": np.where(rows["advantage"] > 0, *SIGNS),
            "change": np.select([rows["dlogp"] > eps, rows["dlogp"] < -eps], CHANGES[:2], CHANGES[2]),
        }
    )
    counts = tokens.groupby(["confidence", "sign", "change"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(CHANGE_COLORS), fill_value=0).stack().rename("count").reset_index()
    counts["tokens"] = counts.groupby(["confidence", "sign"])["count"].transform("sum")
    counts["share"] = counts["count"] / counts["tokens"]
    return counts.drop(columns="count")


def flips_by_confidence_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Stacked shares, a pair of bars (+ and −) for each bin; table of flips_by_confidence."""
    require(table, ("confidence", "sign", "change", "share", "tokens"), "flips_by_confidence_chart")
    order = list(CHANGE_COLORS)
    x = alt.X("confidence:N", title="probability of the token before the update").axis(labelAngle=0)
    base = alt.Chart(table).encode(x=x, xOffset=alt.XOffset("sign:N", sort=list(SIGNS)))
    color = alt.Color("change:N", title="change", sort=order).scale(domain=order, range=list(CHANGE_COLORS.values()))
    stacked = base.transform_calculate(rank=f"indexof({order}, datum.change)").mark_bar(stroke="white")
    stacked = stacked.encode(
        y=alt.Y("share:Q", title="share of tokens", stack="zero").scale(domain=[0, 1.08]),
        color=color,
        order=alt.Order("rank:Q"),
        tooltip=["sign:N", "confidence:N", "change:N", alt.Tooltip("share:Q", format=".3f"), "tokens:Q"],
    )
    label = "(datum.sign == 'positive' ? '+ ' : '− ') + datum.tokens"
    signs = base.transform_filter("datum.change == 'boosted'").transform_calculate(label=label)
    text = signs.mark_text(dy=-7, fontSize=11, color=NEUTRAL).encode(y=alt.datum(1.0), text="label:N")
    return finish(
        alt.layer(stacked, text),
        "What one update did to tokens of better (+) and of worse (−) rollouts",
        "above each bar: the sign of the rollout's advantage, and how many tokens",
        "Stacked bars: shares of boosted, stable and suppressed tokens by sign and confidence.",
    )


def describe_flips_by_confidence(table: pd.DataFrame) -> str:
    """The boosted shares of both signs, bin by bin."""
    boosted = table[table["change"] == "boosted"].pivot(index="confidence", columns="sign", values="share")
    shares = [
        f"probability {label}: " + ", ".join(f"{share:.0%} of {sign}" for sign, share in row.dropna().items())
        for label, row in boosted.iterrows()
    ]
    return "Boosted: " + "; ".join(shares) + "."


def explore_flips_of(table: pd.DataFrame, eps: float = 0.01) -> Explorer:
    """Controls over the flips of a token table with dlogp: eps, bins of confidence, prompt, matched frequencies."""
    require(table, ("group", "advantage", "logp", "dlogp", "token_id"), "explore_flips_of")
    pushing = sorted(table.loc[table["advantage"] != 0, "group"].unique().tolist())
    controls = {
        "eps": log_slider(eps, -4, 0, "eps (nats)", step=0.05),
        "bins": menu(2, list(CONFIDENCE_BINS), "confidence bins"),
        "group": menu(None, [("all", None), *((str(group), group) for group in pushing)], "prompt"),
        "matched": switch(False, "match frequencies (R1)"),
    }
    variables = {"table": table}
    return Explorer(flips_by_confidence, flips_by_confidence_chart, controls, describe_flips_by_confidence, variables)


def movement_by_category(table: pd.DataFrame) -> pd.DataFrame:
    """Share of all movement, sum of |dlogp|, on each category, over the prompts pooled: columns category, share.

    >>> table = pd.DataFrame({"category": ["Math", "Math", "Template"], "dlogp": [0.1, -0.2, 0.1]})
    >>> movement_by_category(table)["share"].round(2).tolist()
    [0.75, 0.25]
    """
    sizes = table["dlogp"].abs().groupby(table["category"]).sum()
    return (sizes / sizes.sum()).rename("share").reset_index()


def movement_chart(shares: pd.DataFrame) -> alt.LayerChart:
    """Bars of movement's share by category and estimator; columns category, estimator, share."""
    require(shares, ("category", "estimator", "share"), "movement_chart")
    share = alt.Y("share:Q", title="share of movement").scale(domain=[0, 1])
    return titled(
        bars(shares, "category", share, "estimator", vertical=True, number=".2f", form=".3f"),
        "Where one update goes, by category of token",
        "share of the sum of |change of log-probability|",
        describe_rows(shares, "estimator", "category", value="share", form=".2f"),
    )
