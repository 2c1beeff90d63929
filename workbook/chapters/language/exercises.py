"""The exercise of chapter 10: inner products of a real model's gradients, by finite differences."""

from collections.abc import Callable

import numpy as np
import torch

from workbook.chapters.grading import answer_of, grade
from workbook.probes.coupling import gradient_products
from workbook.rollouts.example import example_policy, example_rollouts
from workbook.rollouts.sample import Rollouts

# of the largest product: what finite differences of float32 miss
_TOLERANCE = 0.03


def check_products(function: Callable) -> None:
    """Check a reader's products of gradients on rollouts A and B, where the probe is exact.

    function: as of `grade_products`.
    """
    policy, rollouts = example_policy(), example_rollouts()
    pairs = gradient_products(policy, rollouts, anchors=1)
    rollout, position = rollouts.completion_mask.bool().nonzero()[pairs["anchor"].iloc[0]].tolist()
    grade_products(function, policy, rollouts, (rollout, position), pairs["product"].to_numpy())


def grade_products(
    function: Callable, policy, rollouts: Rollouts, place: tuple[int, int], exact: np.ndarray
) -> None:
    """Check a function (policy, rollouts, place) -> (B, T), the inner products of the gradients of
    log p of one token, at place = (rollout, position), and of every token.

    exact: the right ones, of the rollouts' tokens in the order of the token table.
    """
    got = answer_of(function, policy, rollouts, place)
    alive = rollouts.completion_mask.bool()
    if got is not None and got.shape == alive.shape:
        got = got.cpu()[alive.cpu()]
    right = torch.tensor(np.array(exact, dtype=float))
    largest = float(right.abs().max())
    mistakes = {
        "this is twice too large: from one side to the other the weights move by two steps.": (
            2 * right
        ),
        "the sign is turned round: take the score after the step up minus the one after the step"
        " down.": -right,
        "this is the change of log p; divide it by the length of the way.": (
            lambda got: float(got.abs().max()) < 0.05 * largest
        ),
    }
    praise = (
        "Right: one backward pass and two forward passes give all of them. The next cell uses your"
        " function."
    )
    grade(got, right, mistakes, praise, entry="token", tolerance=_TOLERANCE)
