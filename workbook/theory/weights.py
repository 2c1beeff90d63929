"""Update weights: the coefficient of advantage times score that each token gets from an objective.

Every objective of the GRPO family is, for one step, a weighted sum of log-probabilities,

    J = sum_it w_it A_it log pi_it,      so that      dJ/d logp_it = w_it A_it

with A the advantage of a rollout (or of a token) and w what the rest of the objective makes of it:
ratios, clipping, the loss's normalizer. On a token that all rollouts of a group share, the pushes
add up to sum_i w_i A_i times one score. Advantages sum to 0 in the group, so equal weights cancel
there, and unequal ones do not: that is why it pays to look at w alone. In order,

    u    ratios to the policy that sampled, per token or per sequence
    w    u, but 0 where the surrogate is clipped           `surrogate_weights`
    w~   w after a transform that lets the group cancel    `objective_weights`
    w/N  w over the normalizer of the loss                 `update_weights`

Two functions go the whole way from log-probabilities, each to an end of its own. `update_weights`
goes u -> w -> w/N: with the normalizer, without a transform. `objective_weights` goes
u -> w -> w~: with a transform, without the normalizer, which its caller divides by. The trainer
puts a sampler's correction between w and w~, so the halves of `objective_weights` stand alone, too:
`ratio_weights` and `transform_weights`. `cancellation_residual` says what weights leave
uncancelled.

J is maximised: the gradient of a loss = -J by logp is -(w A). Weights are constants: every result
is detached.

Letters: B rollouts, T completion tokens, n groups.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

from .advantages import active, group_extreme, group_index, group_sum
from .choices import AGGREGATES, CLIPPINGS, LEVELS, TRANSFORM_INPUTS, TRANSFORMS

# -- ratios and clipping: w


def surrogate_weights(
    logps: Float[Tensor, "B T"],
    old_logps: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    level: str = "token",
    clip: tuple[float, float] | None = None,
    clipping: str = "asymmetric",
) -> Float[Tensor, "B T"]:
    """Weight of each token in the clipped surrogate, before the loss's normalizer.

    w_it = u_it where the surrogate is not clipped, else 0, with the ratio

    - level "token": u_it = exp(logp_it - old_logp_it)
      (PPO; GRPO, arXiv 2402.03300, eq. 3)
    - level "sequence": u_it = s_i = exp(mean_t (logp_it - old_logp_it))
      (GSPO, arXiv 2507.18071, eq. 7)

    clip = (low, high) bounds u to [1 - low, 1 + high], None leaves it free. With clipping
    "asymmetric" the surrogate is PPO's min(uA, clip(u)A), which stops the gradient only above the
    range for A > 0 and below it for A < 0; with "symmetric" it is clip(u)A, which stops it on both
    sides whatever the sign (arXiv 2604.13088, D3 in the claims).

    Shapes: all (B, T), advantages (B,) or (B, T); result (B, T), 0 outside the mask. Advantages
    matter only through their sign, and per-token advantages at sequence level give GSPO-token's
    gradient (its section 4.3).

    Raises ValueError for shapes that disagree, an unknown level or clipping, or a clip that is not
    two numbers >= 0.

    >>> old, new, mask = torch.zeros(2, 1), torch.full((2, 1), 0.5), torch.ones(2, 1)
    >>> advantages = torch.tensor([1.0, -1.0])
    >>> surrogate_weights(new, old, mask, advantages, clip=(0.2, 0.2)).flatten().tolist()
    [0.0, 1.6487212181091309]
    """
    require_one_of("level", level, LEVELS)
    require_one_of("clipping", clipping, CLIPPINGS)
    if logps.ndim != 2 or old_logps.shape != logps.shape:
        raise InvalidValue(
            "old_logps.shape",
            tuple(old_logps.shape),
            f"that of logps, {tuple(logps.shape)}, and (B, T)",
        )
    alive = active(mask, logps, "logps")
    advantages = _shaped_like(logps, advantages, "advantages")  # (B, 1) or (B, T)

    # the importance ratio of each token, or of its whole sequence
    log_ratio = torch.where(alive, logps.detach() - old_logps.detach(), 0.0)
    if level == "sequence":
        mean = log_ratio.sum(1, keepdim=True) / _lengths(alive, logps.dtype)  # (B, 1)
        log_ratio = mean.expand_as(logps)
    ratio = log_ratio.exp()

    # a clipped surrogate is constant in logp, so its gradient is 0
    stopped = ~alive
    if clip is not None:
        low, high = _clip_range(clip)
        below = ratio < low
        above = ratio > high
        if clipping == "asymmetric":
            # PPO stops only a ratio that has gone as far as its advantage pushes it
            below = below & (advantages < 0)
            above = above & (advantages > 0)
        stopped = stopped | below | above
    return ratio.masked_fill(stopped, 0.0)


def ratio_weights(
    logps: Float[Tensor, "B T"],
    old_logps: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    level: str = "token",
    clip: tuple[float, float] | None = None,
    clipping: str = "asymmetric",
    clamp: bool = False,
) -> Float[Tensor, "B T"]:
    """Weights w of the clipped surrogate, or with `clamp` ratios held inside the clip range.

    clamp: a transform may take ratios that are held inside the range, where the surrogate would
    have weight 0 outside of it.

    Shapes, other arguments and errors as in `surrogate_weights`; 0 outside the mask.
    """
    if not clamp:
        return surrogate_weights(logps, old_logps, mask, advantages, level, clip, clipping)
    ratios = surrogate_weights(logps, old_logps, mask, advantages, level)
    if clip is None:
        return ratios
    low, high = _clip_range(clip)
    # the clamp would lift the zeros outside the mask to `low`
    return ratios.clamp(low, high).masked_fill(~active(mask, logps, "logps"), 0.0)


# -- the normalizer of the loss: w/N


def update_weights(
    logps: Float[Tensor, "B T"],
    old_logps: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    level: str = "token",
    clip: tuple[float, float] | None = None,
    clipping: str = "asymmetric",
    aggregate: str = "grpo",
    max_completion_length: int | None = None,
) -> Float[Tensor, "B T"]:
    """Weight w/N of each token in an objective without a transform, as autograd gives it.

    dJ/d logp_it = w_it A_it with w_it the surrogate weight times, by `aggregate` (TRL's loss types
    of the same names; "grpo" here is a normalizer, no matter which estimator made the advantages):

    - grpo: 1 / (B T_i), the mean over rollouts of the mean over each one's T_i tokens
      (arXiv 2402.03300, eq. 3)
    - dapo: 1 / sum_i T_i, the mean over tokens (arXiv 2503.14476, eq. 8)
    - dr_grpo: 1 / (B max_completion_length), a constant; None takes T (arXiv 2503.20783)

    For weights with a transform, which stop before the normalizer, see `objective_weights`.

    Shapes and errors as in surrogate_weights; ValueError also for an unknown aggregate or a length
    below 1.

    >>> logps = torch.zeros(2, 2)
    >>> mask = torch.tensor([[1, 1], [1, 0]])
    >>> update_weights(logps, logps, mask, torch.tensor([1.0, -1.0])).tolist()
    [[0.25, 0.25], [0.5, 0.0]]
    """
    require_one_of("aggregate", aggregate, AGGREGATES)
    if max_completion_length is not None and max_completion_length < 1:
        raise InvalidValue("max_completion_length", max_completion_length, "at least 1")
    weights = surrogate_weights(logps, old_logps, mask, advantages, level, clip, clipping)
    rollouts, width = logps.shape
    if aggregate == "grpo":
        # each token of a long rollout counts less than one of a short rollout
        return weights / (rollouts * _lengths(mask.bool(), weights.dtype))
    if aggregate == "dapo":
        return weights / mask.bool().sum().clamp(min=1)
    # a completion of no tokens at all is as wide as one
    length = max_completion_length or max(width, 1)
    return weights / (rollouts * length)


# -- transforms that let a group cancel again: w~


def min_replace(
    weights: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    mask: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, " B"] | Float[Tensor, "B T"]:
    """Give every rollout the smallest weight of its group, so that shared tokens cancel again.

        w~_i = min over the group of w_j        (arXiv 2604.13088, eq. 17; D6 in the claims)

    For (B, T) weights it is done at each position over the group's rollouts that the mask has
    there: our reading for token-level ratios.

    Shapes: weights (B,) or (B, T), mask like weights (None: all), group_ids (B,); result like
    weights, detached, 0 outside the mask. Raises ValueError for shapes that disagree.

    >>> min_replace(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 0, 1])).tolist()
    [1.0, 1.0, 2.0]
    """
    alive = active(mask, weights, "weights")
    index, groups = group_index(group_ids, len(weights))
    # rollouts that have ended here take no part in the minimum
    masked = weights.detach().masked_fill(~alive, torch.inf)
    smallest = group_extreme(masked, index, groups, "amin")  # (n,) or (n, T)
    return smallest[index].masked_fill(~alive, 0.0)


def advantage_orthogonal(
    weights: Float[Tensor, " B"] | Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    mask: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, " B"] | Float[Tensor, "B T"]:
    """Project each group's weights off its advantages, so that sum_i w~_i A_i = 0 in the group.

        w~ = w - (A'w / |A|^2) A        (arXiv 2604.13088, eq. 18; D7 in the claims)

    A neutral group keeps its weights. For (B, T) weights it is done at each position over the
    group's rollouts that the mask has there: our reading for token-level ratios. A position where
    one rollout alone remains then gets weight 0: nothing is left to cancel it.

    Shapes: weights (B,) or (B, T), advantages (B,) or like weights, mask like weights (None: all),
    group_ids (B,); result like weights, detached, 0 outside the mask. Raises ValueError for shapes
    that disagree.

    >>> weights, advantages = torch.tensor([3.0, 1.0]), torch.tensor([1.0, -1.0])
    >>> advantage_orthogonal(weights, advantages, torch.tensor([0, 0])).tolist()
    [2.0, 2.0]
    """
    alive = active(mask, weights, "weights")
    index, groups = group_index(group_ids, len(weights))
    weights = weights.detach().masked_fill(~alive, 0.0)
    direction = _shaped_like(weights, advantages, "advantages").masked_fill(~alive, 0.0)

    # the projection depends on the direction alone; at length about 1 its squares cannot vanish
    scale = group_extreme(direction.abs(), index, groups, "amax")[index]
    direction = direction / torch.where(scale > 0, scale, 1.0)

    # (n,) or (n, T): A'w / |A|^2, whose divisor is at least 1 but in a neutral group
    along = group_sum(weights * direction, index, groups)
    length2 = group_sum(direction.square(), index, groups).clamp(min=1)
    return weights - (along / length2)[index] * direction


def transform_weights(
    weights: Float[Tensor, " B"] | Float[Tensor, "B T"],
    transform: str | None,
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    mask: Shaped[Tensor, "..."] | None = None,
    per_rollout: bool = False,
) -> Float[Tensor, " B"] | Float[Tensor, "B T"]:
    """Apply a transform by its name: weights w~ with which shared tokens of a group cancel.

    transform: None leaves the weights, else "min_replace" or "advantage_orthogonal".
    per_rollout: all tokens of a rollout have one weight, which is transformed once.

    Shapes as in `min_replace`. Raises ValueError for an unknown transform and shapes that disagree.

    >>> weights, groups = torch.tensor([3.0, 1.0]), torch.tensor([0, 0])
    >>> transform_weights(weights, "min_replace", torch.tensor([1.0, -1.0]), groups).tolist()
    [1.0, 1.0]
    """
    require_one_of("transform", transform, (None, *TRANSFORMS))
    if transform is None:
        return weights
    if per_rollout:
        # all unmasked weights of a rollout are equal and >= 0; amax finds one beside masked zeros
        weight = weights.amax(dim=1)  # (B,)
        # a rollout without a token in the mask does not belong to its group
        alive = mask.bool().any(dim=1)
        transformed = transform_weights(weight, transform, advantages, group_ids, alive)
        return transformed[:, None] * mask
    alive = None if mask is None else mask.bool()
    if transform == "min_replace":
        return min_replace(weights, group_ids, alive)
    return advantage_orthogonal(weights, advantages, group_ids, alive)


def objective_weights(
    logps: Float[Tensor, "B T"],
    old_logps: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    level: str = "token",
    clip: tuple[float, float] | None = None,
    clipping: str = "asymmetric",
    transform: str | None = None,
    transform_on: str = "clamped_ratios",
) -> Float[Tensor, "B T"]:
    """Weight w~ of each token under an objective with a transform, before the loss's normalizer.

    For weights with the normalizer, which know no transform, see `update_weights`.

    level, clip, clipping: as in `surrogate_weights`.
    transform: None or one of TRANSFORMS.
    transform_on: what the transform takes, "clamped_ratios" (held inside the clip range) or
    "clipped_weights" (the surrogate's own, 0 where it is clipped).

    Shapes: (B, T), advantages (B,) or (B, T), group_ids (B,); result (B, T), detached, 0 outside
    the mask. A sequence ratio with one advantage per rollout is transformed per rollout, all else
    position by position. Raises ValueError as `ratio_weights` and `transform_weights` do.

    >>> now, old, mask = torch.tensor([[0.5], [0.0]]), torch.zeros(2, 1), torch.ones(2, 1)
    >>> batch = now, old, mask, torch.tensor([1.0, -1.0]), torch.tensor([0, 0])
    >>> objective_weights(*batch, clip=(0.2, 0.2), transform="min_replace").flatten().tolist()
    [1.0, 1.0]
    """
    require_one_of("transform_on", transform_on, TRANSFORM_INPUTS)
    clamp = transform is not None and transform_on == "clamped_ratios"
    weights = ratio_weights(logps, old_logps, mask, advantages, level, clip, clipping, clamp)
    per_rollout = level == "sequence" and advantages.ndim == 1
    return transform_weights(weights, transform, advantages, group_ids, mask, per_rollout)


# -- what weights leave uncancelled


def cancellation_residual(
    weights: Float[Tensor, " B"] | Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
) -> Float[Tensor, " groups"] | Float[Tensor, "groups T"]:
    """Residual of a group's update on a token that all its rollouts share: 0 cancels, 1 adds up.

        residual_g = |sum_i w_i A_i| / sum_i |w_i A_i|        over the rollouts i of g

    and 0 where nothing pushes (a neutral group): the normalized form of condition D1 (arXiv
    2604.13088).

    Shapes: weights (B,), advantages (B,), group_ids (B,); result (groups,), sorted by label; (B, T)
    weights give (groups, T), a residual at each position. No unit. Raises ValueError for shapes
    that disagree.

    >>> advantages, groups = torch.tensor([1.0, -1.0]), torch.tensor([4, 4])
    >>> cancellation_residual(torch.tensor([1.0, 1.0]), advantages, groups).item()
    0.0
    >>> cancellation_residual(torch.tensor([1.0, 3.0]), advantages, groups).item()
    0.5
    """
    index, groups = group_index(group_ids, len(weights))
    pushes = weights.detach() * _shaped_like(weights, advantages, "advantages")
    net = group_sum(pushes, index, groups).abs()  # (n,) or (n, T)
    total = group_sum(pushes.abs(), index, groups)
    residual = net / torch.where(total > 0, total, 1.0)
    # rounding may leave 1 + 1e-7
    return torch.where(total > 0, residual, 0.0).clamp(max=1.0)


def _shaped_like(weights: Tensor, values: Tensor, name: str) -> Tensor:
    """(B,) or (B, T) values, detached and shaped to broadcast against weights."""
    if values.shape not in (weights.shape, weights.shape[:1]):
        raise InvalidValue(
            f"{name}.shape",
            tuple(values.shape),
            f"{tuple(weights.shape[:1])} or {tuple(weights.shape)}",
        )
    values = values.detach().to(weights.dtype)
    return values.unsqueeze(1) if values.ndim < weights.ndim else values


def _lengths(alive: Tensor, dtype: torch.dtype) -> Tensor:
    """Tokens of each rollout (B, 1), at least 1 as in TRL: an empty completion divides by 1."""
    return alive.sum(1, keepdim=True).clamp(min=1).to(dtype)


def _clip_range(clip: tuple[float, float]) -> tuple[float, float]:
    """The bounds 1 - low and 1 + high of the ratio."""
    if len(clip) != 2 or not all(0 <= side < float("inf") for side in clip):
        raise InvalidValue("clip", clip, "None or two numbers (low, high) >= 0, as in (0.2, 0.28)")
    low, high = clip
    return 1 - low, 1 + high
