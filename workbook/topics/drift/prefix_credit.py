"""Does prefix credit come nearer to true credit than a group's advantages?

Only the chain task knows true credit, so this is measured on the bundled policy alone. What was stated
beforehand, and what is judged by it: `workbook.topics.drift.claims`. The larger group is there to see whether more
rollouts that share a state help.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.rollouts.sample import sample_rollouts
from workbook.studies.bench import Bench
from workbook.theory.advantages import group_advantages, prefix_credit

COMPARED = ("grpo", "dr_grpo", "rloo", "prefix_credit")  # advantage estimators
LARGE = 64  # rollouts per prompt of the second measurement, on an eighth of the prompts


def prefix_credit_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table prompts: a row per prompt, group size and estimator.

    Raises ValueError for a task that does not know true credit.
    """
    if bench.rollouts.credits is None:
        raise ValueError(f"scale {bench.scale.name!r}: its task {bench.scale.task} does not know true credit.")
    few = max(1, bench.scale.prompts // 8)
    large = sample_rollouts(bench.policy, bench.task, few, LARGE, bench.seed, bench.scale.max_new_tokens)
    sizes = {bench.scale.group_size: bench.rollouts, LARGE: large}
    return {"prompts": pd.concat([_compared(rollouts, size) for size, rollouts in sizes.items()], ignore_index=True)}


def _compared(rollouts, group_size: int) -> pd.DataFrame:
    """Columns group, group_size, estimator, correlation; prompts of equal rewards have no advantages and no row."""
    table = rollouts.token_table()
    rollout, position = table["rollout"].to_numpy(), table["position"].to_numpy()
    scored = (rollouts.rewards, rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    table["prefix_credit"] = prefix_credit(*scored).numpy()[rollout, position]
    for estimator in COMPARED[:-1]:
        table[estimator] = group_advantages(rollouts.rewards, rollouts.group_ids, estimator).numpy()[rollout]
    rows = []
    for group, tokens in table.groupby("group"):
        if tokens["reward"].nunique() > 1:
            rows += [(group, group_size, name, np.corrcoef(tokens[name], tokens["credit"])[0, 1]) for name in COMPARED]
    return pd.DataFrame(rows, columns=["group", "group_size", "estimator", "correlation"])
