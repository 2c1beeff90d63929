"""A generation batch with drawn rewards, cut into mini-batches by five strategies, and exercises.

A prompt's advantages sum to 0, so a push that all of its rollouts share cancels in the whole batch.
An optimizer step sees a mini-batch only. Take a prompt with advantages +1.5, -.5, -.5, -.5 in two
mini-batches of two: one holds +1.5 and -.5 and keeps 1.0 of 2.0, a residual of one half; the other
holds -.5 and -.5 and cancels nothing, a residual of 1. So the order of the rollouts matters.
"""

from collections.abc import Callable

import altair as alt
import numpy as np
import pandas as pd
import torch

from workbook.chapters.grading import answer_of
from workbook.messages import InvalidValue
from workbook.theory.advantages import group_advantages
from workbook.theory.batching import minibatch_order
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.figures import bars, panels
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, panel_title

NAMES = {  # as a menu and an axis show them
    "shuffled": "shuffled",
    "query_preserved": "query-preserved",
    "reward_balanced": "reward-balanced",
    "query_preserved_reward_balanced": "query-preserved, balanced",
    "sign_partitioned": "sign-partitioned",
}
GLYPHS = {1: "+", 0: "0", -1: "−"}
SIGNS = {"positives": 1, "negatives": -1}
CUT_MENU = [(name, strategy) for strategy, name in NAMES.items()]

# of the exercises: eight prompts of four rollouts, mixed up, in four mini-batches; how many of
# each prompt are right
_RIGHT = [1, 3, 2, 1, 3, 2, 3, 1]
_PARTS = 4
_MIXED = torch.randperm(32, generator=torch.Generator().manual_seed(0))
GROUPS = torch.arange(8).repeat_interleave(4)[_MIXED]
_REWARDS = torch.tensor([[float(place < right) for place in range(4)] for right in _RIGHT])
ORDER_ADVANTAGES = group_advantages(_REWARDS.flatten()[_MIXED].double(), GROUPS)


