"""THE training loop: sample, score, compare, step.

A language model answers each of a few questions several times. A reward says how good every answer
is, and no more: not which of its words made it good. So the answers to one question are compared
with one another. What lies above their mean gets a positive *advantage*, what lies below a negative
one. Then one step of an optimizer makes every word of the better answers more probable and every
word of the worse ones less, and the model, a little better, answers the next questions. That is all
of GRPO. Words that good and bad answers share are pushed both ways, and the pushes cancel; what is
left lies on the words in which they differ.

    config = LoopConfig(prompts=8, group_size=8, batches=20, lr=1e-3)
    table = train(policy, get_task("chain"), config, seed=0)

Each step raises, by its gradient,

    J = 1 / (B L)  sum over rollouts i and their tokens t of  w_it A_it log pi(token t of i)

    A    advantage, of the rollout or of the token: `theory.advantages`, or a credit rule
    w    weight of the token: 1 on fresh rollouts; ratios, clips, transforms: `theory.weights`
    L    max_new_tokens: a token of a long answer weighs as much as one of a short answer

With `dr_grpo` advantages that is TRL's loss type "dr_grpo" without gradient clipping, and on the
same rollouts it takes the steps of `training.trainer.CancellationTrainer`. Everything happens in
this process, on one policy; six batches of 256 rollouts of a small one take some four seconds.

Letters: B rollouts, of a generation batch or of a mini-batch; T completion tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.messages import InvalidValue, progress, require_one_of
from workbook.policies.models import private_copy
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.likelihood import logps, scores
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.theory.advantages import group_advantages, permute_in_groups
from workbook.theory.batching import LARGE_PRIME, minibatch_order
from workbook.theory.choices import CLIPPINGS, LEVELS, STRATEGIES, TRANSFORM_INPUTS, TRANSFORMS
from workbook.theory.credit import Rule
from workbook.theory.credit_controls import REWARD_FREE
from workbook.theory.credit_rules import CREDIT_RULES
from workbook.theory.weights import objective_weights
from workbook.training.credit_calls import CreditCall, credit_call
from workbook.training.optimizers import OPTIMIZERS, optimizer_of

# the table's columns before those of the callback
COLUMNS = [
    "batch",
    "steps",
    "reward",
    "grad_norm",
    "sign_cosine",
    "step_length",
    "moved",
    "sampled_tokens",
    "seconds",
]
Callback = Callable[[object, int], dict[str, float]]  # (policy, batch) -> what is read off it


def train(
    policy,
    task,
    config: LoopConfig,
    seed: int,
    callback: Callback | None = None,
    every: int = 1,
    first: Rollouts | None = None,
) -> pd.DataFrame:
    """Train a copy of the policy; a row before the first generation batch and one per `every`
    batches, the last included. The policy stays as it was.

    seed: of the training prompts (`task.dataset`), of what is sampled, and of the orders; runs of
    one seed start from the same rollouts.
    callback: called with the copy and the batch's number, 0 before the first, whenever a row is
    made; what it returns becomes columns, such as `workbook.probes.readings.Readings`.
    first: rollouts of the first generation batch, where runs share them (`sample_batch`).

    Columns: batch; steps, optimizer steps so far; reward, mean of the rollouts that the batch was
    trained on; grad_norm, sign_cosine and step_length, means of `Step` since the last row; moved,
    rms change of the batch's log-probabilities by training on it, nats; sampled_tokens so far,
    those of the rule included; seconds so far; then the callback's.
    """
    started = time.perf_counter()
    data = task.dataset(config.prompts * config.batches, seed)
    learner = private_copy(policy)
    optimizer = optimizer_of(learner, config.optimizer, config.lr)
    read = callback or (lambda policy, batch: {})
    steps = 0
    sampled_tokens = 0
    since_last_row: list[Step] = []
    row = {"batch": 0, "steps": 0, "sampled_tokens": 0, "seconds": time.perf_counter() - started}
    rows = [row | read(learner, 0)]

    for batch in progress(range(1, config.batches + 1), "generation batches"):
        # Sample: group_size completions of each of the next prompts, B in all.
        # Score: the task gives each of them its reward, (B,).
        if batch == 1 and first is not None:
            rollouts = first
        else:
            prompts = data.select(range((batch - 1) * config.prompts, batch * config.prompts))
            rollouts = sample_batch(learner, task, config, prompts, seed, batch)
        sampled_tokens += int(rollouts.completion_mask.sum())

        # Compare: rewards become advantages, one for each rollout (B,) or for each token (B, T).
        rollouts, rule_tokens = add_advantages(learner, task, config, rollouts, seed, batch, steps)
        sampled_tokens += rule_tokens

        # Step: once on each mini-batch, and again in each further epoch.
        taken = list(train_on(learner, task, config, rollouts, optimizer, seed, steps))
        steps += len(taken)
        since_last_row += taken

        # Look: what has become of the policy.
        out_of_tokens = config.token_budget is not None and sampled_tokens >= config.token_budget
        last = batch == config.batches or out_of_tokens
        if batch % every == 0 or last:
            row = {"batch": batch, "steps": steps, "reward": float(rollouts.rewards.mean())}
            row |= pd.DataFrame(since_last_row, columns=Step._fields).mean().to_dict()
            row |= {"moved": rms_movement(learner, rollouts), "sampled_tokens": sampled_tokens}
            row |= read(learner, batch)
            rows.append(row | {"seconds": time.perf_counter() - started})
            since_last_row = []
        if out_of_tokens:
            break

    table = pd.DataFrame(rows)
    return table[[*COLUMNS, *table.columns.difference(COLUMNS, sort=False)]]


def sample_batch(policy, task, config: LoopConfig, prompts, seed: int, batch: int = 1) -> Rollouts:
    """Scored rollouts of a generation batch; those of the first one are the same in all runs of a
    seed and these sizes.

    prompts: rows of the task's data set.  batch: its number, from 1 on.
    """
    draw = LARGE_PRIME * seed + batch
    return sample_rollouts(policy, task, prompts, config.group_size, draw, config.max_new_tokens)


def add_advantages(
    policy, task, config: LoopConfig, rollouts: Rollouts, seed: int, batch: int, steps: int = 0
) -> tuple[Rollouts, int]:
    """The rollouts with advantages of the config's rule, and how many tokens the rule sampled.

    batch: the generation batch's number, from 1 on.  steps: optimizer steps before it.
    """
    if config.permuted:
        # Permute rewards within each group first, so nothing can be learned: a rule that is asked
        # again in a later step sees the permuted ones, too.
        generator = torch.Generator().manual_seed(LARGE_PRIME * seed + batch)
        permuted = permute_in_groups(rollouts.rewards, rollouts.group_ids, generator)
        rollouts = replace(rollouts, rewards=permuted)
    if config.credit_rule is None:
        # one advantage per rollout, by the named estimator
        advantages = group_advantages(rollouts.rewards, rollouts.group_ids, config.rule)  # (B,)
        return replace(rollouts, advantages=advantages), 0

    # nothing has been trained since sampling: what it knew of the policy holds still
    known = {"logps": rollouts.old_logps, "entropies": rollouts.entropies}
    seeds = (seed, batch)
    advantages, tokens = ask_rule(policy, task, config, rollouts, seeds, steps, known)
    return replace(rollouts, advantages=advantages), tokens


def train_on(
    policy,
    task,
    config: LoopConfig,
    rollouts: Rollouts,
    optimizer: torch.optim.Optimizer,
    seed: int,
    steps: int = 0,
) -> Iterator[Step]:
    """Lazily take the optimizer steps of one generation batch, in place: iterate to run them.

    There are `epochs` passes over its mini-batches.

    steps: optimizer steps before these, on which the order of mini-batches depends, as in the
    trainer.
    """
    parts = minibatches(config, rollouts, seed, steps)
    for done in range(steps, steps + config.epochs * len(parts)):
        part = parts[(done - steps) % len(parts)]
        known = {"entropies": part.entropies} if done == steps else {}  # has not moved yet
        yield take_step(policy, task, config, part, optimizer, (seed, done), done, known)


def minibatches(config: LoopConfig, rollouts: Rollouts, seed: int, steps: int) -> list[Rollouts]:
    """The generation batch in equal parts, of prompts or signs as the config's order wants them."""
    per_rollout = rollouts.advantages
    if per_rollout.dim() == 2:
        alive = rollouts.completion_mask.bool()
        per_rollout = (per_rollout * alive).sum(1) / alive.sum(1).clamp(min=1)
    generator = torch.Generator().manual_seed(LARGE_PRIME * seed + steps)
    count = config.minibatches
    order = minibatch_order(config.order, rollouts.group_ids, per_rollout, count, generator)
    return [rollouts.select(rows) for rows in order.chunk(count)]


