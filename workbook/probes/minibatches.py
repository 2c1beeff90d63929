"""Mini-batches of one real batch: what cancels inside their steps, and what the steps are made of.

An update cuts a batch of rollouts into mini-batches and takes a step on each. How it is cut decides
which pushes meet inside one step, and so which can cancel there.

**Inside a step.** The gradient of a mini-batch is the sum of its rollouts' own gradients g_i
(advantage included). So their inner products <g_i, g_j>, measured once, tell for every cut how long
the push of the positives, of the negatives and of both together is.

**Signal, noise and bias.** A mini-batch that was chosen without regard to rewards pushes, on
average over redrawn words, as the whole batch does (`workbook.theory.decomposition`). One of
positive rollouts alone does so as well, up to a factor in each context: for a word y with reward 1
after it with probability Q_y, in a context of value V,

    E[e_y - p | r = 1] = sum_y p_y Q_y / V (e_y - p) = p (Q - V) / V
    E[e_y - p | r = 0] = - p (Q - V) / (1 - V)

**Two ways through a batch.** To first order plain SGD ends where one step on the whole batch ends,
whoever shares a mini-batch: the distance between two ways falls with the square of the learning
rate. Clipping, momentum and Adam part them at the first power.

Letters: B rollouts, T tokens, C contexts, D trained weights, L numbers of a sketch.
"""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbook.messages import InvalidValue, progress
from workbook.policies.models import evaluating, private_copy
from workbook.probes.recovered import PUSH_PARTS, Pushes, check_gains
from workbook.probes.step import update
from workbook.probes.values import TokenValues
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.decomposition import (
    PushParts,
    expected_advantages,
    ideal_pushes,
    realised_pushes,
    split_pushes,
)

# numbers that a longer gradient is sketched by; an inner product is then off by about |g||h| / 2048
SKETCHED = 2**22
_ADVANTAGE_RULE = "grpo"
_MIN_VALUE = 1e-4  # values nearer than this to 0 or 1 count as that far away


# --- what cancels inside a step


def gradient_gram(
    policy, rollouts: Rollouts, chosen: Bool[Tensor, "B T"] | None = None, seed: int = 0
) -> Float[Tensor, "B B"]:
    """Inner products of the rollouts' own policy gradients, over the trainable weights.

        g_i = A_i sum_t grad log pi(y_it)

    chosen: (B, T), the tokens that push; None: all.  Gradients of more than SKETCHED weights are
    multiplied by random signs and added up in as many buckets.  Cost: a forward and a backward pass
    per rollout that pushes.
    """
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    pushing = rollouts.completion_mask.bool()
    if chosen is not None:
        pushing = pushing & chosen
    # a number a rollout is one for each of its tokens
    advantages = rollouts.advantages
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    pushes = (pushing * advantages).to(policy.model.device)  # (B, T)

    sketch = GradientSketch(weights, seed)
    gradients = torch.zeros(len(rollouts), sketch.length)  # a row per rollout
    with torch.enable_grad(), evaluating(policy.model):
        for row in progress(pushes.any(1).nonzero().squeeze(1).tolist(), "gradients"):
            logps = scores(policy.model, rollouts.select([row]).to(policy.model.device))[0]  # (T,)
            objective = (pushes[row] * logps).sum()
            parts = torch.autograd.grad(objective, weights, materialize_grads=True)
            gradients[row] = sketch(parts)
    return gradients @ gradients.T


