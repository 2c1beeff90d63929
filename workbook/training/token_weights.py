"""The weight of each token in the loss that is trained, read from autograd, and the weights that a repair puts there.

Every loss of TRL is a function of the log-probabilities logp_it. What a token pushes is -d loss / d logp_it, exact for
each loss type, bound, mask and correction, since it is read from the very graph that is trained. In the words of
`theory.weights`, push_it = w_it A_it / N with one number N per micro-batch: rollouts * max_completion_length for
dr_grpo, tokens for dapo, cispo, vespo and bnpo, rollouts for grpo, sapo and luspo, each times the gradient
accumulation. The first two of these last also divide by each rollout's own length: that is part of w. No metric here
depends on N.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from workbook.theory.objective import ratio_weights, transform_weights
from workbook.theory.weights import cancellation_residual
from workbook.training.batch import loss_mask


def token_pushes(
    loss: Float[Tensor, ""], logps: Float[Tensor, "B T"], reference: Float[Tensor, "B T"] | None = None
) -> Float[Tensor, "B T"]:
    """Read -d loss / d logp from the graph of `loss`, which stays as it is; the model is not entered.

    reference: the reference model's log-probabilities, a leaf of the graph. The KL penalty depends on logp - reference
    alone, so its part in the derivative is minus that by `reference`, and is taken out.
    """
    leaves = (logps,) if reference is None else (logps, reference)
    slopes = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    pushes = -sum(slopes[1:], slopes[0])
    return pushes.to(torch.promote_types(pushes.dtype, torch.float32))


def mean_residual(
    pushes: Float[Tensor, "B T"], group_ids: Shaped[Tensor, " B"], chosen: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Mean over (group, position) of |sum of pushes| / sum of |pushes|, over the chosen tokens: 0 cancels."""
    if not chosen.any():
        return pushes.new_zeros(())
    labels = group_ids[:, None] * pushes.size(1) + torch.arange(pushes.size(1), device=pushes.device)
    return cancellation_residual(pushes[chosen], torch.ones_like(pushes[chosen]), labels[chosen]).mean()


def repaired_weights(args, weights: Float[Tensor, "B T"], inputs: dict, per_rollout: bool) -> Float[Tensor, "B T"]:
    """Transform each group's weights by `args.group_transform`; `per_rollout`: they are the same at all its tokens."""
    mask = loss_mask(inputs)
    return transform_weights(weights, args.group_transform, inputs["advantages"], inputs["group_id"], mask, per_rollout)


def policy_weights(
    args, logps: Float[Tensor, "B T"], inputs: dict, level: str, clip: tuple[float, float]
) -> Float[Tensor, "B T"]:
    """Weights of the clipped surrogate, or what a transform is to see: ratios clamped to the clip range.

    Without old log-probabilities in `inputs`, those of now count as old, as in TRL.
    """
    old = inputs.get("old_per_token_logps")
    clamp = args.group_transform is not None and args.transform_on == "clamped_ratios"
    scored = (logps, logps if old is None else old, loss_mask(inputs), inputs["advantages"])
    return ratio_weights(*scored, level, clip, args.clipping, clamp)
