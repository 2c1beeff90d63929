"""Steps on one real batch, for any cut: what cancels inside them, what they are made of, how far
two ways lie apart.

The gradient of a mini-batch is the sum of its rollouts' own gradients g_i (advantage included), so
the inner products <g_i, g_j> tell, for every cut, how long the push of the positives, of the
negatives and of both together is.

A mini-batch that was chosen without regard to rewards pushes, on average over redrawn words, as the
whole batch does (`workbook.theory.decomposition`). One of positive rollouts alone does so as well,
up to a factor in each context: for a word y with reward 1 after it with probability Q_y, in a
context of value V,

    E[e_y - p | r = 1] = sum_y p_y Q_y / V (e_y - p) = p (Q - V) / V            r = 0: - p (Q - V) / (1 - V)

To first order plain SGD ends where one step on the whole batch ends, whoever shares a mini-batch:
the distance between two ways falls with the square of the learning rate. Clipping, momentum and
Adam part them at the first power.
"""

from collections.abc import Callable

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbook.messages import InvalidValue, progress
from workbook.policies.models import evaluating, private_copy
from workbook.probes.recovered import PARTS, Pushes, check_gains
from workbook.probes.step import update
from workbook.probes.values import TokenValues
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import Rollouts
from workbook.theory.decomposition import (
    PushParts,
    expected_advantages,
    ideal_pushes,
    realised_pushes,
    split_pushes,
)

# numbers kept of a longer gradient; an inner product is then off by about |g||h| / 2048
SKETCHED = 2**22
RULE = "grpo"
EDGE = 1e-4  # values nearer than this to 0 or 1 count as that far away


# --- what cancels inside a step


def gradient_gram(
    policy, rollouts: Rollouts, chosen: Bool[Tensor, "B T"] | None = None, seed: int = 0
) -> Float[Tensor, "B B"]:
    """Inner products of the rollouts' own policy gradients, g_i = A_i sum_t grad log pi(y_it), over
    trainable weights.

    chosen: (B, T), the tokens that push; None: all.  Gradients of more than SKETCHED weights are
    multiplied by random signs and added up in as many buckets.  Cost: a forward and a backward pass
    per rollout that pushes.
    """
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in weights)
    kept, generator = min(size, SKETCHED), torch.Generator().manual_seed(seed)
    signs = (
        torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8) * 2 - 1
        if size > kept
        else None
    )
    pushing = (
        rollouts.completion_mask.bool()
        if chosen is None
        else rollouts.completion_mask.bool() & chosen
    )
    advantages = (
        rollouts.advantages if rollouts.advantages.dim() == 2 else rollouts.advantages[:, None]
    )
    pushes = (pushing * advantages).to(policy.model.device)
    own = torch.zeros(len(rollouts), kept)  # (B, kept): a row per rollout, its own gradient
    with torch.enable_grad(), evaluating(policy.model):
        for row in progress(pushes.any(1).nonzero().squeeze(1).tolist(), "gradients"):
            scored = scores(policy.model, rollouts.select([row]).to(policy.model.device))
            grads = torch.autograd.grad(
                (pushes[row] * scored[0]).sum(), weights, materialize_grads=True
            )
            gradient = torch.cat([g.flatten().float().cpu() for g in grads])
            if signs is not None:
                gradient = (
                    torch.nn.functional.pad(gradient * signs, (0, -size % kept))
                    .reshape(-1, kept)
                    .sum(0)
                )
            own[row] = gradient
    return own @ own.T


def cancelled_in_steps(
    gram: Float[Tensor, "B B"],
    advantages: Float[Tensor, " B"],
    order: Int[Tensor, " B"],
    parts: int,
) -> pd.DataFrame:
    """Cancellation between signs in each of `parts` equal mini-batches of an order, one row each.

    Columns: part, in_step (1 - |g+ + g-| / (|g+| + |g-|), 0 with one sign only; NaN where nothing
    pushes), sign_cosine (of g+ and g-; NaN with one sign only).  Raises ValueError if `parts` does
    not divide the rollouts.
    """
    if parts < 1 or len(order) % parts:
        raise InvalidValue("parts", parts, f"a divisor of the {len(order)} rollouts")
    rows = []
    for part, members in enumerate(order.reshape(parts, -1)):
        positive, negative = members[advantages[members] > 0], members[advantages[members] < 0]
        pairs = ((positive, positive), (negative, negative), (positive, negative))
        plus, minus, both = (float(gram[a][:, b].double().sum()) for a, b in pairs)
        net, plus, minus = (
            max(squared, 0.0) ** 0.5 for squared in (plus + minus + 2 * both, plus, minus)
        )
        in_step = 1 - net / (plus + minus) if plus + minus > 0 else float("nan")
        cosine = both / (plus * minus) if plus * minus else float("nan")
        rows.append({"part": part, "in_step": in_step, "sign_cosine": cosine})
    return pd.DataFrame(rows)