class Step(NamedTuple):
    """What one optimizer step was: its gradient's length before rescaling, the cosine of its two
    signs' parts, and the length of the change of all weights."""

    grad_norm: float
    sign_cosine: float
    step_length: float


def take_step(
    policy,
    task,
    config: LoopConfig,
    part: Rollouts,
    optimizer: torch.optim.Optimizer,
    seeds: tuple[int, ...] = (0,),
    steps: int = 0,
    known: dict[str, Tensor] | None = None,
) -> Step:
    """Take one optimizer step on a mini-batch, in place.

    Ratios are taken against `part.old_logps`.

    seeds, steps, known: for a rule that is asked again in every step, as in `ask_rule`.
    sign_cosine is NaN where a sign is missing, and where advantages are per token.
    """
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    ask_again = config.credit_rule is not None and config.credit_rule.each_step

    # The two signs are scored apart, so that one sees how far their gradients oppose each other.
    # A rule that is asked again in each step changes signs: then there is one set, of all rows.
    row_sets = [torch.arange(len(part))] if ask_again else rows_by_sign(part)
    # (b, T) of each set, with their graph
    scored = [scores(policy.model, part.select(rows)) for rows in row_sets]

    # Log-probabilities under the policy as it is, (B, T).
    # Neutral rows have zero coefficient: keep old_logps unless a transform reads the whole group.
    now = part.old_logps.clone() if config.transform is None else logps(policy, part)
    for rows, values in zip(row_sets, scored, strict=True):
        now[rows] = values.detach()
    if ask_again:
        known = {**(known or {}), "logps": now}
        advantages, _ = ask_rule(policy, task, config, part, seeds, steps, known)
        part = replace(part, advantages=advantages)

    # The gradient of J, of each sign's part: no gradient flows through the coefficients.
    factors = coefficients(config, part, now)  # (B, T)
    gradients = [
        _gradient(weights, (factors[rows] * values).sum())
        for rows, values in zip(row_sets, scored, strict=True)
    ]
    for weight, *parts in zip(weights, *gradients, strict=True):
        weight.grad = -sum(parts) if parts else torch.zeros_like(weight)  # optimizers descend
    norm = _length([weight.grad for weight in weights])
    if config.match == "grad_norm" and norm > 0:
        for weight in weights:
            weight.grad *= config.norm / norm

    before = [weight.detach().clone() for weight in weights]
    optimizer.step()
    change = [weight.detach() - old for weight, old in zip(weights, before, strict=True)]
    both = len(gradients) == 2
    return Step(norm, _cosine(*gradients) if both else float("nan"), _length(change))


