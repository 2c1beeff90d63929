"""Studies of language models, kept apart from the family's: dose_llm (chapter 10) and flip_backbones (chapter 14).

dose_llm reads H1, H2 by mass, H5 and H6 as `workbook.topics.flips.study` does, of models for which a block takes
seconds. So fewer prompts are measured: each pushes as two blocks, its rollouts of either sign; the other prompts come
in bundles, two blocks each. flip_backbones takes one real step per backbone, once with permuted advantages.

No prompt occurs twice. What was registered: data/results/dose_llm/registration.yaml. Seeds of one model are no sample
of models, so both describe and nothing is judged by them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from workbook.probes.blocks import block_coupling, coupling_by_mass
from workbook.probes.categories import categorized
from workbook.probes.dose import anchor_labels, dose_curve, net_curve, shift_curve
from workbook.probes.step import ONE_STEP_OPTIMIZERS, STEP_NATS, matched_lr
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.bench import Bench
from workbook.topics.flips.probe import column_shares, token_flips
from workbook.topics.flips.study import ADVANTAGES, doses_of, facts, pushing_prompts, with_signs

EPSILONS = (1e-3, 3e-3, 0.01, 3e-2, 1e-1, 3e-1)  # nats
DRAWS_PER_PROMPT = 4  # prompts drawn from the task for each that is wanted, since one-digit sums repeat


@dataclass(frozen=True)
class Sizes:
    """Prompts that push in the curves, those whose tokens are recorded, those in a bundle, tokens that push alone.

    step: prompts of flip_backbones' one real step, at most; optimizers: that take it.
    """

    pushing: int = 0
    measured: int = 0
    bundle: int = 0
    anchors: int = 0
    step: int = 4
    optimizers: tuple[str, ...] = ONE_STEP_OPTIMIZERS


SIZES = {
    "tiny": Sizes(4, 2, 2, 2, optimizers=("adamw",)),
    "family": Sizes(step=32),  # whose curves are the study dose
    "smollm2_plain": Sizes(128, 8, 8, 16, step=16),
    "gemma3_plain": Sizes(16, 4, 4, step=8, optimizers=("adamw",)),  # 262,144 logits a token
}


def dose_llm_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables rates (H1), by_prompt (its spread), net (H5), shift (H6), blocks, and mass (H2) where tokens push alone.

    Raises ValueError if too few prompts push.
    """
    sizes = SIZES[bench.scale.name]
    if not sizes.pushing:
        raise ValueError(f"dose_llm is of language models; at scale {bench.scale.name!r} the study of curves is dose.")
    prompts = bench.scale.prompts
    rollouts = categorized(distinct_rollouts(bench, DRAWS_PER_PROMPT * prompts, prompts))
    labels, measured = bundled_labels(rollouts, sizes.pushing, sizes.measured, sizes.bundle)
    settings = {"measured": measured}
    blocks = block_coupling(bench.policy, rollouts, blocks=labels, **settings)
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
    if sizes.anchors:
        alone = anchor_labels(rollouts, measured, sizes.anchors, bench.seed)
        tables["mass"] = coupling_by_mass(block_coupling(bench.policy, rollouts, blocks=alone, **settings))
    return tables


def bundled_labels(
    rollouts: Rollouts, pushing: int, measured: int, bundle: int
) -> tuple[Int[Tensor, "B T"], list[int]]:
    """Two labels, one for each sign, of every measured prompt and of every bundle of others; and the measured groups.

    The first `pushing` prompts with different rewards take part, or as many as there are in whole bundles; -1 else.

    Raises ValueError if fewer prompts push than are measured and fill a bundle.
    """
    groups = rollouts.group_ids[rollouts.advantages != 0].unique().tolist()[:pushing]
    bundles = (len(groups) - measured) // bundle
    if bundles < 1:
        raise ValueError(f"{len(groups)} prompts push and {measured + bundle} are wanted; sample more.")
    order = {group: place for place, group in enumerate(groups[: measured + bundle * bundles])}
    order |= {group: measured + k // bundle for k, group in enumerate(list(order)[measured:])}
    places = torch.tensor([order.get(group, -1) for group in rollouts.group_ids.tolist()])
    labels = torch.where(places < 0, -1, 2 * places + (rollouts.advantages.cpu() > 0))
    return labels[:, None].expand(rollouts.completion_ids.shape), groups[:measured]


def flip_backbones_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table shares of one unit: optimizer, advantages (by reward, permuted), eps, column, change, share, prompts.

    One real step moves the batch's tokens by STEP_NATS (root mean square); with permuted advantages the sign of a
    rollout says nothing.
    """
    prompts, optimizers = SIZES[bench.scale.name].step, SIZES[bench.scale.name].optimizers
    rollouts = pushing_prompts(distinct_rollouts(bench, DRAWS_PER_PROMPT * prompts, 2 * prompts), prompts)
    tables = []
    for optimizer in optimizers:
        lr = matched_lr(bench.policy, rollouts, optimizer, STEP_NATS)
        for signs in ADVANTAGES:
            table = token_flips(bench.policy, with_signs(rollouts, signs, bench.seed), optimizer, lr)
            shares = pd.concat([column_shares(table, eps).assign(eps=eps) for eps in EPSILONS])
            tables.append(shares.assign(optimizer=optimizer, advantages=signs))
    return {"shares": pd.concat(tables, ignore_index=True)}


def distinct_rollouts(bench: Bench, drawn: int, kept: int) -> Rollouts:
    """Rollouts of the first `kept` different prompts among so many drawn from the task."""
    rows = bench.task.dataset(drawn, bench.data_seed)
    places = pd.Series(map(str, rows["prompt"])).drop_duplicates().index[:kept]
    sampled = (bench.task, rows.select(places.tolist()), bench.scale.group_size, bench.data_seed)
    return sample_rollouts(bench.policy, *sampled, bench.scale.max_new_tokens)
