"""The exercise that chapter 09 goes on with: what an objective leaves on words that all rollouts
of a group share.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from workbook.chapters.grading import answer_of, grade, yours_or_ours
from workbook.rollouts.sample import Rollouts
from workbook.theory import cancellation_residual
from workbook.theory.advantages import shared_places

# three rollouts: places 0 and 1 are shared, the third rollout ends after place 2
_IDS = torch.tensor([[5, 7, 9, 4], [5, 7, 8, 4], [5, 7, 8, 0]])
_MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
_WEIGHTS = torch.tensor(
    [[1.2, 0.0, 1.1, 1.0], [0.8, 0.0, 0.7, 0.9], [1.0, 0.0, 0.5, 0.0]], dtype=torch.float64
)
_ADVANTAGES = torch.tensor([-1.0, 0.75, 0.25], dtype=torch.float64)
_GROUP = (_WEIGHTS, _ADVANTAGES, _IDS, _MASK)


def check_residual(function) -> None:
    """Check (weights (G, T), advantages (G,), ids (G, T), mask (G, T)) -> a group's residual.

    >>> check_residual(lambda weights, advantages, ids, mask: 0.0)
    Not quite: only equal weights leave 0; these are unequal at a shared place.
    """
    weights, advantages, ids, mask = _GROUP
    pushes = weights * advantages[:, None] * mask
    net, size = pushes.sum(0).abs(), pushes.abs().sum(0)
    each = torch.where(size > 0, net / size.clamp(min=1e-12), 0.0)
    shared = (ids == ids[0]).all(0) & mask.all(0)
    right = residual_on_shared(*_GROUP)
    mistakes = {
        "only equal weights leave 0; these are unequal at a shared place.": 0.0,
        "it is not a number: at the second place nobody pushes, and 0 / 0 should count 0.": (
            lambda got: bool(got.isnan())
        ),
        "you average over all places; only those count where all rollouts have one token.": (
            each.mean()
        ),
        "a place where a rollout has ended is not shared; look at the mask, too.": (
            each[(ids == ids[0]).all(0) | ~mask.all(0)].mean()
        ),
        "you left out the shared place at which nobody pushes; it counts 0.": (
            each[shared & (size > 0)].mean()
        ),
        "take the size of the sum, not its sign.": (
            torch.where(size > 0, pushes.sum(0) / size.clamp(min=1e-12), 0.0)[shared].mean()
        ),
        "this is the net push; divide it by the sum of the pushes' sizes.": net[shared].mean(),
        "the denominator is the sum of sizes; you divide by the number of rollouts.": (
            net[shared].mean() / len(ids)
        ),
        "a push is weight times advantage; the advantages are missing.": (
            torch.where(weights.sum(0) > 0, 1.0, 0.0)[shared].mean()
        ),
    }
    grade(
        answer_of(function, *(one.clone() for one in _GROUP)),
        right,
        mistakes,
        "Right: 0 where pushes of the two signs cancel, 1 where one sign is left.",
    )


def residual_on_shared(
    weights: Float[Tensor, "G T"],
    advantages: Float[Tensor, " G"],
    ids: Int[Tensor, "G T"],
    mask: Shaped[Tensor, "G T"],
) -> float:
    """|sum w A| / sum |w A| of one group, averaged over its shared places: the workbook's version.

    A place is shared where all rollouts have the same token; one at which nobody pushes counts 0.
    NaN without a shared place.
    """
    group = torch.zeros(len(ids), dtype=torch.long)
    places = shared_places(ids, mask, group)[0]
    return float(cancellation_residual(weights, advantages, group)[0][places].mean())


def residual_or_ours(function: Callable) -> Callable:
    """A reader's function where it is right, else `residual_on_shared`; prints which one it is."""
    return yours_or_ours(function, residual_on_shared, _GROUP)


def residual_of_groups(
    residual_of: Callable, rollouts: Rollouts, weights: Float[Tensor, "B T"]
) -> float:
    """Mean residual over the groups of a batch whose rewards differ.

    residual_of: as `residual_on_shared`; groups without a shared place are left out.
    """
    mask = rollouts.completion_mask.bool()
    values = []
    for group in rollouts.group_ids[rollouts.advantages != 0].unique():
        rows = rollouts.group_ids == group
        columns = (weights, rollouts.advantages, rollouts.completion_ids, mask)
        values.append(float(residual_of(*(column[rows] for column in columns))))
    return float(torch.tensor(values).nanmean())
