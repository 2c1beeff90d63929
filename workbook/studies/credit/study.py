"""The study of chapter 06 over policies and seeds: which tokens a step favours, by exact values
(H7, H8, H9, R1, R4).

What a gap is: `workbook.probes.value_gaps`. The step is plain SGD, so small that every change of
log-probability is proportional to it. What was stated before any unit was measured:
data/results/value_gap/registration.yaml.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from workbook.messages import progress
from workbook.policies.models import private_copy
from workbook.probes.step import matched_lr, update
from workbook.probes.value_gaps import (
    CELLS,
    SMALL_NATS,
    cell_gap,
    pool_change,
    rms_dlogp,
    step_gaps,
)
from workbook.probes.values import ValuedTokens, exact_pool
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.unit import StudyUnit
from workbook.theory.advantages import group_advantages
from workbook.training.optimizers import optimizer_of

TINY_NATS = 0.001  # root mean square movement by the smaller step of H9
FRESH = 4  # rollouts per prompt in the pools that H8's steps are judged by
DEEP_PROMPTS, DEEP = 16, 16  # prompts, and rollouts of each, along whose number H8 goes
GROWING = "rollouts per prompt, 16 prompts"
MORE_PROMPTS = "prompts, 8 rollouts each"
FIXED = "rollouts per prompt, 64 in all"
_AXES = {  # of H8: (estimator, (prompts, rollouts per prompt) of each cell)
    GROWING: ("reinforce", [(DEEP_PROMPTS, group) for group in (1, 2, 4, 8, 16)]),
    MORE_PROMPTS: ("grpo", [(prompts, 8) for prompts in (4, 8, 16, 32, 64)]),
    FIXED: ("reinforce", [(64 // group, group) for group in (1, 2, 4, 8, 16)]),
}
PARTS_OF_A_CELL = 2  # parts of the rollouts, at most, that a cell's steps are taken on
REPEATED, _STEPS = 128, 8  # rollouts of one batch, and updates on it (H9)
_HELD_OUT = 256  # rollouts of held-out prompts that one step is judged by (R4)


def value_gap_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables gaps (H7, R1, R4), budget (H8) and repeated (H9) of one unit."""
    policy, rollouts = unit.policy, unit.rollouts
    few = rollouts.select(slice(0, REPEATED))
    lr = matched_lr(policy, few, "sgd", SMALL_NATS)
    held_out = unit.held_out.select(slice(0, _HELD_OUT))
    pools = {
        "training": exact_pool(policy, unit.task, rollouts),
        "held-out": exact_pool(policy, unit.task, held_out),
    }
    batch = {"training": exact_pool(policy, unit.task, few), "held-out": pools["held-out"]}
    rates = {SMALL_NATS: lr, TINY_NATS: lr * TINY_NATS / SMALL_NATS}
    repeated = [
        repeated_gaps(policy, few, batch, rate, _STEPS).assign(nats=nats)
        for nats, rate in rates.items()
    ]
    return {
        "gaps": step_gaps(policy, rollouts, pools, lr, unit.number),
        "budget": budget_gaps(unit, lr),
        "repeated": pd.concat(repeated, ignore_index=True),
    }


def budget_gaps(unit: StudyUnit, lr: float) -> pd.DataFrame:
    """H8: gaps after one step on parts of the rollouts, along its three axes.

    Pools: fresh rollouts of the prompts that the step is taken on, and of held-out prompts.
    Columns: axis, prompts, group_size, pool, matched, gap (mean over the parts), rms (nats, of the
    pool), parts.
    """
    policy, task, length = unit.policy, unit.task, unit.setting.max_new_tokens
    rows, other = (
        task.dataset(unit.setting.prompts, unit.data_seed),
        task.dataset(32, unit.held_out_seed),
    )
    # of the generator: the prompts are those of rows
    seeds = [unit.data_seed + 100_000 * (1 + i) for i in range(3)]
    few = rows.select(range(min(DEEP_PROMPTS, len(rows))))
    deep = sample_rollouts(policy, task, few, DEEP, seeds[0], length)
    fresh = {"training": (rows, seeds[1]), "held-out": (other, seeds[2])}
    pools = {
        name: exact_pool(policy, task, sample_rollouts(policy, task, prompts, FRESH, seed, length))
        for name, (prompts, seed) in fresh.items()
    }
    cells = [
        (axis, estimator, *cell) for axis, (estimator, sizes) in _AXES.items() for cell in sizes
    ]
    rows_of_parts, keys = [], ["axis", "prompts", "group_size", "pool", "matched"]
    for axis, estimator, prompts, group in progress(cells, "sampling budget"):
        source = deep if group > unit.setting.group_size or axis == GROWING else unit.rollouts
        for part in parts_of(source, prompts, group, PARTS_OF_A_CELL, unit.number):
            # "reinforce" subtracts the mean reward of the whole batch
            groups = (
                part.group_ids if estimator != "reinforce" else torch.zeros_like(part.group_ids)
            )
            advantages = group_advantages(part.rewards, groups, estimator)
            if advantages.any():
                key, part = (
                    dict(zip(keys, (axis, prompts, group), strict=False)),
                    replace(part, advantages=advantages),
                )
                rows_of_parts += [key | row for row in gaps_after(policy, part, pools, lr)]
    parts = pd.DataFrame(rows_of_parts).groupby(keys, sort=False)
    return parts.agg(gap=("gap", "mean"), rms=("rms", "mean"), parts=("gap", "count")).reset_index()


