"""Credit recovered, live: one real step of the bundled policy, split in a second, at settings of a slider."""

from __future__ import annotations

from functools import cache
from threading import Lock

import pandas as pd
import torch

from workbook.policies.load import load_policy
from workbook.probes.recovered import credit_recovered
from workbook.probes.values import chain_values
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task
from workbook.views.parts import parts_table

SAMPLED_PROMPTS, SAMPLED_SIZE = 8, 16  # of which a setting takes the first
MEASURED = 12  # tokens of each class
ONE_AT_A_TIME = Lock()  # the policy is shared, and events of a slider may arrive in threads of their own


def compute_recovered(prompts: int = 4, group_size: int = 8, rule: str = "grpo") -> pd.DataFrame:
    """Shares of the squared movement of one step of the bundled policy, a row per token class and part.

    Columns: those of `parts_table`, prompts, group_size, rule, cosine (of the update with the exact
    gradient). prompts: 1 to 8.  group_size: 2 to 16.  Raises ValueError where no group has different rewards.
    """
    with ONE_AT_A_TIME:
        policy, task, rollouts, values = _sampled()
        place = torch.arange(len(rollouts)) % SAMPLED_SIZE
        rows = ((rollouts.group_ids < prompts) & (place < group_size)).nonzero().squeeze(1)
        chosen = {"values": values.select(rows), "tokens": MEASURED}
        recovered = credit_recovered(policy, rollouts.select(rows), rule, task, **chosen)
    if recovered.shares["signal"].isna().all():
        raise ValueError(f"{prompts} prompts of {group_size} rollouts have no group of different rewards; take more.")
    setting = {"prompts": prompts, "group_size": group_size, "rule": rule, "cosine": recovered.update["cosine"]}
    return parts_table(recovered.shares).assign(**setting)


@cache
def _sampled():
    policy, task = load_policy("bundled"), get_task("chain")
    rollouts = sample_rollouts(policy, task, SAMPLED_PROMPTS, SAMPLED_SIZE, seed=0, max_new_tokens=48)
    return policy, task, rollouts, chain_values(policy, task, rollouts)
