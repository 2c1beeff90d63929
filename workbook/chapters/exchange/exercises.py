"""The exercise that chapter 03 goes on with: the weights of a sequence ratio, and what they leave
on the words that A and B share.
"""

from collections.abc import Callable

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.chapters.exchange.objectives import advantages_of, situations
from workbook.chapters.grading import answer_of, grade, yours_or_ours
from workbook.theory import cancellation_residual, surrogate_weights

_RANGES = (0.0003, 0.003, 0.03, 0.1, 0.2)
# five rollouts, the second one token shorter, the first and the last stopped by the clip
_LOG_RATIOS = torch.tensor(
    [
        [0.3, 0.0, 0.3],
        [-0.3, -0.2, 0.7],
        [0.02, 0.01, -0.01],
        [0.3, 0.0, 0.3],
        [-0.3, -0.1, -0.2],
    ],
    dtype=torch.float64,
)
_MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]], dtype=torch.bool)
_ADVANTAGES = torch.tensor([1.0, 0.5, -0.5, -1.0, -0.5], dtype=torch.float64)


def check_sequence_weights(function) -> None:
    """Check (log_ratios (B, T), mask (B, T), advantages (B,), low, high) -> GSPO's weights (B, T).

    >>> check_sequence_weights(lambda log_ratios, mask, advantages, low, high: log_ratios.exp())
    Not quite: these are token ratios; GSPO gives all tokens of a rollout one ratio.
    """
    low, high = 0.9, 1.1
    log_ratios, mask, advantages = _LOG_RATIOS, _MASK, _ADVANTAGES
    right = sequence_weights(log_ratios, mask, advantages, low, high)
    length = mask.sum(1, keepdim=True)
    logs = torch.where(mask, log_ratios, 0.0)
    free = surrogate_weights(logs, torch.zeros_like(logs), mask, advantages, "sequence")

    def clip(ratio: Tensor) -> Tensor:
        """PPO's clip of one ratio per rollout, (B, 1), on the tokens of the mask."""
        stopped = ((ratio > high) & (advantages > 0)[:, None]) | (
            (ratio < low) & (advantages < 0)[:, None]
        )
        return ratio.masked_fill(stopped, 0.0) * mask

    mistakes = {
        "these are token ratios; GSPO gives all tokens of a rollout one ratio.": (log_ratios.exp()),
        "the mean runs over a rollout's own tokens; divide by the mask's sum, not by T.": clip(
            (logs.sum(1, keepdim=True) / logs.shape[1]).exp()
        ),
        "padding counts in your mean; leave out what the mask leaves out.": clip(
            log_ratios.mean(1, keepdim=True).exp()
        ),
        "this is the product of the ratios; take its root: the mean of the logs.": clip(
            logs.sum(1, keepdim=True).exp()
        ),
        "this is the mean of the ratios; GSPO takes exp of the mean of their logs.": clip(
            (logs.exp() * mask).sum(1, keepdim=True) / length
        ),
        "the ratio is right, but nothing is clipped.": free,
        "you clamp the ratio; where the surrogate is clipped its slope, the weight, is 0.": (
            free.clamp(low, high) * mask
        ),
        "you clip on both sides for every rollout; PPO's clip looks at the advantage's sign.": (
            surrogate_weights(
                logs,
                torch.zeros_like(logs),
                mask,
                advantages,
                "sequence",
                (1 - low, high - 1),
                "symmetric",
            )
        ),
        "this is the push; the weight comes without the advantage.": right * advantages[:, None],
    }
    grade(
        answer_of(function, log_ratios.clone(), mask.clone(), advantages.clone(), low, high),
        right,
        mistakes,
        "Right: one ratio for a whole rollout, so that the clip stops all of it or nothing.",
        "rollout and position",
    )


def sequence_weights(
    log_ratios: Float[Tensor, "B T"],
    mask: Tensor,
    advantages: Float[Tensor, " B"],
    low: float,
    high: float,
) -> Float[Tensor, "B T"]:
    """GSPO's weights: the workbook's own version of the exercise.

    low, high: ends of the clip range, such as 0.97 and 1.03.  Shapes (B, T), 0 outside the mask.
    """
    # what padding holds is nobody's ratio
    log_ratios = torch.where(mask, log_ratios, 0.0)
    return surrogate_weights(
        log_ratios,
        torch.zeros_like(log_ratios),
        mask,
        advantages,
        level="sequence",
        clip=(1 - low, high - 1),
    )


def sequence_or_ours(function: Callable) -> Callable:
    """A reader's function where it is right, else `sequence_weights`; prints which one it is."""
    trial = (_LOG_RATIOS, _MASK, _ADVANTAGES, 0.9, 1.1)
    return yours_or_ours(function, sequence_weights, trial)


def weights_by_range(weights_of: Callable) -> pd.DataFrame:
    """Weights of `start` in A and in B at the fifth step on the two, by half the clip range.

    weights_of: as `sequence_weights`.  Index clip range; columns start in A, start in B, residual
    (NaN where neither pushes).
    """
    batch = situations()["reused"]
    advantages = advantages_of("GSPO", torch.tensor([1.0, 0.0]))
    rows = {}
    for half in _RANGES:
        weights = weights_of(batch.now - batch.old, batch.mask, advantages, 1 - half, 1 + half)
        a, b = (float(weight) for weight in weights[:, 0])
        residual = cancellation_residual(weights[:, 0], advantages, torch.zeros(2))
        silent = a == b == 0
        rows[half] = {
            "start in A": a,
            "start in B": b,
            "residual": float("nan") if silent else float(residual),
        }
    return pd.DataFrame(rows).T.rename_axis("clip range")