class GradientSketch:
    """Gradients as rows of SKETCHED numbers or fewer, whose inner products are the gradients'.

    Up to SKETCHED weights a row is the gradient itself; of more, each weight gets a random sign and
    falls into a bucket, whose weights are added up. Inner products then are right on average.

    Attributes: length, of a row.
    """

    def __init__(self, weights: Sequence[Tensor], seed: int = 0):
        self.count = sum(p.numel() for p in weights)
        self.length = min(self.count, SKETCHED)
        self.signs = None
        if self.count > self.length:
            generator = torch.Generator().manual_seed(seed)
            signs = torch.randint(0, 2, (self.count,), generator=generator, dtype=torch.int8)
            self.signs = signs * 2 - 1

    def __call__(self, parts: Iterable[Tensor]) -> Float[Tensor, " L"]:
        """The row of a gradient, given part by part in the order of the weights."""
        row = torch.zeros(self.length)
        start = 0
        for part in parts:
            flat = part.detach().flatten().float().cpu()
            end = start + len(flat)
            if self.signs is None:
                row[start:end] = flat
            else:
                # weight k falls into bucket k modulo the number of buckets
                before = start % self.length
                after = -(before + len(flat)) % self.length
                signed = flat * self.signs[start:end]
                padded = torch.nn.functional.pad(signed, (before, after))
                row += padded.reshape(-1, self.length).sum(0)
            start = end
        return row


def cancelled_in_steps(
    gram: Float[Tensor, "B B"],
    advantages: Float[Tensor, " B"],
    order: Int[Tensor, " B"],
    parts: int,
) -> pd.DataFrame:
    """Cancellation between signs in each of `parts` equal mini-batches of an order, one row each.

    Columns: part, in_step (1 - |g+ + g-| / (|g+| + |g-|), 0 with one sign only; NaN where nothing
    pushes), sign_cosine (of g+ and g-; NaN with one sign only).

    gram: of `gradient_gram`.  Raises ValueError if `parts` does not divide the rollouts.
    """
    if parts < 1 or len(order) % parts:
        raise InvalidValue("parts", parts, f"a divisor of the {len(order)} rollouts")

    def product(rows: Tensor, columns: Tensor) -> float:
        """<sum of some rollouts' gradients, sum of others'>."""
        return float(gram[rows][:, columns].double().sum())

    def length(square: float) -> float:
        """The root, where rounding may have left a square just below 0."""
        return max(square, 0.0) ** 0.5

    rows = []
    for part, members in enumerate(order.reshape(parts, -1)):
        positive = members[advantages[members] > 0]
        negative = members[advantages[members] < 0]
        plus_square = product(positive, positive)
        minus_square = product(negative, negative)
        between = product(positive, negative)

        plus = length(plus_square)
        minus = length(minus_square)
        # |g+ + g-|^2 = |g+|^2 + |g-|^2 + 2 <g+, g->
        net = length(plus_square + minus_square + 2 * between)
        in_step = 1 - net / (plus + minus) if plus + minus > 0 else float("nan")
        cosine = between / (plus * minus) if plus * minus else float("nan")
        rows.append({"part": part, "in_step": in_step, "sign_cosine": cosine})
    return pd.DataFrame(rows)


def sign_shared_words(rollouts: Rollouts) -> Bool[Tensor, "B T"]:
    """Mask of the tokens whose word stands in a positive and a negative rollout of their group."""
    # of all rollouts of the group that have the word, the lowest and the highest advantage
    advantages = rollouts.token_table().groupby(["group", "token_id"])["advantage"]
    both = (advantages.transform("min") < 0) & (advantages.transform("max") > 0)
    alive = rollouts.completion_mask.bool()
    both = torch.tensor(both.to_numpy(), device=alive.device)
    return torch.zeros_like(alive).masked_scatter(alive, both)


# --- signal, noise and bias of a cut's steps


