"""Groups whose rollouts share one weak-credit token, and every mechanism that keeps its pushes from cancelling.

Rollout i begins with the shared token, drawn in one context by the whole group, and goes on with tokens of its own.
The shared token gets the pushes w_i A_i g_i: weight, advantage, gradient direction. They cancel if the weights and the
directions are the same all over the group (arXiv 2604.13088; D1 to D3, D6 and D7 in the claims).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.theory import advantage_orthogonal, cancellation_residual, group_advantages, min_replace, update_weights
from workbook.theory.groups import group_index, group_sum

GROUPS, LENGTH, LONGEST, WIDTH = 200, 16, 48, 16  # groups per setting; tokens, typical and at most; size of a gradient
TRANSFORMS = ("none", "min-replace", "advantage-orthogonal")
MECHANISMS = {  # what each one changes about an exchangeable group
    "token ratio": {},
    "sequence ratio": {"level": "sequence"},
    "symmetric clipping": {"clipping": "symmetric"},
    "asymmetric clipping": {"clipping": "asymmetric"},
    "1/T per sequence": {"per_length": True},
    "own embeddings": {"own_embeddings": True},
    "position masking": {"masking": True},
}
TOGETHER = "switched on, together"


@dataclass(frozen=True)
class Draw:
    """B rollouts in groups: what they were rewarded, how far their ratios drifted, which tokens they have."""

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
) -> Draw:
    """Groups of rollouts with binary rewards (some right, some wrong in each), drifted ratios and unequal lengths.

    log u_it = drift (z_i + e_it) / sqrt(2), z_i common to a rollout's tokens, and T_i = 16 exp(length_spread z'_i), cut
    to 2..48. The shared token, t = 0, stands in one context and so has one log-ratio, drift e_g, in all of its group.
    z and z' are standard normal; `follows_reward` = c mixes the reward into them: z = c sign(A) + sqrt(1 - c^2) noise,
    z' = -c sign(A) + ..., so that right answers drift upwards and wrong ones are longer.

    drift, length_spread: standard deviations, >= 0.  follows_reward: in [0, 1].  right: probability of a right answer.
    The same seed draws the same noise whatever the other settings.  ValueError for a setting out of range.
    """
    for name, value, low, high in (
        ("drift", drift, 0, math.inf),
        ("length_spread", length_spread, 0, math.inf),
        ("follows_reward", follows_reward, 0, 1),
        ("right", right, 0, 1),
        ("group_size", group_size, 2, math.inf),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name}={value} is out of range: it must lie between {low} and {high}.")
    noise = _noise(groups, group_size, seed)
    rewards = (noise["reward"] < right).double()
    rewards[:, 0], rewards[:, 1] = 1.0, 0.0  # a group of equal rewards pushes nothing
    group_ids = torch.arange(groups).repeat_interleave(group_size)
    advantages = group_advantages(rewards.flatten(), group_ids)
    reward, luck = follows_reward * advantages.sign(), math.sqrt(1 - follows_reward**2) * noise["rollout"]
    log_ratios = drift * ((luck[0] + reward)[:, None] + noise["token"]) / math.sqrt(2)
    log_ratios[:, 0] = drift * noise["shared"].repeat_interleave(group_size)
    lengths = (LENGTH * (length_spread * (luck[1] - reward)).exp()).round()
    mask = torch.arange(LONGEST) < lengths.clamp(2, LONGEST)[:, None]
    return Draw(advantages, group_ids, log_ratios, mask, noise["direction"], noise["chance"])


@lru_cache(maxsize=8)
def _noise(groups: int, group_size: int, seed: int) -> dict[str, Tensor]:
    """All that is random, drawn once: moving a slider does not roll the dice anew."""
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
    """Update weights and mask of the first tokens of each rollout: the shared one, then (columns > 1) its own.

    level, clipping, per_length: as `update_weights` takes them (per_length: aggregate "grpo", else "dr_grpo").
    masking: the shared token is left out of the loss in `masked_share` of the rollouts, at random.
    """
    mask = draw.mask
    if masking:
        mask = mask.clone()
        mask[:, 0] = draw.chance >= masked_share
    weights = update_weights(
        draw.log_ratios,
        torch.zeros_like(draw.log_ratios),
        mask,
        draw.advantages,
        level=level,
        clip=None if clipping is None else (clip_range, clip_range),
        clipping=clipping or "asymmetric",
        aggregate="grpo" if per_length else "dr_grpo",
    )
    return weights[:, :columns], mask[:, :columns]


def transformed(name: str, weights: Tensor, mask: Tensor, draw: Draw) -> Tensor:
    """Weights (B, columns) after one of TRANSFORMS, position by position over the rollouts that the mask has there.

    What is smaller than 1e-12 of the largest weight is rounding and becomes 0, lest a residual be taken of it.
    """
    if name not in TRANSFORMS:
        raise ValueError(f"transform {name!r} is unknown; valid are {', '.join(TRANSFORMS)}.")
    if name == "min-replace":
        weights = min_replace(weights, draw.group_ids, mask)
    if name == "advantage-orthogonal":
        weights = advantage_orthogonal(weights, draw.advantages, draw.group_ids, mask)
    return weights.masked_fill(weights.abs() <= 1e-12 * weights.abs().max(), 0.0)


def directions_at(draw: Draw, angle: float) -> Float[Tensor, "B W"]:
    """Unit gradient directions of the shared token, any two of them `angle` degrees apart on average; 0: all equal.

    g_i = (sqrt(cos angle), sqrt(1 - cos angle) d_i) with random unit d_i, so that E<g_i, g_j> = cos angle.
    """
    if not 0 <= angle <= 90:
        raise ValueError(f"angle={angle} is out of range: it must lie between 0 and 90 degrees.")
    cosine = math.cos(math.radians(angle))
    common = torch.full((len(draw.directions), 1), math.sqrt(cosine), dtype=torch.float64)
    return torch.cat([common, math.sqrt(1 - cosine) * draw.directions], 1)


def vector_residual(
    weights: Float[Tensor, " B"],
    advantages: Float[Tensor, " B"],
    directions: Float[Tensor, "B W"],
    group_ids: Int[Tensor, " B"],
) -> Float[Tensor, " groups"]:
    """cancellation_residual for gradients that differ: |sum_i w_i A_i g_i| / sum_i |w_i A_i| |g_i|, 0 where none push.

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


