"""Who shares an optimizer step, as a curve: prompts per mini-batch x order, under AdamW, paired by
policy and seed.

    level      prompts' worth of rollouts in a mini-batch: 32 is the whole batch in one step
    order      one of `theory.batching.STRATEGIES`
    matched    whether every mini-batch's gradient is rescaled to one length, so that no order
               takes longer steps

A unit is a policy of the family with prompts of its own. All arms of a unit begin with the same
rollouts, and are read on the same held-out prompts, exactly (`probes.values`). `batch_one_prompt`
measures level 1, the curve's left end. `batch_rates` tunes AdamW's rate for each level on other
units, one of them with the family's weakest policy, so that nothing collapses, and under shuffled
mini-batches alone, so that no other order has a rate made to measure.
"""

from functools import cache
from typing import NamedTuple

import pandas as pd
import torch

from workbook.probes.minibatches import cancelled_in_steps, gradient_gram, sign_shared_words
from workbook.probes.readings import Readings
from workbook.studies.record import load_measured
from workbook.studies.unit import UNITS, StudyUnit
from workbook.theory.batching import STRATEGIES, minibatch_order
from workbook.training.loop import LoopConfig, sample_batch, train

# of a generation batch; generation batches; held-out prompts
PROMPTS, _BATCHES, _HELD_OUT = 32, 4, 32
DRAWS = 20  # random orders of each strategy
_EVERY = 2  # generation batches from one reading of the held-out value to the next
# tried, by level
RATES = {2: (5e-5, 1e-4, 2e-4), 8: (1.25e-4, 2.5e-4, 5e-4), 32: (2.5e-4, 5e-4, 1e-3)}
CALM = 0.5  # of the best of them
_FEW = 6  # units that also measure the other levels, and no matching
# orders at the levels between
SOME = ("shuffled", "query_preserved", "reward_balanced", "sign_partitioned")
COLLAPSED = 0.5  # a run whose exact value ever falls below this share of the start's has collapsed
_ARM = ["level", "order", "matched"]


class OrderArm(NamedTuple):
    """One run of a unit."""

    level: int
    order: str
    matched: bool = True


# at level 8's rate: half as many prompts a step, twice as many steps
CONTROL = OrderArm(4, "shuffled")


def order_arms(unit: int) -> list[OrderArm]:
    """The runs of a unit: level 8 in all orders; of the first units the other levels, and no
    matching, too.
    """
    chosen = [OrderArm(8, order) for order in STRATEGIES]
    if unit < _FEW:
        chosen += [OrderArm(2, order) for order in STRATEGIES]
        chosen += [OrderArm(level, order) for level in (4, 16) for order in SOME]
        chosen += [OrderArm(8, order, False) for order in STRATEGIES] + [OrderArm(32, "shuffled")]
    return chosen


def batching_config(
    arm: OrderArm, lr: float, prompts: int = PROMPTS, batches: int = _BATCHES
) -> LoopConfig:
    """The loop of an arm at a learning rate."""
    match = "grad_norm" if arm.matched else None
    return LoopConfig(
        prompts,
        batches=batches,
        minibatches=prompts // arm.level,
        order=arm.order,
        lr=lr,
        match=match,
    )


def batch_composition_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table curves: a row per arm and generation batch, columns as in `train`; control:
    of `CONTROL`.
    """
    lr = tuned_levels()
    curves = _runs(
        unit, [*((arm, lr[arm.level]) for arm in order_arms(unit.number)), (CONTROL, lr[8])], _EVERY
    )
    control = curves["level"].eq(CONTROL.level) & curves["lr"].eq(lr[8])
    return {"curves": curves[~control], "control": curves[control]}


def one_prompt_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """The same at level 1: mini-batches of one prompt's worth of rollouts."""
    return {
        "curves": _runs(unit, [(OrderArm(1, order), tuned_levels()[1]) for order in SOME], _EVERY)
    }


def batch_rates_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table curves: the same of shuffled mini-batches at each rate of the grid."""
    tried = [(OrderArm(level, "shuffled"), lr) for level, grid in RATES.items() for lr in grid]
    return {"curves": _runs(unit, tried, every=1)}


def _runs(unit: StudyUnit, chosen: list[tuple[OrderArm, float]], every: int) -> pd.DataFrame:
    """The curves of some arms at their rates, from the same first rollouts, read on the unit's
    held-out prompts.
    """
    policy, task, seed = unit.policy, unit.task, unit.data_seed
    readings = Readings(policy, task, task.dataset(_HELD_OUT, unit.held_out_seed)["prompt"])
    loops = [(batching_config(arm, lr), {**arm._asdict(), "lr": lr}) for arm, lr in chosen]
    loop = loops[0][0]
    rows = task.dataset(loop.prompts * loop.batches, seed).select(range(loop.prompts))
    first = sample_batch(policy, task, loop, rows, seed)
    runs = [
        train(policy, task, loop, seed, readings, every, first).assign(**arm) for loop, arm in loops
    ]
    return pd.concat(runs, ignore_index=True)


@cache
def tuned_levels() -> dict[int, float]:
    """AdamW's learning rate at each level, as the committed tables of `batch_rates` have it."""
    return tuned_rates(load_measured("batch_rates", "family", "curves"))


