"""Study delta: does it pay to push the tokens whose gradients tell good from bad rollouts (DelTA,
arXiv 2605.21467)?

DelTA is the strongest rival account of the same facts: what both sides share dominates their
centroids and dilutes the update. Its weight (`theory.credit_rules.discrimination`, our reading) is
ranked against exact credit, trained with as a rule, and taken as a mask: the half of the pushed
tokens that discriminates most, the other half, a random half. All gradients have one length; the
rate is plain's.
"""

from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.probes.values import exact_values
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.teaching.masks import (
    GROUP_SIZE,
    PERMUTED,
    PLAIN,
    SHARED_PROMPTS,
    run_mask,
    tuned_mask_rates,
)
from workbook.studies.unit import StudyUnit
from workbook.theory.advantages import permute_in_groups
from workbook.theory.credit import CreditBatch, spread_over_tokens
from workbook.theory.credit_masks import unsure_tokens
from workbook.theory.credit_rules import discrimination

HALVES = ("top half", "bottom half", "random half")


@dataclass(frozen=True)
class Half:
    """A credit rule: the group's advantage on half of the tokens that push, by discrimination or at
    random.
    """

    which: str
    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        advantages = batch.group_advantages()
        pushing = batch.mask & (advantages != 0).unsqueeze(1)
        score = discrimination(batch, advantages)
        if self.which == "random half":
            score = torch.rand(score.shape, generator=batch.generator).to(score)
        middle = score[pushing].median() if pushing.any() else 0.0
        chosen = score <= middle if self.which == "bottom half" else score > middle
        return spread_over_tokens(batch, advantages) * (pushing & chosen)


def delta_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables of one unit: runs of plain, DelTA's rule, the three halves and permuted rewards;
    ranks.
    """
    lr = tuned_mask_rates(unit, "mask_rates")[PLAIN]
    rules = {PLAIN: "dr_grpo", PERMUTED: "dr_grpo", "delta": "delta"} | {
        name: Half(name) for name in HALVES
    }
    parts = []
    for name, rule in rules.items():
        made = unit.cached_table(name, partial(run_mask, unit, rule, lr, permuted=name == PERMUTED))
        parts.append(made.assign(arm=name))
    return {"runs": pd.concat(parts, ignore_index=True), "ranks": discrimination_ranks(unit)}


def discrimination_ranks(unit: StudyUnit) -> pd.DataFrame:
    """Rank correlations of discrimination with exact credit, over unsure tokens of groups whose
    rewards differ.

    A row for the rewards as they were, and one for permuted ones. by_size: with |credit|; by_side:
    with credit times the sign of the rollout's advantage, which is positive where the push is in
    the token's own interest.
    """
    given = (
        unit.policy,
        unit.task,
        SHARED_PROMPTS,
        GROUP_SIZE,
        unit.data_seed,
        unit.setting.max_new_tokens,
    )
    rollouts = sample_rollouts(*given)
    known = {
        "known_credit": exact_values(unit.policy, unit.task, rollouts).credit,
        "logps": rollouts.old_logps,
    }
    batch = credit_batch(unit.policy, rollouts, unit.task, unit.data_seed, **known)
    generator, rows = torch.Generator().manual_seed(unit.data_seed), []
    advantages = batch.group_advantages()
    for rewards in ("rewards", "permuted rewards"):
        if rewards != "rewards":
            advantages = permute_in_groups(advantages, batch.group_ids, generator)
        chosen = unsure_tokens(batch) & (advantages != 0).unsqueeze(1)
        table = pd.DataFrame(
            {
                "score": discrimination(batch, advantages)[chosen].numpy(),
                "size": batch.known_credit[chosen].abs().numpy(),
                "side": (batch.known_credit * advantages.sign().unsqueeze(1))[chosen].numpy(),
            }
        )
        ranks = table.corr("spearman")["score"]
        rows.append(
            {
                "rewards": rewards,
                "by_size": ranks["size"],
                "by_side": ranks["side"],
                "tokens": len(table),
            }
        )
    return pd.DataFrame(rows)
