"""What cancels inside an optimizer step under each batching strategy (H11), before any training, at either scale.

Stated beforehand: sign-partitioned mini-batches cancel less than shuffled ones (in_step, all tokens, below 0), since
that is how they are said to hurt; whether they hurt is the business of the batching sweep. The tokens "shared" are
those whose word occurs under both signs in their group. Mini-batches hold two prompts' worth of rollouts, orders are
drawn DRAWS times, and what is reported of each is its mean over mini-batches in which something pushes.
"""

from __future__ import annotations

import pandas as pd
import torch

from workbook.statistics import Interval, nested_mean
from workbook.studies.bench import Bench
from workbook.studies.record import load_measured
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
                found = cancelled_in_steps(gram, rollouts.advantages, order, parts)[["in_step", "sign_cosine"]].mean()
                rows.append({"strategy": strategy, "group": draw, "tokens": tokens, **found})
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


def less_cancelled(scale: str, strategy: str, tokens: str = "all", outcome: str = "in_step") -> Interval:
    """The outcome under a strategy less that under shuffled mini-batches, over seeds and drawn orders."""
    table = load_measured("minibatches", scale, "steps").query("tokens == @tokens")
    wide = table.pivot_table(index=["seed", "group"], columns="strategy", values=outcome).reset_index()
    return nested_mean(wide.assign(less=wide[strategy] - wide["shuffled"]), "less")
