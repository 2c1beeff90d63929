"""Probes of token flipping: which tokens one real step boosts.

Claim (arXiv 2605.08666, figures 1 and 9): the shares of tokens that an update boosts, suppresses or
leaves stable are alike in positive and in negative rollouts. `token_flips` takes the step and
measures dlogp; the functions on its table are pure. The control that the paper lacks (R1) is
`probes.step.frequency_matched`.

The cancellation index (H5) is the signal that remains on a token after opposing pushes are summed:

    plain, per token type of a prompt's group:   sum of A over its occurrences / sum of |A|
    coupled, per token i:                        sum_j A_j K_ij / sum_j |A_j K_ij|   over the tokens j of its group

Both lie in [-1, 1]; 0 is full cancellation. `predicts` asks what they predict of a token's change
and of its credit.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from scipy.stats import mannwhitneyu, rankdata

from workbook.messages import progress
from workbook.policies.models import private_copy
from workbook.probes.step import logp_change
from workbook.rollouts.credit import output_states
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import BYTES_AT_ONCE, in_batches
from workbook.statistics import Interval, bootstrap_bounds, bootstrap_mean, paired_difference

EPSILONS = (1e-3, 3e-3, 0.01, 3e-2, 1e-1, 3e-1)  # nats
EPS = 0.01  # nats: a probability that changed by less than about 1 % of itself counts as stable
CHANGES = ("boosted", "suppressed", "stable")
COLUMNS = ("A > 0", "A < 0", "whole batch")


def token_flips(
    policy, rollouts: Rollouts, optimizer: str = "adamw", lr: float = 1e-3, **settings
) -> pd.DataFrame:
    """The token table with dlogp, each token's change of log-probability (nats) by one real
    optimizer step.

    settings: more of `update`.  Raises ValueError for rollouts that push nothing.
    """
    moved = logp_change(private_copy(policy), rollouts, optimizer, lr, **settings)
    dlogp = moved[rollouts.completion_mask.bool().to(moved.device)]
    return rollouts.token_table().assign(dlogp=dlogp.double().cpu().numpy())


# --- shares of boosted, suppressed and stable tokens


def change_of(dlogp, eps: float = EPS) -> np.ndarray:
    """Each token's class of CHANGES: boosted beyond eps, suppressed below -eps, stable between,
    both ends included.
    """
    return np.select([dlogp > eps, dlogp < -eps], CHANGES[:2], CHANGES[2])


def shares_by_prompt(table: pd.DataFrame, eps: float = EPS) -> dict[str, pd.DataFrame]:
    """{column of COLUMNS: shares of CHANGES (columns), a row for each prompt with rollouts of both
    signs}.

    Raises ValueError if no prompt has both.
    """
    signed = table[table["advantage"] != 0]
    signs = signed["advantage"].gt(0).groupby(signed["group"]).nunique()
    rows = signed[signed["group"].isin(signs.index[signs == 2])]
    if rows.empty:
        raise ValueError(
            "The table has no prompt with positive and negative rollouts; sample more, or larger"
            " groups."
        )
    changes = pd.Series(change_of(rows["dlogp"], eps), rows.index)
    dummies = pd.get_dummies(changes).reindex(columns=list(CHANGES), fill_value=False)
    up = rows["advantage"] > 0
    sides = zip(COLUMNS, (up, ~up, up | True), strict=True)
    return {name: dummies[here].groupby(rows["group"][here]).mean() for name, here in sides}


def column_shares(table: pd.DataFrame, eps: float = EPS) -> pd.DataFrame:
    """Means of `shares_by_prompt`: columns column (of COLUMNS), change, share, prompts.  table: of
    `token_flips`.

    >>> rows = [(0, 1.0, 0.5), (0, 1.0, 0.0), (0, -1.0, 0.5), (0, -1.0, -0.5), (1, 1.0, 0.5)]
    >>> shares = column_shares(pd.DataFrame(rows, columns=["group", "advantage", "dlogp"]))
    >>> shares[shares["change"] == "boosted"]["share"].tolist()
    [0.5, 0.5, 0.5]
    """
    parts = [
        shares.mean()
        .rename_axis("change")
        .rename("share")
        .reset_index()
        .assign(column=column, prompts=len(shares))
        for column, shares in shares_by_prompt(table, eps).items()
    ]
    return pd.concat(parts, ignore_index=True)[["column", "change", "share", "prompts"]]


def flip_shares(table: pd.DataFrame, eps: float = EPS) -> pd.DataFrame:
    """Shares of boosted, suppressed and stable tokens in positive and in negative rollouts, and
    their difference.

    Those of `shares_by_prompt`, bootstrapped over prompts: columns change, quantity (positive,
    negative, difference), mean, low, high.
    """
    shares, rows = shares_by_prompt(table, eps), []
    for change in CHANGES:
        positive, negative = shares["A > 0"][change], shares["A < 0"][change]
        intervals = {
            "positive": bootstrap_mean(positive),
            "negative": bootstrap_mean(negative),
            "difference": paired_difference(positive, negative),
        }
        rows += [
            {"change": change, "quantity": name, **one._asdict()} for name, one in intervals.items()
        ]
    return pd.DataFrame(rows)


def flip_distance(table: pd.DataFrame, eps: float = EPS) -> Interval:
    """How unlike the two signs' shares are: total variation distance, 0 alike to 1, an Interval
    over prompts.

    Half the sum over the three changes of |mean share among positive - mean share among negative|;
    both means are taken anew in each resample of prompts.
    """
    shares = shares_by_prompt(table, eps)
    difference = (shares["A > 0"] - shares["A < 0"]).to_numpy()

    drawn = bootstrap_bounds(
        len(difference), lambda at: np.abs(difference[at].mean(1)).sum(-1) / 2, resamples=2_000
    )
    return Interval(float(np.abs(difference.mean(0)).sum() / 2), *map(float, drawn))


# --- the cancellation index


@in_batches
def cancellation_index(policy, rollouts: Rollouts) -> pd.DataFrame:
    """The token table with columns type_index, coupled_index, coupled_push and frequency.

    Both indices: as in the module's docstring, 0 where nothing pushes.  coupled_push: sum_j A_j
    K_ij, the first-order dlogp per unit of learning rate through the output layer.  frequency:
    share of the group's tokens that are this one.
    Memory: N x V for the N tokens of one group at a time, or of all where that is little.
    """
    table = rollouts.token_table()
    groups = table.astype({"advantage": float}).groupby(["group", "token_id"])["advantage"]
    total = groups.transform(lambda advantages: advantages.abs().sum())
    table["type_index"] = np.where(
        total > 0, groups.transform("sum") / total.where(total > 0, 1.0), 0.0
    )
    table["frequency"] = groups.transform("size") / table.groupby("group")["advantage"].transform(
        "size"
    )
    # bytes
    coupled, width = (
        [],
        policy.model.config.get_text_config().vocab_size * policy.model.dtype.itemsize,
    )
    # fewer passes
    whole = output_states(policy, rollouts) if 2 * len(table) * width <= BYTES_AT_ONCE else None
    for group, rows in progress(list(table.groupby("group")), "cancellation, group by group"):
        states = whole and whole.select(torch.tensor(rows.index.to_numpy()))
        states = states or output_states(policy, rollouts.select(rollouts.group_ids == group))
        pushes = torch.tensor(rows["advantage"].to_numpy(dtype=float), device=states.tokens.device)[
            :, None
        ]
        pushes = torch.cat([pushes, pushes.abs()], dim=1)
        sums = torch.zeros_like(pushes)  # (N, 2): over the tokens j, of A_j K_ij and of its size
        for i, strip in states.strips():
            m, strip = len(strip), strip.double()
            for k, part in enumerate((strip, strip.abs())):
                sums[i : i + m, k] += part @ pushes[i:, k]
                sums[i + m :, k] += part[:, m:].T @ pushes[i : i + m, k]  # the kernel is symmetric
        del states  # else held beside the next ones
        net, size = sums.unbind(1)
        index = torch.where(size > 0, net / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
        coupled.append(
            pd.DataFrame(
                {"coupled_push": net.cpu(), "coupled_index": index.cpu()}, index=rows.index
            )
        )
    return table.join(pd.concat(coupled))


def predicts(table: pd.DataFrame, predictors: Sequence[str], target: str = "dlogp") -> pd.DataFrame:
    """Rank agreement of each predictor with the target within each prompt, with an interval over
    prompts.

    Columns predictor, measure, mean, low, high, prompts.  measure "rank correlation": Spearman's
    rho; "AUROC": the chance that a token whose target is above 0 has the larger predictor than one
    below 0 (1/2: no better than chance). Prompts in which predictor or target does not vary are
    left out.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for predictor in predictors:
        for _, group in table.groupby("group"):
            x, y = group[predictor].to_numpy(dtype=float), group[target].to_numpy(dtype=float)
            if np.ptp(x) == 0 or np.ptp(y) == 0:
                continue
            rho = np.corrcoef(rankdata(x), rankdata(y))[0, 1]
            values.setdefault((predictor, "rank correlation"), []).append(rho)
            above, below = x[y > 0], x[y < 0]
            if len(above) and len(below):
                wins = mannwhitneyu(above, below, method="asymptotic").statistic  # ties count half
                values.setdefault((predictor, "AUROC"), []).append(
                    float(wins / (len(above) * len(below)))
                )
    rows = [(*names, *bootstrap_mean(numbers), len(numbers)) for names, numbers in values.items()]
    return pd.DataFrame(rows, columns=["predictor", "measure", "mean", "low", "high", "prompts"])
