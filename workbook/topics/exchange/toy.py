"""Residual of a shared token under every mechanism that breaks cancellation; what a transform mends and costs.

The tables behind chapter 03's explorers, over the groups of `exchange.shared` (arXiv 2604.13088; D1 to D3, D6 and
D7 in the claims).
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from workbook.theory import cancellation_residual
from workbook.topics.exchange.shared import (
    GROUPS,
    TRANSFORMS,
    Draw,
    draw_groups,
    interval,
    residuals,
    shared_weights,
    single_thread,
    transformed,
)

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


@single_thread
def compute_exchange(
    sequence: bool = True,
    clipping: str = "none",
    per_length: bool = False,
    own_embeddings: bool = False,
    masking: bool = False,
    transform: str = "none",
    drift: float = 0.04,
    clip_range: float = 0.2,
    length_spread: float = 0.5,
    angle: float = 60.0,
    masked_share: float = 0.25,
    follows_reward: float = 0.0,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Compute the residual on the shared token under each mechanism alone and under those on, over 200 groups of 8.

    sequence, clipping ("none", "symmetric", "asymmetric"), per_length, own_embeddings, masking: the switches of the
    row "switched on, together".  transform: one of TRANSFORMS, in every row.  The rest are strengths, in every row.

    Returns meter: mechanism, mean, low, high (95 % interval of the mean), silent (share of groups where nothing
    pushes), on, drift;  pushes: rollout, reward, push (of the first mixed group under the switches, along the net push,
    as shares of the group's total size), whose sum is "net".
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
        rows.append({"mechanism": name, **interval(values), "silent": silent, "on": active, "drift": drift})
    return {"meter": pd.DataFrame(rows), "pushes": _pushes(draw, weights, directions)}


def _pushes(draw: Draw, weights: Tensor, directions: Tensor) -> pd.DataFrame:
    """Project the first group's pushes on its net push, as shares of their total size, and their sum."""
    first = draw.group_ids == 0
    pushes = (weights * draw.advantages)[first, None] * directions[first]
    net, total = pushes.sum(0), pushes.norm(dim=1).sum()
    if net.norm() <= 1e-9 * total:  # cancelled: nothing to look along but the directions' common part
        net = torch.eye(len(net), dtype=net.dtype)[0]
    along = pushes @ (net / net.norm()) * (1 if net[0] >= 0 else -1) / torch.where(total > 0, total, 1.0)
    names = [*(str(i + 1) for i in range(len(along))), "net"]
    rewards = ["right" if advantage > 0 else "wrong" for advantage in draw.advantages[first].tolist()]
    return pd.DataFrame({"rollout": names, "push": [*along.tolist(), along.sum().item()], "reward": [*rewards, "net"]})


@single_thread
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
    """Tabulate what each transform does to the shared token, and to the tokens that should move: one of each rollout's.

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


SITUATIONS = {  # settings of `compute_transforms` in which the repairs differ
    "sequence ratios, luck": {},
    "and asymmetric clipping": {"clipping": "asymmetric"},
    "wrong answers are long": {"length_spread": 1.0, "follows_reward": 0.7},
    "few right answers": {"right": 0.1},
}


def repair_costs() -> pd.DataFrame:
    """Tabulate `compute_transforms` in every situation: columns setting, measure, transform, mean, low, high."""
    return pd.concat(
        [compute_transforms(**s).assign(setting=name) for name, s in SITUATIONS.items()], ignore_index=True
    )


def residual_by_mechanism(drift: float = 0.2) -> pd.DataFrame:
    """Tabulate the residual of each mechanism alone under each transform: mechanism, transform, mean, low, high."""
    draw = draw_groups(drift)
    return pd.DataFrame(
        {"mechanism": name, "transform": transform, **interval(residuals(draw, transform, **switches)[0])}
        for name, switches in MECHANISMS.items()
        for transform in TRANSFORMS
    )


def _kept(pushes: Tensor, plain: Tensor, chosen: Tensor) -> Tensor:
    """Push of the chosen rollouts, group by group, as a multiple of the untransformed mean over groups."""
    return (pushes * chosen).sum(1) / (plain * chosen).sum(1).mean().clamp(min=1e-12)
