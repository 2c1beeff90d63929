"""Share of signal: how much of a step is the gradient that every batch has in common?

Each prompt of a batch, with its group of rollouts, gives a gradient g_i. Prompts are drawn at
random, and so are rollouts: g_i is the gradient G that training is after, the mean over all
prompts and rollouts, plus noise of mean 0. A step on N prompts has the squared length

    E |mean of N|^2 = |G|^2 + trace(C) / N          C the covariance of one prompt's gradient

so the share of it that is signal is |G|^2 / (|G|^2 + trace(C) / N), which grows with N.

How can |G|^2 be known, when each gradient has noise? Split the batch in two halves. They share no
prompt and no rollout, so their noises are independent, and the inner product of their means is,
on average, |G|^2 exactly. A batch can be split in many ways. The mean over all of them is the mean
inner product of two different prompts,

    u = mean of <g_i, g_j> over i != j        estimates |G|^2
    d = mean of <g_i, g_i>                    estimates |G|^2 + trace(C)

and u / d estimates the share of a step on one prompt. With s = u / d a step on N prompts has the
share N s / (1 + (N - 1) s). The same number is the expected cosine of two such steps.

    table = noise_share(policy, rollouts)
    noise_share_chart(table)

Letters: B rollouts, T completion tokens, P prompts with their groups, L weights or buckets.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.messages import InvalidValue, progress, require_one_of
from workbook.probes.directions import Along
from workbook.probes.minibatches import GradientSketch
from workbook.probes.step import on_policy_pushes, require_pushes
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.statistics import t_interval
from workbook.theory.choices import AGGREGATES

MIN_PROMPTS = 4  # below, an interval over prompts says nothing
_SPLITS = 200  # of a batch into two halves, for the dots
_FARTHEST = 16  # times the batch's prompts, up to which the curve is predicted


@in_batches
def noise_share(
    policy,
    rollouts: Rollouts,
    prompts: Sequence[int] | None = None,
    aggregate: str = "dr_grpo",
    parameters: str | Sequence[str] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Estimate which share of a step on so many prompts is signal, from one batch of rollouts.

        share(N) = |G|^2 / (|G|^2 + trace(C) / N)

    policy: the one that sampled the rollouts; it does not change.  rollouts: whole groups of
    MIN_PROMPTS prompts or more, 16 or more to say anything; prompts whose rewards are all equal
    belong to them (their gradient is 0).  prompts: sizes of a step, by default powers of 2 up to
    16 times the batch.  aggregate: "grpo", "dr_grpo" or "dapo", how tokens weigh in the loss.
    parameters: as in `Along`, by default all that are trained.  seed: of splits and sketches.

    A row per size: prompts; share, low, high, the estimate with its 95 % interval (jackknife over
    prompts); halves, the cosine of two disjoint sets of so many prompts of this batch, mean over
    splits, NaN beyond half of the batch. `attrs`: batch, its prompts; signal, the estimate of
    |G|^2; noise, that of trace(C), of one prompt's group.

    What it does not say. The share is that of the population of these prompts, at this policy and
    this number of rollouts per prompt. With few prompts the interval is wide, and one that reaches
    0 is no proof that there is no signal. Lengths are those of plain gradients, as SGD takes them;
    Adam weighs weights otherwise, and steps that follow one another average over more.

    One backward pass per prompt. Gradients of more than SKETCHED weights are sketched (random
    signs, added up in buckets), so that memory is one gradient and P rows of 16 MiB.

    Raises InvalidValue for fewer prompts, groups of one, another aggregate, and rollouts without
    an advantage.
    """
    require_one_of("aggregate", aggregate, AGGREGATES)
    groups = rollouts.group_ids.unique()
    if len(groups) < MIN_PROMPTS:
        raise InvalidValue("prompts", len(groups), f"at least {MIN_PROMPTS}, to split in halves")
    require_pushes(rollouts)
    gram = group_gram(policy, rollouts, aggregate, parameters, seed)
    return shares_of_gram(gram, prompts, seed)