def shared_words(rollouts: Rollouts) -> Bool[Tensor, "B T"]:
    """True at tokens whose word occurs both in a positive and in a negative rollout of their group."""
    signs = rollouts.token_table().groupby(["group", "token_id"])["advantage"]
    both, alive = (
        (signs.transform("min") < 0) & (signs.transform("max") > 0),
        rollouts.completion_mask.bool(),
    )
    return torch.zeros_like(alive).masked_scatter(
        alive, torch.tensor(both.to_numpy(), device=alive.device)
    )


# --- signal, noise and bias of a cut's steps


def split_minibatches(
    policy,
    rollouts: Rollouts,
    values: TokenValues,
    cut: tuple[Int[Tensor, " B"], int],
    perfect: Float[Tensor, " D"],
) -> dict[str, float]:
    """Own-prompt shares of signal, bias and noise in the squared length of a cut's steps, and their
    mean cosine.

    cut: an order, and the number of mini-batches.  perfect: the exact gradient of all prompts' mean
    expected reward, to which the cosine is taken.  Mini-batches that push nothing are left out.
    """
    sums, cosines = dict.fromkeys(PARTS, 0.0), []
    for rows in (rows for rows in cut[0].chunk(cut[1]) if rollouts.advantages[rows].any()):
        with evaluating(policy.model), sdpa_kernel(SDPBackend.MATH):
            pushes = Pushes(policy, rollouts.select(rows), values.select(rows))
            parts = _minibatch_parts(rollouts, pushes)
            directions = pushes.directions([getattr(parts, part) for part in PARTS])
        step = sum(directions)
        for part, direction in zip(PARTS, directions, strict=True):
            sums[part] += float(direction @ step)
        cosines.append(float(torch.nn.functional.cosine_similarity(step, perfect, dim=0)))
    total = sum(sums.values())
    return {part: share / total for part, share in sums.items()} | {
        "cosine": sum(cosines) / len(cosines)
    }


def _minibatch_parts(rollouts: Rollouts, pushes: Pushes) -> PushParts:
    """Parts of the pushes of a mini-batch, in the contexts that it visits; also leaves the ideal
    ones on `pushes`.

    One with both signs counts as chosen without regard to rewards; one-signed ones have the factors
    of the module's docstring.
    """
    part, mask = pushes.rollouts, pushes.mask
    advantages = part.advantages[:, None].expand_as(part.completion_ids)[mask] / len(part)
    realised = realised_pushes(
        advantages, part.completion_ids[mask], pushes.context[mask], pushes.probs
    )
    pushes.ideal = ideal_pushes(pushes.visits, pushes.probs, pushes.q) / len(part)
    home = pushes.home // mask.shape[1]  # (C,) the rollout of each context
    expected = expected_advantages(
        RULE, pushes.values.prompt.to(pushes.probs), check_gains(rollouts, RULE)
    )
    high, low = (a[home] for a in expected)
    value = (pushes.probs * pushes.q).sum(1).clamp(EDGE, 1 - EDGE)
    signs = part.advantages.sign()
    gains = high - low
    if (signs >= 0).all() and signs.any():
        gains = high / value
    elif (signs <= 0).all() and signs.any():
        gains = -low / (1 - value)
    return split_pushes(realised, pushes.ideal, gains)


# --- two ways through a batch


def clipped_sgd(params, lr: float, limit: float) -> torch.optim.Optimizer:
    """SGD on gradients whose norm is at most a limit."""

    def clip(*_) -> None:
        torch.nn.utils.clip_grad_norm_(params, limit)

    optimizer = torch.optim.SGD(params, lr)
    optimizer.register_step_pre_hook(clip)
    return optimizer


def walk(
    policy, batch: Rollouts, order: Tensor, parts: int, make: Callable, lr: float
) -> Float[Tensor, " D"]:
    """How far the weights go by one optimizer step on each mini-batch of an order.

    make: parameters, lr -> optimizer.
    """
    mine = private_copy(policy)
    trained = [p for p in mine.model.parameters() if p.requires_grad]
    start, optimizer = torch.cat([p.detach().flatten() for p in trained]), make(trained, lr)
    for rows in order.chunk(parts):
        update(mine, batch.select(rows), optimizer)
    return torch.cat([p.detach().flatten() for p in trained]) - start
