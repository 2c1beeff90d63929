"""The gap in value between the tokens that an update boosts and those that it suppresses (H7, H8, H9).

    gap = mean value of boosted tokens - mean value of suppressed tokens, within a prompt

Claims (arXiv 2605.08666, figures 5, 6 and 11): the gap is above 0, in positive as in negative rollouts; it grows with
the batch and with the rollouts per prompt, most among tokens of high value; and repeated updates on one batch widen it.

A token's value is also high because what stands before it is good. So the gap can be taken of *credit* as well: the
value after the token minus the value before it. `value_gap` is pure; `sampling_budget` and `repeated_updates` take the
steps, measure dlogp on pools of tokens whose values are known, and leave the policy as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from workbook.policies.copies import private_copy
from workbook.probes.step import logps, optimizer_of, progress, update
from workbook.probes.value_gaps import Pool, pool_change
from workbook.rollouts.sample import Rollouts
from workbook.theory.advantages import group_advantages
from workbook.theory.choices import SIGNS
from workbook.topics.flips.probe import EPS, frequency_matched

ALL_SIGNS = ("all", *SIGNS)  # of the rollout's advantage
BANDS = ("low", "middle", "high")  # thirds of a pool, by value
ALL_BANDS = ("all", *BANDS)
BUDGET_ESTIMATORS = ("reinforce", "grpo")


def value_gap(
    table: pd.DataFrame,
    eps: float = EPS,
    column: str = "value",
    band_by: str = "value",
    share: float | None = None,
    matched: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per (group, sign, band) that has boosted and suppressed tokens: their mean values and the gap.

    boosted: dlogp > eps; suppressed: dlogp < -eps.  share: instead of eps, the threshold that this share of the
    table's tokens exceeds in |dlogp|, so that tables of different movement compare.
    sign: of the rollout's advantage, positive or negative, and all rollouts together.  band: thirds of the table by
    `band_by`, and "all". A band of the value itself bounds the gap inside it, one of value_before does not.
    column: value, credit_mc or credit.  matched: with each token equally often in positive and negative rollouts of its
    prompt (`frequency_matched`, R1).

    Columns: group, sign, band, boosted, suppressed (means of `column`), n_boosted, n_suppressed, gap (reward's unit).
    Raises ValueError for a table that lacks a column, and for a share outside (0, 1].
    """
    needed = list(dict.fromkeys(["group", "advantage", "dlogp", column, band_by]))
    if missing := [name for name in needed if name not in table]:
        raise ValueError(f"The table lacks the columns {missing}: token_values adds values, token_flips adds dlogp.")
    if share is not None:
        if not 0 < share <= 1:
            raise ValueError(f"share={share!r} must be above 0 and at most 1: it is a share of the tokens.")
        eps = float(np.quantile(table["dlogp"].abs(), 1 - share))
    cuts = np.quantile(table[band_by], [1 / 3, 2 / 3])
    table = frequency_matched(table[[*needed, "token_id"]], seed) if matched else table[needed]
    moved = table[table["dlogp"].abs() > eps]
    groups, index = np.unique(moved["group"], return_inverse=True)
    values, own = moved[column].to_numpy(dtype=float), moved["advantage"].to_numpy(dtype=float)
    key = 2 * index + (moved["dlogp"] > 0).to_numpy()  # group and side
    band = np.searchsorted(cuts, moved[band_by], side="left")
    parts = []
    for sign, of_sign in zip(ALL_SIGNS, (np.isfinite(own), own > 0, own < 0), strict=True):
        for name, number in (("all", None), *((name, number) for number, name in enumerate(BANDS))):
            rows = of_sign if number is None else of_sign & (band == number)
            counts = np.bincount(key[rows], minlength=2 * len(groups)).reshape(-1, 2)
            sums = np.bincount(key[rows], values[rows], minlength=2 * len(groups)).reshape(-1, 2)
            both = counts.all(axis=1)
            means = sums[both] / counts[both]
            parts.append(
                (
                    np.full(both.sum(), sign, object),
                    np.full(both.sum(), name, object),
                    groups[both],
                    means,
                    counts[both],
                )
            )
    sign, band, group, means, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    columns = {"group": group, "sign": sign, "band": band, "boosted": means[:, 1], "suppressed": means[:, 0]}
    columns |= {"n_boosted": counts[:, 1], "n_suppressed": counts[:, 0], "gap": means[:, 1] - means[:, 0]}
    return pd.DataFrame(columns)


