"""How a generation batch is cut into mini-batches, what cancels inside them, and where two ways of cutting end."""

from __future__ import annotations

import altair as alt
import pandas as pd
import torch

from workbook.theory.advantages import group_advantages
from workbook.theory.batching import STRATEGIES, minibatch_order
from workbook.theory.weights import cancellation_residual
from workbook.topics.groups.charts import beside, small
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES, require

NAMES = {  # as a menu and an axis show them
    "shuffled": "shuffled",
    "query_preserved": "query-preserved",
    "reward_balanced": "reward-balanced",
    "query_preserved_reward_balanced": "query-preserved, balanced",
    "sign_partitioned": "sign-partitioned",
}
GUARANTEES = {
    "shuffled": "nothing is guaranteed",
    "query_preserved": "each prompt's rollouts stay together",
    "reward_balanced": "positives, and negatives, are spread evenly",
    "query_preserved_reward_balanced": "prompts stay together, dealt out so that signs balance as well as can be",
    "sign_partitioned": "at most one mini-batch holds both signs",
}
GLYPHS = {1: "+", 0: "0", -1: "−"}
TOKENS = ("all", "shared")  # of the rollouts, or the words that both signs of a group hold


def compute_cut(
    strategy: str = "shuffled",
    prompts: int = 8,
    group_size: int = 8,
    minibatches: int = 4,
    p_right: float = 0.4,
    draw: int = 0,
) -> dict[str, pd.DataFrame]:
    """One generation batch with drawn rewards, cut by a strategy.

    Tables: cells, a row per rollout: minibatch (1, 2, ...), place in it, prompt (a letter), sign (+, 0, −), advantage
    (GRPO's); batches, a row per mini-batch: positives, negatives, cut (prompts of which it holds a part only),
    residual (mean over its prompts of what is left of an update that all rollouts share, as the trainer logs it:
    0 cancels, 1 one sign only; NaN where nothing pushes).

    Raises ValueError where a strategy can't cut such a batch.
    """
    generator = torch.Generator().manual_seed(draw)
    group_ids = torch.arange(prompts).repeat_interleave(group_size)
    rewards = (torch.rand(len(group_ids), generator=generator) < p_right).float()
    advantages = group_advantages(rewards, group_ids)
    order = minibatch_order(strategy, group_ids, advantages, minibatches, generator)
    cells, batches = [], []
    for number, part in enumerate(order.reshape(minibatches, -1), 1):
        part = part.sort().values  # within a mini-batch order means nothing: put each prompt's rollouts together
        signs = advantages[part].sign().int()
        for place, (rollout, sign) in enumerate(zip(part.tolist(), signs.tolist(), strict=True)):
            prompt = chr(ord("A") + int(group_ids[rollout]))
            cells.append((number, place, prompt, GLYPHS[sign], float(advantages[rollout])))
        parts_of = torch.bincount(group_ids[part], minlength=prompts)
        cut = int(((parts_of > 0) & (parts_of < group_size)).sum())
        counts = int((signs > 0).sum()), int((signs < 0).sum())
        batches.append((number, *counts, cut, _residual(advantages[part], group_ids[part])))
    return {
        "cells": pd.DataFrame(cells, columns=["minibatch", "place", "prompt", "sign", "advantage"]),
        "batches": pd.DataFrame(batches, columns=["minibatch", "positives", "negatives", "cut", "residual"]).assign(
            prompts=prompts, strategy=strategy
        ),
    }


def _residual(advantages: torch.Tensor, group_ids: torch.Tensor) -> float:
    pushing = advantages != 0
    if not pushing.any():
        return float("nan")
    advantages, group_ids = advantages[pushing], group_ids[pushing]
    return float(cancellation_residual(torch.ones_like(advantages), advantages, group_ids).mean())


