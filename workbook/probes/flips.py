"""Token flips: which tokens one real step boosts, suppresses or leaves stable.

GRPO pushes every token of a good rollout up and every token of a bad one down. Tokens share
weights, so a token's log-probability also moves by what the other tokens push, and it may go
against its own sign.

Claim (arXiv 2605.08666, figures 1 and 9): the shares of tokens that an update boosts, suppresses or
leaves stable are alike in positive and in negative rollouts. `token_flips` takes the step and
measures dlogp; the functions on its table are pure. The paper lacks the control R1, in which every
word occurs as often under either sign: `probes.step.frequency_matched`.

The cancellation index (H5) is the signal that remains on a token after opposing pushes are summed:

    plain, per token type of a prompt's group:   sum of A over its occurrences / sum of |A|
    coupled, per token i:                        sum_j A_j K_ij / sum_j |A_j K_ij|

with j over the tokens of i's group. Both lie in [-1, 1]; 0 is full cancellation. `predicts` asks
how well they predict a token's change and its credit.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import mannwhitneyu, rankdata
from torch import Tensor

from workbook.messages import progress
from workbook.policies.models import private_copy
from workbook.probes.step import logp_change
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import BYTES_AT_ONCE, in_batches
from workbook.rollouts.states import OutputStates, output_states
from workbook.statistics import Interval, bootstrap_bounds, bootstrap_mean, paired_difference

EPSILONS = (1e-3, 3e-3, 0.01, 3e-2, 1e-1, 3e-1)  # nats
EPS = 0.01  # nats: a probability that changed by less than about 1 % of itself counts as stable
CHANGE_CLASSES = ("boosted", "suppressed", "stable")
SIGN_COLUMNS = ("A > 0", "A < 0", "whole batch")


def token_flips(
    policy, rollouts: Rollouts, optimizer: str = "adamw", lr: float = 1e-3, **settings
) -> pd.DataFrame:
    """The token table with dlogp, each token's change of log-probability (nats) by one real step.

    settings: more of `update`.  Raises ValueError for rollouts that push nothing.
    """
    moved = logp_change(private_copy(policy), rollouts, optimizer, lr, **settings)  # (B, T)
    alive = rollouts.completion_mask.bool().to(moved.device)
    return rollouts.token_table().assign(dlogp=moved[alive].double().cpu().numpy())


# --- shares of boosted, suppressed and stable tokens


def change_of(dlogp, eps: float = EPS) -> np.ndarray:
    """Each token's class of CHANGE_CLASSES.

    Boosted beyond eps, suppressed below -eps, stable between, both ends included.
    """
    boosted, suppressed, stable = CHANGE_CLASSES
    return np.select([dlogp > eps, dlogp < -eps], [boosted, suppressed], stable)


def shares_by_prompt(table: pd.DataFrame, eps: float = EPS) -> dict[str, pd.DataFrame]:
    """Shares of CHANGE_CLASSES (columns) by prompt (rows), for each of SIGN_COLUMNS.

    Prompts without rollouts of both signs are left out. Raises ValueError if no prompt has both.
    """
    pushing = table[table["advantage"] != 0]
    signs_of_prompt = pushing["advantage"].gt(0).groupby(pushing["group"]).nunique()
    with_both = signs_of_prompt.index[signs_of_prompt == 2]
    rows = pushing[pushing["group"].isin(with_both)]
    if rows.empty:
        raise ValueError(
            "The table has no prompt with positive and negative rollouts; sample more, or larger"
            " groups."
        )

    changes = pd.Series(change_of(rows["dlogp"], eps), rows.index)
    # a column per class, so that means are shares
    indicators = pd.get_dummies(changes).reindex(columns=list(CHANGE_CLASSES), fill_value=False)
    positive = rows["advantage"] > 0
    everywhere = pd.Series(True, rows.index)
    return {
        name: indicators[chosen].groupby(rows["group"][chosen]).mean()
        for name, chosen in zip(SIGN_COLUMNS, (positive, ~positive, everywhere), strict=True)
    }


def column_shares(table: pd.DataFrame, eps: float = EPS) -> pd.DataFrame:
    """Means over prompts of `shares_by_prompt`, from the table of `token_flips`.

    Columns column (of SIGN_COLUMNS), change, share, prompts.

    >>> rows = [(0, 1.0, 0.5), (0, 1.0, 0.0), (0, -1.0, 0.5), (0, -1.0, -0.5), (1, 1.0, 0.5)]
    >>> shares = column_shares(pd.DataFrame(rows, columns=["group", "advantage", "dlogp"]))
    >>> shares[shares["change"] == "boosted"]["share"].tolist()
    [0.5, 0.5, 0.5]
    """
    parts = []
    for column, shares in shares_by_prompt(table, eps).items():
        means = shares.mean().rename_axis("change").rename("share").reset_index()
        parts.append(means.assign(column=column, prompts=len(shares)))
    return pd.concat(parts, ignore_index=True)[["column", "change", "share", "prompts"]]


def flip_shares(table: pd.DataFrame, eps: float = EPS) -> pd.DataFrame:
    """Shares of CHANGE_CLASSES in positive and in negative rollouts, and their difference.

    Those of `shares_by_prompt`, bootstrapped over prompts: columns change, quantity (positive,
    negative, difference), mean, low, high.
    """
    shares = shares_by_prompt(table, eps)
    rows = []
    for change in CHANGE_CLASSES:
        positive = shares["A > 0"][change]
        negative = shares["A < 0"][change]
        intervals = {
            "positive": bootstrap_mean(positive),
            "negative": bootstrap_mean(negative),
            "difference": paired_difference(positive, negative),
        }
        for quantity, interval in intervals.items():
            rows.append({"change": change, "quantity": quantity, **interval._asdict()})
    return pd.DataFrame(rows)


def flip_distance(table: pd.DataFrame, eps: float = EPS) -> Interval:
    """Total variation distance between the two signs' shares, 0 (alike) to 1, over prompts.

    Half the sum over the three changes of |mean share among positive - mean share among negative|;
    both means are taken anew in each resample of prompts.
    """
    shares = shares_by_prompt(table, eps)
    difference = (shares["A > 0"] - shares["A < 0"]).to_numpy()  # (P, 3)

    def distance(prompts) -> Float[np.ndarray, " R"]:
        """The distance in each resample; prompts: (R, P), the rows drawn."""
        mean_difference = difference[prompts].mean(1)
        return np.abs(mean_difference).sum(-1) / 2

    low, high = bootstrap_bounds(len(difference), distance, resamples=2_000)
    estimate = np.abs(difference.mean(0)).sum() / 2
    return Interval(float(estimate), float(low), float(high))


# --- the cancellation index


@in_batches
def cancellation_index(policy, rollouts: Rollouts) -> pd.DataFrame:
    """The token table with columns type_index, frequency, coupled_push and coupled_index.

    Both indices: as in the module's docstring, 0 where nothing pushes.  coupled_push: sum_j A_j
    K_ij, the first-order dlogp per unit of learning rate through the output layer.  frequency:
    share of the group's tokens that are this one.
    Memory: N x V for the N tokens of one group at a time, or of all where that is little.
    """
    table = rollouts.token_table()
    # a type is a token id within one prompt's group
    by_type = table.astype({"advantage": float}).groupby(["group", "token_id"])["advantage"]
    size = by_type.transform(lambda advantages: advantages.abs().sum())
    ratio = by_type.transform("sum") / size.where(size > 0, 1.0)
    table["type_index"] = np.where(size > 0, ratio, 0.0)
    tokens_of_group = table.groupby("group")["advantage"].transform("size")
    table["frequency"] = by_type.transform("size") / tokens_of_group

    # one pass for all groups where their logits fit twice, else a pass for each group
    vocabulary = policy.model.config.get_text_config().vocab_size
    logits_bytes = len(table) * vocabulary * policy.model.dtype.itemsize
    all_states = output_states(policy, rollouts) if 2 * logits_bytes <= BYTES_AT_ONCE else None

    coupled = []
    for group, rows in progress(list(table.groupby("group")), "cancellation, group by group"):
        if all_states is not None:
            states = all_states.select(torch.tensor(rows.index.to_numpy()))
        else:
            states = output_states(policy, rollouts.select(rollouts.group_ids == group))
        # (N,), of each token's rollout
        advantages = torch.tensor(rows["advantage"].to_numpy(dtype=float))
        net, size = _coupled_sums(states, advantages.to(states.tokens.device))
        # else the states are held beside those of the next group
        del states

        index = torch.where(size > 0, net / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
        columns = {"coupled_push": net.cpu(), "coupled_index": index.cpu()}
        coupled.append(pd.DataFrame(columns, index=rows.index))
    return table.join(pd.concat(coupled))


def _coupled_sums(
    states: OutputStates, advantages: Float[Tensor, " N"]
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Sums over the tokens j of A_j K_ij, and of |A_j K_ij|, for each token i."""
    net = torch.zeros_like(advantages)
    size = torch.zeros_like(advantages)
    # a strip holds the kernel of m tokens, from the i-th on, with these and all later ones
    for i, strip in states.strips():
        m = len(strip)
        strip = strip.double()
        for sums, kernel, pushes in (
            (net, strip, advantages),
            (size, strip.abs(), advantages.abs()),
        ):
            sums[i : i + m] += kernel @ pushes[i:]
            # the kernel is symmetric: later tokens take from these what these take from them
            sums[i + m :] += kernel[:, m:].T @ pushes[i : i + m]
    return net, size


