"""Study dose: H1, H5, H6, R1, R3 and R5 by the number of prompts that push in a step.

One set of small steps per policy gives every number of prompts (`workbook.probes.dose`). What was
registered: data/results/dose/registration.yaml; what is judged by it:
`workbook.studies.flips.claims`.

dose_llm (chapter 10) reads the same of language models, for which a block takes seconds: fewer
prompts are measured, each as two blocks, its rollouts of either sign; the others come in bundles,
two blocks each. flip_backbones (chapter 14) takes one real step per backbone, once with permuted
advantages. Seeds of one model are no sample of models, so both describe and nothing is judged by
them. No prompt occurs twice.
"""

from dataclasses import replace

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from workbook.probes.blocks import Blocks, block_coupling, coupling_by_mass
from workbook.probes.categories import categorized
from workbook.probes.dose import (
    BUNDLE_PROMPTS,
    DOSE_PROMPTS,
    DOSES,
    anchor_labels,
    dose_blocks,
    dose_curve,
    flip_rates,
    net_curve,
    permuted_signs,
    real_step_changes,
    shift_curve,
)
from workbook.probes.flips import EPSILONS, column_shares, token_flips
from workbook.probes.step import (
    ONE_STEP_OPTIMIZERS,
    SIGN_SOURCES,
    STEP_NATS,
    matched_lr,
    pushing_prompts,
    with_signs,
)
from workbook.rollouts.sample import Rollouts
from workbook.studies.unit import DRAWS_PER_PROMPT, StudyUnit, distinct_rollouts

TABLES = ("rates", "net", "blocks")
# prompts sampled, measured and in a bundle; prompts of the real steps; at which categories are
# compared
SIZES = {
    "tiny": (12, 4, 2, 4, (2, 4)),
    "family": (570, DOSE_PROMPTS, BUNDLE_PROMPTS, 256, (16, 64, 256)),
}
LANGUAGE_MODELS = {  # prompts that push, that are measured, in a bundle; tokens that push alone
    "tiny": (4, 2, 2, 2),
    "smollm2_plain": (128, 8, 8, 16),
    "gemma3_plain": (16, 4, 4, 0),  # 262,144 logits a token
}
_BACKBONES = {  # flip_backbones: prompts of the one step, optimizers that take it
    "tiny": (4, ("adamw",)),
    "family": (32, ONE_STEP_OPTIMIZERS),
    "smollm2_plain": (16, ONE_STEP_OPTIMIZERS),
    "gemma3_plain": (8, ("adamw",)),
}


def dose_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables rates, net, signs, shift, steps and blocks of one unit."""
    *_, real, shifts = SIZES[unit.setting.name]
    blocks, rollouts, tables = _curves(unit, unit.setting.name)
    # R5: the measured prompts' rates after one real step of each optimizer on `real` pushing
    # prompts
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()[:real]
    batch = rollouts.select(torch.isin(rollouts.group_ids, pushing))
    tokens = rollouts.select(
        torch.isin(rollouts.group_ids, torch.tensor(sorted(blocks.tokens["group"].unique())))
    )
    steps = []
    for name in ONE_STEP_OPTIMIZERS:
        rates = flip_rates(real_step_changes(unit.policy, batch, tokens, name))
        steps.append(rates.assign(optimizer=name, prompts=len(pushing)))
    more = {
        "signs": permuted_signs(blocks),
        "shift": shift_curve(blocks, shifts),
        "steps": pd.concat(steps),
    }
    return tables | more


def _curves(unit: StudyUnit, sizes: str) -> tuple[Blocks, Rollouts, dict[str, pd.DataFrame]]:
    """A unit's blocks, the rollouts they are of, and the `TABLES`."""
    prompts, measured, bundle, *_ = SIZES["tiny" if unit.setting.name == "tiny" else sizes]
    rollouts = unit.sample(prompts, unit.data_seed)
    blocks = dose_blocks(unit.policy, rollouts, measured, bundle)
    doses = doses_of(blocks)
    rates, net = dose_curve(blocks, doses), net_curve(blocks, doses)
    return blocks, rollouts, {"rates": rates, "net": net, "blocks": facts(blocks, rollouts)}


def doses_of(blocks: Blocks) -> list[int]:
    """The DOSES that the blocks' prompts can make."""
    return [dose for dose in DOSES if dose <= blocks.prompts]


