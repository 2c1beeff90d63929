"""Update weights: the coefficient of advantage x grad log pi that each token gets, and ways to let
groups cancel again.

Sign convention: the objective J is maximised and dJ/d logp_it = w_it A_it. So the gradient of a
loss = -J with respect to logp is -(weights * advantages). Weights are constants: every result is
detached.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

from .advantages import active, group_extreme, group_index, group_sum
from .choices import AGGREGATES, CLIPPINGS, LEVELS


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

    - level "token": u_it = exp(logp_it - old_logp_it)                       PPO, GRPO (arXiv 2402.03300, eq. 3)
    - level "sequence": u_it = s_i = exp(mean_t (logp_it - old_logp_it))     GSPO (arXiv 2507.18071, eq. 7)

    clip = (low, high) bounds u to [1 - low, 1 + high], None leaves it free. With clipping
    "asymmetric" the surrogate is PPO's min(uA, clip(u)A), which stops the gradient only above the
    range for A > 0 and below it for A < 0; with "symmetric" it is clip(u)A, which stops it on both
    sides whatever the sign (arXiv 2604.13088, D3 in the claims).

    Shapes: all (B, T), advantages (B,) or (B, T); result (B, T), 0 outside the mask. Advantages
    matter only through their sign, and per-token advantages at sequence level give GSPO-token's
    gradient (its section 4.3).

    Raises ValueError for shapes that disagree, an unknown level or clipping, or a clip that is not
    two numbers >= 0.

    >>> old = torch.zeros(2, 1)
    >>> new = torch.full((2, 1), 0.5)
    >>> surrogate_weights(new, old, torch.ones(2, 1), torch.tensor([1.0, -1.0]), clip=(0.2, 0.2)).flatten().tolist()
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
    advantages = _like(advantages, logps, "advantages")
    log_ratio = torch.where(alive, logps.detach() - old_logps.detach(), 0.0)
    if level == "sequence":
        log_ratio = (log_ratio.sum(1, keepdim=True) / _lengths(alive, logps.dtype)).expand_as(logps)
    ratio = log_ratio.exp()
    stopped = ~alive
    if clip is not None:
        low, high = _bounds(clip)
        below, above = ratio < low, ratio > high
        if clipping == "asymmetric":
            below, above = below & (advantages < 0), above & (advantages > 0)
        stopped = stopped | below | above
    return ratio.masked_fill(stopped, 0.0)


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
    """Weight of each token in the whole objective, as autograd gives it: surrogate_weights times
    the normalizer.

    dJ/d logp_it = w_it A_it with w_it = surrogate weight times, by `aggregate` (TRL's loss types of
    the same names):

    - grpo: 1 / (B T_i), the mean over rollouts of the mean over each one's T_i tokens    (arXiv 2402.03300, eq. 3)
    - dapo: 1 / sum_i T_i, the mean over tokens                                           (arXiv 2503.14476, eq. 8)
    - dr_grpo: 1 / (B max_completion_length), a constant; None takes T                    (arXiv 2503.20783)

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
    lengths = _lengths(mask.bool(), weights.dtype)
    if aggregate == "grpo":
        return weights / (rollouts * lengths)
    if aggregate == "dapo":
        return weights / mask.bool().sum().clamp(min=1)
    return weights / (rollouts * (max_completion_length or max(width, 1)))


def min_replace(
    weights: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    mask: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, " B"] | Float[Tensor, "B T"]:
    """Give every rollout the smallest weight of its group, so that shared tokens cancel again.

    w~_i = min over the group of w_j (arXiv 2604.13088, eq. 17; D6 in the claims), detached. For (B,
    T) weights it is done at each position over the group's rollouts that the mask has there: our
    reading for token-level ratios.

    Shapes: weights (B,) or (B, T), mask like weights (None: all), group_ids (B,); result like
    weights, 0 outside the mask. Raises ValueError for shapes that disagree.

    >>> min_replace(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0, 0, 1])).tolist()
    [1.0, 1.0, 2.0]
    """
    alive = active(mask, weights, "weights")
    index, groups = group_index(group_ids, len(weights))
    filled = weights.detach().masked_fill(~alive, torch.inf)
    return group_extreme(filled, index, groups, "amin")[index].masked_fill(~alive, 0.0)