def predicts(table: pd.DataFrame, predictors: Sequence[str], target: str = "dlogp") -> pd.DataFrame:
    """Rank agreement of each predictor with the target within each prompt, over prompts.

    Columns predictor, measure, mean, low, high, prompts.  measure "rank correlation": Spearman's
    rho; "AUROC": the chance that a token whose target is above 0 has the larger predictor than one
    below 0 (1/2: no better than chance). Prompts in which predictor or target does not vary are
    left out.
    """
    # a number per prompt for each predictor and measure
    by_measure: dict[tuple[str, str], list[float]] = {}
    for predictor in predictors:
        for _, group in table.groupby("group"):
            x = group[predictor].to_numpy(dtype=float)
            y = group[target].to_numpy(dtype=float)
            if np.ptp(x) == 0 or np.ptp(y) == 0:
                continue
            rho = np.corrcoef(rankdata(x), rankdata(y))[0, 1]
            by_measure.setdefault((predictor, "rank correlation"), []).append(rho)

            above = x[y > 0]
            below = x[y < 0]
            if len(above) and len(below):
                # the Mann-Whitney statistic counts pairs that are in order; ties count half
                wins = mannwhitneyu(above, below, method="asymptotic").statistic
                auroc = float(wins / (len(above) * len(below)))
                by_measure.setdefault((predictor, "AUROC"), []).append(auroc)

    rows = [
        (predictor, measure, *bootstrap_mean(values), len(values))
        for (predictor, measure), values in by_measure.items()
    ]
    return pd.DataFrame(rows, columns=["predictor", "measure", "mean", "low", "high", "prompts"])
