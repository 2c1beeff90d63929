"""Token weights of the objective sum w_it A_it log pi_it: one rule for ratios, clipping and a group
transform.

    u    ratios to the policy that sampled, per token or per sequence                 (`weights.surrogate_weights`)
    w    u, 0 where the surrogate is clipped; before a transform on "clamped_ratios": u held inside the clip range
    w~   w after the transform of its group: min_replace (D6), advantage_orthogonal (D7), or none

The trainer puts a sampler's correction between w and w~, so both halves stand alone, too.
"""

from jaxtyping import Float, Shaped
from torch import Tensor

from workbook.messages import require_one_of

from .choices import TRANSFORM_INPUTS, TRANSFORMS
from .weights import advantage_orthogonal, min_replace, surrogate_weights

Clip = tuple[float, float] | None


def ratio_weights(
    logps: Float[Tensor, "B T"],
    old_logps: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    level: str = "token",
    clip: Clip = None,
    clipping: str = "asymmetric",
    clamp: bool = False,
) -> Float[Tensor, "B T"]:
    """Weights w of the clipped surrogate; clamp: ratios held inside the clip range, as a transform
    on them takes them.

    Shapes, arguments and errors as in `surrogate_weights`. Clamped weights are not 0 outside the
    mask.
    """
    scored = (logps, old_logps, mask, advantages, level)
    if not clamp:
        return surrogate_weights(*scored, clip=clip, clipping=clipping)
    ratios = surrogate_weights(*scored)
    return ratios if clip is None else ratios.clamp(1 - clip[0], 1 + clip[1])


def transform_weights(
    weights: Float[Tensor, " B"] | Float[Tensor, "B T"],
    transform: str | None,
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    mask: Shaped[Tensor, "..."] | None = None,
    per_rollout: bool = False,
) -> Float[Tensor, " B"] | Float[Tensor, "B T"]:
    """Weights w~ of each group: None leaves them, "min_replace" and "advantage_orthogonal" make
    shared tokens cancel.

    per_rollout: a rollout's tokens all have one weight, which is transformed once.  Shapes as in
    `min_replace`. Raises ValueError for an unknown transform and shapes that disagree.

    >>> import torch
    >>> weights, groups = torch.tensor([3.0, 1.0]), torch.tensor([0, 0])
    >>> transform_weights(weights, "min_replace", torch.tensor([1.0, -1.0]), groups).tolist()
    [1.0, 1.0]
    """
    require_one_of("transform", transform, (None, *TRANSFORMS))
    if transform is None:
        return weights
    if per_rollout:  # (B,), a rollout that the mask leaves out wholly is none of its group
        whole = transform_weights(
            weights.amax(dim=1), transform, advantages, group_ids, mask.bool().any(dim=1)
        )
        return whole[:, None] * mask
    active = None if mask is None else mask.bool()
    if transform == "min_replace":
        return min_replace(weights, group_ids, active)
    return advantage_orthogonal(weights, advantages, group_ids, active)


def objective_weights(
    logps: Float[Tensor, "B T"],
    old_logps: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    level: str = "token",
    clip: Clip = None,
    clipping: str = "asymmetric",
    transform: str | None = None,
    transform_on: str = "clamped_ratios",
) -> Float[Tensor, "B T"]:
    """Weight of each token under an objective, before the loss's normalizer; detached, 0 outside
    the mask.

    level, clip, clipping: as in `surrogate_weights`.  transform: None or one of
    TRANSFORMS.  transform_on: what it takes, "clamped_ratios" (inside the clip range) or
    "clipped_weights" (the surrogate's own, 0 where it is clipped).

    Shapes: (B, T), advantages (B,) or (B, T), group_ids (B,); a sequence ratio with one advantage
    per rollout is transformed per rollout, all else position by position. Raises ValueError as the
    two halves do.

    >>> import torch
    >>> now, old, both = torch.tensor([[0.5], [0.0]]), torch.zeros(2, 1), torch.ones(2, 1)
    >>> batch = now, old, both, torch.tensor([1.0, -1.0]), torch.tensor([0, 0])
    >>> objective_weights(*batch, clip=(0.2, 0.2), transform="min_replace").flatten().tolist()
    [1.0, 1.0]
    """
    require_one_of("transform_on", transform_on, TRANSFORM_INPUTS)
    clamp = transform is not None and transform_on == "clamped_ratios"
    weights = ratio_weights(logps, old_logps, mask, advantages, level, clip, clipping, clamp)
    per_rollout = level == "sequence" and advantages.ndim == 1
    return transform_weights(weights, transform, advantages, group_ids, mask, per_rollout)
