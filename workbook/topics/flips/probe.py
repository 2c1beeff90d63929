"""Token flipping (H1): does a token's probability follow the sign of its own rollout's advantage?

Claim (arXiv 2605.08666, figures 1 and 9): the shares of tokens that an update boosts, suppresses or leaves stable are
alike in positive and in negative rollouts. `token_flips` takes the update and measures dlogp; the other functions are
pure, table -> table. `frequency_matched` is the control that the paper lacks (R1).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from workbook.probes.step import logp_change, logps, optimizer_of, untouched, update
from workbook.rollouts.sample import Rollouts
from workbook.statistics import Interval, bootstrap_bounds, bootstrap_mean, paired_difference
from workbook.theory.batching import minibatch_order
from workbook.topics.flips.claims import EPS

CHANGES = ("boosted", "suppressed", "stable")
AFTER = ("mini_batch", "generation")


def token_flips(
    policy,
    rollouts: Rollouts,
    optimizer: str = "adamw",
    lr: float = 1e-3,
    mini_batches: int = 1,
    after: str = "generation",
    batching: str = "shuffled",
    seed: int = 0,
    **settings,
) -> pd.DataFrame:
    """The token table with dlogp, each token's change of log-probability (nats) by real optimizer steps.

    The rollouts are one generation batch, cut into `mini_batches` optimizer steps by a batching strategy.
    after: "mini_batch" measures the tokens of the first mini-batch after its step, "generation" all tokens after the
    last step. With mini_batches=1 both are one step.  settings: more of `update`.  The policy is left as it was.

    Raises ValueError for an unknown `after`, and for mini-batches that do not divide the rollouts.
    """
    if after not in AFTER:
        raise ValueError(f"after={after!r} is unknown: choose one of {', '.join(AFTER)}.")
    parts = [rollouts]
    if mini_batches > 1:
        generator = torch.Generator().manual_seed(seed)
        order = minibatch_order(batching, rollouts.group_ids, rollouts.advantages, mini_batches, generator)
        parts = [rollouts.select(rows.sort().values) for rows in order.cpu().chunk(mini_batches)]
    measured = parts[0] if after == "mini_batch" else rollouts
    with untouched(policy):
        if measured.advantages.any() and (len(parts) == 1 or after == "mini_batch"):
            moved = logp_change(policy, measured, optimizer, lr, **settings)
        else:
            before = logps(policy, measured)
            _steps(policy, parts, optimizer, lr, **settings)
            moved = logps(policy, measured) - before
    dlogp = moved[measured.completion_mask.bool().to(moved.device)]
    return measured.token_table().assign(dlogp=dlogp.double().cpu().numpy())


def _steps(policy, parts: list[Rollouts], optimizer: str, lr: float, **settings) -> None:
    """One optimizer, a step for each part; parts in which nothing pushes are passed over."""
    stepper = optimizer_of(policy, optimizer, lr, settings.get("parameters"))
    for part in parts:
        if part.advantages.any():
            update(policy, part, stepper, **settings)


def flip_shares(table: pd.DataFrame, eps: float = EPS) -> pd.DataFrame:
    """Shares of boosted, suppressed and stable tokens in positive and in negative rollouts, and their difference.

    boosted: dlogp > eps; suppressed: dlogp < -eps; stable: |dlogp| <= eps. Shares are taken prompt by prompt, over the
    prompts that have rollouts of both signs, and bootstrapped over prompts: columns change, quantity (positive,
    negative, difference), mean, low, high.

    Raises ValueError if no prompt has both.
    """
    shares = _shares_by_prompt(table, eps)
    rows = []
    for change in CHANGES:
        positive, negative = shares["positive"][change], shares["negative"][change]
        intervals = {
            "positive": bootstrap_mean(positive),
            "negative": bootstrap_mean(negative),
            "difference": paired_difference(positive, negative),
        }
        rows += [{"change": change, "quantity": name, **one._asdict()} for name, one in intervals.items()]
    return pd.DataFrame(rows)


def flip_distance(table: pd.DataFrame, eps: float = EPS) -> Interval:
    """How unlike the two signs' shares are: total variation distance, 0 alike to 1, an Interval over prompts.

    Half the sum over the three changes of |mean share among positive - mean share among negative|. It is the distance
    of two means, so its interval comes from resampling prompts and taking both means anew.
    """
    shares = _shares_by_prompt(table, eps)
    difference = (shares["positive"] - shares["negative"]).to_numpy()

    def distance(means: np.ndarray) -> np.ndarray:  # (..., changes) -> (...)
        return np.abs(means).sum(-1) / 2

    bounds = bootstrap_bounds(len(difference), lambda drawn: distance(difference[drawn].mean(1)), resamples=2_000)
    return Interval(*map(float, (distance(difference.mean(0)), *bounds)))


def eps_curve(table: pd.DataFrame, values: Iterable[float] = tuple(np.geomspace(1e-4, 1, 17))) -> pd.DataFrame:
    """How the flip distance and the stable share depend on eps: columns eps, quantity, mean, low, high."""
    rows = []
    for eps in values:
        stable = flip_shares(table, eps).query("change == 'stable' and quantity != 'difference'")
        rows.append({"eps": eps, "quantity": "distance", **flip_distance(table, eps)._asdict()})
        rows += [
            {"eps": eps, **row}
            for row in stable.assign(quantity="stable, " + stable["quantity"])[
                ["quantity", "mean", "low", "high"]
            ].to_dict("records")
        ]
    return pd.DataFrame(rows)


def frequency_matched(table: pd.DataFrame, seed: int = 0, by: str = "token_id") -> pd.DataFrame:
    """The control R1: rows dropped at random until each token occurs equally often on both sides of its prompt.

    Of a token's rows in one prompt, as many are kept among positive as among negative rollouts; rollouts of advantage 0
    are dropped. Order and columns stay.
    """
    signed = table[table["advantage"] != 0]
    shuffled = signed.sample(frac=1, random_state=seed)
    side = shuffled["advantage"] > 0
    place = shuffled.groupby([shuffled["group"], shuffled[by], side]).cumcount()
    keys = [signed["group"], signed[by]]
    least = pd.concat(
        [(signed["advantage"] > 0).groupby(keys).sum(), (signed["advantage"] < 0).groupby(keys).sum()], axis=1
    ).min(axis=1)
    quota = pd.MultiIndex.from_arrays([shuffled["group"], shuffled[by]]).map(least)
    return shuffled[place.to_numpy() < quota.to_numpy()].sort_index()


def shares_by_prompt(table: pd.DataFrame, eps: float = EPS) -> pd.DataFrame:
    """Each prompt's shares of CHANGES, for prompts that have both signs: columns group, change, positive, negative."""
    shares = _shares_by_prompt(table, eps)
    sides = {name: rows.stack().rename(name) for name, rows in shares.items()}
    return pd.concat(sides.values(), axis=1).rename_axis(["group", "change"]).reset_index()


def _shares_by_prompt(table: pd.DataFrame, eps: float) -> dict[str, pd.DataFrame]:
    """{positive, negative: shares of CHANGES (columns), a row for each prompt that has both signs}."""
    change = np.select([table["dlogp"] > eps, table["dlogp"] < -eps], CHANGES[:2], CHANGES[2])
    dummies = pd.get_dummies(pd.Series(change, index=table.index)).reindex(columns=list(CHANGES), fill_value=False)
    sides = {"positive": table["advantage"] > 0, "negative": table["advantage"] < 0}
    shares = {name: dummies[side].groupby(table["group"][side]).mean() for name, side in sides.items()}
    both = shares["positive"].index.intersection(shares["negative"].index)
    if both.empty:
        raise ValueError("The table has no prompt with positive and negative rollouts; sample more, or larger groups.")
    return {name: rows.loc[both] for name, rows in shares.items()}