def tuned_rates(curves: pd.DataFrame) -> dict[int, float]:
    """A calm learning rate for each level: half of the best one below any collapse; between levels,
    geometric means.

    Raises ValueError if the lowest rate of a level collapsed.
    """
    best = {}
    for level, runs in ends(curves).groupby("level"):
        by_rate = (
            runs.groupby("lr")
            .agg(collapsed=("collapsed", "max"), value=("value", "mean"))
            .sort_index()
        )
        sound = by_rate[by_rate["collapsed"].cumsum() == 0]
        if sound.empty:
            raise ValueError(
                f"lr={by_rate.index[0]:g} collapsed at level {level}: begin the grid lower."
            )
        best[int(level)] = CALM * float(sound["value"].idxmax())
    between = {4: (best[2] * best[8]) ** 0.5, 16: (best[8] * best[32]) ** 0.5}
    return {1: best[2] ** 2 / between[4], **best, **between}


def measured_curves() -> pd.DataFrame:
    """The committed curves of every level.  Raises NotMeasured where there are none."""
    studies = ("batch_one_prompt", "batch_composition")
    return pd.concat(
        [load_measured(study, "family", "curves") for study in studies], ignore_index=True
    )


def ends(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per run: seed, level, order, matched, lr, and what came of it.

    start, value: exact held-out value before and after training.  area: mean of value over training
    (trapezoids).
    jitter: mean |second difference| of value from reading to reading.  collapsed: 1 if value ever
    fell below half the start's.  sign_cosine, grad_norm, moved, reward: means over the batches.
    tax, style_entropy: in the end.
    """
    keys = ["seed", *_ARM, "lr"]
    rows = curves.sort_values("batch", kind="stable")
    rows = rows.assign(change=rows.groupby(keys, sort=False)["value"].diff())
    rows = rows.assign(bend=rows.groupby(keys, sort=False)["change"].diff().abs())
    runs = rows.groupby(keys, sort=False)
    value, table = runs["value"], runs[["value", "tax", "style_entropy"]].last()
    table = table.assign(start=value.first(), jitter=runs["bend"].mean())
    table["area"] = (value.sum() - (table["start"] + table["value"]) / 2) / (value.size() - 1)
    table["collapsed"] = (value.min() < COLLAPSED * table["start"]).astype(float)
    return table.join(runs[["sign_cosine", "grad_norm", "moved", "reward"]].mean()).reset_index()


def against_shuffled(runs: pd.DataFrame, outcome: str = "value") -> pd.DataFrame:
    """Each run's outcome minus that of the shuffled run of its unit, level and matching: columns
    difference, policy.

    A pair in which either run collapsed is left out, and counted by the outcome "collapsed"
    alone.  policy: a number of the unit's policy, which three units share; their mean is what is
    independent.
    """
    keys = ["seed", "level", "matched"]
    shuffled = runs[runs["order"] == "shuffled"].set_index(keys)
    own = runs[runs["order"] != "shuffled"].join(shuffled, on=keys, rsuffix="_shuffled")
    if outcome != "collapsed":
        own = own[(own["collapsed"] == 0) & (own["collapsed_shuffled"] == 0)]
    return own.assign(
        difference=own[outcome] - own[f"{outcome}_shuffled"], policy=own["seed"] % len(UNITS)
    )


def minibatches_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table steps: means over mini-batches of two prompts' worth, a row per strategy, drawn order
    and tokens.
    """
    rollouts, rows = unit.rollouts, []
    for tokens, chosen in {"all": None, "shared": sign_shared_words(rollouts)}.items():
        gram = gradient_gram(unit.policy, rollouts, chosen)
        for strategy in STRATEGIES:
            generator = torch.Generator().manual_seed(unit.number)
            for draw in range(DRAWS):
                parts = unit.setting.prompts // 2
                order = minibatch_order(
                    strategy, rollouts.group_ids, rollouts.advantages, parts, generator
                )
                means = cancelled_in_steps(gram, rollouts.advantages, order, parts)[
                    ["in_step", "sign_cosine"]
                ].mean()
                rows.append({"strategy": strategy, "group": draw, "tokens": tokens, **means})
    return {"steps": pd.DataFrame(rows)}
