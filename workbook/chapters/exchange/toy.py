"""Groups whose rollouts share one token, and what each mechanism leaves of its pushes.

Every rollout of a group begins with the same token, drawn in the same context, and goes on with
tokens of its own. Rollout i pushes the shared token by

    w_i A_i g_i        weight, advantage, gradient direction

The advantages of a group sum to 0. So the pushes cancel if weights and directions are the same in
the whole group: one right answer (+1.5) and three wrong ones (-.5 each) push by 1.5 - .5 - .5 - .5
= 0. With weights 1.2, 1, 1, 1 they push by 1.8 - 1.5 = .3, which is a residual of .3 / 3.3 = 9 %.
What makes weights or directions unequal is a mechanism: sequence ratios, clipping, 1/T, embeddings,
masks. Source: arXiv 2604.13088 (D1 to D3, D6 and D7 in the claims).

B rollouts in all groups, T tokens, W width of a gradient direction.
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

GROUPS = 200  # of a setting
_LENGTH = 16  # tokens of a typical rollout
_LONGEST = 48  # tokens of a rollout, at most
_GRADIENT_WIDTH = 16
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
# in which the repairs differ: settings of `draw_drifted_groups`, and the clipping
SITUATIONS = {
    "sequence ratios, luck": ({}, None),
    "and asymmetric clipping": ({}, "asymmetric"),
    "wrong answers are long": ({"length_spread": 1.0, "follows_reward": 0.7}, None),
    "few right answers": ({"right": 0.1}, None),
}


@dataclass(frozen=True)
class Draw:
    """B rollouts in groups: advantages, log-ratios to the sampling policy, and a mask of tokens."""

    advantages: Float[Tensor, " B"]
    group_ids: Int[Tensor, " B"]
    log_ratios: Float[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    directions: Float[Tensor, "B W"]  # random unit vectors
    chance: Float[Tensor, " B"]  # uniform, for masking


@contextmanager
def single_thread() -> Iterator[None]:
    """Keep torch on one thread inside: on small tensors more threads cost more than they save."""
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
    """Draw groups with binary rewards (both in each group), drifted ratios and unequal lengths.

        log u_it = drift (sqrt(common) z_i + sqrt(1 - common) e_it)
        T_i = 16 exp(length_spread z'_i)

    z_i is common to a rollout's tokens, and T_i is cut to 2..48. The shared token, t = 0, stands in
    one context and so has one log-ratio, drift e_g, in all of its group. z and z' are standard
    normal; follows_reward = c mixes the reward into them:

        z = c sign(A) + sqrt(1 - c^2) noise        z' = -c sign(A) + sqrt(1 - c^2) noise

    so that right answers drift upwards and wrong ones are longer. The same seed draws the same
    noise whatever the other settings.

    drift, length_spread: standard deviations, >= 0.
    follows_reward, common: in [0, 1].
    right: probability of a right answer.
    """
    require_range(0, math.inf, drift=drift, length_spread=length_spread)
    require_range(0, 1, follows_reward=follows_reward, common=common, right=right)
    require_range(2, math.inf, group_size=group_size)
    generator = torch.Generator().manual_seed(seed)
    uniform = partial(torch.rand, generator=generator, dtype=torch.float64)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    rollouts = groups * group_size

    # a group of equal rewards pushes nothing: each group gets one right and one wrong answer
    rewards = (uniform(groups, group_size) < right).double()
    rewards[:, 0] = 1.0
    rewards[:, 1] = 0.0
    group_ids = torch.arange(groups).repeat_interleave(group_size)
    advantages = group_advantages(rewards.flatten(), group_ids)

    # all noise is drawn in one order, so that settings do not change it
    rollout_noise = normal(2, rollouts)  # of the drift, of the length
    shared_noise = normal(groups)
    directions = torch.nn.functional.normalize(normal(rollouts, _GRADIENT_WIDTH), dim=1)
    chance = uniform(rollouts)
    token_noise = normal(rollouts, _LONGEST)

    # luck and reward, mixed: z is for the drift, z' for the length
    by_reward = follows_reward * advantages.sign()
    by_luck = math.sqrt(1 - follows_reward**2) * rollout_noise
    z_drift = by_luck[0] + by_reward
    z_length = by_luck[1] - by_reward

    # (B, T): the first column is the shared token's
    of_rollout = math.sqrt(common) * z_drift[:, None]
    of_token = math.sqrt(1 - common) * token_noise
    log_ratios = drift * (of_rollout + of_token)
    log_ratios[:, 0] = drift * shared_noise.repeat_interleave(group_size)

    lengths = (_LENGTH * (length_spread * z_length).exp()).round().clamp(2, _LONGEST)
    mask = torch.arange(_LONGEST) < lengths[:, None]
    return Draw(advantages, group_ids, log_ratios, mask, directions, chance)


def shared_weights(
    draw: Draw,
    level: str = "token",
    clipping: str | None = None,
    clip_range: float = 0.2,
    per_length: bool = False,
    masking: bool = False,
    masked_share: float = 0.25,
) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Compute update weights and mask (B, T): column 0 is the shared token.

    level, clipping: as `update_weights` takes them.
    per_length: aggregate "grpo", which divides by a rollout's length, else "dr_grpo".
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
    """Transform weights (B, columns) by one of TRANSFORMS, position by position inside the mask."""
    require_one_of("transform", name, tuple(TRANSFORMS))
    weights = transform_weights(weights, TRANSFORMS[name], draw.advantages, draw.group_ids, mask)
    # what lies below 1e-12 of the largest weight is rounding, and rounding has no residual
    return weights.masked_fill(weights.abs() <= 1e-12 * weights.abs().max(), 0.0)


def residuals(
    draw: Draw,
    transform: str = "none",
    angle: float = 60.0,
    own_embeddings: bool = False,
    **switches,
):
    """Compute the residual on each group's shared token, its weights (B,) and its pushes (B, W).

        residual = |sum_i w_i A_i g_i| / sum_i |w_i A_i|, 0 where none push
        g_i = (sqrt(cos angle), sqrt(1 - cos angle) d_i)

    The unit vectors d_i are random, so that E<g_i, g_j> = cos angle.

    own_embeddings: gradients `angle` degrees (0 to 90) apart on average instead of equal ones.
    switches: of `shared_weights`.
    """
    require_range(0, 90, angle=angle)
    all_weights, all_mask = shared_weights(draw, **switches)
    # (B, 1): the shared token alone
    weights = transformed(transform, all_weights[:, :1], all_mask[:, :1], draw)

    # (B, W): a common part of length sqrt(cos), and one of each rollout's own
    cosine = math.cos(math.radians(angle)) if own_embeddings else 1.0
    common = torch.full_like(weights, math.sqrt(cosine))
    directions = torch.cat([common, math.sqrt(1 - cosine) * draw.directions], 1)
    pushes = weights * draw.advantages[:, None] * directions

    # the length of the sum over the sum of lengths, group by group
    index, groups = group_index(draw.group_ids, len(pushes))
    total = group_sum(pushes.norm(dim=1), index, groups)
    net = group_sum(pushes, index, groups).norm(dim=1)
    ratio = torch.where(total > 0, net / torch.where(total > 0, total, 1.0), 0.0)
    return ratio.clamp(max=1.0), weights[:, 0], pushes


def interval(values: Float[Tensor, "*rows n"]) -> dict[str, float] | dict[str, list[float]]:
    """Mean over the last axis and its normal 95 % interval, as a row or as columns of a table.

    It is quick enough for a slider, which a bootstrap is not.
    """
    mean = values.mean(-1)
    half = 1.96 * values.std(-1) / values.shape[-1] ** 0.5
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
    """Compute the residual under each mechanism alone and under those on, in 200 groups of 8.

    The five switches decide the row "switched on, together"; transform and strengths hold in every
    row.

    Returns two tables:
        meter: mechanism, mean, low, high (95 % interval), silent (share of groups where nothing
            pushes), on (whether it is among the switches)
        pushes: rollout, reward and push of the first group, along the net push, as shares of the
            group's total size; the last row is their sum, "net"
    """
    draw = draw_drifted_groups(drift, length_spread, follows_reward, seed=seed)
    on = {
        "own_embeddings": own_embeddings,
        "masking": masking,
        "per_length": per_length,
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
        is_on = all(on[key] == value for key, value in switches.items())
        # the token ratio switches nothing: it is on where the sequence ratio is off
        if not switches:
            is_on = not sequence
        rows.append({"mechanism": name, **interval(values), "silent": silent, "on": is_on})

    # the last pushes are those of the switches together
    first = draw.group_ids == 0
    group = _along_net_push(pushes[first], draw.advantages[first])
    return {"meter": pd.DataFrame(rows), "pushes": group}


def _along_net_push(pushes: Float[Tensor, "G W"], advantages: Float[Tensor, " G"]) -> pd.DataFrame:
    """Pushes of one group along their sum, as shares of their total size, and that sum."""
    net = pushes.sum(0)
    total = pushes.norm(dim=1).sum()
    # where all cancels, the directions' common part stands in for the net push
    if net.norm() <= 1e-9 * total:
        net = torch.eye(len(net), dtype=net.dtype)[0]

    # upwards is where the common part is pushed up
    sign = 1 if net[0] >= 0 else -1
    along = pushes @ (net / net.norm()) * sign / torch.where(total > 0, total, 1.0)
    rewards = ["right" if advantage > 0 else "wrong" for advantage in advantages.tolist()]
    return pd.DataFrame(
        {
            "rollout": [*(str(i + 1) for i in range(len(along))), "net"],
            "push": [*along.tolist(), along.sum().item()],
            "reward": [*rewards, "net"],
        }
    )


@single_thread()
def repair_costs() -> pd.DataFrame:
    """Tabulate what each transform does to the shared token and to tokens that should move.

    Columns setting, measure, transform, mean, low, high (95 % interval over 200 groups). Measures:
        shared token: residual
        right (wrong) answers' own: push kept, as a multiple of the untransformed mean
        own tokens pushed the wrong way: the share pushed against their advantage
        groups silenced: the share of groups whose own tokens get no push at all
    """
    rows = []
    for setting, (drawn, clipping) in SITUATIONS.items():
        draw = draw_drifted_groups(**drawn)
        # (B, 2): the shared token and the first own one
        all_weights, all_mask = shared_weights(draw, "sequence", clipping, per_length=True)
        weights, mask = all_weights[:, :2], all_mask[:, :2]

        # (groups, G)
        advantages = draw.advantages.view(GROUPS, -1)
        size = advantages.abs()
        right = advantages > 0
        plain = weights[:, 1].view(GROUPS, -1) * size
        for transform in TRANSFORMS:
            changed = transformed(transform, weights, mask, draw)
            own = changed[:, 1].view(GROUPS, -1)
            shared = cancellation_residual(changed[:, 0], draw.advantages, draw.group_ids)
            measures = {
                "shared token: residual": shared,
                "right answers' own: push kept": _push_kept(own * size, plain, right),
                "wrong answers' own: push kept": _push_kept(own * size, plain, ~right),
                "own tokens pushed the wrong way": (own < 0).double().mean(1),
                "groups silenced": (own == 0).all(1).double(),
            }
            for name, values in measures.items():
                row = {"setting": setting, "transform": transform, "measure": name}
                rows.append({**row, **interval(values)})
    return pd.DataFrame(rows)


def _push_kept(
    push: Float[Tensor, "N G"], plain: Float[Tensor, "N G"], side: Bool[Tensor, "N G"]
) -> Float[Tensor, " N"]:
    """Each group's push on one side, as a multiple of the plain push's mean over the groups."""
    mean = (plain * side).sum(1).mean()
    return (push * side).sum(1) / mean.clamp(min=1e-12)


def residual_by_mechanism(drift: float = 0.2) -> pd.DataFrame:
    """Tabulate the residual of each mechanism alone under each transform.

    Columns mechanism, transform, mean, low, high.
    """
    draw = draw_drifted_groups(drift)
    rows = []
    for name, switches in MECHANISMS.items():
        for transform in TRANSFORMS:
            values, _, _ = residuals(draw, transform, **switches)
            rows.append({"mechanism": name, "transform": transform, **interval(values)})
    return pd.DataFrame(rows)


# --- two rollouts of one prompt, `5 - 6 + 3 =`, word by word

_TEXTS = (
    "start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2",
    "start with 5 ; then 5 - 6 is 8 ; now 8 + 3 is 1 ; so the answer is 1",
)
_RIGHT, _WRONG = (text.split() for text in _TEXTS)
_SIGNS = ((_RIGHT, 1.0), (_WRONG, -1.0))  # the advantages of both rollouts
STYLE = ("start", "then", "now", "so")  # free choices of about four words
RESULTS = (9, 16)  # positions of the steps' results
# probabilities: of a free choice, of a right and of a wrong result, of a word that is nearly sure
P_STYLE = 0.25
_P_RIGHT = 0.6
P_WRONG = 0.1
P_FORCED = 0.98


def two_rollouts(lr: float = 0.5, steps: int = 1, clip_range: float = 0.2) -> pd.DataFrame:
    """Token table of a right and a wrong rollout after `steps` steps on them: every word's ratio.

    A tabular policy: each context (the words before) has a softmax of its own over ten words (four
    at a free choice), so nothing couples contexts. A step adds to a context's logits

        lr sum_i A_i (e_y - p)

    with all weights 1 and advantages of +1 and -1.

    Columns group, rollout, position, token, advantage, reward, p (before), ratio (new p over old
    p), weight (of PPO's clipped objective, 1 +- clip_range) and stopped ("clip high", "clip low" or
    "").
    """
    require_range(0, float("inf"), lr=lr, steps=steps, clip_range=clip_range)
    rows = []
    for rollout, (words, advantage) in zip("AB", _SIGNS, strict=True):
        for position, word in enumerate(words):
            p, ratio = _step_in_context(words, position, lr, steps)
            rows.append((0, rollout, position, word, advantage, float(advantage > 0), p, ratio))
    table = pd.DataFrame(
        rows, columns=["group", "rollout", "position", "token", "advantage", "reward", "p", "ratio"]
    )

    # every word as a rollout of one token, (B, 1)
    ratio = torch.tensor(table["ratio"].to_numpy())[:, None]
    advantages = torch.tensor(table["advantage"].to_numpy())[:, None]
    weights = surrogate_weights(
        ratio.log(),
        torch.zeros_like(ratio),
        torch.ones_like(ratio),
        advantages,
        clip=(clip_range, clip_range),
    )
    table["weight"] = weights[:, 0].numpy()

    # the clip stops a word by setting its weight to 0
    side = (table["ratio"] > 1).map({True: "clip high", False: "clip low"})
    return table.assign(stopped=side.where(table["weight"] == 0, ""))


def _step_in_context(words: list[str], position: int, lr: float, steps: int) -> tuple[float, float]:
    """Probability of the word at a position, and its ratio after steps on both rollouts."""
    word = words[position]
    # the net advantage of each word drawn here, over the rollouts that come through this context
    push: dict[str, float] = {}
    for text, advantage in _SIGNS:
        if text[:position] == words[:position]:
            push[text[position]] = push.get(text[position], 0.0) + advantage
    drawn = list(push)

    if position in RESULTS:
        chances = [_P_RIGHT, P_WRONG]
    elif word in STYLE:
        chances = [P_STYLE]
    else:
        chances = [P_FORCED]

    # words that no rollout drew share the rest evenly
    p = torch.tensor(chances[: len(drawn)], dtype=torch.float64)
    rest = (4 if word in STYLE else 10) - len(drawn)
    before = torch.cat([p, ((1 - p.sum()) / rest).repeat(rest)]).log()
    advantages = torch.tensor([*push.values(), *[0.0] * rest], dtype=torch.float64)

    logits = before
    for _ in range(steps):
        logits = logits + lr * (advantages - advantages.sum() * logits.softmax(0))
    old = before.log_softmax(0)[drawn.index(word)].item()
    new = logits.log_softmax(0)[drawn.index(word)].item()
    # what cancels has a ratio of 1, not 1 + 1e-16
    return round(math.exp(old), 12), round(math.exp(new - old), 12)