def sampling_budget(
    policy,
    rollouts: Rollouts,
    pools: Mapping[str, Pool],
    batch_sizes: Sequence[int] = (16, 32, 64, 96),
    group_sizes: Sequence[int] = (1, 2, 4, 8),
    estimators: Sequence[str] = BUDGET_ESTIMATORS,
    optimizer: str = "sgd",
    lr: float = 1.0,
    repeats: int = 2,
    seed: int = 0,
    measure=None,
    **settings,
) -> pd.DataFrame:
    """H8: the gap after one step on random parts of the rollouts, of so many rollouts and so many per prompt.

    Each part of B rollouts holds B / G prompts with G rollouts each. "reinforce" subtracts the mean reward of the whole
    batch, which a single rollout per prompt has as well; "grpo" needs G >= 2. Parts that can't be made (B not a
    multiple of G, or more prompts than there are) and parts whose rewards are all equal are passed over.

    pools: {name: (rollouts, rows of their token table with values)}, the same for every part.
    measure: table with dlogp -> rows with group and gap; by default `value_gap`, all signs.
    Columns: measure's, averaged over the repeats, and batch_size, group_size, estimator, pool.
    Raises ValueError if no part could be made.
    """
    measure = measure or (lambda table: value_gap(table).query("sign == 'all'"))
    rng, tables = np.random.default_rng(seed), []
    parts = [
        (batch, group, estimator, rows)
        for batch in batch_sizes
        for group in group_sizes
        for _ in range(repeats)
        for rows in _part(rollouts, batch, group, rng)
        for estimator in estimators
        if group > 1 or estimator == "reinforce"
    ]
    mine = private_copy(policy)
    start = [p.detach().clone() for p in _trained(mine)]
    before = {name: logps(mine, pool[0]) for name, pool in pools.items()}
    for batch, group, estimator, rows in progress(parts, "sampling budget"):
        part = rollouts.select(rows)
        own = part.group_ids if estimator != "reinforce" else torch.zeros_like(part.group_ids)
        part = replace(part, advantages=group_advantages(part.rewards, own, estimator))
        if not part.advantages.any():
            continue
        update(mine, part, optimizer, lr, **settings)
        for name, pool in pools.items():
            gaps = measure(pool_change(mine, pool, before[name]))
            tables.append(gaps.assign(batch_size=batch, group_size=group, estimator=estimator, pool=name))
        _put_back(mine, start)
    if not tables:
        raise ValueError(f"None of batch_sizes={list(batch_sizes)} can be made of {len(rollouts)} rollouts.")
    table = pd.concat(tables, ignore_index=True)
    keys = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    keys = ["batch_size", "group_size", "group", *keys]
    return table.groupby(keys, observed=True, as_index=False).mean()


def repeated_updates(
    policy,
    rollouts: Rollouts,
    pools: Mapping[str, Pool],
    steps: int = 16,
    optimizer: str = "sgd",
    lr: float = 0.25,
    measure=None,
    **settings,
) -> pd.DataFrame:
    """H9: the gap after each of `steps` steps on the same rollouts, dlogp being counted from the start.

    One optimizer takes all steps; each has weight 1 on every token, as without PPO's ratios and clipping.
    pools, measure: as in `sampling_budget`.  Columns: measure's, and step (1 ... steps), pool, norm (of the gradient).
    """
    measure = measure or value_gap
    tables = []
    mine = private_copy(policy)
    before = {name: logps(mine, pool[0]) for name, pool in pools.items()}
    stepper = optimizer_of(mine, optimizer, lr, settings.get("parameters"))
    for step in progress(range(1, steps + 1), "repeated updates"):
        (norm,) = update(mine, rollouts, stepper, **settings)
        for name, pool in pools.items():
            gaps = measure(pool_change(mine, pool, before[name]))
            tables.append(gaps.assign(step=step, pool=name, norm=float(norm)))
    return pd.concat(tables, ignore_index=True)


def _trained(policy) -> list[torch.nn.Parameter]:
    return [p for p in policy.model.parameters() if p.requires_grad]


def _put_back(policy, weights: list[torch.Tensor]) -> None:
    for p, old in zip(_trained(policy), weights, strict=True):
        p.detach().copy_(old)


def _part(rollouts: Rollouts, batch: int, group: int, rng: np.random.Generator) -> list[torch.Tensor]:
    """Rows of batch / group random prompts with `group` random rollouts each, in a list; empty if there are not any."""
    groups = rollouts.group_ids.cpu().numpy()
    names, sizes = np.unique(groups, return_counts=True)
    names = names[sizes >= group]
    if batch % group or batch // group > len(names):
        return []
    chosen = rng.choice(names, batch // group, replace=False)
    rows = [rng.choice(np.flatnonzero(groups == name), group, replace=False) for name in chosen]
    return [torch.tensor(np.sort(np.concatenate(rows)))]