@in_batches
def split_minibatches(
    policy,
    rollouts: Rollouts,
    values: TokenValues,
    cut: tuple[Int[Tensor, " B"], int],
    perfect: Float[Tensor, " D"],
) -> dict[str, float]:
    """Own-prompt shares of signal, bias and noise in a cut's steps, and the steps' mean cosine.

    The shares are of the steps' squared lengths, and add up to 1.

    cut: an order, and the number of mini-batches.  perfect: the exact gradient of all prompts' mean
    expected reward, to which the cosine is taken.  Mini-batches that push nothing are left out.
    """
    order, count = cut
    products = dict.fromkeys(PUSH_PARTS, 0.0)  # <part, step>, summed over the steps
    cosines = []
    for rows in order.chunk(count):
        # groups of equal rewards push nothing, and a step of 0 has no shares
        if not rollouts.advantages[rows].any():
            continue
        with evaluating(policy.model), sdpa_kernel(SDPBackend.MATH):
            pushes = Pushes(policy, rollouts.select(rows), values.select(rows))
            parts = _minibatch_parts(rollouts, pushes)
            directions = pushes.directions([getattr(parts, part) for part in PUSH_PARTS])
        step = sum(directions)  # (D,)
        for part, direction in zip(PUSH_PARTS, directions, strict=True):
            products[part] += float(direction @ step)
        cosines.append(float(torch.nn.functional.cosine_similarity(step, perfect, dim=0)))
    squares = sum(products.values())
    shares = {part: product / squares for part, product in products.items()}
    return {**shares, "cosine": sum(cosines) / len(cosines)}


def _minibatch_parts(rollouts: Rollouts, pushes: Pushes) -> PushParts:
    """Parts of the pushes of a mini-batch, in the contexts that it visits.

    It leaves the ideal pushes on `pushes`. A mini-batch with both signs counts as chosen without
    regard to rewards; one-signed ones have the factors of the module's docstring.
    """
    minibatch = pushes.rollouts
    mask = pushes.mask
    advantages = minibatch.advantages[:, None].expand_as(minibatch.completion_ids)
    realised = realised_pushes(
        advantages[mask] / len(minibatch),
        minibatch.completion_ids[mask],
        pushes.context[mask],
        pushes.probs,
    )
    pushes.ideal = ideal_pushes(pushes.visits, pushes.probs, pushes.q) / len(minibatch)

    # expected advantage of a rollout that earns 1, and of one that earns 0, in each context (C,)
    home = pushes.home // mask.shape[1]
    prompt_value = pushes.values.prompt.to(pushes.probs)
    group_size = check_gains(rollouts, _ADVANTAGE_RULE)
    expected = expected_advantages(_ADVANTAGE_RULE, prompt_value, group_size)
    high, low = (advantage[home] for advantage in expected)

    value = (pushes.probs * pushes.q).sum(1).clamp(_MIN_VALUE, 1 - _MIN_VALUE)  # (C,)
    signs = minibatch.advantages.sign()
    # a one-signed mini-batch was chosen by its rewards
    if (signs >= 0).all() and signs.any():
        gains = high / value
    elif (signs <= 0).all() and signs.any():
        gains = -low / (1 - value)
    else:
        gains = high - low
    return split_pushes(realised, pushes.ideal, gains)


# --- two ways through a batch


def clipped_sgd(params, lr: float, limit: float) -> torch.optim.Optimizer:
    """SGD on gradients whose norm is at most a limit."""

    def clip(*_) -> None:
        torch.nn.utils.clip_grad_norm_(params, limit)

    optimizer = torch.optim.SGD(params, lr)
    optimizer.register_step_pre_hook(clip)
    return optimizer


@in_batches
def minibatch_displacement(
    policy, rollouts: Rollouts, order: Int[Tensor, " B"], parts: int, make: Callable, lr: float
) -> Float[Tensor, " D"]:
    """Displacement of the weights by one optimizer step on each mini-batch of an order.

    A copy takes the steps; the policy stays as it was.

    parts: mini-batches.  make: (parameters, lr) -> optimizer.
    """
    mine = private_copy(policy)
    trained = [p for p in mine.model.parameters() if p.requires_grad]
    optimizer = make(trained, lr)
    start = _flat(trained)
    for rows in order.chunk(parts):
        update(mine, rollouts.select(rows), optimizer)
    return _flat(trained) - start


def _flat(weights: list[Tensor]) -> Float[Tensor, " D"]:
    """The weights' present values, as one vector."""
    return torch.cat([p.detach().flatten() for p in weights])
