"""A generation batch cut into mini-batches: what cancels inside them, and how far apart two ways of cutting end."""

from __future__ import annotations

import altair as alt
import pandas as pd
import torch

from workbook.theory.advantages import group_advantages
from workbook.theory.batching import STRATEGIES, minibatch_order
from workbook.theory.weights import cancellation_residual
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.figures import bars, forest, panels, series
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES, describe_rows, panel_title, require

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
    "query_preserved_reward_balanced": "prompts stay together, placed so that signs balance as well as can be",
    "sign_partitioned": "at most one mini-batch holds both signs",
}
GLYPHS = {1: "+", 0: "0", -1: "−"}
CUT_MENU = [(name, strategy) for strategy, name in NAMES.items()]
WALKS = ["SGD", "SGD, norm clipped", "SGD, momentum", "AdamW", "AdamW, no momentum"]  # optimizers of `compute_walks`
FRACTION = "datum.value < 1 ? '1/' + format(1 / datum.value, '.0f') : '1'"
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
    residual (mean over its prompts, of an update that all rollouts share, as the trainer logs it: 0 cancels, 1 one sign
    only; NaN where nothing pushes).

    Raises ValueError where a strategy can't cut such a batch.
    """
    if (size := prompts * group_size) % minibatches:
        raise ValueError(
            f"{minibatches} mini-batches can't be of one size: their number must divide the {size} rollouts."
        )
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
    colors = alt.Scale(domain=list(GLYPHS.values()), range=[POSITIVE, "#c9c9c9", NEGATIVE])
    base = alt.Chart(cells).encode(
        x=alt.X("place:O", title="rollouts of the mini-batch, each with its prompt's letter", axis=None),
        y=alt.Y("minibatch:O", title="mini-batch"),
    )
    ink = alt.when("datum.sign == '0'").then(alt.value("black")).otherwise(alt.value("white"))
    rollouts = alt.layer(
        base.mark_rect(stroke="white", strokeWidth=1).encode(
            color=alt.Color("sign:N", title="advantage", scale=colors, legend=alt.Legend(orient="bottom")),
            tooltip=["prompt:N", "sign:N", alt.Tooltip("advantage:Q", format="+.2f")],
        ),
        base.mark_text(dy=-7, fontSize=10).encode(text="prompt:N", color=ink),
        base.mark_text(dy=8, fontSize=13, fontWeight="bold").encode(text="sign:N", color=ink),
    ).properties(width=430, height=alt.Step(36), title=panel_title("the rollouts of each mini-batch, by prompt"))
    row = alt.Y("minibatch:O", title=None)
    signs = alt.Chart(batches).transform_calculate(signs="datum.positives + '+  ' + datum.negatives + '−'")
    residuals = bars(
        batches,
        row,
        alt.X("residual:Q", title="residual (0 cancels, 1 one sign)").scale(domain=[0, 1]),
        color=alt.value(NEUTRAL),
        mark={"opacity": 0.55, "height": 18},
        form=".2f",
        shown=("positives", "negatives", "cut"),
        over=[signs.mark_text(align="left", fontSize=11).encode(x=alt.value(4), y=row, text="signs:N")],
        title="residual of a shared push",
        width=150,
        height=alt.Step(36),
    )
    return panels(
        [rollouts, residuals],
        "One generation batch, cut into optimizer mini-batches",
        "left: colour and glyph are the sign of the advantage, letters the prompts; right: residual, and signs counted",
        "A row of cells for each mini-batch, marked by sign and prompt; bars: the mini-batch's residual.",
    )


def describe_cut(cells: pd.DataFrame, batches: pd.DataFrame) -> str:
    """What the strategy guarantees, and what came of this draw."""
    strategy, prompts = batches["strategy"].iloc[0], int(batches["prompts"].iloc[0])
    cut = int((cells.groupby("prompt")["minibatch"].nunique() > 1).sum())
    fewest, most = batches["positives"].min(), batches["positives"].max()
    residual = batches["residual"].mean()
    result = "nothing pushes" if pd.isna(residual) else f"mean residual {residual:.2f}"
    return (
        f"{NAMES[strategy].capitalize()}: {GUARANTEES[strategy]}. Here {cut} of {prompts} prompts are cut apart, "
        f"mini-batches hold {fewest} to {most} positives, {result}."
    )


def explore_cut() -> Explorer:
    """Menus and sliders over the batch and the strategy: which rollouts meet in an optimizer step?"""
    controls = {
        "strategy": menu("shuffled", CUT_MENU, "strategy"),
        "prompts": slider(8, 2, 12, 1, "prompts"),
        "group_size": menu(8, [2, 4, 8], "group size G"),
        "minibatches": menu(4, [1, 2, 3, 4, 6, 8], "mini-batches"),
        "p_right": slider(0.4, 0.05, 0.95, 0.05, "share of right rollouts"),
        "draw": slider(0, 0, 50, 1, "random draw"),
    }
    return Explorer(compute_cut, cut_chart, controls, describe_cut)


def mechanism_chart(table: pd.DataFrame, subtitle: str) -> alt.HConcatChart:
    """What cancels inside a step and the cosine of the two signs' gradients, by strategy.

    table: columns measure, strategy (of STRATEGIES), tokens (of TOKENS), mean, low, high, and scale if there are two.
    """
    require(table, ("measure", "strategy", "tokens", "mean", "low", "high"), "mechanism_chart")
    rows = table.assign(name=table["strategy"].map(NAMES), tokens=table["tokens"] + " tokens")
    keys = ["measure", "scale"] if "scale" in rows else ["measure"]
    look = {"names": [f"{name} tokens" for name in TOKENS], "number": "+.2f", "number_at": "end", "zero": True}
    look |= {"width": 440 // rows.groupby(keys).ngroups, "height": 190}
    name, charts = alt.Y("name:N", sort=None, title=None).scale(domain=list(NAMES.values())).axis(labelLimit=200), []
    for (measure, *scale), part in rows.groupby(keys, sort=False):
        x, title = alt.X("mean:Q", title=measure).scale(padding=44), scale[0] if scale else None
        charts.append(forest(part, name, x, "tokens", labels=not charts, title=title, **look))
    title, columns = "What meets its opposite inside an optimizer step", ("measure", "name", "tokens")
    return panels(charts, title, subtitle, describe_rows(rows, *columns, form=".2f"))


def endpoints_chart(same: pd.DataFrame, other: pd.DataFrame) -> alt.HConcatChart:
    """Distance between the ends of two ways through one batch against the learning rate, logarithmic, of two changes.

    same, other: columns optimizer, factor (learning rate over the largest), distance, slope (of the line, log-log) and
    label (where the slope is written), as `compute_walks` makes them.
    """
    factors, charts = [1 / 64, 1 / 16, 1 / 4, 1], []
    x = alt.X("factor:Q", title="learning rate ÷ the largest")
    x = x.scale(type="log", base=4, domain=[factors[0] / 1.3, 3]).axis(values=factors, labelExpr=FRACTION)
    distance = "distance of the weights"
    y = alt.Y("distance:Q", title=distance).scale(type="log")
    y = y.axis(format=".0e", values=[10.0**k for k in range(-8, 2)])
    names = {"names": WALKS, "spread": None, "legend": {"columns": 3}, "dash": "optimizer"}
    for table, title in ((same, "the same mini-batches, in reverse"), (other, "other mini-batches")):
        require(table, ("optimizer", "factor", "distance", "slope", "label"), "endpoints_chart")
        color = alt.Color("optimizer:N", sort=WALKS).scale(domain=WALKS, range=SERIES)
        last = alt.Chart(table).transform_filter("isValid(datum.label)")
        text = last.mark_text(align="left", dx=8, fontSize=11).encode(
            x=x,
            y=alt.Y("label:Q", title=distance).scale(type="log"),
            color=color,
            text=alt.Text("slope:Q", format=".1f"),
        )
        charts.append(
            series(table, x, y, "optimizer", form=".2e", over=[text], title=title, width=250, height=250, **names)
        )
    slopes = pd.concat([same.assign(change="same"), other.assign(change="other")])
    slopes = slopes.dropna(subset="slope").drop_duplicates(["change", "optimizer"])
    return panels(
        charts,
        "One generation batch, walked through in two ways: how far apart are the ends?",
        "distance of the weights after the steps of one batch; both axes logarithmic; the number is a line's slope",
        "; ".join(f"{row.change} mini-batches, {row.optimizer}: slope {row.slope:.2f}" for row in slopes.itertuples())
        or "Distance against the learning rate, a line for each optimizer, in two panels.",
    )


assert set(NAMES) == set(STRATEGIES) == set(GUARANTEES)
