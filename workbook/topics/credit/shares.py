"""Movement by category (H6): the share of each category of token in what a step moves, measured three ways.

Claim (arXiv 2605.08666, figure 4): against training on positive rollouts only, critic-free RL moves the update's mass
from template and formatting tokens to reasoning tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from workbook.policies.copies import private_copy
from workbook.probes.step import update
from workbook.rollouts.sample import Rollouts
from workbook.statistics import bootstrap_mean
from workbook.theory.advantages import group_advantages
from workbook.topics.coupling.masked import choose_tokens
from workbook.topics.flips.probe import token_flips

MEASURES = ("movement", "net movement", "gradient norm")


def update_share_by_category(
    policy,
    rollouts: Rollouts,
    estimator: str = "grpo",
    optimizer: str = "sgd",
    lr: float = 0.1,
    **settings,
) -> pd.DataFrame:
    """Shares of each category in one real update, under an advantage estimator: columns category, measure, mean, ...

    - movement: sum of |dlogp| over the category's tokens, as a share of all tokens' (per prompt; low, high: an interval
      over prompts)
    - net movement: |sum of dlogp|, likewise, as a share of the categories' sum
    - gradient norm: of a step in which the category alone pushes, as a share of the sum over categories (one number)

    Raises ValueError if the rollouts' categories are unknown.
    """
    table = category_shares(policy, rollouts, estimator, optimizer, lr, **settings)
    rows = []
    for (measure, category), shares in table.groupby(["measure", "category"], sort=False)["share"]:
        whole = {"mean": shares.mean()} if measure == "gradient norm" else bootstrap_mean(shares)._asdict()
        rows.append({"category": category, "measure": measure, **whole})
    return pd.DataFrame(rows).assign(estimator=estimator)


def category_shares(
    policy,
    rollouts: Rollouts,
    estimator: str = "grpo",
    optimizer: str = "sgd",
    lr: float = 0.1,
    measures: Sequence[str] = MEASURES,
    **settings,
) -> pd.DataFrame:
    """The same prompt by prompt: columns group, category, measure, share; the gradient's norm has the group -1.

    Raises ValueError if the rollouts' categories are unknown, and for an unknown measure.
    """
    if rollouts.categories is None:
        raise ValueError("The rollouts have no categories; sample them from a task that annotates its tokens.")
    if unknown := set(measures) - set(MEASURES):
        raise ValueError(f"measures holds {sorted(unknown)}; valid are {', '.join(MEASURES)}.")
    advantages = group_advantages(rollouts.rewards, rollouts.group_ids, estimator)
    rollouts = replace(rollouts, advantages=advantages)
    table = token_flips(policy, rollouts, optimizer, lr, **settings)
    table["size"] = table["dlogp"].abs()
    kinds = ["group", "category"]
    sums = {
        "movement": table.groupby(kinds)["size"].sum().unstack(fill_value=0.0),
        "net movement": table.groupby(kinds)["dlogp"].sum().abs().unstack(fill_value=0.0),
    }
    rows = []
    for measure in (name for name in measures if name in sums):
        shares = sums[measure].div(sums[measure].sum(axis=1), axis=0).dropna()
        rows.append(shares.stack().rename("share").reset_index().assign(measure=measure))
    if "gradient norm" in measures:
        names = sorted(table["category"].unique())
        norms = pd.Series([_norm(policy, rollouts, name, settings) for name in names])
        columns = {"group": -1, "category": names, "share": norms / norms.sum(), "measure": "gradient norm"}
        rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True)[["group", "category", "measure", "share"]]


def _norm(policy, rollouts: Rollouts, category: str, settings: dict) -> float:
    """Norm of the gradient to which the category's tokens alone contribute."""
    chosen = choose_tokens(rollouts, category=category)
    if not (chosen & (rollouts.advantages != 0)[:, None]).any():
        return 0.0
    mine = private_copy(policy)
    return float(update(mine, rollouts, "sgd", lr=0.0, chosen=chosen, **settings)[0])
