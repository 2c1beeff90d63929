"""What cancels inside an optimizer step under each batching strategy (H11), before any training, at either scale.

What was stated before, and what is judged by it: `workbook.topics.batching.claims`. The tokens "shared" are
those whose word occurs under both signs in their group. Mini-batches hold two prompts' worth of rollouts, orders are
drawn DRAWS times, and what is reported of each is its mean over mini-batches in which something pushes.
"""

from __future__ import annotations

import pandas as pd
import torch

from workbook.studies.bench import Bench
from workbook.theory.batching import STRATEGIES, minibatch_order
from workbook.topics.batching.probe import cancelled_in_steps, gradient_gram

DRAWS = 20  # random orders of each strategy


def minibatches_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table steps: a row per strategy, drawn order (group) and choice of tokens."""
    rollouts, rows = bench.rollouts, []
    parts = bench.scale.prompts // 2
    for tokens, chosen in {"all": None, "shared": shared_words(rollouts)}.items():
        gram = gradient_gram(bench.policy, rollouts, chosen)
        for strategy in STRATEGIES:
            generator = torch.Generator().manual_seed(bench.seed)
            for draw in range(DRAWS):
                order = minibatch_order(strategy, rollouts.group_ids, rollouts.advantages, parts, generator)
                means = cancelled_in_steps(gram, rollouts.advantages, order, parts)[["in_step", "sign_cosine"]].mean()
                rows.append({"strategy": strategy, "group": draw, "tokens": tokens, **means})
    return {"steps": pd.DataFrame(rows)}


def shared_words(rollouts) -> torch.Tensor:
    """(B, T), true at tokens whose word occurs both in a positive and in a negative rollout of their group."""
    table = rollouts.token_table()
    signs = table.groupby(["group", "token_id"])["advantage"]
    both = (signs.transform("min") < 0) & (signs.transform("max") > 0)
    chosen = torch.zeros_like(rollouts.completion_mask, dtype=torch.bool)
    chosen[torch.tensor(table["rollout"].to_numpy()), torch.tensor(table["position"].to_numpy())] = torch.tensor(
        both.to_numpy()
    )
    return chosen
