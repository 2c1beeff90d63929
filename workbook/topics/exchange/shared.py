"""Groups whose rollouts share one weak-credit token: their draws, their weights, and the residual on that token.

Rollout i begins with the shared token, drawn in one context by the whole group, and goes on with tokens of its own.
The shared token gets the pushes w_i A_i g_i: weight, advantage, gradient direction. They cancel if the weights and the
directions are the same all over the group (arXiv 2604.13088; D1 to D3, D6 and D7 in the claims).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.statistics import normal_interval
from workbook.theory import cancellation_residual, group_advantages, update_weights
from workbook.theory.choices import TRANSFORMS_BY_LABEL as TRANSFORMS
from workbook.theory.choices import check_choice, check_range
from workbook.theory.groups import group_index, group_sum
from workbook.theory.objective import transform_weights

GROUPS, LENGTH, LONGEST, WIDTH = 200, 16, 48, 16  # groups per setting; tokens, typical and at most; size of a gradient


@dataclass(frozen=True)
class Draw:
    """B rollouts in groups: advantages, log-ratios to the policy that sampled, and the tokens that they have."""

    advantages: Float[Tensor, " B"]
    group_ids: Int[Tensor, " B"]
    log_ratios: Float[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    directions: Float[Tensor, "B W"]  # random unit vectors
    chance: Float[Tensor, " B"]  # uniform, for masking


def draw_groups(
    drift: float = 0.2,
    length_spread: float = 0.5,
    follows_reward: float = 0.0,
    group_size: int = 8,
    right: float = 0.5,
    groups: int = GROUPS,
    seed: int = 0,
    common: float = 0.5,
) -> Draw:
    """Draw groups of rollouts with binary rewards (both in each group), drifted ratios and unequal lengths.

    log u_it = drift (sqrt(common) z_i + sqrt(1 - common) e_it), z_i common to a rollout's tokens, and T_i =
    16 exp(length_spread z'_i), cut to 2..48. The shared token, t = 0, stands in one context and so has one log-ratio,
    drift e_g, in all of its group.
    z and z' are standard normal; `follows_reward` = c mixes the reward into them: z = c sign(A) + sqrt(1 - c^2) noise,
    z' = -c sign(A) + ..., so that right answers drift upwards and wrong ones are longer.

    drift, length_spread: standard deviations, >= 0.  follows_reward, common: in [0, 1].  right: probability of
    a right answer. The same seed draws the same noise whatever the other settings.

    Raises ValueError for a setting out of range.
    """
    check_range(0, math.inf, drift=drift, length_spread=length_spread)
    check_range(0, 1, follows_reward=follows_reward, common=common, right=right)
    check_range(2, math.inf, group_size=group_size)
    noise = _noise(groups, group_size, seed)
    rewards = (noise["reward"] < right).double()
    rewards[:, 0], rewards[:, 1] = 1.0, 0.0  # a group of equal rewards pushes nothing
    group_ids = torch.arange(groups).repeat_interleave(group_size)
    advantages = group_advantages(rewards.flatten(), group_ids)
    reward, luck = follows_reward * advantages.sign(), math.sqrt(1 - follows_reward**2) * noise["rollout"]
    whole, single = math.sqrt(common) * (luck[0] + reward)[:, None], math.sqrt(1 - common) * noise["token"]
    log_ratios = drift * (whole + single)
    log_ratios[:, 0] = drift * noise["shared"].repeat_interleave(group_size)
    lengths = (LENGTH * (length_spread * (luck[1] - reward)).exp()).round()
    mask = torch.arange(LONGEST) < lengths.clamp(2, LONGEST)[:, None]
    return Draw(advantages, group_ids, log_ratios, mask, noise["direction"], noise["chance"])


@lru_cache(maxsize=8)
def _noise(groups: int, group_size: int, seed: int) -> dict[str, Tensor]:
    """Draw all that is random, once for all settings of the sliders."""
    generator, rollouts = torch.Generator().manual_seed(seed), groups * group_size

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return {
        "reward": torch.rand((groups, group_size), generator=generator, dtype=torch.float64),
        "rollout": normal(2, rollouts),
        "shared": normal(groups),
        "direction": torch.nn.functional.normalize(normal(rollouts, WIDTH), dim=1),
        "chance": torch.rand(rollouts, generator=generator, dtype=torch.float64),
        "token": normal(rollouts, LONGEST),
    }


def shared_weights(
    draw: Draw,
    level: str = "token",
    clipping: str | None = None,
    clip_range: float = 0.2,
    per_length: bool = False,
    masking: bool = False,
    masked_share: float = 0.25,
    columns: int = 1,
) -> tuple[Float[Tensor, "B columns"], Bool[Tensor, "B columns"]]:
    """Compute update weights and mask of the first tokens of each rollout: the shared one, then (columns > 1) its own.

    level, clipping, per_length: as `update_weights` takes them (per_length: aggregate "grpo", else "dr_grpo").
    masking: the shared token is left out of the loss in `masked_share` of the rollouts, at random.
    """
    mask = draw.mask
    if masking:
        mask = mask.clone()
        mask[:, 0] = draw.chance >= masked_share
    wide = LONGEST if level == "sequence" or per_length else columns  # nothing else looks at the rest of a rollout
    log_ratios = draw.log_ratios[:, :wide]
    weights = update_weights(
        log_ratios,
        torch.zeros_like(log_ratios),
        mask[:, :wide],
        draw.advantages,
        level=level,
        clip=None if clipping is None else (clip_range, clip_range),
        clipping=clipping or "asymmetric",
        aggregate="grpo" if per_length else "dr_grpo",
        max_completion_length=LONGEST,
    )
    return weights[:, :columns], mask[:, :columns]


def transformed(name: str, weights: Tensor, mask: Tensor, draw: Draw) -> Tensor:
    """Transform weights (B, columns) by one of TRANSFORMS, position by position over the rollouts in the mask.

    Below 1e-12 of the largest weight is rounding: it becomes 0, lest a residual be taken of it.
    """
    check_choice("transform", name, tuple(TRANSFORMS))
    weights = transform_weights(weights, TRANSFORMS[name], draw.advantages, draw.group_ids, mask)
    return weights.masked_fill(weights.abs() <= 1e-12 * weights.abs().max(), 0.0)


def directions_at(draw: Draw, angle: float) -> Float[Tensor, "B W"]:
    """Draw unit gradient directions of the shared token, any two `angle` degrees apart on average; 0: all equal.

    g_i = (sqrt(cos angle), sqrt(1 - cos angle) d_i) with random unit d_i, so that E<g_i, g_j> = cos angle.
    """
    check_range(0, 90, angle=angle)
    cosine = math.cos(math.radians(angle))
    common = torch.full((len(draw.directions), 1), math.sqrt(cosine), dtype=torch.float64)
    return torch.cat([common, math.sqrt(1 - cosine) * draw.directions], 1)


def vector_residual(
    weights: Float[Tensor, " B"],
    advantages: Float[Tensor, " B"],
    directions: Float[Tensor, "B W"],
    group_ids: Int[Tensor, " B"],
) -> Float[Tensor, " groups"]:
    """Residual of gradients that differ: |sum_i w_i A_i g_i| / sum_i |w_i A_i| |g_i|, 0 where none push.

    >>> opposite, same = torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0], [1.0]])
    >>> one, sign, group = torch.ones(2), torch.tensor([1.0, -1.0]), torch.zeros(2)
    >>> [vector_residual(one, sign, g, group).item() for g in (opposite, same)]
    [1.0, 0.0]
    """
    index, groups = group_index(group_ids, len(weights))
    pushes = (weights * advantages)[:, None] * directions
    total = group_sum(pushes.norm(dim=1), index, groups)
    net = group_sum(pushes, index, groups).norm(dim=1)
    return torch.where(total > 0, net / torch.where(total > 0, total, 1.0), 0.0).clamp(max=1.0)


def norm_imbalance(
    weights: Float[Tensor, " B"],
    advantages: Float[Tensor, " B"],
    directions: Float[Tensor, "B W"],
    group_ids: Int[Tensor, " B"],
) -> Float[Tensor, " groups"]:
    """Imbalance in size of the gradients of positive and of negative rollouts: ||P| - |N|| / (|P| + |N|).

    P (N) = sum of w_i A_i g_i over the rollouts with A_i > 0 (< 0); 0 where none push. It equals the residual where all
    directions are the same, and never exceeds |P + N| / (|P| + |N|), since it does not look at directions.

    >>> across = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> norm_imbalance(torch.ones(2), torch.tensor([1.0, -1.0]), across, torch.zeros(2)).item()
    0.0
    """
    index, groups = group_index(group_ids, len(weights))
    pushes = (weights * advantages)[:, None] * directions
    sides = [group_sum(pushes * side[:, None], index, groups).norm(dim=1) for side in (advantages > 0, advantages < 0)]
    total = sides[0] + sides[1]
    return torch.where(total > 0, (sides[0] - sides[1]).abs() / torch.where(total > 0, total, 1.0), 0.0)


def residuals(draw: Draw, transform: str = "none", angle: float = 60.0, own_embeddings: bool = False, **switches):
    """Compute the residual on the shared token of each group, the weights behind it (B,), and the directions (B, W).

    switches: of `shared_weights`.  own_embeddings: gradients `angle` degrees apart instead of equal ones.
    """
    weights, mask = shared_weights(draw, **switches)
    weights = transformed(transform, weights, mask, draw)[:, 0]
    directions = directions_at(draw, angle if own_embeddings else 0.0)
    if own_embeddings:
        return vector_residual(weights, draw.advantages, directions, draw.group_ids), weights, directions
    return cancellation_residual(weights, draw.advantages, draw.group_ids), weights, directions


def interval(values: Float[Tensor, " groups"]) -> dict[str, float]:
    """Mean over groups and its normal 95 % interval, as columns of a table."""
    return {name: float(value) for name, value in normal_interval(values)._asdict().items()}


def single_thread(function: Callable) -> Callable:
    """Run `function` with one thread of torch's: more of them cost a slider's small tensors more than they save.

    >>> before = torch.get_num_threads()
    >>> single_thread(torch.get_num_threads)(), torch.get_num_threads() == before
    (1, True)
    """

    @wraps(function)
    def wrapped(*args, **kwargs):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return wrapped
