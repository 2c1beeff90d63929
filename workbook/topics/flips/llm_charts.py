"""Charts for a real model's tokens: flips by confidence, movement by category, and the claims at two scales."""

from __future__ import annotations

from itertools import pairwise

import altair as alt
import numpy as np
import pandas as pd

from workbook.topics.flips.probe import CHANGES, frequency_matched
from workbook.views.explorer import Explorer, log_slider, menu, switch
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES, finish, require

SIGNS = {"positive": "+", "negative": "−"}
BINS = (1, 2, 3, 4)
COLORS = {"boosted": POSITIVE, "stable": "#dedede", "suppressed": NEGATIVE}
ORDER = list(COLORS)
VERDICTS = {
    "replicates": "#cfe3f2",
    "does not replicate": "#f6ddc4",
    "inconclusive": "#ececec",
    "not measured": "#ffffff",
}


def flips_by_confidence(
    table: pd.DataFrame, eps: float = 0.01, bins: int = 2, group: int | None = None, matched: bool = False
) -> pd.DataFrame:
    """Shares of boosted, stable and suppressed tokens by sign of the advantage, in equal bins of probability.

    table: a token table with dlogp.  group: one prompt, None for all.  matched: frequency-matched first (R1).
    Columns: confidence, sign, change, share, tokens (of the bin and sign).  Raises ValueError if no token is left.
    """
    rows = table if group is None else table[table["group"] == group]
    rows = rows[rows["advantage"] != 0]
    rows = frequency_matched(rows) if matched else rows
    if rows.empty:
        raise ValueError("No token is left here: this prompt's rollouts have one reward, or share no token.")
    edges = np.linspace(0, 1, bins + 1)
    place = np.clip(np.digitize(np.exp(rows["logp"]), edges[1:-1], right=True), 0, bins - 1)
    labels = [f"{low:.2g} to {high:.2g}" for low, high in pairwise(edges)]
    cells = pd.DataFrame(
        {
            "confidence": np.array(labels)[place],
            "sign": np.where(rows["advantage"] > 0, *SIGNS),
            "change": np.select([rows["dlogp"] > eps, rows["dlogp"] < -eps], CHANGES[:2], CHANGES[2]),
        }
    )
    counts = cells.groupby(["confidence", "sign", "change"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=ORDER, fill_value=0).stack().rename("count").reset_index()
    counts["tokens"] = counts.groupby(["confidence", "sign"])["count"].transform("sum")
    counts["share"] = counts["count"] / counts["tokens"]
    return counts.drop(columns="count")


def flips_by_confidence_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Stacked shares, a pair of bars (+ and −) for each bin; table of flips_by_confidence."""
    require(table, ("confidence", "sign", "change", "share", "tokens"), "flips_by_confidence_chart")
    x = alt.X("confidence:N", title="probability of the token before the update").axis(labelAngle=0)
    base = alt.Chart(table).encode(x=x, xOffset=alt.XOffset("sign:N", sort=list(SIGNS)))
    rank = "indexof(['boosted', 'stable', 'suppressed'], datum.change)"
    tooltip = ["sign:N", "confidence:N", "change:N", alt.Tooltip("share:Q", format=".3f"), "tokens:Q"]
    color = alt.Color("change:N", title="change", sort=ORDER).scale(domain=ORDER, range=list(COLORS.values()))
    bars = (
        base.transform_calculate(rank=rank)
        .mark_bar(stroke="white")
        .encode(
            y=alt.Y("share:Q", title="share of tokens", stack="zero").scale(domain=[0, 1.08]),
            color=color,
            order=alt.Order("rank:Q"),
            tooltip=tooltip,
        )
    )
    signs = base.transform_filter("datum.change == 'boosted'").transform_calculate(
        mark="datum.sign == 'positive' ? '+ ' : '− '", label="datum.mark + datum.tokens"
    )
    text = signs.mark_text(dy=-7, fontSize=11, color=NEUTRAL).encode(y=alt.datum(1.0), text="label:N")
    return finish(
        alt.layer(bars, text),
        "What one update did to tokens of better (+) and of worse (−) rollouts",
        "above each bar: the sign of the rollout's advantage, and how many tokens",
        "Stacked bars: shares of boosted, stable and suppressed tokens by sign and confidence.",
    )


def say_flips_by_confidence(table: pd.DataFrame) -> str:
    """The boosted shares of both signs, bin by bin."""
    boosted = table[table["change"] == "boosted"].pivot(index="confidence", columns="sign", values="share")
    told = [
        f"probability {label}: " + ", ".join(f"{share:.0%} of {sign}" for sign, share in row.dropna().items())
        for label, row in boosted.iterrows()
    ]
    return "Boosted: " + "; ".join(told) + "."


class LiveTable(Explorer):
    """An explorer over a table that a cell has just measured; the code below it takes the reader's own `table`."""

    @property
    def code(self) -> str:
        """An import and a call that compute what is drawn, from the variable `table`."""
        line, call = super().code.split("\n\n")
        return f"{line}\n\n{call.replace('(', '(table, ', 1)}"


def explore_flips_of(table: pd.DataFrame, eps: float = 0.01) -> Explorer:
    """Controls over the flips of a token table with dlogp: eps, bins of confidence, prompt, matched frequencies."""
    require(table, ("group", "advantage", "logp", "dlogp", "token_id"), "explore_flips_of")

    def compute(**settings):
        return flips_by_confidence(table, **settings)

    compute.__name__, compute.__module__ = flips_by_confidence.__name__, flips_by_confidence.__module__
    pushing = sorted(table.loc[table["advantage"] != 0, "group"].unique().tolist())
    controls = {
        "eps": log_slider(eps, -4, 0, "eps (nats)", step=0.05),
        "bins": menu(2, list(BINS), "confidence bins"),
        "group": menu(None, [("all", None), *((str(group), group) for group in pushing)], "prompt"),
        "matched": switch(False, "match frequencies (R1)"),
    }
    return LiveTable(compute, flips_by_confidence_chart, controls, say_flips_by_confidence)


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
    names = list(dict.fromkeys(shares["estimator"]))
    base = alt.Chart(shares).encode(
        x=alt.X("category:N", title=None).axis(labelAngle=0), xOffset=alt.XOffset("estimator:N", sort=names)
    )
    share = alt.Y("share:Q", title="share of movement").scale(domain=[0, 1])
    color = alt.Color("estimator:N", title=None).scale(domain=names, range=SERIES)
    chart = alt.layer(
        base.mark_bar().encode(
            y=share, color=color, tooltip=["category:N", "estimator:N", alt.Tooltip("share:Q", format=".3f")]
        ),
        base.mark_text(dy=-7, fontSize=11).encode(y=share, text=alt.Text("share:Q", format=".2f")),
    )
    return finish(
        chart,
        "Where one update goes, by category of token",
        "share of the sum of |change of log-probability|",
        "; ".join(f"{row.estimator}, {row.category}: {row.share:.2f}" for row in shares.itertuples()),
    )


def verdict_grid(table: pd.DataFrame) -> alt.LayerChart:
    """A cell for each claim and scale, by verdict; columns claim, scale, verdict, statement."""
    require(table, ("claim", "scale", "verdict", "statement"), "verdict_grid")
    claims, scales = (list(dict.fromkeys(table[name])) for name in ("claim", "scale"))
    rows = table.assign(claim_text=table["claim"] + "  " + table["statement"])
    names = [name for name in VERDICTS if name in set(table["verdict"])]
    color = alt.Color("verdict:N", legend=None).scale(domain=names, range=[VERDICTS[name] for name in names])
    order = [rows.loc[rows["claim"] == claim, "claim_text"].iloc[0] for claim in claims]
    base = alt.Chart(rows).encode(
        y=alt.Y("claim_text:N", sort=order, title=None).axis(labelLimit=520, ticks=False, domain=False, labelPadding=8),
        x=alt.X("scale:N", sort=scales, title=None).axis(orient="top", labelAngle=0, ticks=False, domain=False),
    )
    chart = alt.layer(
        base.mark_rect(stroke="#bbbbbb").encode(color=color, tooltip=["claim:N", "scale:N", "verdict:N"]),
        base.mark_text(fontSize=11).encode(text="verdict:N"),
    )
    return finish(
        chart,
        "The claims at two scales",
        "a claim of several measurements is as good as its worst",
        "; ".join(f"{row.claim}, {row.scale}: {row.verdict}" for row in table.itertuples()),
        width=150 * len(scales),
        height=alt.Step(24),
    )