def rows_by_sign(part: Rollouts) -> list[Int[Tensor, " b"]]:
    """Rows of positive and of negative rollouts, or of all that push where each token has an
    advantage of its own; those without rows are left out.
    """
    every = torch.arange(len(part))
    advantages = part.advantages.cpu()
    if advantages.dim() == 2:
        sides = [(advantages != 0).any(1)]
    else:
        sides = [advantages > 0, advantages < 0]
    return [every[side] for side in sides if side.any()]


def coefficients(
    config: LoopConfig, part: Rollouts, now: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """w_it A_it / (B L), what each token's log-probability is multiplied by in J."""
    weights = objective_weights(
        now,
        part.old_logps,
        part.completion_mask,
        part.advantages,
        part.group_ids,
        config.level,
        config.clip,
        config.clipping,
        config.transform,
        config.transform_on,
    )
    # (B, T), or (B, 1) where all tokens of a rollout have its advantage
    advantages = part.advantages if part.advantages.dim() == 2 else part.advantages[:, None]
    return weights * advantages / (len(part) * config.max_new_tokens)


def ask_rule(
    policy,
    task,
    config: LoopConfig,
    rollouts: Rollouts,
    seeds: tuple[int, ...],
    steps: int,
    known: dict[str, Tensor],
) -> tuple[Tensor, int]:
    """Advantages (B,) or (B, T) of the config's credit rule, and how many tokens it sampled.

    seeds, steps: all that its random draws depend on.  known: what is known of the policy as it is,
    logps and perhaps entropies, which need not be computed then.
    """
    known = {name: values for name, values in known.items() if not values.isnan().any()}
    if config.known_credit is not None:
        known["known_credit"] = lambda: config.known_credit(policy, task, rollouts)
    longest = config.max_new_tokens
    batch = credit_batch(policy, rollouts, task, seeds, steps, longest, **known)
    return config.credit_rule(batch), batch.sampled_tokens


def rms_movement(policy, rollouts: Rollouts) -> float:
    """Rms change of log-probability of the rollouts' tokens since they were sampled, in nats."""
    change = logps(policy, rollouts) - rollouts.old_logps
    return float(change[rollouts.completion_mask.bool()].square().mean().sqrt())


def _gradient(weights: list[Tensor], objective: Tensor) -> list[Tensor]:
    gradients = torch.autograd.grad(objective, weights, allow_unused=True)
    return [
        torch.zeros_like(weight) if gradient is None else gradient
        for weight, gradient in zip(weights, gradients, strict=True)
    ]


def _length(vector: list[Tensor]) -> float:
    return float(torch.stack([part.norm() for part in vector]).norm())


def _cosine(one: list[Tensor], other: list[Tensor]) -> float:
    product = sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))
    lengths = _length(one) * _length(other)
    return product / lengths if lengths else float("nan")


