"""Gaps in value after one step: are the tokens that it boosts worth more than those it suppresses?

    gap = mean value of boosted tokens - mean value of suppressed ones

A token's value is the policy's expected reward once the token is written, known without
continuations (`workbook.probes.values`). All tokens of a rollout get the same advantage, so a gap
*within* rollouts of one reward cannot come from the reward itself: it says that the step found out,
from how tokens share and differ, which of them were right. That is why boosted and suppressed
tokens are compared within a prompt, within rollouts of one reward, and mostly at equal position.

A token counts as moved beyond a tenth of the pool's root mean square change.
"""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import torch

from workbook.policies.models import private_copy
from workbook.probes.step import MOVED, frequency_matched, permuted_advantages, update
from workbook.probes.values import ValuedTokens
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.statistics import bootstrap_mean
from workbook.theory.advantages import group_advantages

SMALL_NATS = 0.01  # root mean square movement by a small step
CELLS = {  # what is alike in boosted and suppressed tokens that are compared
    "prompt": ("group", "reward"),
    "position": ("group", "reward", "position"),
    # after each token was matched in frequency between a prompt's two sides (R1)
    "token": ("group", "reward"),
}
_REWARDS = {"all": (0, 1), "positive": (1,), "negative": (0,)}  # of the rollouts compared
_PERMUTED_STEPS = 4  # steps with permuted advantages, whose mean gap is the control's


def cell_gap(
    table: pd.DataFrame, cells: tuple[str, ...], column: str = "value", eps: float | None = None
) -> float:
    """Gap between boosted and suppressed tokens that are alike in the columns `cells`.

        gap = sum_c w_c (mean of the boosted - mean of the suppressed) / sum_c w_c

        w_c = n+ n- / (n+ + n-)

    over the cells that hold both, in the unit of `column`: the slope of a regression on "boosted"
    with a constant for each cell. NaN if no cell holds both.

    eps: |dlogp| in nats that a token must exceed; by default `MOVED` times the table's root mean
    square.

    >>> rows = [(0, 1.0, 1.0), (0, -1.0, 0.25), (1, 1.0, 0.0), (1, 2.0, 0.5)]
    >>> cell_gap(pd.DataFrame(rows, columns=["position", "dlogp", "value"]), ("position",))
    0.75
    """
    if eps is None:
        eps = MOVED * rms_dlogp(table)
    moved = table[table["dlogp"].abs() > eps]
    boosted = moved["dlogp"] > 0
    keys = [moved[name] for name in cells]

    # (cells,) each
    boosted_sum = moved[column].where(boosted, 0.0).groupby(keys).sum()
    suppressed_sum = moved[column].where(~boosted, 0.0).groupby(keys).sum()
    boosted_count = boosted.groupby(keys).sum()
    suppressed_count = (~boosted).groupby(keys).sum()

    # 0 in cells that hold one kind alone
    weight = boosted_count * suppressed_count / (boosted_count + suppressed_count)
    if not weight.any():
        return float("nan")
    boosted_mean = boosted_sum / boosted_count.clip(lower=1)
    suppressed_mean = suppressed_sum / suppressed_count.clip(lower=1)
    return float(((boosted_mean - suppressed_mean) * weight).sum() / weight.sum())


@in_batches
def pool_change(policy, pool: ValuedTokens, before: torch.Tensor) -> pd.DataFrame:
    """The pool's table with dlogp, its tokens' log-probabilities now minus those in `before`.

    before: (B, T), in nats.
    """
    rollouts, table = pool
    change = (logps(policy, rollouts) - before).double().cpu().numpy()  # (B, T)
    return table.assign(dlogp=change[table["rollout"].to_numpy(), table["position"].to_numpy()])


@in_batches
def step_gaps(
    policy,
    rollouts: Rollouts,
    pools: dict[str, ValuedTokens],
    lr: float,
    seed: int,
    optimizer: str = "sgd",
) -> pd.DataFrame:
    """Gaps after one step on all rollouts, with their own and with permuted advantages (H7).

    The gaps of permuted advantages are means over four steps, each with the advantages permuted in
    each prompt anew: they say what a gap comes to without knowledge of the rewards.

    Columns: pool, advantages (own, permuted), rollouts (all, positive, negative), matched (of
    CELLS), of (value, credit), gap.
    """
    before = {name: logps(policy, pool[0]) for name, pool in pools.items()}
    controls = [permuted_advantages(rollouts, seed + 1000 * k) for k in range(_PERMUTED_STEPS)]
    rows = []
    for name, pushing in [("own", rollouts), *(("permuted", control) for control in controls)]:
        mine = private_copy(policy)
        update(mine, pushing, optimizer, lr)
        for pool in pools:
            table = pool_change(mine, pools[pool], before[pool])
            rows += [{"pool": pool, "advantages": name, **row} for row in _gap_rows(table, seed)]
    keys = ["pool", "advantages", "rollouts", "matched", "of"]
    return pd.DataFrame(rows).groupby(keys, sort=False, as_index=False)["gap"].mean()


def _gap_rows(table: pd.DataFrame, seed: int) -> Iterator[dict]:
    """One row per (rollouts, matched, of) of a table with dlogp."""
    # what counts as moved is decided once, over the whole table
    eps = MOVED * rms_dlogp(table)
    for matched, cells in CELLS.items():
        compared = frequency_matched(table, seed) if matched == "token" else table
        for sign, rewards in _REWARDS.items():
            part = compared[compared["reward"].isin(rewards)]
            for column in ("value", "credit"):
                gap = cell_gap(part, cells, column, eps)
                yield {"rollouts": sign, "matched": matched, "of": column, "gap": gap}


@in_batches
def movement_shares(
    policy, rollouts: Rollouts, estimator: str = "grpo", optimizer: str = "sgd", lr: float = 0.1
) -> pd.DataFrame:
    """Each category's share of one step's movement, the sum of |dlogp| over its tokens (H6).

    Columns: category, mean, low, high (an interval over prompts), estimator.  Raises ValueError if
    the rollouts' categories are unknown.
    """
    if rollouts.categories is None:
        raise ValueError(
            "The rollouts have no categories; sample them from a task that annotates its tokens."
        )
    advantages = group_advantages(rollouts.rewards, rollouts.group_ids, estimator)
    before = logps(policy, rollouts)
    mine = private_copy(policy)
    update(mine, replace(rollouts, advantages=advantages), optimizer, lr)
    change = (logps(mine, rollouts) - before).double().cpu().numpy()  # (B, T)

    table = rollouts.token_table()
    table["size"] = abs(change[table["rollout"].to_numpy(), table["position"].to_numpy()])
    # (prompts, categories)
    sums = table.groupby(["group", "category"])["size"].sum().unstack(fill_value=0.0)
    # a prompt that nothing moves has no shares
    shares = sums.div(sums.sum(axis=1), axis=0).dropna()
    rows = [
        {"category": category, **bootstrap_mean(of_prompts)._asdict()}
        for category, of_prompts in shares.items()
    ]
    return pd.DataFrame(rows).assign(estimator=estimator)


def rms_dlogp(table: pd.DataFrame) -> float:
    """Root mean square change of log-probability over a table's tokens, in nats."""
    return float((table["dlogp"] ** 2).mean() ** 0.5)