def residuals(draw: Draw, transform: str = "none", angle: float = 60.0, own_embeddings: bool = False, **switches):
    """Residual on the shared token of each group, the weights behind it (B,), and the directions (B, W).

    switches: of `shared_weights`.  own_embeddings: gradients `angle` degrees apart instead of equal ones.
    """
    weights, mask = shared_weights(draw, **switches)
    weights = transformed(transform, weights, mask, draw)[:, 0]
    directions = directions_at(draw, angle if own_embeddings else 0.0)
    if own_embeddings:
        return vector_residual(weights, draw.advantages, directions, draw.group_ids), weights, directions
    return cancellation_residual(weights, draw.advantages, draw.group_ids), weights, directions


def compute_exchange(
    sequence: bool = True,
    clipping: str = "none",
    per_length: bool = False,
    own_embeddings: bool = False,
    masking: bool = False,
    transform: str = "none",
    drift: float = 0.2,
    clip_range: float = 0.2,
    length_spread: float = 0.5,
    angle: float = 60.0,
    masked_share: float = 0.25,
    follows_reward: float = 0.0,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Residual on the shared token under each mechanism alone and under those switched on, over 200 groups of 8.

    sequence, clipping ("none", "symmetric", "asymmetric"), per_length, own_embeddings, masking: the switches of the
    row "switched on, together".  transform: one of TRANSFORMS, in every row.  The rest are strengths, in every row.

    Returns meter: mechanism, mean, low, high (95 % interval of the mean), silent (share of groups where nothing
    pushes), on;  pushes: rollout, reward, push (of the first mixed group under the switches, along the net push, as
    shares of the group's total size), whose sum is "net".
    """
    draw = draw_groups(drift, length_spread, follows_reward, seed=seed)
    on = {"own_embeddings": own_embeddings, "masking": masking, "per_length": per_length}
    on |= {"level": "sequence" if sequence else "token", "clipping": None if clipping == "none" else clipping}
    strengths = {"transform": transform, "clip_range": clip_range, "angle": angle, "masked_share": masked_share}
    rows = []
    for name, switches in {**MECHANISMS, TOGETHER: on}.items():
        values, weights, directions = residuals(draw, **strengths, **switches)
        silent = (weights.view(GROUPS, -1) == 0).all(1).double().mean().item()
        active = all(on[key] == value for key, value in switches.items()) and (bool(switches) or not sequence)
        rows.append({"mechanism": name, **interval(values), "silent": silent, "on": active})
    return {"meter": pd.DataFrame(rows), "pushes": _pushes(draw, weights, directions)}


def interval(values: Float[Tensor, " groups"]) -> dict[str, float]:
    """Mean over groups and its 95 % interval, 1.96 standard errors each way: quick enough for a slider."""
    mean, reach = values.mean().item(), 1.96 * (values.std() / math.sqrt(len(values))).item()
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def _pushes(draw: Draw, weights: Tensor, directions: Tensor) -> pd.DataFrame:
    """The first group's pushes along its net push, as shares of their total size, and their sum."""
    first = draw.group_ids == 0
    pushes = (weights * draw.advantages)[first, None] * directions[first]
    net, total = pushes.sum(0), pushes.norm(dim=1).sum()
    if net.norm() <= 1e-9 * total:  # cancelled: nothing to look along but the directions' common part
        net = torch.eye(len(net), dtype=net.dtype)[0]
    along = pushes @ (net / net.norm()) * (1 if net[0] >= 0 else -1) / torch.where(total > 0, total, 1.0)
    right = draw.advantages[first] > 0
    table = pd.DataFrame({"rollout": [f"{i + 1}" for i in range(len(along))], "push": along.numpy()})
    table["reward"] = ["right" if r else "wrong" for r in right.tolist()]
    return pd.concat(
        [table, pd.DataFrame([{"rollout": "net", "push": along.sum().item(), "reward": "net"}])], ignore_index=True
    )


def compute_transforms(
    level: str = "sequence",
    clipping: str = "none",
    clip_range: float = 0.2,
    per_length: bool = True,
    drift: float = 0.2,
    length_spread: float = 0.5,
    follows_reward: float = 0.0,
    right: float = 0.5,
    group_size: int = 8,
    seed: int = 0,
) -> pd.DataFrame:
    """What each of TRANSFORMS does to the shared token, and to the tokens that should move: one token of each
    rollout's own.

    Columns measure, transform, mean, low, high (95 % interval over 200 groups). Measures: residual of the shared token;
    push that right (wrong) answers' own tokens keep, as a multiple of the untransformed mean; share of own tokens
    pushed against their advantage; share of groups whose own tokens get no push at all.
    """
    draw = draw_groups(drift, length_spread, follows_reward, group_size, right, seed=seed)
    clipping = None if clipping == "none" else clipping
    weights, mask = shared_weights(draw, level, clipping, clip_range, per_length, columns=2)
    grid, up = draw.advantages.view(GROUPS, -1), draw.advantages.view(GROUPS, -1) > 0
    plain = weights[:, 1].view(GROUPS, -1) * grid.abs()
    rows = []
    for name in TRANSFORMS:
        new = transformed(name, weights, mask, draw)
        own = new[:, 1].view(GROUPS, -1)
        measures = {
            "shared token: residual": cancellation_residual(new[:, 0], draw.advantages, draw.group_ids),
            "right answers' own: push kept": _kept(own * grid.abs(), plain, up),
            "wrong answers' own: push kept": _kept(own * grid.abs(), plain, ~up),
            "own tokens pushed the wrong way": (own < 0).double().mean(1),
            "groups silenced": (own == 0).all(1).double(),
        }
        rows += [{"measure": m, "transform": name, **interval(values)} for m, values in measures.items()]
    return pd.DataFrame(rows)


def _kept(pushes: Tensor, plain: Tensor, chosen: Tensor) -> Tensor:
    """Push of the chosen rollouts, group by group, as a multiple of the untransformed mean over groups."""
    return (pushes * chosen).sum(1) / (plain * chosen).sum(1).mean().clamp(min=1e-12)