@dataclass(frozen=True)
class LoopConfig:
    """What a run does: sizes, order of mini-batches, optimizer, credit rule and weights.

    Args:
        prompts, group_size: of a generation batch, which has B = prompts * group_size rollouts.
        batches: generation batches.
        minibatches: equal parts into which each is cut, one optimizer step each.
        order: one of STRATEGIES, which rollouts a mini-batch has.
        epochs: passes over each generation batch.
        optimizer, lr: a name of `training.optimizers.OPTIMIZERS`, and its learning rate.
        rule: an estimator of `theory.advantages`, a name of CREDIT_RULES, own:FILE:FUNCTION, or a
            function of a CreditBatch.
        known_credit: what a rule is told as known credit, a function (policy, task, rollouts) ->
            (B, T), such as `workbook.probes.exact_credit`. None: the task's own annotation, as in
            the trainer, which is under its demonstrator.
        level, clip, clipping, transform, transform_on: as in `theory.weights.objective_weights`.
        match: None, or "grad_norm": each mini-batch's gradient is rescaled to the length `norm`,
            unless it is 0.
        permuted: permute rewards within each group first, so nothing can be learned.
        max_new_tokens: at most so many tokens in a completion.
        token_budget: no batch is begun once so many tokens have been sampled, those of the rule
            included.

    Three fields have other names in `CancellationConfig`, where they take the same values:

        here         order       rule                   transform
        the trainer  batching    advantage_estimator    group_transform

    Raises:
        ValueError: for a field out of range, in one sentence.
    """

    prompts: int = 32
    group_size: int = 8
    batches: int = 6
    minibatches: int = 1
    order: str = "shuffled"
    epochs: int = 1
    optimizer: str = "adamw"
    lr: float = 3e-4
    rule: str | Rule = "dr_grpo"
    known_credit: Callable[[object, object, Rollouts], Tensor] | None = None
    level: str = "token"
    clip: tuple[float, float] | None = None
    clipping: str = "asymmetric"
    transform: str | None = None
    transform_on: str = "clamped_ratios"
    match: str | None = None
    norm: float = 1.0
    permuted: bool = False
    max_new_tokens: int = 48
    token_budget: int | None = None

    @cached_property
    def credit_rule(self) -> CreditCall | None:
        """The credit rule that `rule` means, imported; None for a plain estimator."""
        return credit_call(self.rule)

    def __post_init__(self):
        for name in WHOLE:
            value = getattr(self, name)
            if name == "token_budget" and value is None:
                continue
            if type(value) is not int or value < 1:
                raise InvalidValue(name, value, "a whole number of 1 or more")
        for name, valid in CHOICES.items():
            require_one_of(name, getattr(self, name), valid)
        for name in ("lr", "norm"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InvalidValue(name, value, "a finite number above 0")

        whole_prompts = self.order.startswith("query_preserved")
        units = self.prompts if whole_prompts else self.prompts * self.group_size
        if units % self.minibatches:
            what = "prompts" if whole_prompts else "rollouts"
            valid = f"a divisor of the {units} {what} of a batch"
            raise InvalidValue("minibatches", self.minibatches, valid)

        _ = self.credit_rule  # an unknown rule is refused here
        known_rule = CREDIT_RULES.get(self.rule) if isinstance(self.rule, str) else None
        asks_credit = known_rule is not None and "known_credit" in known_rule.needs
        if asks_credit and self.known_credit is None:
            valid = f"a function, such as workbook.probes.exact_credit: rule={self.rule!r} needs it"
            raise InvalidValue("known_credit", None, valid)
        if self.permuted and (asks_credit or self.rule in REWARD_FREE):
            sentence = (
                f"permuted=True leaves rule={self.rule!r} its signal, which is not in the rewards."
            )
            raise InvalidValue("permuted", True, f"False with rule={self.rule!r}", sentence)


# fields that are whole numbers, and fields that are one of a few
WHOLE = [
    "prompts",
    "group_size",
    "batches",
    "minibatches",
    "epochs",
    "max_new_tokens",
    "token_budget",
]
CHOICES = {
    "order": STRATEGIES,
    "optimizer": tuple(OPTIMIZERS),
    "level": LEVELS,
    "clipping": CLIPPINGS,
    "transform": (None, *TRANSFORMS),
    "transform_on": TRANSFORM_INPUTS,
    "match": (None, "grad_norm"),
}
