"""Sums, means and extremes over the groups of a batch, whatever their labels, order and sizes."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor


def group_index(group_ids: Shaped[Tensor, " B"], size: int) -> tuple[Int[Tensor, " B"], int]:
    """Number the groups 0..n-1 in the order of their labels: the number of each rollout's group, and n.

    Raises ValueError where `group_ids` does not hold one label for each of `size` rollouts.
    """
    if group_ids.shape != (size,):
        raise ValueError(
            f"group_ids has shape {tuple(group_ids.shape)}; one label for each of {size} rollouts is needed."
        )
    labels, index = torch.unique(group_ids, return_inverse=True)
    return index, len(labels)


def group_sum(values: Shaped[Tensor, "B *rest"], index: Int[Tensor, " B"], groups: int) -> Shaped[Tensor, "n *rest"]:
    """Sum over each group: out[g] = sum of values[i] over i with index[i] = g."""
    return values.new_zeros((groups, *values.shape[1:])).index_add_(0, index, values)


def group_extreme(
    values: Shaped[Tensor, "B *rest"], index: Int[Tensor, " B"], groups: int, kind: str
) -> Shaped[Tensor, "n *rest"]:
    """Smallest (kind "amin") or largest (kind "amax") value of each group."""
    empty = values.new_zeros((groups, *values.shape[1:]))
    rows = index.reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return empty.scatter_reduce_(0, rows, values, kind, include_self=False)


def group_mean(values: Float[Tensor, " B"], index: Int[Tensor, " B"], groups: int) -> Float[Tensor, " n"]:
    """Mean of each group, held between its extremes, so that equal values have exactly themselves as mean.

    A plain float mean of three times 0.1 is off by a rounding error, which would give a neutral group a sign.
    """
    mean = group_sum(values, index, groups) / group_size(index, groups).to(values.dtype)
    low, high = (group_extreme(values, index, groups, kind) for kind in ("amin", "amax"))
    return mean.clamp(low, high)


def group_size(index: Int[Tensor, " B"], groups: int) -> Int[Tensor, " n"]:
    """Number of rollouts in each group."""
    return group_sum(torch.ones_like(index), index, groups)


def active(mask: Shaped[Tensor, "*shape"] | None, like: Shaped[Tensor, "*shape"], name: str) -> Bool[Tensor, "*shape"]:
    """The mask as booleans, all true where there is none; ValueError where its shape is not that of `like`."""
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if mask.shape != like.shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)}; it must have the shape of {name}, {tuple(like.shape)}.")
    return mask.bool()


def shared_places(
    completion_ids: Int[Tensor, "B T"], mask: Shaped[Tensor, "B T"], group_ids: Shaped[Tensor, " B"]
) -> Bool[Tensor, "B T"]:
    """Mask of position-shared tokens: every rollout of the group has the same token at the same position.

    >>> ids = torch.tensor([[5, 1, 2], [5, 7, 2]])
    >>> shared_places(ids, torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.zeros(2)).tolist()
    [[True, False, False], [True, False, False]]
    """
    index, groups = group_index(group_ids, len(completion_ids))
    low, high = (group_extreme(completion_ids, index, groups, kind) for kind in ("amin", "amax"))
    everybody = group_extreme(mask.to(completion_ids.dtype), index, groups, "amin") > 0
    return ((low == high) & everybody)[index]


def permute_in_groups(
    values: Shaped[Tensor, "B *rest"], group_ids: Shaped[Tensor, " B"], generator: torch.Generator | None = None
) -> Shaped[Tensor, "B *rest"]:
    """Values permuted among the rows of each group, in the order of the groups' labels; draws from a CPU generator.

    >>> permute_in_groups(torch.tensor([1, 1, 2]), torch.tensor([0, 0, 1])).tolist()
    [1, 1, 2]
    """
    index, groups = group_index(group_ids, len(values))
    out = values.clone()
    for group in range(groups):
        rows = (index == group).nonzero().squeeze(1)
        out[rows] = values[rows[torch.randperm(len(rows), generator=generator).to(rows.device)]]
    return out
