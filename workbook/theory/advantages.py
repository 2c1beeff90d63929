"""Advantages: from one reward per rollout to the number that multiplies its tokens' gradients.

A reward says little by itself: 1 is no news on a prompt that every answer solves. So GRPO samples a
group of G rollouts of one prompt, and asks of each how much better it did than its group:

    A_i = r_i - mean of the group's rewards

GRPO divides this by the group's standard deviation, too. Every token of rollout i is then pushed by
A_i. With the group's mean as the baseline, the advantages of a group add up to 0. Whatever all of
its rollouts say in the same context is then pushed up and down equally, so it cancels; learning
comes only from differences. This is where cancellation begins. (Advantages against the mean of the
whole batch, or of one sign alone, do not add up to 0.)

A rollout is *positive* where A > 0, *negative* where A < 0, and *neutral* where A is exactly 0, as
every rollout of a group with equal rewards is.

Letters: B rollouts, T completion tokens, n groups.
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
    """Compute one advantage per rollout: its reward against a baseline, mostly its group's mean.

    With m_g, s_g and n_g the mean, unbiased standard deviation and size of i's group:

    - grpo: (r_i - m_g) / (s_g + 1e-4)               GRPO (arXiv 2402.03300, section 4.1.2)
    - dr_grpo: r_i - m_g                             Dr. GRPO (arXiv 2503.20783)
    - rloo: r_i - mean of the group's other rewards  RLOO (arXiv 2402.14740)
    - reinforce: r_i - mean of the whole batch       in groups of unequal rewards, else 0
    - positive_only, negative_only: grpo's where > 0 (< 0), else 0

    "grpo" is also the name of a length normalizer, which is set apart from the estimator:
    `aggregate` of `theory.weights.update_weights`.

    Shapes: rewards (B,), group_ids (B,) any labels in any order, groups of any size; result (B,).
    Units: the reward's (grpo: standard deviations). A group of equal rewards, a single rollout too,
    gives exactly 0. Computed in the rewards' dtype, in float32 for integers and half precision;
    grpo is TRL's up to rounding.

    Raises ValueError for an unknown estimator, rewards that are NaN, infinite or so large that a
    square overflows, and group_ids of another length.

    >>> rewards, groups = torch.tensor([1.0, 0.0, 0.1, 0.1]), torch.tensor([7, 7, 3, 3])
    >>> group_advantages(rewards, groups, "dr_grpo").tolist()
    [0.5, -0.5, 0.0, 0.0]
    """
    require_one_of("estimator", estimator, ESTIMATORS)
    rewards = _checked(rewards)
    index, groups = group_index(group_ids, len(rewards))

    # the baseline: what this prompt pays on average
    centred = rewards - group_mean(rewards, index, groups)[index]  # (B,)
    if estimator == "dr_grpo":
        return centred

    # the baseline of the whole batch, which would push groups of equal rewards, too
    if estimator == "reinforce":
        lowest = group_extreme(rewards, index, groups, "amin")  # (n,)
        highest = group_extreme(rewards, index, groups, "amax")
        neutral = (lowest == highest)[index]
        return (rewards - rewards.mean()).masked_fill(neutral, 0.0)

    size = group_size(index, groups)[index].to(rewards.dtype)  # (B,)
    # a rollout alone in its group divides by 1, not by 0
    others = (size - 1).clamp(min=1)
    if estimator == "rloo":
        # r - (sum - r)/(n - 1) = (r - mean) n/(n - 1)
        return centred * size / others

    # GRPO: in units of the group's standard deviation
    variance = group_sum(centred.square(), index, groups)[index] / others
    advantages = centred / (variance.sqrt() + STD_EPSILON)
    if estimator == "positive_only":
        return torch.where(advantages > 0, advantages, 0.0)
    if estimator == "negative_only":
        return torch.where(advantages < 0, advantages, 0.0)
    return advantages


def partial_baseline(
    rewards: Float[Tensor, " B"], group_ids: Shaped[Tensor, " B"], share: float = 1.0
) -> Float[Tensor, " B"]:
    """Subtract a share of the group's mean from each reward: the dial of opposition.

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


