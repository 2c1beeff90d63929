"""Study of chapter 05's curves: H1, H5, H6, R1, R3 and R5 against the number of prompts that push in a step.

One set of small steps per policy gives every number of prompts (`workbook.probes.dose`). What was registered, and what
is judged by it: data/results/dose/registration.yaml, dose_alphabets/ and dose_dials/, `workbook.topics.flips.claims`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from workbook.probes.blocks import Blocks
from workbook.probes.dose import (
    BUNDLE,
    DOSES,
    MEASURED,
    dose_blocks,
    dose_curve,
    flip_rates,
    net_curve,
    permuted_signs,
    real_step,
    shift_curve,
)
from workbook.probes.step import ONE_STEP_OPTIMIZERS
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.bench import Bench, over_dials
from workbook.theory.choices import check_choice
from workbook.topics.flips.composition import permuted_advantages

# prompts sampled, measured, in a bundle; prompts of the real steps; numbers of prompts at which categories are compared
SIZES = {
    "tiny": (12, 4, 2, 4, (2, 4)),
    "family": (570, MEASURED, BUNDLE, 256, (16, 64, 256)),
    "alphabets": (300, 16, BUNDLE, 256, ()),
    "dials": (160, 16, BUNDLE, 64, ()),
}
ALPHABETS = (4, 16, 64)  # private ones; 1 is the study dose itself
TABLES = ("rates", "net", "blocks")
ADVANTAGES = ("by reward", "permuted")  # whose signs push


def dose_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables rates, net, signs, shift, steps and blocks of one unit."""
    prompts, measured, bundle, real, shifts = SIZES[bench.scale.name]
    rollouts = bench.sample(prompts, bench.data_seed)
    blocks = dose_blocks(bench.policy, rollouts, measured, bundle)
    doses = doses_of(blocks)
    return {
        "rates": dose_curve(blocks, doses),
        "net": net_curve(blocks, doses),
        "signs": permuted_signs(blocks),
        "shift": shift_curve(blocks, shifts),
        "steps": real_steps(bench.policy, rollouts, blocks, real),
        "blocks": facts(blocks, rollouts),
    }


def dose_alphabets_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables rates, net and blocks of one unit on its members with private alphabets: column alphabets."""
    members = {count: bench.dialled(alphabets=count) for count in ALPHABETS}
    tables = {count: _curves(member, "alphabets") for count, member in members.items()}
    return {
        name: pd.concat([made[name].assign(alphabets=count) for count, made in tables.items()], ignore_index=True)
        for name in TABLES
    }


def dose_dials_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """The same of one unit on its members of other width, length and supervised training: columns dial and level."""
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    for dial, level, made in over_dials(bench, lambda here: _curves(here, "dials")):
        for name in TABLES:
            tables[name].append(made[name].assign(dial=dial, level=level))
    return {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}


def _curves(bench: Bench, sizes: str) -> dict[str, pd.DataFrame]:
    """The `TABLES` of a unit's policy."""
    prompts, measured, bundle, *_ = SIZES["tiny" if bench.scale.name == "tiny" else sizes]
    rollouts = bench.sample(prompts, bench.data_seed)
    blocks = dose_blocks(bench.policy, rollouts, measured, bundle)
    doses = doses_of(blocks)
    return {"rates": dose_curve(blocks, doses), "net": net_curve(blocks, doses), "blocks": facts(blocks, rollouts)}


def doses_of(blocks: Blocks) -> list[int]:
    """The DOSES that the blocks' prompts can make."""
    return [dose for dose in DOSES if dose <= blocks.prompts]


def real_steps(policy, rollouts: Rollouts, blocks: Blocks, prompts: int) -> pd.DataFrame:
    """R5: `flip_rates` of the measured prompts after one real step of each optimizer on `prompts` pushing ones."""
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()[:prompts]
    batch = rollouts.select(torch.isin(rollouts.group_ids, pushing))
    tokens = rollouts.select(torch.isin(rollouts.group_ids, torch.tensor(sorted(blocks.tokens["group"].unique()))))
    steps = {name: real_step(policy, batch, tokens, name) for name in ONE_STEP_OPTIMIZERS}
    return pd.concat([flip_rates(table).assign(optimizer=name, prompts=len(pushing)) for name, table in steps.items()])


def facts(blocks: Blocks, rollouts: Rollouts) -> pd.DataFrame:
    """One row about the blocks: what they rest on, and by how much their sum misses a real step of all."""
    about = {"blocks": len(blocks.blocks), "prompts": blocks.prompts, "measured": blocks.tokens["group"].nunique()}
    about |= {"tokens": len(blocks.tokens), "rms": float((blocks.blocks["rms"] ** 2).mean() ** 0.5)}
    return pd.DataFrame([about | {"error": blocks.error, "reward": float(rollouts.rewards.mean())}])


def live_curves(
    policy,
    task,
    prompts: int = 16,
    seed: int = 0,
    doses: Sequence[int] = DOSES,
    group_size: int = 8,
    signs: str = "by reward",
) -> dict[str, pd.DataFrame]:
    """Tables rates and net of some prompts of a policy, in seconds: what the study measures of many.

    signs: "by reward", or "permuted", advantages at random within each group.
    Raises ValueError for others, and where no prompt has different rewards.
    """
    rollouts = pushing_prompts(sample_rollouts(policy, task, prompts + 4, group_size, seed), prompts)
    blocks = dose_blocks(policy, with_signs(rollouts, signs, seed), rollouts.group_ids.unique().numel(), 1)
    doses = [dose for dose in doses if dose <= blocks.prompts]
    return {"rates": dose_curve(blocks, doses), "net": net_curve(blocks, doses), "blocks": facts(blocks, rollouts)}


def pushing_prompts(rollouts: Rollouts, prompts: int) -> Rollouts:
    """The rollouts of the first prompts that push, so many at most; ValueError where none does."""
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()[:prompts]
    if not len(pushing):
        raise ValueError("No prompt has different rewards; take more rollouts per prompt, or another seed.")
    return rollouts.select(torch.isin(rollouts.group_ids, pushing))


def with_signs(rollouts: Rollouts, signs: str, seed: int = 0) -> Rollouts:
    """The rollouts with advantages by their reward, or permuted within each group."""
    check_choice("signs", signs, ADVANTAGES)
    return permuted_advantages(rollouts, seed) if signs == "permuted" else rollouts
