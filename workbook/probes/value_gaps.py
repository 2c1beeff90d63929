"""Gaps in value after one step: are the tokens that it boosts worth more than those it suppresses?

    gap = mean value of boosted tokens - mean value of suppressed ones

A token's value is the policy's expected reward once the token is written, known without
continuations (`workbook.probes.values`). A token counts as moved beyond a tenth of the pool's root
mean square change. Boosted and suppressed tokens are compared within a prompt, within rollouts of
one reward, and mostly at equal position.
"""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from workbook.policies.models import private_copy
from workbook.probes.step import MOVED, frequency_matched, permuted_advantages, update
from workbook.probes.values import Pool, cell_gap, pool_change
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.statistics import bootstrap_mean
from workbook.theory.advantages import group_advantages

SMALL_NATS = 0.01  # root mean square movement by a small step
CELLS = {  # what is alike in boosted and suppressed tokens that are compared
    "prompt": ("group", "reward"),
    "position": ("group", "reward", "position"),
    # after each token was matched in frequency between a prompt's two sides (R1)
    "token": ("group", "reward"),
}
OF_SIGN = {"all": (0, 1), "positive": (1,), "negative": (0,)}  # rewards of the rollouts
TWINS = 4  # steps with permuted advantages, whose mean gap is the permuted twin's


def step_gaps(
    policy, rollouts: Rollouts, pools: dict[str, Pool], lr: float, seed: int, optimizer: str = "sgd"
) -> pd.DataFrame:
    """Gaps after one step on all rollouts; mean gaps after `TWINS` whose advantages were permuted in
    each prompt (H7).

    Columns: pool, advantages (own, permuted), rollouts (all, positive, negative), matched (of
    CELLS), of (value, credit), gap.
    """
    before = {name: logps(policy, pool[0]) for name, pool in pools.items()}
    rows, twins = [], [permuted_advantages(rollouts, seed + 1000 * k) for k in range(TWINS)]
    for name, pushing in [("own", rollouts), *(("permuted", twin) for twin in twins)]:
        mine = private_copy(policy)
        update(mine, pushing, optimizer, lr)
        tables = {pool: pool_change(mine, pools[pool], before[pool]) for pool in pools}
        for pool, table in tables.items():
            rows += [{"pool": pool, "advantages": name, **row} for row in gap_rows(table, seed)]
    keys = ["pool", "advantages", "rollouts", "matched", "of"]
    return pd.DataFrame(rows).groupby(keys, sort=False, as_index=False)["gap"].mean()


def gap_rows(table: pd.DataFrame, seed: int) -> Iterator[dict]:
    """One row per (rollouts, matched, of); what counts as moved is decided once, over the whole
    table.
    """
    eps = MOVED * rms_change(table)
    for matched, cells in CELLS.items():
        kept = frequency_matched(table, seed) if matched == "token" else table
        for sign, rewards in OF_SIGN.items():
            part = kept[kept["reward"].isin(rewards)]
            for of in ("value", "credit"):
                yield {
                    "rollouts": sign,
                    "matched": matched,
                    "of": of,
                    "gap": cell_gap(part, cells, of, eps),
                }


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
    before, table = logps(policy, rollouts), rollouts.token_table()
    mine = private_copy(policy)
    update(mine, replace(rollouts, advantages=advantages), optimizer, lr)
    change = (logps(mine, rollouts) - before).double().cpu().numpy()
    table["size"] = abs(change[table["rollout"].to_numpy(), table["position"].to_numpy()])
    sums = table.groupby(["group", "category"])["size"].sum().unstack(fill_value=0.0)
    shares = sums.div(sums.sum(axis=1), axis=0).dropna()
    rows = [{"category": name, **bootstrap_mean(own)._asdict()} for name, own in shares.items()]
    return pd.DataFrame(rows).assign(estimator=estimator)


def rms_change(table: pd.DataFrame) -> float:
    """Root mean square change of log-probability over a table's tokens (nats)."""
    return float((table["dlogp"] ** 2).mean() ** 0.5)
