"""The training loop of studies: GRPO in memory, one policy at a time, without TRL.

    loop = Loop(prompts=32, group_size=8, batches=6, minibatches=16, order="query_preserved")
    curve = train_in_memory(policy, get_task("chain"), loop, seed=3, held_out=prompts)

One step is what `CancellationTrainer` does with loss_type="dr_grpo" and no gradient clipping, on
the same rollouts: sum over tokens of w_it A_it log pi_it / (B * max_new_tokens), w of
`theory.objective`. A run of six batches of 256 rollouts takes some four seconds on one thread, so
that arms can be compared over dozens of policies and seeds.

Letters: B rollouts of a mini-batch, T completion tokens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.messages import progress, require_one_of, show_value
from workbook.policies.models import private_copy
from workbook.probes.drift import DriftFrom, learning_tax
from workbook.probes.step import FIELDS, OPTIMIZERS, logps, optimizer_of
from workbook.probes.values import exact_values, expected_reward
from workbook.rollouts.credit import credit_batch
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import rollout_logps
from workbook.theory.advantages import group_advantages, permute_in_groups
from workbook.theory.batching import minibatch_order
from workbook.theory.choices import CLIPPINGS, LEVELS, STRATEGIES, TRANSFORMS
from workbook.theory.credit import Rule
from workbook.theory.credit_controls import REWARD_FREE
from workbook.theory.credit_rules import CREDIT_RULES
from workbook.theory.objective import objective_weights
from workbook.training.credit import CreditCall, credit_call

TRANSFORM_ON = {"ratios": "clamped_ratios", "clipped": "clipped_weights"}
MATCHES = (None, "grad_norm")
# held-out prompts and right chains of each, at most; their style words show the tax
STYLE_PROMPTS, SOLUTIONS = 16, 4
LARGE_PRIME = 1_000_003  # as in the trainer: orders of neighbouring seeds have nothing in common
READ = ("value", "tax", "style_entropy", "pass_at_8", "logp_right")
COLUMNS = (
    "reward",
    "value",
    "grad_norm",
    "sign_cosine",
    "step_length",
    "moved",
    "tax",
    "style_entropy",
)
TRIES = 8  # of pass@8


@dataclass(frozen=True)
class Loop:
    """What a run does: sizes, order of mini-batches, optimizer, credit rule and weights.

    prompts, group_size: of a generation batch.  batches: generation batches.  minibatches: equal
    parts into which each is cut, one optimizer step each.  order: one of STRATEGIES.  epochs:
    passes over each generation batch. optimizer, lr: as in `probes.step.OPTIMIZERS`.
    rule: an estimator of `theory.advantages`, a name of CREDIT_RULES, own:FILE:FUNCTION, or a
    function of a CreditBatch. level, clip, clipping, transform: as in
    `theory.objective.objective_weights`.  transform_on: "ratios", held inside the clip range, or
    "clipped", the weights of the surrogate.
    match: None, or "grad_norm": each mini-batch's gradient is rescaled to the length `norm`, unless
    it is 0.
    permuted: rewards are permuted within each group before advantages are made, so that nothing can
    be learned.
    token_budget: no batch is begun once so many tokens have been sampled, those of the rule
    included.

    Raises ValueError, in one sentence, for a field out of range.
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
    level: str = "token"
    clip: tuple[float, float] | None = None
    clipping: str = "asymmetric"
    transform: str | None = None
    transform_on: str = "ratios"
    match: str | None = None
    norm: float = 1.0
    permuted: bool = False
    max_new_tokens: int = 48
    token_budget: int | None = None
    call: CreditCall | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self):
        for name in WHOLE:
            value = getattr(self, name)
            if (name, value) != ("token_budget", None) and (type(value) is not int or value < 1):
                raise ValueError(f"{name}={show_value(value)} must be a whole number of 1 or more.")
        for name, valid in CHOICES.items():
            require_one_of(name, getattr(self, name), valid)
        for name in ("lr", "norm"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name}={show_value(getattr(self, name))} must be a finite number above 0."
                )
        cut = (
            self.prompts
            if self.order.startswith("query_preserved")
            else self.prompts * self.group_size
        )
        if cut % self.minibatches:
            what = "prompts" if cut == self.prompts else "rollouts"
            raise ValueError(
                f"minibatches={self.minibatches} must divide the {cut} {what} of a batch."
            )
        object.__setattr__(self, "call", credit_call(self.rule))
        needs = getattr(CREDIT_RULES.get(self.rule), "needs", ())
        if self.permuted and ("known_credit" in needs or self.rule in REWARD_FREE):
            raise ValueError(
                f"permuted=True leaves rule={self.rule!r} its signal, which is not in the rewards."
            )