def parts_of(
    rollouts: Rollouts, prompts: int, group_size: int, most: int, seed: int
) -> list[Rollouts]:
    """Up to `most` random parts of so many prompts with so many rollouts each, which share no
    rollout.
    """
    rng, groups = np.random.default_rng(seed), rollouts.group_ids.cpu().numpy()
    names = rng.permutation(np.unique(groups))
    own = {name: rng.permutation(np.flatnonzero(groups == name)) for name in names}
    blocks = [names[i : i + prompts] for i in range(0, len(names) - prompts + 1, prompts)]
    depth = len(own[names[0]]) // group_size
    pairs = [(block, k) for k in range(depth) for block in blocks][:most]
    taken = [
        [own[name][k * group_size : (k + 1) * group_size] for name in block] for block, k in pairs
    ]
    return [rollouts.select(torch.tensor(np.sort(np.concatenate(rows)))) for rows in taken]


def gaps_after(policy, part: Rollouts, pools: dict[str, ValuedTokens], lr: float) -> list[dict]:
    """Gaps after one step on a part, in the pools of its own prompts and of held-out ones."""
    mine, table = pools["training"]
    rows = torch.isin(mine.group_ids, part.group_ids).nonzero().squeeze(1)
    renumbered = pd.Series(range(len(rows)), index=rows.tolist())
    table = table[table["rollout"].isin(renumbered.index)]
    table = table.assign(rollout=table["rollout"].map(renumbered))
    here = {"training": (mine.select(rows), table), "held-out": pools["held-out"]}
    before = {name: logps(policy, pool[0]) for name, pool in here.items()}
    mine = private_copy(policy)
    update(mine, part, "sgd", lr)
    moved = {name: pool_change(mine, here[name], before[name]) for name in here}
    return [
        {
            "pool": name,
            "matched": matched,
            "gap": cell_gap(table, CELLS[matched]),
            "rms": rms_dlogp(table),
        }
        for name, table in moved.items()
        for matched in ("prompt", "position")
    ]


def repeated_gaps(
    policy, rollouts: Rollouts, pools: dict[str, ValuedTokens], lr: float, steps: int
) -> pd.DataFrame:
    """H9: gaps after each of some steps on one batch, changes being counted from the start.

    Columns: step, pool, matched, gap, weighted (mean over tokens of dlogp times value minus its
    cell's mean, in nats times reward), rms (nats).
    """
    rows, before = [], {name: logps(policy, pool[0]) for name, pool in pools.items()}
    mine = private_copy(policy)
    stepper = optimizer_of(mine, "sgd", lr)
    for step in progress(range(1, steps + 1), "updates on the batch"):
        update(mine, rollouts, stepper)
        for name, pool in pools.items():
            table = pool_change(mine, pool, before[name])
            for matched in ("prompt", "position"):
                cells = [table[column] for column in CELLS[matched]]
                centred = table["value"] - table["value"].groupby(cells).transform("mean")
                weighted = float((table["dlogp"] * centred).mean())
                gap = {
                    "matched": matched,
                    "gap": cell_gap(table, CELLS[matched]),
                    "weighted": weighted,
                }
                rows.append({"step": step, "pool": name, **gap, "rms": rms_dlogp(table)})
    return pd.DataFrame(rows)