def compute_cut(
    strategy: str | Callable = "shuffled",
    prompts: int = 8,
    group_size: int = 8,
    minibatches: int = 4,
    p_right: float = 0.4,
    draw: int = 0,
) -> dict[str, pd.DataFrame]:
    """Draw one generation batch with rewards, and cut it by a strategy.

    strategy: a name, or a function (group_ids (B,), advantages (B,), minibatches) -> order (B,)
    Returns two tables:
        cells, a row per rollout: minibatch (1, 2, ...), place in it, prompt (1, 2, ...), sign
            (+, 0, −), advantage (GRPO's)
        batches, a row per mini-batch: positives, negatives, cut (prompts of which it holds a part
            only), residual (mean over its prompts, of an update that all rollouts share: 0 cancels,
            1 one sign, NaN nothing pushes)
    Raises ValueError where the strategy can't cut such a batch.
    """
    size = prompts * group_size
    if size % minibatches:
        raise InvalidValue("minibatches", minibatches, f"a divisor of the {size} rollouts")
    generator = torch.Generator().manual_seed(draw)
    group_ids = torch.arange(prompts).repeat_interleave(group_size)  # (B,)
    rewards = (torch.rand(len(group_ids), generator=generator) < p_right).double()
    advantages = group_advantages(rewards, group_ids)
    if callable(strategy):
        order = torch.as_tensor(strategy(group_ids, advantages, minibatches))
    else:
        order = minibatch_order(strategy, group_ids, advantages, minibatches, generator)
    # within a mini-batch the order means nothing: keep each prompt together
    order = order.reshape(minibatches, -1).sort().values.flatten()

    number, place = divmod(np.arange(size), size // minibatches)
    advantage = advantages[order].numpy()
    cells = pd.DataFrame(
        {
            "minibatch": number + 1,
            "place": place,
            "prompt": group_ids[order].numpy() + 1,
            "sign": [GLYPHS[sign] for sign in np.sign(advantage)],
            "advantage": advantage,
        }
    )

    # a prompt's part in a mini-batch: the sum of its advantages over the sum of their sizes
    parts = cells.assign(size=cells["advantage"].abs()).groupby(["minibatch", "prompt"])
    pushed = parts[["advantage", "size"]].sum()
    residual = pushed["advantage"].abs() / pushed["size"]  # NaN: none pushes

    batches = pd.DataFrame()
    for name, sign in SIGNS.items():
        batches[name] = (cells["sign"] == GLYPHS[sign]).groupby(cells["minibatch"]).sum()
    batches["cut"] = (parts.size() < group_size).groupby("minibatch").sum()
    batches["residual"] = residual.groupby("minibatch").mean()
    return {"cells": cells, "batches": batches.reset_index()}


def cut_chart(cells: pd.DataFrame, batches: pd.DataFrame) -> alt.HConcatChart:
    """Draw each mini-batch as a row of cells, by sign and prompt, and its residual as a bar."""
    colors = alt.Scale(domain=list(GLYPHS.values()), range=[POSITIVE, "#c9c9c9", NEGATIVE])
    # a cell shows its sign, so no legend has to
    color = alt.Color("sign:N", scale=colors, legend=None)
    base = alt.Chart(cells).encode(
        x=alt.X("place:O", axis=None), y=alt.Y("minibatch:O", title="mini-batch")
    )
    hints = ["prompt:N", "sign:N", alt.Tooltip("advantage:Q", format="+.2f")]
    squares = base.mark_rect(stroke="white", strokeWidth=1).encode(color=color, tooltip=hints)
    # white on a colour, black on grey
    ink = alt.when("datum.sign == '0'").then(alt.value("black")).otherwise(alt.value("white"))
    letters = base.mark_text(dy=-8).encode(text="prompt:N", color=ink)
    glyphs = base.mark_text(dy=8, fontSize=14, fontWeight="bold").encode(text="sign:N", color=ink)
    rollouts = alt.layer(squares, letters, glyphs).properties(
        width=455,
        height=alt.Step(36),
        title=panel_title("the rollouts of each mini-batch, by prompt"),
    )

    # how many of each sign a mini-batch holds stands in its bar
    row = alt.Y("minibatch:O", title=None)
    counted = alt.Chart(batches).transform_calculate(
        signs="datum.positives + '+  ' + datum.negatives + '−'"
    )
    signs = counted.mark_text(align="left").encode(x=alt.value(4), y=row, text="signs:N")
    residuals = bars(
        batches,
        row,
        alt.X("residual:Q", title="residual (0 cancels, 1 one sign)").scale(domain=[0, 1]),
        color=alt.value(NEUTRAL),
        mark={"opacity": 0.55, "height": 18},
        form=".2f",
        shown=("positives", "negatives", "cut"),
        over=[signs],
        title="residual of a shared push",
        width=159,
        height=alt.Step(36),
    )
    return panels(
        [rollouts, residuals],
        "Where a cut splits a prompt, opposite pushes stay",
        "left: each rollout's prompt and its advantage's sign; right: what stays of a push that a"
        " prompt's rollouts share",
        "A row of cells for each mini-batch, marked by sign and prompt; bars: the mini-batch's"
        " residual.",
    )


def explore_cut() -> Explorer:
    """Menus and sliders over batch and strategy: which rollouts meet in an optimizer step?"""
    controls = {
        "strategy": menu("shuffled", CUT_MENU, "strategy"),
        "prompts": slider(8, 2, 12, 1, "prompts"),
        "group_size": menu(8, [2, 4, 8], "group size G"),
        "minibatches": menu(4, [1, 2, 3, 4, 6, 8], "mini-batches"),
        "p_right": slider(0.4, 0.05, 0.95, 0.05, "share of right rollouts"),
        "draw": slider(0, 0, 50, 1, "random draw"),
    }
    return Explorer(compute_cut, cut_chart, controls)


# --- exercises


def check_order(function) -> None:
    """Check a function (group_ids (B,), advantages (B,), parts) -> an order of the rollouts whose
    equal parts hold whole prompts and equally many positive rollouts.

    >>> check_order(lambda group_ids, advantages, parts: torch.arange(len(group_ids)))
    Not quite: prompt 0 has rollouts in mini-batches 2 and 4; keep it in one.
    >>> check_order(lambda group_ids, advantages, parts: group_ids.argsort(stable=True))
    Not quite: the mini-batches hold 4, 3, 5, 4 positive rollouts; pair prompts of many with few.
    """
    got = answer_of(function, GROUPS.clone(), ORDER_ADVANTAGES.clone(), _PARTS)
    if got is None:
        return
    mistake = _mistake_in_order(got)
    if mistake:
        print(f"Not quite: {mistake}")
    else:
        print(
            "Right: no prompt is cut apart, and each mini-batch has as many positive rollouts. The"
            " next cell uses your order."
        )


def _mistake_in_order(got: torch.Tensor) -> str:
    """What is wrong with an answer to `check_order`; "" if nothing is."""
    if got.shape != GROUPS.shape:
        return (
            f"it returned the shape {tuple(got.shape)}; return {len(GROUPS)} numbers of rollouts."
        )
    if sorted(got.tolist()) == sorted(GROUPS.tolist()):
        return (
            "these are the prompts' labels; return the rollouts' numbers, in an order that sorts"
            " them."
        )
    if sorted(got.tolist()) != list(range(len(GROUPS))):
        return f"each of the rollouts 0 to {len(GROUPS) - 1} must come exactly once."
    parts = GROUPS[got.long()].view(_PARTS, -1)  # (parts, B / parts)
    for label in GROUPS.unique().tolist():
        inside = ((parts == label).any(1).nonzero().flatten() + 1).tolist()
        if len(inside) > 1:
            first, second = inside[:2]
            return (
                f"prompt {label} has rollouts in mini-batches {first} and {second}; keep it in one."
            )
    positives = (ORDER_ADVANTAGES[got.long()] > 0).view(_PARTS, -1).sum(1).tolist()
    if len(set(positives)) > 1:
        counts = ", ".join(map(str, positives))
        return f"the mini-batches hold {counts} positive rollouts; pair prompts of many with few."
    return ""
