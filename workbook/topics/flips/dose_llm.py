"""Study of chapter 10's curves: H1, H2 by mass, H5 and H6 of language models against the prompts that push in a step.

The same reading as `workbook.topics.flips.dose` of models for which a block takes seconds. So fewer prompts are
measured: each pushes as two blocks, its rollouts of either sign; the other prompts come in bundles, two blocks each. No
prompt occurs twice. What was registered: data/results/dose_llm/registration.yaml. Seeds of one model are no sample of
models, so the curves describe and nothing is judged by them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from workbook.probes.block_tables import coupling_by_mass
from workbook.probes.blocks import Blocks, block_coupling
from workbook.probes.categories import categorized
from workbook.probes.dose import anchor_labels, dose_curve, net_curve, shift_curve
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.bench import Bench
from workbook.topics.flips.dose import doses_of, facts

DRAWS_PER_PROMPT = 4  # prompts drawn from the task for each that is wanted, since one-digit sums repeat


@dataclass(frozen=True)
class Sizes:
    """Prompts that push, those whose tokens are recorded, those in a bundle, and tokens that push alone."""

    pushing: int
    measured: int
    bundle: int
    anchors: int
    batch_size: int = 32


SIZES = {
    "tiny": Sizes(4, 2, 2, 2),
    "smollm2_plain": Sizes(128, 8, 8, 16),
    "gemma3_plain": Sizes(16, 4, 4, 0, batch_size=16),  # 262,144 logits a token
}


def dose_llm_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables rates (H1), by_prompt (its spread), net (H5), shift (H6), blocks, and mass (H2) where tokens push alone.

    Raises ValueError if too few prompts push.
    """
    sizes = SIZES[bench.scale.name]
    rollouts = distinct_rollouts(bench)
    labels, measured = bundled_labels(rollouts, sizes.pushing, sizes.measured, sizes.bundle)
    settings = {"measured": measured, "batch_size": sizes.batch_size}
    blocks = block_coupling(bench.policy, rollouts, blocks=labels, **settings)
    tables = curves(blocks, doses_of(blocks))
    tables["blocks"] = facts(blocks, rollouts).assign(sampled=len(rollouts.group_ids.unique()))
    if sizes.anchors:
        alone = anchor_labels(rollouts, measured, sizes.anchors, bench.seed)
        tables["mass"] = coupling_by_mass(block_coupling(bench.policy, rollouts, blocks=alone, **settings))
    return tables


def curves(blocks: Blocks, doses: list[int]) -> dict[str, pd.DataFrame]:
    """Tables rates, by_prompt (the same of each measured prompt: column group), net and shift of some blocks."""
    groups = blocks.tokens["group"].unique().tolist()
    alone = [replace(blocks, tokens=blocks.tokens[blocks.tokens["group"] == group]) for group in groups]
    parts = [dose_curve(one, doses).assign(group=group) for one, group in zip(alone, groups, strict=True)]
    return {
        "rates": dose_curve(blocks, doses),
        "by_prompt": pd.concat(parts, ignore_index=True),
        "net": net_curve(blocks, doses),
        "shift": shift_curve(blocks, doses),
    }


def distinct_rollouts(bench: Bench) -> Rollouts:
    """Rollouts of as many prompts as the scale has, none of them twice."""
    scale = bench.scale
    rows = bench.task.dataset(DRAWS_PER_PROMPT * scale.prompts, bench.data_seed)
    places = pd.Series(map(str, rows["prompt"])).drop_duplicates().index[: scale.prompts]
    prompts = rows.select(places.tolist())
    sampled = (bench.task, prompts, scale.group_size, bench.data_seed, scale.max_new_tokens)
    return categorized(sample_rollouts(bench.policy, *sampled), tagger="rules")


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
