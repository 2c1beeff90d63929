"""Studies dose, dose_alphabets and dose_dials: H1, H5, H6, R1, R3 and R5 by the number of prompts that push in a step.

One set of small steps per policy gives every number of prompts (`workbook.probes.dose`). What was registered:
data/results/<study>/registration.yaml; what is judged by it: `workbook.topics.flips.claims`.
"""

from __future__ import annotations

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
from workbook.rollouts.sample import Rollouts
from workbook.studies.bench import Bench, over_dials
from workbook.theory.choices import check_choice
from workbook.topics.flips.probe import permuted_advantages

ALPHABETS = (4, 16, 64)  # private ones; 1 is the study dose itself
TABLES = ("rates", "net", "blocks")
ADVANTAGES = ("by reward", "permuted")  # whose signs push
SIZES = {  # prompts sampled, measured and in a bundle; prompts of the real steps; at which categories are compared
    "tiny": (12, 4, 2, 4, (2, 4)),
    "family": (570, MEASURED, BUNDLE, 256, (16, 64, 256)),
    "alphabets": (300, 16, BUNDLE, 0, ()),
    "dials": (160, 16, BUNDLE, 0, ()),
}


def dose_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables rates, net, signs, shift, steps and blocks of one unit."""
    *_, real, shifts = SIZES[bench.scale.name]
    blocks, rollouts, tables = _curves(bench, bench.scale.name)
    # R5: the measured prompts' rates after one real step of each optimizer on `real` pushing prompts
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()[:real]
    batch = rollouts.select(torch.isin(rollouts.group_ids, pushing))
    tokens = rollouts.select(torch.isin(rollouts.group_ids, torch.tensor(sorted(blocks.tokens["group"].unique()))))
    steps = []
    for name in ONE_STEP_OPTIMIZERS:
        rates = flip_rates(real_step(bench.policy, batch, tokens, name))
        steps.append(rates.assign(optimizer=name, prompts=len(pushing)))
    more = {"signs": permuted_signs(blocks), "shift": shift_curve(blocks, shifts), "steps": pd.concat(steps)}
    return tables | more


def dose_alphabets_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """The `TABLES` of one unit on its members with private alphabets: column alphabets."""
    parts = [
        {name: table.assign(alphabets=count) for name, table in _member_curves(member, "alphabets").items()}
        for count, member in ((count, bench.dialled(alphabets=count)) for count in ALPHABETS)
    ]
    return {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in TABLES}


def dose_dials_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """The `TABLES` of one unit on its members of other width, length and training: columns dial and level."""
    parts = [
        {name: table.assign(dial=dial, level=level) for name, table in made.items()}
        for dial, level, made in over_dials(bench, lambda here: _member_curves(here, "dials"))
    ]
    return {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in TABLES}


def _member_curves(bench: Bench, sizes: str) -> dict[str, pd.DataFrame]:
    return _curves(bench, "tiny" if bench.scale.name == "tiny" else sizes)[2]


def _curves(bench: Bench, sizes: str) -> tuple[Blocks, Rollouts, dict[str, pd.DataFrame]]:
    """A unit's blocks, the rollouts they are of, and the `TABLES`."""
    prompts, measured, bundle, *_ = SIZES[sizes]
    rollouts = bench.sample(prompts, bench.data_seed)
    blocks = dose_blocks(bench.policy, rollouts, measured, bundle)
    doses = doses_of(blocks)
    rates, net = dose_curve(blocks, doses), net_curve(blocks, doses)
    return blocks, rollouts, {"rates": rates, "net": net, "blocks": facts(blocks, rollouts)}


def doses_of(blocks: Blocks) -> list[int]:
    """The DOSES that the blocks' prompts can make."""
    return [dose for dose in DOSES if dose <= blocks.prompts]


def facts(blocks: Blocks, rollouts: Rollouts) -> pd.DataFrame:
    """One row about the blocks: what they rest on, and by how much their sum misses a real step of all."""
    about = {"blocks": len(blocks.blocks), "prompts": blocks.prompts, "measured": blocks.tokens["group"].nunique()}
    about |= {"tokens": len(blocks.tokens), "rms": float((blocks.blocks["rms"] ** 2).mean() ** 0.5)}
    return pd.DataFrame([about | {"error": blocks.error, "reward": float(rollouts.rewards.mean())}])


# --- which rollouts push


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