def facts(blocks: Blocks, rollouts: Rollouts) -> pd.DataFrame:
    """One row about the blocks: what they rest on, and by how much their sum misses a real step of
    all.
    """
    about = {
        "blocks": len(blocks.blocks),
        "prompts": blocks.prompts,
        "measured": blocks.tokens["group"].nunique(),
    }
    about |= {"tokens": len(blocks.tokens), "rms": float((blocks.blocks["rms"] ** 2).mean() ** 0.5)}
    return pd.DataFrame([about | {"error": blocks.error, "reward": float(rollouts.rewards.mean())}])


# --- language models


def dose_llm_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables rates (H1), by_prompt (its spread), net (H5), shift (H6), blocks, and mass (H2) where
    tokens push alone.

    Raises ValueError if too few prompts push.
    """
    *sizes, anchors = LANGUAGE_MODELS[unit.setting.name]
    rollouts = categorized(distinct_rollouts(unit, unit.setting.prompts))
    labels, measured = bundled_labels(rollouts, *sizes)
    blocks = block_coupling(unit.policy, rollouts, blocks=labels, measured=measured)
    doses = doses_of(blocks)
    by_prompt = []
    for group in blocks.tokens["group"].unique().tolist():
        alone = replace(blocks, tokens=blocks.tokens[blocks.tokens["group"] == group])
        by_prompt.append(dose_curve(alone, doses).assign(group=group))
    tables = {
        "rates": dose_curve(blocks, doses),
        "by_prompt": pd.concat(by_prompt, ignore_index=True),
        "net": net_curve(blocks, doses),
        "shift": shift_curve(blocks, doses),
        "blocks": facts(blocks, rollouts).assign(sampled=len(rollouts.group_ids.unique())),
    }
    if anchors:
        alone = anchor_labels(rollouts, measured, anchors, unit.number)
        tables["mass"] = coupling_by_mass(
            block_coupling(unit.policy, rollouts, blocks=alone, measured=measured)
        )
    return tables


def bundled_labels(
    rollouts: Rollouts, pushing: int, measured: int, bundle: int
) -> tuple[Int[Tensor, "B T"], list[int]]:
    """Two labels, one for each sign, of every measured prompt and of every bundle of others; and
    the measured groups.

    The first `pushing` prompts with different rewards take part, or as many as there are in whole
    bundles; -1 else.

    Raises ValueError if fewer prompts push than are measured and fill a bundle.
    """
    groups = rollouts.group_ids[rollouts.advantages != 0].unique().tolist()[:pushing]
    bundles = (len(groups) - measured) // bundle
    if bundles < 1:
        raise ValueError(
            f"{len(groups)} prompts push and {measured + bundle} are wanted; sample more."
        )
    order = {group: place for place, group in enumerate(groups[: measured + bundle * bundles])}
    order |= {group: measured + k // bundle for k, group in enumerate(list(order)[measured:])}
    places = torch.tensor([order.get(group, -1) for group in rollouts.group_ids.tolist()])
    labels = torch.where(places < 0, -1, 2 * places + (rollouts.advantages.cpu() > 0))
    return labels[:, None].expand(rollouts.completion_ids.shape), groups[:measured]


def flip_backbones_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table shares of one unit: optimizer, advantages (by reward, permuted), eps, column, change,
    share, prompts.

    One real step moves the batch's tokens by STEP_NATS (root mean square); with permuted advantages
    the sign of a rollout says nothing.
    """
    prompts, optimizers = _BACKBONES[unit.setting.name]
    rollouts = pushing_prompts(
        distinct_rollouts(unit, 2 * prompts, DRAWS_PER_PROMPT * prompts), prompts
    )
    tables = []
    for optimizer in optimizers:
        lr = matched_lr(unit.policy, rollouts, optimizer, STEP_NATS)
        for signs in SIGN_SOURCES:
            table = token_flips(
                unit.policy, with_signs(rollouts, signs, unit.number), optimizer, lr
            )
            shares = pd.concat([column_shares(table, eps).assign(eps=eps) for eps in EPSILONS])
            tables.append(shares.assign(optimizer=optimizer, advantages=signs))
    return {"shares": pd.concat(tables, ignore_index=True)}
