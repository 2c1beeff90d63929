"""Control arms: credit from a coin, credit given to other rollouts, and the credit that is known to be true."""

import torch
from jaxtyping import Float
from torch import Tensor

from .advantages import group_advantages
from .credit import CreditBatch


def coin_reward(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, " B"]:
    """Group advantages of rewards that are fair coin flips, 0 or 1.

    A random reward can still seem to teach, through the bias of clipping (spurious rewards, arXiv 2506.10947). The
    flips come from batch.generator. A group whose rewards are all equal does get advantages here: that is the point.
    """
    coins = torch.randint(2, (len(batch),), generator=batch.generator).to(batch.rewards)
    return group_advantages(coins, batch.group_ids, estimator)


def permuted(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, " B"]:
    """Group advantages permuted among the rollouts of each group, by batch.generator.

    Size and balance of the update stay, its direction says nothing about the reward: the lower bound of a comparison.
    """
    advantages = batch.group_advantages(estimator)
    out = torch.zeros_like(advantages)
    for rows in batch.groups():
        order = torch.randperm(len(rows), generator=batch.generator).to(rows.device)
        out[rows] = advantages[rows[order]]
    return out


def oracle(batch: CreditBatch) -> Float[Tensor, "B T"]:
    """True credit of each token: the upper bound of a comparison, on tasks that know it.

    A_it = Q(s_it, a_it) - V(s_it), the change of the expected reward by this token under the policy of now, as the
    batch knows it. In the reward's unit, not scaled to the spread of any other rule: match update sizes before
    comparing. Known for every rollout by itself, so groups of equal rewards are trained on, too. Raises ValueError
    where no credit is known.
    """
    return batch.known_credit