WHOLE = (
    "prompts",
    "group_size",
    "batches",
    "minibatches",
    "epochs",
    "max_new_tokens",
    "token_budget",
)
CHOICES = {
    "order": STRATEGIES,
    "optimizer": tuple(OPTIMIZERS),
    "level": LEVELS,
    "clipping": CLIPPINGS,
    "transform": (None, *TRANSFORMS),
    "transform_on": tuple(TRANSFORM_ON),
    "match": MATCHES,
}


class Step(NamedTuple):
    """What one optimizer step was: its gradient's length before rescaling, the cosine of its two
    signs' parts, and the length of the change of all weights."""

    grad_norm: float
    sign_cosine: float
    step_length: float


def train_in_memory(
    policy,
    task,
    loop: Loop,
    seed: int,
    held_out: list[str] | Readings,
    every: int = 1,
    first: Rollouts | None = None,
) -> pd.DataFrame:
    """Train a policy as the loop says; a row before the first generation batch and one per `every`
    batches, the last included. Afterwards the policy is as it was.

    seed: of the training prompts (`task.dataset`), of what is sampled, and of the orders; arms of
    one seed start from the same rollouts.  held_out: prompts of which the value is taken, or
    `Readings` of this policy and task, which many runs may share.  first: rollouts of the first
    generation batch, where runs share them (`sample_batch`).

    Columns: batch; steps, optimizer steps so far; reward, mean of the rollouts that the batch was
    trained on; value, exact expected reward over held_out; grad_norm, mean length of the gradient
    since the last row, before any rescaling; sign_cosine, mean cosine between the gradients of a
    step's positive and negative rollouts (NaN where one is missing, or advantages are per token);
    step_length, mean length of the change of all weights in a step; moved, rms change of the
    batch's log-probabilities by training on it, nats; the other `Readings`; sampled_tokens so far,
    those of the rule included; seconds so far.
    """
    began, tokens, steps, taken, rows = time.perf_counter(), 0, 0, [], []
    readings = held_out if isinstance(held_out, Readings) else Readings(policy, task, held_out)
    data, spent = task.dataset(loop.prompts * loop.batches, seed), time.perf_counter() - began
    mine = private_copy(policy)
    rows.append({"batch": 0, "steps": 0, **readings.start, "sampled_tokens": 0, "seconds": spent})
    optimizer = optimizer_of(mine, loop.optimizer, loop.lr)
    for batch in progress(range(1, loop.batches + 1), "generation batches"):
        chosen = data.select(range((batch - 1) * loop.prompts, batch * loop.prompts))
        given = first if batch == 1 else None
        rollouts, sampled = advantaged(mine, task, loop, chosen, seed, batch, steps, given)
        tokens += sampled
        made = list(train_on(mine, task, loop, rollouts, optimizer, seed, steps))
        taken, steps = taken + made, steps + len(made)
        last = batch == loop.batches or (
            loop.token_budget is not None and tokens >= loop.token_budget
        )
        if batch % every == 0 or last:
            row = {"batch": batch, "steps": steps, "reward": float(rollouts.rewards.mean())}
            row |= (
                pd.DataFrame(taken, columns=Step._fields).mean().to_dict()
                | {"moved": _moved(mine, rollouts)}
                | readings.now(mine)
            )
            rows.append(row | {"sampled_tokens": tokens, "seconds": time.perf_counter() - began})
            taken = []
        if last:
            break
    table = pd.DataFrame(rows)
    known = ["batch", "steps", *COLUMNS, "sampled_tokens", "seconds"]
    # further readings come last
    return table[[*known, *table.columns.difference(known, sort=False)]]


def sample_batch(policy, task, loop: Loop, rows, seed: int, batch: int = 1) -> Rollouts:
    """The rollouts of a generation batch; those of the first one are the same in all runs of a seed
    and these sizes.
    """
    return sample_rollouts(
        policy, task, rows, loop.group_size, LARGE_PRIME * seed + batch, loop.max_new_tokens
    )


