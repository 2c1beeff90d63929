"""Advantages: from one reward per rollout to the number that multiplies each of its tokens'
gradients; and group sums.

Positive means advantage > 0, negative < 0, and neutral exactly 0, as for every rollout of a group
with equal rewards.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of, require_range

from .choices import ESTIMATORS

STD_EPSILON = 1e-4  # TRL's: GRPO divides by std + 1e-4


def group_advantages(
    rewards: Float[Tensor, " B"], group_ids: Shaped[Tensor, " B"], estimator: str = "grpo"
) -> Float[Tensor, " B"]:
    """One advantage per rollout: its reward against a baseline, mostly the mean of its own group.

    With m_g, s_g and n_g the mean, unbiased standard deviation and size of i's group:

    - grpo: (r_i - m_g) / (s_g + 1e-4)                  GRPO (arXiv 2402.03300, section 4.1.2), TRL's up to rounding
    - dr_grpo: r_i - m_g                                Dr. GRPO (arXiv 2503.20783)
    - rloo: r_i - mean of the group's other rewards     RLOO (arXiv 2402.14740)
    - reinforce: r_i - mean of the whole batch          REINFORCE with a batch baseline, in groups of unequal rewards
    - positive_only, negative_only: grpo's where > 0 (< 0), else 0

    Shapes: rewards (B,), group_ids (B,) any labels in any order, groups of any size; result (B,).
    Units: the reward's (grpo: standard deviations). A group of equal rewards, a single rollout too,
    gives exactly 0. Computed in the rewards' dtype, in float32 for integers and half precision.

    Raises ValueError for an unknown estimator, rewards that are NaN, infinite or so large that a
    square overflows, and group_ids of another length.

    >>> group_advantages(torch.tensor([1.0, 0.0, 0.1, 0.1]), torch.tensor([7, 7, 3, 3]), "dr_grpo").tolist()
    [0.5, -0.5, 0.0, 0.0]
    """
    require_one_of("estimator", estimator, ESTIMATORS)
    rewards = _checked(rewards)
    index, groups = group_index(group_ids, len(rewards))
    centred = rewards - group_mean(rewards, index, groups)[index]
    if estimator == "dr_grpo":
        return centred
    if estimator == "reinforce":
        neutral = group_extreme(rewards, index, groups, "amax") == group_extreme(
            rewards, index, groups, "amin"
        )
        return (rewards - rewards.mean()).masked_fill(neutral[index], 0.0)
    size = group_size(index, groups)[index].to(rewards.dtype)
    others = (size - 1).clamp(min=1)
    if estimator == "rloo":
        return centred * size / others  # r - (sum - r)/(n - 1) = (r - mean) * n/(n - 1)
    std = (group_sum(centred.square(), index, groups)[index] / others).sqrt()
    advantages = centred / (std + STD_EPSILON)
    keep = {"positive_only": advantages > 0, "negative_only": advantages < 0}.get(estimator)
    return advantages if keep is None else torch.where(keep, advantages, 0.0)


def partial_baseline(
    rewards: Float[Tensor, " B"], group_ids: Shaped[Tensor, " B"], share: float = 1.0
) -> Float[Tensor, " B"]:
    """The dial of opposition: a rollout's reward minus a share of the mean reward of its group.

        A_i = r_i - share m_g

    At 1 it is `dr_grpo`: advantages of a group sum to 0, so that good and bad rollouts oppose one
    another in full. At 0 it is REINFORCE without a baseline: where rewards are 0 or 1, right
    rollouts are pushed up and wrong ones are left alone. In expectation all of them push along the
    policy gradient, times 1 - share / G with the group's own rewards in its mean; what differs is
    noise. Below 1 a group of equal rewards pushes, too.

    Shapes: rewards (B,), group_ids (B,); result (B,). Raises ValueError as `group_advantages` does,
    and for a share outside [0, 1].

    >>> partial_baseline(torch.tensor([1.0, 0.0]), torch.zeros(2), 0.5).tolist()
    [0.75, -0.25]
    """
    require_range(0, 1, share=share)
    centred = group_advantages(rewards, group_ids, "dr_grpo")
    if share == 1:
        return centred
    rewards = _checked(rewards)
    index, groups = group_index(group_ids, len(rewards))
    return rewards - share * group_mean(rewards, index, groups)[index]


def prefix_credit(
    rewards: Float[Tensor, " B"],
    completion_ids: Int[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    fallback: str = "dr_grpo",
) -> Float[Tensor, "B T"]:
    """Prefix credit, one advantage per step: how rollouts that took it from a state fared against
    all that were there.

    A_it = mean{r_j : j has i's tokens up to and including t} - mean{r_j : j has i's tokens before
    t}, over the rollouts j of i's group whose position t is in the mask. A step that everybody
    takes is worth exactly 0. Where no other rollout shares the state, A_it is the group advantage
    of i (`fallback`: an estimator of group_advantages; dr_grpo is in the same unit, the reward's).

    States are token prefixes: the process reward that a group of outcomes hides (arXiv 2509.21154),
    and TreeRPO's without the resampling. It is not Implicit Behavior Policy Optimization (arXiv
    2605.16302), which revises rollouts.

    Shapes: rewards (B,), completion_ids (B, T), mask (B, T) 1 on completion tokens, group_ids (B,);
    result (B, T), 0 outside the mask. Raises ValueError as group_advantages does, and for shapes
    that do not agree.

    >>> ids = torch.tensor([[5, 1], [5, 2], [6, 1]])
    >>> rewards = torch.tensor([1.0, 0.0, 0.5])
    >>> prefix_credit(rewards, ids, torch.ones(3, 2), torch.zeros(3)).tolist()
    [[0.0, 0.5], [0.0, -0.5], [0.0, 0.0]]
    """
    rewards = _checked(rewards)
    if completion_ids.ndim != 2 or len(completion_ids) != len(rewards):
        raise InvalidValue(
            "completion_ids.shape",
            tuple(completion_ids.shape),
            f"({len(rewards)}, T), a row per reward",
        )
    alive = active(mask, completion_ids, "completion_ids")
    alone = group_advantages(rewards, group_ids, fallback)
    # differences of means do not see the shift
    centred = group_advantages(rewards, group_ids, "dr_grpo")
    state, states = group_index(group_ids, len(rewards))
    tokens, token = torch.unique(completion_ids, return_inverse=True)
    out = torch.zeros_like(centred).unsqueeze(1).repeat(1, completion_ids.shape[1])
    for t in range(completion_ids.shape[1]):
        after, afters = group_index(state * len(tokens) + token[:, t], len(rewards))
        rows = alive[:, t].nonzero().squeeze(1)
        here = _mean_and_count(centred[rows], state[rows], states)
        then = _mean_and_count(centred[rows], after[rows], afters)
        gain = torch.where(then[1] == here[1], 0.0, then[0] - here[0])
        out[rows, t] = torch.where(here[1] == 1, alone[rows], gain)
        state, states = after, afters
    return out


def _mean_and_count(values: Tensor, index: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    return group_mean(values, index, groups)[index], group_size(index, groups)[index]


def _checked(rewards: Tensor) -> Tensor:
    """Rewards as a float tensor (B,), refused where no finite advantage follows from them."""
    if rewards.ndim != 1:
        raise InvalidValue("rewards.shape", tuple(rewards.shape), "(B,), one number per rollout")
    rewards = rewards.detach().to(torch.promote_types(rewards.dtype, torch.float32))
    limit = torch.finfo(rewards.dtype).max ** 0.5 / max(len(rewards), 1)
    bad = (~(rewards.abs() <= limit)).nonzero().flatten()
    if len(bad):
        raise InvalidValue(
            f"rewards[{int(bad[0])}]",
            float(rewards[bad[0]]),
            f"a finite number of size at most {limit:.0e}, so that squares stay finite",
        )
    return rewards


# -- sums, means and extremes over the groups of a batch, whatever their labels, order and sizes
# -----------------------


def group_index(group_ids: Shaped[Tensor, " B"], size: int) -> tuple[Int[Tensor, " B"], int]:
    """Number the groups 0..n-1 in the order of their labels: the number of each rollout's group,
    and n.

    Raises ValueError where `group_ids` does not hold one label for each of `size` rollouts.
    """
    if group_ids.shape != (size,):
        raise InvalidValue(
            "group_ids.shape", tuple(group_ids.shape), f"({size},), one label per rollout"
        )
    labels, index = torch.unique(group_ids, return_inverse=True)
    return index, len(labels)


def group_sum(
    values: Shaped[Tensor, "B *rest"], index: Int[Tensor, " B"], groups: int
) -> Shaped[Tensor, "n *rest"]:
    """Sum over each group: out[g] = sum of values[i] over i with index[i] = g."""
    return values.new_zeros((groups, *values.shape[1:])).index_add_(0, index, values)


def group_extreme(
    values: Shaped[Tensor, "B *rest"], index: Int[Tensor, " B"], groups: int, kind: str
) -> Shaped[Tensor, "n *rest"]:
    """Smallest (kind "amin") or largest (kind "amax") value of each group."""
    empty = values.new_zeros((groups, *values.shape[1:]))
    rows = index.reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return empty.scatter_reduce_(0, rows, values, kind, include_self=False)


def group_mean(
    values: Float[Tensor, " B"], index: Int[Tensor, " B"], groups: int
) -> Float[Tensor, " n"]:
    """Mean of each group, held between its extremes, so that equal values have exactly themselves
    as mean.

    A plain float mean of three times 0.1 is off by a rounding error, which would give a neutral
    group a sign.
    """
    mean = group_sum(values, index, groups) / group_size(index, groups).to(values.dtype)
    low, high = (group_extreme(values, index, groups, kind) for kind in ("amin", "amax"))
    return mean.clamp(low, high)


def group_size(index: Int[Tensor, " B"], groups: int) -> Int[Tensor, " n"]:
    """Number of rollouts in each group."""
    return group_sum(torch.ones_like(index), index, groups)


def active(
    mask: Shaped[Tensor, "*shape"] | None, like: Shaped[Tensor, "*shape"], name: str
) -> Bool[Tensor, "*shape"]:
    """The mask as booleans, all true where there is none; ValueError where its shape is not that of
    `like`.
    """
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if mask.shape != like.shape:
        raise InvalidValue("mask.shape", tuple(mask.shape), f"{tuple(like.shape)}, as {name}")
    return mask.bool()


def shared_places(
    completion_ids: Int[Tensor, "B T"], mask: Shaped[Tensor, "B T"], group_ids: Shaped[Tensor, " B"]
) -> Bool[Tensor, "B T"]:
    """Mask of position-shared tokens: every rollout of the group has the same token at the same
    position.

    >>> ids = torch.tensor([[5, 1, 2], [5, 7, 2]])
    >>> shared_places(ids, torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.zeros(2)).tolist()
    [[True, False, False], [True, False, False]]
    """
    index, groups = group_index(group_ids, len(completion_ids))
    low, high = (group_extreme(completion_ids, index, groups, kind) for kind in ("amin", "amax"))
    everybody = group_extreme(mask.to(completion_ids.dtype), index, groups, "amin") > 0
    return ((low == high) & everybody)[index]


def permute_in_groups(
    values: Shaped[Tensor, "B *rest"],
    group_ids: Shaped[Tensor, " B"],
    generator: torch.Generator | None = None,
) -> Shaped[Tensor, "B *rest"]:
    """Values permuted among the rows of each group, in the order of the groups' labels; draws from
    a CPU generator.

    >>> permute_in_groups(torch.tensor([1, 1, 2]), torch.tensor([0, 0, 1])).tolist()
    [1, 1, 2]
    """
    index, groups = group_index(group_ids, len(values))
    out = values.clone()
    for group in range(groups):
        rows = (index == group).nonzero().squeeze(1)
        out[rows] = values[rows[torch.randperm(len(rows), generator=generator).to(rows.device)]]
    return out