def group_gram(
    policy,
    rollouts: Rollouts,
    aggregate: str = "dr_grpo",
    parameters: str | Sequence[str] | None = None,
    seed: int = 0,
) -> Float[Tensor, "P P"]:
    """Inner products of the groups' gradients, of all trained weights or of the named ones.

    In the order of the group's ids. Groups are weighed as in one step on all rollouts.
    """
    rollouts = rollouts.to(policy.model.device)
    along = Along(policy, parameters)
    pushes = on_policy_pushes(rollouts, aggregate)  # (B, T)
    sketch = GradientSketch(list(along.parameters.values()), seed)
    groups = rollouts.group_ids.unique()
    gradients = torch.zeros(len(groups), sketch.length)  # (P, L)
    for row, group in enumerate(progress(groups.tolist(), "gradients of prompts")):
        mine = (rollouts.group_ids == group).nonzero().squeeze(1)
        if pushes[mine].any():
            slopes = along.gradient_of(rollouts.select(mine), pushes[mine])
            gradients[row] = sketch(slopes.values())
    return gradients @ gradients.T


def shares_of_gram(
    gram: Float[Tensor, "P P"], prompts: Sequence[int] | None = None, seed: int = 0
) -> pd.DataFrame:
    """`noise_share` of the gradients' inner products; a row per size of a step.

    >>> gram = torch.ones(8, 8) + 3 * torch.eye(8)  # |G|^2 = 1, trace(C) = 3, no error
    >>> shares_of_gram(gram, [1, 3])["share"].round(3).tolist()
    [0.25, 0.5]
    """
    products = gram.double().cpu().numpy()
    batch = len(products)
    if prompts is None:
        last = int(np.log2(batch * _FARTHEST))
        prompts = [2**power for power in range(last + 1)]
    if min(prompts) < 1:
        raise InvalidValue("prompts", list(prompts), "sizes of a step, at least 1")

    # u and d, of all prompts and without each
    diagonal = np.diag(products)
    rows = products.sum(1) - diagonal
    signal = rows.sum() / (batch * (batch - 1))
    square = diagonal.mean()
    signal_without = (rows.sum() - 2 * rows) / ((batch - 1) * (batch - 2))
    square_without = (diagonal.sum() - diagonal) / (batch - 1)
    estimate = signal / square
    pseudo = batch * estimate - (batch - 1) * signal_without / square_without
    interval = t_interval(pseudo)
    reach = (interval.high - interval.low) / 2
    ends = np.array([estimate, estimate - reach, estimate + reach])

    table = pd.DataFrame({"prompts": list(prompts)})
    table[["share", "low", "high"]] = [share_at(ends, size) for size in prompts]
    table["halves"] = [_halves(products, size, seed) for size in prompts]
    table.attrs = {"batch": batch, "signal": float(signal), "noise": float(square - signal)}
    return table


def share_at(one, prompts: int):
    """Share of signal of a step on so many prompts, from that of a step on one; in [0, 1].

    >>> share_at(0.25, 3)
    0.5
    """
    one = np.clip(one, 0.0, 1.0)
    share = prompts * one / (1 + (prompts - 1) * one)
    return float(share) if np.ndim(share) == 0 else share


def _halves(products: Float[np.ndarray, "P P"], size: int, seed: int) -> float:
    """Mean inner product of two disjoint sets of `size` prompts over their mean squared length."""
    batch = len(products)
    if 2 * size > batch:
        return float("nan")
    generator = np.random.default_rng(seed)
    inner, square = 0.0, 0.0
    for _ in range(_SPLITS):
        order = generator.permutation(batch)[: 2 * size]
        first, second = order[:size], order[size:]
        inner += products[np.ix_(first, second)].sum()
        square += products[np.ix_(first, first)].sum() / 2
        square += products[np.ix_(second, second)].sum() / 2
    return float(inner / square)