def cut_chart(cells: pd.DataFrame, batches: pd.DataFrame) -> alt.HConcatChart:
    """Left a row of cells per mini-batch (colour and glyph: sign; letter: prompt), right its residual."""
    row = alt.Y("minibatch:O", title="mini-batch")
    color = alt.Color("sign:N", title="advantage").scale(
        domain=list(GLYPHS.values()), range=[POSITIVE, "#c9c9c9", NEGATIVE]
    )
    base = alt.Chart(cells).encode(
        x=alt.X("place:O", title="rollouts of the mini-batch, each with its prompt's letter", axis=None), y=row
    )
    shown = [alt.Tooltip("prompt:N"), alt.Tooltip("sign:N"), alt.Tooltip("advantage:Q", format="+.2f")]
    ink = alt.when("datum.sign == '0'").then(alt.value("black")).otherwise(alt.value("white"))
    left = alt.layer(
        base.mark_rect(stroke="white", strokeWidth=1).encode(color=color, tooltip=shown),
        base.mark_text(dy=-7, fontSize=10).encode(text="prompt:N", color=ink),
        base.mark_text(dy=8, fontSize=13, fontWeight="bold").encode(text="sign:N", color=ink),
    ).properties(width=500, height=alt.Step(36), title=small("the rollouts of each mini-batch, by prompt"))
    bars = alt.Chart(batches).encode(y=alt.Y("minibatch:O", title=None))
    x = alt.X("residual:Q", title="residual (0 cancels, 1 one sign)").scale(domain=[0, 1])
    told = "datum.positives + '+  ' + datum.negatives + '−'"
    right = alt.layer(
        bars.mark_bar(color=NEUTRAL, opacity=0.55, height=18).encode(
            x=x, tooltip=["minibatch", "positives", "negatives", "cut", alt.Tooltip("residual:Q", format=".2f")]
        ),
        bars.transform_calculate(told=told)
        .mark_text(align="left", fontSize=11)
        .encode(x=alt.value(4), text=alt.Text("told:N")),
    ).properties(width=190, height=alt.Step(36), title=small("what is left of a shared push"))
    return beside(
        [left, right],
        "One generation batch, cut into optimizer mini-batches",
        "left: colour and glyph are the sign of the advantage, letters the prompts; right: residual, and signs counted",
        "A row of cells for each mini-batch, marked by sign and prompt; bars: the mini-batch's residual.",
    )


def say_cut(cells: pd.DataFrame, batches: pd.DataFrame) -> str:
    """What the strategy guarantees, and what came of this draw."""
    strategy, prompts = batches["strategy"].iloc[0], int(batches["prompts"].iloc[0])
    cut = int((cells.groupby("prompt")["minibatch"].nunique() > 1).sum())
    least, most = batches["positives"].min(), batches["positives"].max()
    left = batches["residual"].mean()
    told = "nothing pushes" if pd.isna(left) else f"mean residual {left:.2f}"
    return (
        f"{NAMES[strategy].capitalize()}: {GUARANTEES[strategy]}. Here {cut} of {prompts} prompts are cut apart, "
        f"mini-batches hold {least} to {most} positives, {told}."
    )


def explore_cut() -> Explorer:
    """Menus and sliders over the batch and the strategy: which rollouts meet in an optimizer step?"""
    controls = {
        "strategy": menu("shuffled", [(name, key) for key, name in NAMES.items()], "strategy"),
        "prompts": slider(8, 2, 12, 1, "prompts"),
        "group_size": menu(8, [2, 4, 8], "group size G"),
        "minibatches": menu(4, [1, 2, 3, 4, 6, 8], "mini-batches"),
        "p_right": slider(0.4, 0.05, 0.95, 0.05, "share of right rollouts"),
        "draw": slider(0, 0, 50, 1, "random draw"),
    }
    return Explorer(compute_cut, cut_chart, controls, say_cut)


