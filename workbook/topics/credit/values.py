"""Token values where they are not known exactly (H7): mean rewards of rollouts that the policy continues.

    value(prefix) = E[ final reward | the policy continues the prefix, at temperature 1, up to the same length ]
    credit(token) = value(prefix with the token) - value(prefix without it)

After an end token, and at the length limit, the value is the rollout's own reward. A prefix is a prompt with the first
tokens of its completion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from workbook.rollouts.credit import credit_batch
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import unpadded

PER_ROLLOUT = 8  # tokens drawn from each rollout unless told otherwise
AT_ONCE = 1024  # continuations sampled in one batch


def token_values(
    policy,
    task,
    rollouts: Rollouts,
    continuations: int = 8,
    tokens: int | Sequence | pd.Series | None = PER_ROLLOUT,
    seed: int = 0,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    credit: bool = True,
) -> pd.DataFrame:
    """Rows of the token table with value and value_se, and with value_before, credit_mc and credit_se.

        value = mean of K rewards, value_se = their standard deviation / sqrt(K), credit_mc = value - value_before

    in the reward's unit; value_se is 0 where all K rewards agree, and where nothing is left to sample.

    continuations: K >= 2.  tokens: how many of each rollout to draw at random, or labels of the token table's rows, or
    a boolean for each, or None for all.  max_new_tokens: what the rollouts were sampled with; by default the longest
    one's length.  credit: False leaves out the columns for the state before.  Prefixes of one prompt with the same
    tokens share their continuations.  The policy and the global random state are left as they were.

    Raises ValueError for settings out of range, and for rollouts without prompts.
    """
    if continuations < 2:
        raise ValueError(f"continuations={continuations!r} must be 2 or more: one says nothing of its own error.")
    longest = int(rollouts.completion_mask.sum(1).max())
    limit = longest if max_new_tokens is None else max_new_tokens
    if limit < longest:
        raise ValueError(f"max_new_tokens={limit!r} must be at least the longest rollout's length, {longest}.")
    table = rollouts.token_table()
    if isinstance(tokens, int):
        table = table.sample(frac=1, random_state=seed).groupby("rollout").head(tokens).sort_index()
    elif tokens is not None:
        labels = np.asarray(tokens)
        labels = table.index[labels] if labels.dtype == bool else np.sort(labels)
        if not np.isin(labels, table.index).all():
            raise ValueError(
                f"tokens names row {labels[~np.isin(labels, table.index)][0]}, which is no completion token."
            )
        table = table.loc[labels].copy()

    prompts = unpadded(rollouts.prompt_ids, rollouts.prompt_mask)
    completions = unpadded(rollouts.completion_ids, rollouts.completion_mask)
    after, before = (list(zip(table["rollout"], table["position"] + more, strict=True)) for more in (1, 0))
    places = after + before if credit else after
    twins = [(*prompts[row], -1, *completions[row][:length]) for row, length in places]  # alike where prefixes are
    firsts = dict(zip(reversed(twins), reversed(places), strict=True))
    asked = [place for place in firsts.values() for _ in range(continuations)]
    batch = credit_batch(policy, rollouts, task, seed, 0, limit, temperature, AT_ONCE)
    rewards = batch.continue_from([row for row, _ in asked], [completions[row][:length] for row, length in asked])
    rewards = rewards.double().cpu().view(-1, continuations)
    values = rewards.mean(1).tolist(), (rewards.std(1) / continuations**0.5).tolist()
    known = dict(zip(firsts, zip(*values, strict=True), strict=True))
    found = np.array([known[twin] for twin in twins]).reshape(-1, len(table), 2)  # (1 or 2, N, 2): after, before
    table["value"], table["value_se"] = found[0].T
    if credit:
        table["value_before"], table["credit_mc"] = found[1, :, 0], found[0, :, 0] - found[1, :, 0]
        table["credit_se"] = np.hypot(found[0, :, 1], found[1, :, 1])
    return table
