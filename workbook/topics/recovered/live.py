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

SAMPLED_PROMPTS, SAMPLED_SIZE = 8, 16  # of which a setting takes the first
MEASURED = 12  # tokens of each class
LEAST_MOVED = 0.01  # of the largest rms change: classes that move less are left out
ONE_AT_A_TIME = Lock()  # the policy is shared, and events of a slider may arrive in threads of their own
PART_NAMES = {  # column of the shares: what it is called, in the order of the bars
    "own_signal": "signal, own context",
    "coupled_signal": "signal, coupling",
    "bias": "bias",
    "coupled_noise": "noise, coupling",
    "own_noise": "noise, own context",
}


def compute_recovered(prompts: int = 4, group_size: int = 8, rule: str = "grpo") -> pd.DataFrame:
    """Shares of the squared movement of one step of the bundled policy, a row per token class and part.

    Columns: category, part, share, change_rms, prompts, group_size, rule, cosine (of the update with the exact
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


def parts_table(shares: pd.DataFrame) -> pd.DataFrame:
    """Shares by part, a row each, of the classes that move at least a hundredth as far as the one that moves most.

    shares: as of `class_shares`.  Columns: category, change_rms, tokens, order and part (of PART_NAMES), share.
    """
    shares = shares.assign(bias=shares["own_bias"] + shares["coupled_bias"])
    shares = shares[shares["change_rms"] > LEAST_MOVED * shares["change_rms"].max()]
    table = shares.melt(["category", "change_rms", "tokens"], list(PART_NAMES), "part", "share").dropna(subset="share")
    return table.assign(order=table["part"].map(list(PART_NAMES).index), part=table["part"].map(PART_NAMES))


@cache
def _sampled():
    policy, task = load_policy("bundled"), get_task("chain")
    rollouts = sample_rollouts(policy, task, SAMPLED_PROMPTS, SAMPLED_SIZE, seed=0, max_new_tokens=48)
    return policy, task, rollouts, chain_values(policy, task, rollouts)