def advantage_orthogonal(
    weights: Float[Tensor, " B"] | Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
    mask: Shaped[Tensor, "..."] | None = None,
) -> Float[Tensor, " B"] | Float[Tensor, "B T"]:
    """Project each group's weights off its advantages, so that sum_i w~_i A_i = 0 in the group.

    w~ = w - (A'w / |A|^2) A (arXiv 2604.13088, eq. 18; D7 in the claims), detached; a neutral group
    keeps its weights. For (B, T) weights it is done at each position over the group's rollouts that
    the mask has there: our reading for token-level ratios. A position where one rollout alone
    remains then gets weight 0: nothing is left to cancel it.

    Shapes: weights (B,) or (B, T), advantages (B,) or like weights, mask like weights (None: all),
    group_ids (B,); result like weights, 0 outside the mask. Raises ValueError for shapes that
    disagree.

    >>> advantage_orthogonal(torch.tensor([3.0, 1.0]), torch.tensor([1.0, -1.0]), torch.tensor([0, 0])).tolist()
    [2.0, 2.0]
    """
    alive = active(mask, weights, "weights")
    index, groups = group_index(group_ids, len(weights))
    weights = weights.detach().masked_fill(~alive, 0.0)
    direction = _like(advantages, weights, "advantages").masked_fill(~alive, 0.0)
    scale = group_extreme(direction.abs(), index, groups, "amax")[index]
    # the projection does not see it; squares cannot vanish
    direction = direction / torch.where(scale > 0, scale, 1.0)
    overlap = group_sum(weights * direction, index, groups) / group_sum(
        direction.square(), index, groups
    ).clamp(min=1)
    return weights - overlap[index] * direction


def cancellation_residual(
    weights: Float[Tensor, " B"] | Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
    group_ids: Shaped[Tensor, " B"],
) -> Float[Tensor, " groups"] | Float[Tensor, "groups T"]:
    """Residual of a group's update on a token that all its rollouts share: 0 cancels, 1 adds up.

    residual_g = |sum_i w_i A_i| / sum_i |w_i A_i| over the rollouts of g, and 0 where nothing
    pushes (a neutral group): the normalized form of condition D1 (arXiv 2604.13088).

    Shapes: weights (B,), advantages (B,), group_ids (B,); result (groups,), sorted by label; (B, T)
    weights give (groups, T), a residual at each position. No unit. Raises ValueError for shapes
    that disagree.

    >>> equal, unequal = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 3.0])
    >>> [float(cancellation_residual(w, torch.tensor([1.0, -1.0]), torch.tensor([4, 4]))) for w in (equal, unequal)]
    [0.0, 0.5]
    """
    index, groups = group_index(group_ids, len(weights))
    pushes = weights.detach() * _like(advantages, weights, "advantages")
    total = group_sum(pushes.abs(), index, groups)
    net = group_sum(pushes, index, groups).abs()
    return torch.where(total > 0, net / torch.where(total > 0, total, 1.0), 0.0).clamp(max=1.0)


def _like(values: Tensor, weights: Tensor, name: str) -> Tensor:
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
    """Tokens of each rollout (B, 1), at least 1 as in TRL, so that an empty completion divides by
    nothing.
    """
    return alive.sum(1, keepdim=True).clamp(min=1).to(dtype)


def _bounds(clip: tuple[float, float]) -> tuple[float, float]:
    if len(clip) != 2 or not all(0 <= side < float("inf") for side in clip):
        raise InvalidValue("clip", clip, "None or two numbers (low, high) >= 0, as in (0.2, 0.28)")
    return 1 - clip[0], 1 + clip[1]