def advantaged(
    policy,
    task,
    loop: Loop,
    rows,
    seed: int,
    batch: int,
    steps: int = 0,
    given: Rollouts | None = None,
) -> tuple[Rollouts, int]:
    """A generation batch with the advantages of the loop's rule, and how many tokens that took.

    rows: the prompts, as rows of the task's data set.  batch: its number, from 1 on.  given: its
    rollouts, if they have been sampled.
    """
    rollouts = sample_batch(policy, task, loop, rows, seed, batch) if given is None else given
    tokens = int(rollouts.completion_mask.sum())
    if loop.permuted:  # so that they say nothing about the texts, at any step of the batch
        generator = torch.Generator().manual_seed(LARGE_PRIME * seed + batch)
        rollouts = replace(
            rollouts, rewards=permute_in_groups(rollouts.rewards, rollouts.group_ids, generator)
        )
    if loop.call is None:
        return (
            replace(
                rollouts,
                advantages=group_advantages(rollouts.rewards, rollouts.group_ids, loop.rule),
            ),
            tokens,
        )
    known = (
        _exact_credit(policy, task, rollouts)
        | _of_sampling(rollouts)
        | {"logps": rollouts.old_logps}
    )
    asked = credit_batch(policy, rollouts, task, (seed, batch), steps, loop.max_new_tokens, **known)
    return replace(rollouts, advantages=loop.call(asked)), tokens + asked.sampled_tokens


def train_on(
    policy,
    task,
    loop: Loop,
    rollouts: Rollouts,
    optimizer: torch.optim.Optimizer,
    seed: int,
    steps: int = 0,
) -> Iterator[Step]:
    """Take the optimizer steps of one generation batch, in place: `epochs` passes over its
    mini-batches.

    steps: optimizer steps before these, on which the order of mini-batches depends, as in the
    trainer.
    """
    per_rollout, alive = rollouts.advantages, rollouts.completion_mask.bool()
    if per_rollout.dim() == 2:
        per_rollout = (per_rollout * alive).sum(1) / alive.sum(1).clamp(min=1)
    generator = torch.Generator().manual_seed(seed * LARGE_PRIME + steps)
    order = minibatch_order(
        loop.order, rollouts.group_ids, per_rollout, loop.minibatches, generator
    )
    parts = [rollouts.select(rows) for rows in order.chunk(loop.minibatches)]
    for epoch in range(loop.epochs):
        for k, part in enumerate(parts):
            done = steps + epoch * len(parts) + k
            fresh = _of_sampling(part) if done == steps else {}
            yield take_step(policy, task, loop, part, optimizer, (seed, done), done, fresh)


def _exact_credit(policy, task, rollouts: Rollouts) -> dict:
    """What a rule is told of true credit: that under the policy as it is when asked, of tasks that
    know it exactly.
    """
    known = hasattr(task, "equivalent_solutions") and rollouts.prompts is not None
    return {"known_credit": lambda: exact_values(policy, task, rollouts).credit} if known else {}


def _of_sampling(rollouts: Rollouts) -> dict:
    """What sampling knows of a policy that has not moved since."""
    return {} if rollouts.entropies.isnan().any() else {"entropies": rollouts.entropies}


def take_step(
    policy,
    task,
    loop: Loop,
    part: Rollouts,
    optimizer: torch.optim.Optimizer,
    seeds: tuple = (0,),
    done: int = 0,
    known: dict | None = None,
) -> Step:
    """One optimizer step on a mini-batch, in place; old_logps of the rollouts are those that ratios
    are taken to.

    known: what is known of the policy as it is, for a rule of every step (`credit_batch`).
    """
    optimizer.zero_grad(set_to_none=False)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    again = loop.call is not None and loop.call.each_step
    chunks = _chunks(part, whole=again)
    inputs = [[getattr(part.select(rows), name) for name in FIELDS] for rows in chunks]
    scored = [rollout_logps(policy.model, *tensors) for tensors in inputs]  # with their graph
    # of rollouts that push nothing
    now = part.old_logps if loop.transform is None else logps(policy, part)
    now = now.clone()
    for rows, values in zip(chunks, scored, strict=True):
        now[rows] = values.detach()
    if again:
        known = _exact_credit(policy, task, part) | (known or {}) | {"logps": now}
        part = replace(
            part, advantages=loop.call(credit_batch(policy, part, task, seeds, done, **known))
        )
    pushes = _pushes(loop, part, now)
    gradients = [
        _gradient(trained, (pushes[rows] * values).sum())
        for rows, values in zip(chunks, scored, strict=True)
    ]
    for p, *parts in zip(trained, *gradients, strict=True):
        p.grad = -sum(parts) if parts else torch.zeros_like(p)
    norm = _length([p.grad for p in trained])
    if loop.match == "grad_norm" and norm > 0:
        for p in trained:
            p.grad *= loop.norm / norm
    before = [p.detach().clone() for p in trained]
    optimizer.step()
    length = _length([p.detach() - start for p, start in zip(trained, before, strict=True)])
    return Step(
        norm, _cosine(*gradients) if len(gradients) == 2 and not again else float("nan"), length
    )


