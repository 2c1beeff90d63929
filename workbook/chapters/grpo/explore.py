"""The exercise of chapter 04: one clipped loss, and the three normalizers that TRL's loss types
give it.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.chapters.grading import answer_of, grade
from workbook.chapters.grpo.replay import LENGTH
from workbook.messages import require_one_of

LOSS_TYPES = ("grpo", "dapo", "dr_grpo")


def clipped_loss(
    logps: Float[Tensor, "B T"],
    old_logps: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, "B 1"],
    loss_type: str,
    epsilon: float = 0.2,
    length: int = LENGTH,
) -> Float[Tensor, ""]:
    """The loss - sum_it min(r A, clip(r) A) / N over the B rollouts' tokens, with r the ratio of
    the policy's probability to that of the policy that sampled.

    N of a token is B times its rollout's own length for grpo, the number of all tokens for dapo,
    and B times `length`, the most that a completion may have, for dr_grpo.

    Raises InvalidValue for another loss type.
    """
    require_one_of("loss_type", loss_type, LOSS_TYPES)
    ratio = (logps - old_logps).exp()  # (B, T)
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)
    surrogate = surrogate * mask
    if loss_type == "grpo":
        return -(surrogate.sum(1) / mask.sum(1)).mean()
    if loss_type == "dapo":
        return -surrogate.sum() / mask.sum()
    return -surrogate.sum() / (len(mask) * length)


def check_normalizers(function: Callable) -> None:
    """Check a function (logps, old_logps, mask, advantages, loss_type) -> loss, for each of
    LOSS_TYPES.

    >>> check_normalizers(lambda *batch: -clipped_loss(*batch))
    Not quite: the sign is turned round: an optimizer descends, and the surrogate is to rise.
    """
    generator = torch.Generator().manual_seed(0)
    old_logps = -torch.rand(4, 6, generator=generator)
    logps = old_logps + 0.5 * torch.randn(4, 6, generator=generator)  # many beyond the clip range
    mask = torch.arange(6) < torch.tensor([[3], [6], [4], [5]])
    advantages = torch.tensor([[1.2], [-0.9], [0.6], [-0.9]])

    def losses(loss: Callable = clipped_loss, **changed: Tensor) -> Tensor:
        batch = {"logps": logps, "old_logps": old_logps, "mask": mask, "advantages": advantages}
        given = list((batch | changed).values())
        return torch.stack([torch.as_tensor(loss(*given, name)) for name in LOSS_TYPES])

    def answers() -> list | None:
        values = [function(logps, old_logps, mask, advantages, name) for name in LOSS_TYPES]
        return None if any(value is None for value in values) else [float(v) for v in values]

    right = losses()
    grpo, dapo, dr_grpo = right.tolist()
    everything = torch.ones_like(mask)
    largest = losses(advantages=-advantages)  # - min(-rA, -clip(r) A) is max(rA, clip(r) A)
    mistakes = {
        "the sign is turned round: an optimizer descends, and the surrogate is to rise.": -right,
        "all three are the same loss: the loss type decides what the sum is divided by.": (
            lambda got: float(got.max() - got.min()) < 1e-6
        ),
        "places after a completion's end count, too: multiply by the mask, divide by its sum.": (
            losses(mask=everything)
        ),
        "this takes the larger of the two terms; the minimum keeps a step from being paid twice.": (
            -largest
        ),
        "nothing is clipped: compare r A with clip(r) A, and take the smaller.": losses(
            lambda *given: clipped_loss(*given, epsilon=1e9)
        ),
        "dr_grpo divides by the longest that a completion may be, 48, not by the batch's own.": (
            torch.tensor([grpo, dapo, dr_grpo * LENGTH / mask.shape[1]])
        ),
        "grpo averages each rollout over its own tokens first, then the rollouts; dapo does not.": (
            torch.tensor([dapo, grpo, dr_grpo])
        ),
        "dr_grpo still has to be divided by the number of rollouts.": (
            torch.tensor([grpo, dapo, dr_grpo * len(mask)])
        ),
    }
    praise = "Right: one surrogate, and three ways to divide it. The next cell trains with it."
    grade(answer_of(answers), right, mistakes, praise, "loss type")
