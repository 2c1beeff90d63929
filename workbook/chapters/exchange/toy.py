"""Groups whose rollouts share one token: draws, weights, directions, and the residual under each
mechanism.

Rollout i begins with the shared token, drawn in one context by the whole group, and goes on with
tokens of its own. The shared token gets the pushes w_i A_i g_i: weight, advantage, gradient
direction. They cancel if the weights and the directions are the same all over the group (arXiv
2604.13088; D1 to D3, D6 and D7 in the claims).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import require_one_of, require_range
from workbook.theory import (
    cancellation_residual,
    group_advantages,
    surrogate_weights,
    update_weights,
)
from workbook.theory.advantages import group_index, group_sum
from workbook.theory.choices import TRANSFORMS_BY_LABEL as TRANSFORMS
from workbook.theory.weights import transform_weights

# groups per setting; tokens, typical and at most; size of a gradient
GROUPS, _LENGTH, _LONGEST, WIDTH = 200, 16, 48, 16
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
SITUATIONS = {  # in which the repairs differ: of `draw_drifted_groups`, and the clipping
    "sequence ratios, luck": ({}, None),
    "and asymmetric clipping": ({}, "asymmetric"),
    "wrong answers are long": ({"length_spread": 1.0, "follows_reward": 0.7}, None),
    "few right answers": ({"right": 0.1}, None),
}


@dataclass(frozen=True)
class Draw:
    """B rollouts in groups: advantages, log-ratios to the policy that sampled, and the tokens that
    they have.
    """

    advantages: Float[Tensor, " B"]
    group_ids: Int[Tensor, " B"]
    log_ratios: Float[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    directions: Float[Tensor, "B W"]  # random unit vectors
    chance: Float[Tensor, " B"]  # uniform, for masking


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread of torch's, for a function that it decorates: more cost small tensors more than
    they save.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def draw_drifted_groups(
    drift: float = 0.2,
    length_spread: float = 0.5,
    follows_reward: float = 0.0,
    group_size: int = 8,
    right: float = 0.5,
    groups: int = GROUPS,
    seed: int = 0,
    common: float = 0.5,
) -> Draw:
    """Draw groups of rollouts with binary rewards (both in each group), drifted ratios and unequal
    lengths.

    log u_it = drift (sqrt(common) z_i + sqrt(1 - common) e_it), z_i common to a rollout's tokens,
    and T_i = 16 exp(length_spread z'_i), cut to 2..48. The shared token, t = 0, stands in one
    context and so has one log-ratio, drift e_g, in all of its group. z and z' are standard normal;
    `follows_reward` = c mixes the reward into them: z = c sign(A) + sqrt(1 - c^2) noise, z' = -c
    sign(A) + ..., so that right answers drift upwards and wrong ones are longer.

    drift, length_spread: standard deviations, >= 0.  follows_reward, common: in [0, 1].  right:
    probability of a right answer. The same seed draws the same noise whatever the other settings.
    """
    require_range(0, math.inf, drift=drift, length_spread=length_spread)
    require_range(0, 1, follows_reward=follows_reward, common=common, right=right)
    require_range(2, math.inf, group_size=group_size)
    generator, rollouts = torch.Generator().manual_seed(seed), groups * group_size
    uniform, normal = (
        partial(draw, generator=generator, dtype=torch.float64)
        for draw in (torch.rand, torch.randn)
    )
    rewards = (uniform(groups, group_size) < right).double()
    rewards[:, 0], rewards[:, 1] = 1.0, 0.0  # a group of equal rewards pushes nothing
    rollout, shared, direction, chance = (
        normal(2, rollouts),
        normal(groups),
        normal(rollouts, WIDTH),
        uniform(rollouts),
    )
    group_ids = torch.arange(groups).repeat_interleave(group_size)
    advantages = group_advantages(rewards.flatten(), group_ids)
    reward, luck = follows_reward * advantages.sign(), math.sqrt(1 - follows_reward**2) * rollout
    whole, single = (
        math.sqrt(common) * (luck[0] + reward)[:, None],
        math.sqrt(1 - common) * normal(rollouts, _LONGEST),
    )
    log_ratios = drift * (whole + single)
    log_ratios[:, 0] = drift * shared.repeat_interleave(group_size)
    lengths = (_LENGTH * (length_spread * (luck[1] - reward)).exp()).round()
    mask = torch.arange(_LONGEST) < lengths.clamp(2, _LONGEST)[:, None]
    return Draw(
        advantages,
        group_ids,
        log_ratios,
        mask,
        torch.nn.functional.normalize(direction, dim=1),
        chance,
    )


def shared_weights(
    draw: Draw,
    level: str = "token",
    clipping: str | None = None,
    clip_range: float = 0.2,
    per_length: bool = False,
    masking: bool = False,
    masked_share: float = 0.25,
) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Compute update weights and mask of the tokens of each rollout: first the shared one, then its
    own.

    level, clipping, per_length: as `update_weights` takes them (per_length: aggregate "grpo", else
    "dr_grpo").
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
        max_completion_length=_LONGEST,
    )
    return weights, mask


def transformed(name: str, weights: Tensor, mask: Tensor, draw: Draw) -> Tensor:
    """Transform weights (B, columns) by one of TRANSFORMS, position by position over the rollouts
    in the mask.

    Below 1e-12 of the largest weight is rounding: it becomes 0, lest a residual be taken of it.
    """
    require_one_of("transform", name, tuple(TRANSFORMS))
    weights = transform_weights(weights, TRANSFORMS[name], draw.advantages, draw.group_ids, mask)
    return weights.masked_fill(weights.abs() <= 1e-12 * weights.abs().max(), 0.0)


def residuals(
    draw: Draw,
    transform: str = "none",
    angle: float = 60.0,
    own_embeddings: bool = False,
    **switches,
):
    """Compute the residual on the shared token of each group, the weights behind it (B,), and their
    pushes (B, W).

        |sum_i w_i A_i g_i| / sum_i |w_i A_i|, 0 where none push        g_i = (sqrt(cos angle), sqrt(1 - cos angle) d_i)

    with random unit d_i, so that E<g_i, g_j> = cos angle.  switches: of
    `shared_weights`.  own_embeddings: gradients `angle` degrees (0 to 90) apart on average instead
    of equal ones.
    """
    require_range(0, 90, angle=angle)
    weights, mask = (columns[:, :1] for columns in shared_weights(draw, **switches))
    cosine = math.cos(math.radians(angle)) if own_embeddings else 1.0
    common = torch.full_like(weights, math.sqrt(cosine))
    directions = torch.cat([common, math.sqrt(1 - cosine) * draw.directions], 1)
    weights = transformed(transform, weights, mask, draw)
    pushes = weights * draw.advantages[:, None] * directions
    index, groups = group_index(draw.group_ids, len(pushes))
    total, net = (
        group_sum(pushes.norm(dim=1), index, groups),
        group_sum(pushes, index, groups).norm(dim=1),
    )
    return (
        torch.where(total > 0, net / torch.where(total > 0, total, 1.0), 0.0).clamp(max=1.0),
        weights[:, 0],
        pushes,
    )


def interval(values: Float[Tensor, "*rows n"]) -> dict[str, float] | dict[str, list[float]]:
    """Mean over the last axis and its normal 95 % interval, as a row or as columns of a table;
    quick, for sliders.
    """
    mean, half = values.mean(-1), 1.96 * values.std(-1) / values.shape[-1] ** 0.5
    return {"mean": mean.tolist(), "low": (mean - half).tolist(), "high": (mean + half).tolist()}


# --- tables


@single_thread()
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
    """Compute the residual on the shared token under each mechanism alone and under those on, over
    200 groups of 8.

    The five switches decide the row "switched on, together"; transform and strengths hold in every row.  Returns meter:
    mechanism, mean, low, high (95 % interval), silent (share of groups where nothing pushes), on;  pushes: rollout,
    reward, push (of the first group, along the net push, as shares of the group's total size), whose sum is "net".
    """
    draw = draw_drifted_groups(drift, length_spread, follows_reward, seed=seed)
    on = {"own_embeddings": own_embeddings, "masking": masking, "per_length": per_length}
    on |= {
        "level": "sequence" if sequence else "token",
        "clipping": None if clipping == "none" else clipping,
    }
    strengths = {
        "transform": transform,
        "clip_range": clip_range,
        "angle": angle,
        "masked_share": masked_share,
    }
    rows = []
    for name, switches in {**MECHANISMS, TOGETHER: on}.items():
        values, weights, pushes = residuals(draw, **strengths, **switches)
        silent = (weights.view(GROUPS, -1) == 0).all(1).double().mean().item()
        active = all(on[key] == value for key, value in switches.items()) and (
            bool(switches) or not sequence
        )
        rows.append({"mechanism": name, **interval(values), "silent": silent, "on": active})
    first = draw.group_ids == 0
    pushes = pushes[first]
    net, total = pushes.sum(0), pushes.norm(dim=1).sum()
    # cancelled: nothing to look along but the directions' common part
    if net.norm() <= 1e-9 * total:
        net = torch.eye(len(net), dtype=net.dtype)[0]
    along = (
        pushes
        @ (net / net.norm())
        * (1 if net[0] >= 0 else -1)
        / torch.where(total > 0, total, 1.0)
    )
    names = [*(str(i + 1) for i in range(len(along))), "net"]
    rewards = [
        "right" if advantage > 0 else "wrong" for advantage in draw.advantages[first].tolist()
    ]
    group = {
        "rollout": names,
        "push": [*along.tolist(), along.sum().item()],
        "reward": [*rewards, "net"],
    }
    return {"meter": pd.DataFrame(rows), "pushes": pd.DataFrame(group)}


@single_thread()
def repair_costs() -> pd.DataFrame:
    """Tabulate what each transform does, in every situation, to the shared token and to the tokens
    that should move.

    Columns setting, measure, transform, mean, low, high (95 % interval over 200 groups). Measures:
    the shared residual; push that right (wrong) answers' own tokens keep, as a multiple of the
    untransformed mean; share of own tokens pushed against their advantage; share of groups whose
    own tokens get no push at all.
    """
    rows = []
    for setting, (drawn, clipping) in SITUATIONS.items():
        draw = draw_drifted_groups(**drawn)
        weights, mask = (
            x[:, :2] for x in shared_weights(draw, "sequence", clipping, per_length=True)
        )
        size, up = draw.advantages.view(GROUPS, -1).abs(), draw.advantages.view(GROUPS, -1) > 0
        plain = weights[:, 1].view(GROUPS, -1) * size
        for transform in TRANSFORMS:
            new = transformed(transform, weights, mask, draw)
            own = new[:, 1].view(GROUPS, -1)
            kept = [
                (own * size * side).sum(1) / (plain * side).sum(1).mean().clamp(min=1e-12)
                for side in (up, ~up)
            ]
            measures = {
                "shared token: residual": cancellation_residual(
                    new[:, 0], draw.advantages, draw.group_ids
                ),
                "right answers' own: push kept": kept[0],
                "wrong answers' own: push kept": kept[1],
                "own tokens pushed the wrong way": (own < 0).double().mean(1),
                "groups silenced": (own == 0).all(1).double(),
            }
            where = {"setting": setting, "transform": transform}
            rows += [
                where | {"measure": name, **interval(values)} for name, values in measures.items()
            ]
    return pd.DataFrame(rows)


def residual_by_mechanism(drift: float = 0.2) -> pd.DataFrame:
    """Tabulate the residual of each mechanism alone under each transform: mechanism, transform,
    mean, low, high.
    """
    draw = draw_drifted_groups(drift)
    return pd.DataFrame(
        {
            "mechanism": name,
            "transform": transform,
            **interval(residuals(draw, transform, **switches)[0]),
        }
        for name, switches in MECHANISMS.items()
        for transform in TRANSFORMS
    )


# --- two rollouts of one prompt, `5 - 6 + 3 =`, word by word

_TEXTS = (
    "start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2",
    "start with 5 ; then 5 - 6 is 8 ; now 8 + 3 is 1 ; so the answer is 1",
)
_RIGHT, _WRONG = (text.split() for text in _TEXTS)
STYLE = ("start", "then", "now", "so")  # free choices of about four words
RESULTS = (9, 16)  # positions of the steps' results
# of a free choice, a result, a wrong one, a sure word
P_STYLE, _P_RIGHT, P_WRONG, P_FORCED = 0.25, 0.6, 0.1, 0.98


def two_rollouts(lr: float = 0.5, steps: int = 1, clip_range: float = 0.2) -> pd.DataFrame:
    """Token table of a right and a wrong rollout after `steps` steps on them: what a step does to
    every word's ratio.

    A tabular policy: each context (the words before) has a softmax of its own over ten words, so
    nothing couples contexts. A step adds lr * sum_i A_i (e_y - p) to a context's logits, all
    weights 1; advantages are +1 and -1.

    Columns group, rollout, position, token, advantage, reward, p (before), ratio (new p over old
    p), weight (of PPO's clipped objective, 1 +- clip_range) and stopped ("clip high", "clip low" or
    "").
    """
    require_range(0, float("inf"), lr=lr, steps=steps, clip_range=clip_range)
    rows = []
    for rollout, words, advantage in (("A", _RIGHT, 1.0), ("B", _WRONG, -1.0)):
        for position, word in enumerate(words):
            # of all rollouts that visit this context, by the word that they draw
            push: dict[str, float] = {}
            for text, sign in ((_RIGHT, 1.0), (_WRONG, -1.0)):
                if text[:position] == words[:position]:
                    push[text[position]] = push.get(text[position], 0.0) + sign
            names, size = list(push), 4 if word in STYLE else 10
            sure = (
                [P_STYLE if word in STYLE else P_FORCED]
                if position not in RESULTS
                else [_P_RIGHT, P_WRONG]
            )
            p, rest = torch.tensor(sure[: len(names)], dtype=torch.float64), size - len(names)
            before = logits = torch.cat([p, ((1 - p.sum()) / rest).repeat(rest)]).log()
            advantages = torch.tensor([*push.values(), *[0.0] * rest], dtype=torch.float64)
            for _ in range(steps):
                logits = logits + lr * (advantages - advantages.sum() * logits.softmax(0))
            old, new = (z.log_softmax(0)[names.index(word)].item() for z in (before, logits))
            # what cancels has a ratio of 1, not 1 + 1e-16
            numbers = round(math.exp(old), 12), round(math.exp(new - old), 12)
            rows.append((0, rollout, position, word, advantage, float(advantage > 0), *numbers))
    table = pd.DataFrame(
        rows, columns=["group", "rollout", "position", "token", "advantage", "reward", "p", "ratio"]
    )
    ratio, advantages = (
        torch.tensor(table[name].to_numpy())[:, None] for name in ("ratio", "advantage")
    )
    columns = ratio.log(), torch.zeros_like(ratio), torch.ones_like(ratio), advantages
    table["weight"] = surrogate_weights(*columns, clip=(clip_range, clip_range))[:, 0].numpy()
    side = (table["ratio"] > 1).map({True: "clip high", False: "clip low"})
    return table.assign(stopped=side.where(table["weight"] == 0, ""))