def mechanism_chart(table: pd.DataFrame, subtitle: str) -> alt.HConcatChart:
    """What cancels inside a step and the cosine of the two signs' gradients, by strategy.

    table: columns measure, strategy (of STRATEGIES), tokens (of TOKENS), mean, low, high, and scale if there are two.
    """
    require(table, ("measure", "strategy", "tokens", "mean", "low", "high"), "mechanism_chart")
    rows = table.assign(name=table["strategy"].map(NAMES), tokens=table["tokens"] + " tokens")
    names = [f"{name} tokens" for name in TOKENS]
    color = alt.Color("tokens:N", title=None, sort=names, legend=alt.Legend(orient="bottom")).scale(
        domain=names, range=[POSITIVE, NEGATIVE]
    )
    shape = alt.Shape("tokens:N", title=None, sort=names, legend=alt.Legend(orient="bottom")).scale(domain=names)
    panels = []
    scales = list(dict.fromkeys(rows["scale"])) if "scale" in rows else [None]
    for measure in dict.fromkeys(rows["measure"]):
        for scale in scales:
            here = rows[(rows["measure"] == measure) & (rows["scale"] == scale if scale else True)]
            axis = None if panels else alt.Axis(labelLimit=200)
            y = alt.Y("name:N", sort=list(NAMES.values()), title=None).axis(axis)
            base = alt.Chart(here).encode(y=y, yOffset=alt.YOffset("tokens:N", sort=names), color=color)
            x = alt.X("mean:Q", title=measure).scale(padding=24)
            panels.append(
                alt.layer(
                    alt.Chart().mark_rule(color="#999999").encode(x=alt.datum(0)),
                    base.mark_rule(size=3, opacity=0.5).encode(x=alt.X("low:Q", title=measure), x2="high:Q"),
                    base.mark_point(filled=True, size=65, opacity=1).encode(x=x, shape=shape),
                    base.mark_text(dx=20, fontSize=10).encode(x="high:Q", text=alt.Text("mean:Q", format="+.2f")),
                ).properties(
                    width=560 // len(scales) // 2 + 60, height=190, **({"title": small(scale)} if scale else {})
                )
            )
    told = "; ".join(f"{row.measure}, {row.name}, {row.tokens}: {row.mean:.2f}" for row in rows.itertuples(index=False))
    return beside(panels, "What meets its opposite inside an optimizer step", subtitle, told)


def endpoints_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Distance between the end points of two ways through one batch against the learning rate, logarithmic.

    table: columns change (a panel each), optimizer, factor (learning rate over the study's larger one), distance,
    slope (of the line, log-log).
    """
    require(table, ("change", "optimizer", "factor", "distance", "slope"), "endpoints_chart")
    names = list(dict.fromkeys(table["optimizer"]))
    legend = alt.Legend(title=None, orient="bottom", columns=3)
    color = alt.Color("optimizer:N", legend=legend, sort=names).scale(domain=names, range=SERIES[: len(names)])
    shape = alt.Shape("optimizer:N", legend=legend, sort=names).scale(domain=names)
    factors = sorted(table["factor"].unique())
    panels = []
    for change in dict.fromkeys(table["change"]):
        here = table[table["change"] == change]
        base = alt.Chart(here).encode(
            x=alt.X("factor:Q", title="learning rate ÷ the study's larger one")
            .scale(type="log", base=4, domain=[factors[0] / 1.3, factors[-1] * 3])
            .axis(values=factors, labelExpr="datum.value < 1 ? '1/' + format(1 / datum.value, '.0f') : '1'"),
            color=color,
        )
        y = alt.Y("distance:Q", title="distance of end points (weights)").scale(type="log")
        y = y.axis(format=".0e", values=[10.0**k for k in range(-8, 2)])
        last = base.transform_filter(alt.datum.factor == factors[-1])
        panels.append(
            alt.layer(
                base.mark_line(strokeWidth=2).encode(y=y),
                base.mark_point(filled=True, size=60, opacity=1).encode(
                    y=y,
                    shape=shape,
                    tooltip=["optimizer", "factor:Q", alt.Tooltip("distance:Q", format=".2e")],
                ),
                last.mark_text(align="left", dx=8, fontSize=11).encode(y=y, text=alt.Text("slope:Q", format=".1f")),
            ).properties(width=290, height=250, title=small(change))
        )
    slopes = table.drop_duplicates(["change", "optimizer"])
    told = "; ".join(f"{row.change}, {row.optimizer}: slope {row.slope:.2f}" for row in slopes.itertuples())
    return beside(
        panels,
        "One generation batch, walked through in two ways: how far apart are the ends?",
        "distance of the weights after four steps; both axes logarithmic; the number at a line is its slope",
        told,
    )


assert set(NAMES) == set(STRATEGIES) == set(GUARANTEES)