def _chunks(part: Rollouts, whole: bool) -> list[Int[Tensor, " b"]]:
    """Rows of positive and of negative rollouts, or of all that push where each token has an
    advantage of its own.
    """
    every = torch.arange(len(part))
    if whole:
        return [every]
    if part.advantages.dim() == 2:
        pushing = every[(part.advantages != 0).any(1).cpu()]
        return [pushing] if len(pushing) else []
    signs = part.advantages.sign().cpu()
    return [rows for rows in (every[signs > 0], every[signs < 0]) if len(rows)]


def _pushes(loop: Loop, part: Rollouts, now: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """w_it A_it over the normalizer B * max_new_tokens."""
    weights = objective_weights(
        now,
        part.old_logps,
        part.completion_mask,
        part.advantages,
        part.group_ids,
        loop.level,
        loop.clip,
        loop.clipping,
        loop.transform,
        TRANSFORM_ON[loop.transform_on],
    )
    advantages = part.advantages if part.advantages.dim() == 2 else part.advantages[:, None]
    return weights * advantages / (len(part) * loop.max_new_tokens)


def _gradient(trained: list[Tensor], objective: Tensor) -> list[Tensor]:
    gradients = torch.autograd.grad(objective, trained, allow_unused=True)
    return [
        torch.zeros_like(p) if g is None else g for p, g in zip(trained, gradients, strict=True)
    ]


def _length(vector: list[Tensor]) -> float:
    return float(torch.stack([part.norm() for part in vector]).norm())


def _cosine(one: list[Tensor], other: list[Tensor]) -> float:
    product = sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))
    lengths = _length(one) * _length(other)
    return product / lengths if lengths else float("nan")


def _moved(policy, rollouts: Rollouts) -> float:
    """Rms change of log-probability of the rollouts' tokens since they were sampled, in nats."""
    change = logps(policy, rollouts) - rollouts.old_logps
    return float(change[rollouts.completion_mask.bool()].square().mean().sqrt())


class Readings:
    """What is read off a policy on held-out prompts while it is trained, by name; NaN for tasks
    without exact values.

    value: exact expected reward.  pass_at_8: mean over prompts of 1 - (1 - v)^8, v a prompt's exact
    value: where rewards are 0 or 1, the chance that one of eight independent samples is right. Of
    the right solutions of the first prompts, which stay the same: logp_right, mean over solutions
    of their log-probability, the sum over their tokens, nats; tax, mean KL of style words from the
    start, and style_entropy, both nats per word and NaN where the task has no style words.

    start: the readings of the policy as it was when this was made, from which its style words
    drift.
    """

    def __init__(self, policy, task, held_out: list[str]):
        self.task, self.held_out, self.drift = task, list(held_out), None
        if not self.held_out:
            raise ValueError("held_out=[] must hold at least one prompt.")
        if hasattr(task, "equivalent_solutions"):
            rows = [
                {"prompt": prompt, "answer": task.solve(prompt)}
                for prompt in self.held_out[:STYLE_PROMPTS]
            ]
            known = (
                itertools.islice(task.equivalent_solutions(row["prompt"]), SOLUTIONS)
                for row in rows
            )
            self.drift = DriftFrom(
                policy, task, rows, max(1, min(len(list(some)) for some in known))
            )
        self.start = self.now(policy)

    def now(self, policy) -> dict[str, float]:
        """The readings of a later policy."""
        if self.drift is None:
            return dict.fromkeys(READ, float("nan"))
        values, report = self.values(policy), self.drift.report(policy)
        style, solutions = (
            learning_tax(report).mean(),
            report.groupby(["group", "solution"])["logp_after"].sum(),
        )
        return {
            "value": float(values.mean()),
            "tax": float(style["tax"]),
            "style_entropy": float(style["style_entropy"]),
            "pass_at_8": float((1 - (1 - values) ** TRIES).mean()),
            "logp_right": float(solutions.mean()),
        }

    def values(self, policy) -> Float[Tensor, " P"]:
        """The value of each held-out prompt."""
        return expected_reward(policy, self.task, self.held_out)