def prefix_advantages(
    rewards: Float[Tensor, " B"],
    completion_ids: Int[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    fallback: str = "dr_grpo",
) -> Float[Tensor, "B T"]:
    """Compare, at each step, the rollouts that took it with all that stood before it.

        A_it = mean{r_j : j has i's tokens up to and including t}
             - mean{r_j : j has i's tokens before t}

    over the rollouts j of i's group whose position t is in the mask. A step that everybody takes is
    worth exactly 0. Where no other rollout shares the state, A_it is the group advantage of i
    (`fallback`: an estimator of group_advantages; dr_grpo is in the same unit, the reward's).

    States are token prefixes: the process reward that a group of outcomes hides (arXiv 2509.21154),
    and TreeRPO's without the resampling. It is not Implicit Behavior Policy Optimization (arXiv
    2605.16302), which revises rollouts.

    Shapes: rewards (B,), completion_ids (B, T), mask (B, T) 1 on completion tokens, group_ids (B,);
    result (B, T), 0 outside the mask. Raises ValueError as group_advantages does, and for shapes
    that do not agree.

    >>> ids = torch.tensor([[5, 1], [5, 2], [6, 1]])
    >>> rewards = torch.tensor([1.0, 0.0, 0.5])
    >>> prefix_advantages(rewards, ids, torch.ones(3, 2), torch.zeros(3)).tolist()
    [[0.0, 0.5], [0.0, -0.5], [0.0, 0.0]]
    """
    rewards = _checked(rewards)
    if completion_ids.ndim != 2 or len(completion_ids) != len(rewards):
        raise InvalidValue(
            "completion_ids.shape",
            tuple(completion_ids.shape),
            f"({len(rewards)}, T), a row per reward",
        )
    alive = active(mask, completion_ids, "completion_ids")  # (B, T)
    alone = group_advantages(rewards, group_ids, fallback)  # (B,)
    # a difference of means is the same for centred rewards
    centred = group_advantages(rewards, group_ids, "dr_grpo")
    # (B, T): tokens numbered from 0 on
    words, word_index = torch.unique(completion_ids, return_inverse=True)

    # a state is a group with the tokens so far: at first the group alone
    state, states = group_index(group_ids, len(rewards))  # (B,)
    credit = torch.zeros_like(centred).unsqueeze(1).repeat(1, completion_ids.shape[1])
    for t in range(completion_ids.shape[1]):
        # unique id of (state, word)
        pair_ids = state * len(words) + word_index[:, t]
        next_state, next_states = group_index(pair_ids, len(rewards))

        # only rollouts that have a token here are compared
        rows = alive[:, t].nonzero().squeeze(1)
        before, stood = _mean_and_count(centred[rows], state[rows], states)
        after, followed = _mean_and_count(centred[rows], next_state[rows], next_states)

        # exactly 0 where everybody takes the step, whatever rounding says
        gain = torch.where(followed == stood, 0.0, after - before)
        credit[rows, t] = torch.where(stood == 1, alone[rows], gain)
        state, states = next_state, next_states
    return credit


def _mean_and_count(values: Tensor, index: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Mean and size of each row's group, at the row."""
    return group_mean(values, index, groups)[index], group_size(index, groups)[index]


def _checked(rewards: Tensor) -> Tensor:
    """Rewards as a float tensor (B,), refused where no finite advantage follows from them."""
    if rewards.ndim != 1:
        raise InvalidValue("rewards.shape", tuple(rewards.shape), "(B,), one number per rollout")
    rewards = rewards.detach().to(torch.promote_types(rewards.dtype, torch.float32))
    # a sum of B squares must not overflow; NaN fails the comparison, too
    limit = torch.finfo(rewards.dtype).max ** 0.5 / max(len(rewards), 1)
    bad = (~(rewards.abs() <= limit)).nonzero().flatten()
    if len(bad):
        raise InvalidValue(
            f"rewards[{int(bad[0])}]",
            float(rewards[bad[0]]),
            f"a finite number of size at most {limit:.0e}, so that squares stay finite",
        )
    return rewards


# Sums, means and extremes over the groups of a batch, whatever their labels, order and sizes.


def group_index(group_ids: Shaped[Tensor, " B"], size: int) -> tuple[Int[Tensor, " B"], int]:
    """Number the groups 0..n-1 in the order of their labels; return each rollout's number, and n.

    Raises ValueError where `group_ids` does not hold one label for each of `size` rollouts.

    >>> index, groups = group_index(torch.tensor([7, 7, 3]), 3)
    >>> index.tolist(), groups
    ([1, 1, 0], 2)
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
    extremes = values.new_zeros((groups, *values.shape[1:]))
    # scatter wants an index of the values' own shape
    rows = index.reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return extremes.scatter_reduce_(0, rows, values, kind, include_self=False)


def group_mean(
    values: Float[Tensor, " B"], index: Int[Tensor, " B"], groups: int
) -> Float[Tensor, " n"]:
    """Mean of each group, held between its extremes: equal values have exactly themselves as mean.

    A plain float mean of three times 0.1 is off by a rounding error, which would give a neutral
    group a sign.
    """
    mean = group_sum(values, index, groups) / group_size(index, groups).to(values.dtype)
    lowest = group_extreme(values, index, groups, "amin")
    highest = group_extreme(values, index, groups, "amax")
    return mean.clamp(lowest, highest)


def group_size(index: Int[Tensor, " B"], groups: int) -> Int[Tensor, " n"]:
    """Number of rollouts in each group."""
    return group_sum(torch.ones_like(index), index, groups)


def active(
    mask: Shaped[Tensor, "*shape"] | None, like: Shaped[Tensor, "*shape"], name: str
) -> Bool[Tensor, "*shape"]:
    """Return the mask as booleans, all true where there is none.

    Raises ValueError where its shape is not that of `like`, which the message calls `name`.
    """
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if mask.shape != like.shape:
        raise InvalidValue("mask.shape", tuple(mask.shape), f"{tuple(like.shape)}, as {name}")
    return mask.bool()


def shared_places(
    completion_ids: Int[Tensor, "B T"], mask: Shaped[Tensor, "B T"], group_ids: Shaped[Tensor, " B"]
) -> Bool[Tensor, "B T"]:
    """Mask of position-shared tokens: all rollouts of the group have this token at this position.

    >>> ids = torch.tensor([[5, 1, 2], [5, 7, 2]])
    >>> shared_places(ids, torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.zeros(2)).tolist()
    [[True, False, False], [True, False, False]]
    """
    index, groups = group_index(group_ids, len(completion_ids))
    # all ids of a group agree where the smallest is the largest
    smallest = group_extreme(completion_ids, index, groups, "amin")  # (n, T)
    largest = group_extreme(completion_ids, index, groups, "amax")
    everybody = group_extreme(mask.to(completion_ids.dtype), index, groups, "amin") > 0
    return ((smallest == largest) & everybody)[index]


def permute_in_groups(
    values: Shaped[Tensor, "B *rest"],
    group_ids: Shaped[Tensor, " B"],
    generator: torch.Generator | None = None,
) -> Shaped[Tensor, "B *rest"]:
    """Permute values among the rows of each group, in the order of the groups' labels.

    generator: a CPU one; None draws from torch's global generator.

    >>> permute_in_groups(torch.tensor([1, 1, 2]), torch.tensor([0, 0, 1])).tolist()
    [1, 1, 2]
    """
    index, groups = group_index(group_ids, len(values))
    permuted = values.clone()
    for group in range(groups):
        rows = (index == group).nonzero().squeeze(1)
        order = torch.randperm(len(rows), generator=generator).to(rows.device)
        permuted[rows] = values[rows[order]]
    return permuted
