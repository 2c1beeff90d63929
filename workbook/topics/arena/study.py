"""The arena's study: every credit rule under one budget of sampled tokens, in ten units; the bounds in thirty.

A unit is a policy of the family and a stream of prompts. What was stated before, and what is judged by it:
data/results/arena/registration.yaml. Besides its run, each rule's update is compared with the ideal one, the gradient
g* of the prompts' exact expected reward. A rule makes a gradient g_m of each redraw m of the rollouts. Products of
different redraws have independent noise, so with M redraws

    along  = mean_m <g_m, g*> / |g*|^2             how far the mean update goes along the ideal one
    mean2  = mean_{m != n} <g_m, g_n> / |g*|^2     squared norm of the mean update
    total2 = mean_m |g_m|^2 / |g*|^2               mean squared norm of one redraw's update

are unbiased. Of them follow the cosine of the mean update with the ideal one, along / sqrt(mean2) (what the rule
distorts), that of one redraw's update, along / sqrt(total2) (what one step gets), and the noise per signal,
(total2 - mean2) / mean2. They are kept apart, so that ratios are taken of means over policies.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.stats import mannwhitneyu
from torch import Tensor

from workbook.policies.copies import evaluating
from workbook.probes.recovered import exact_gradient, flat_gradient
from workbook.probes.step import FIELDS
from workbook.probes.values import chain_values
from workbook.rollouts.credit import credit_batch
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import pad_rows, rollout_logps, tokenize_prompts
from workbook.studies.bench import Bench
from workbook.studies.loop import LARGE_PRIME, Loop, train_in_memory
from workbook.theory.choices import ESTIMATORS
from workbook.theory.credit import CreditBatch, Rule, per_token
from workbook.theory.credit_rules import RULES
from workbook.topics.arena.claims import LOWER, PLAIN, UPPER
from workbook.training.credit import credit_call

BOUNDS = (LOWER, PLAIN, UPPER)  # trained in every unit, whichever rule is asked for
ALL = (*ESTIMATORS, *RULES)
WIDE = 10  # units that train every rule; those after them train the bounds and plain group credit
UNMATCHED = 6  # units that also train these three at unmatched update size
NOT_TRAINED = ("rloo",)  # dr_grpo times G / (G - 1) in groups of one size: at equal gradient norm it is the same run
DECIDES = 0.01  # reward: a token whose true credit is larger than this, up or down, decides something
KEPT = ["batch", "value", "reward", "grad_norm", "moved", "tax", "sampled_tokens", "seconds"]


# -- who stands in the arena ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """A rule under its name; source: what its function is made of, where it is one's own."""

    name: str
    function: Callable[[CreditBatch], Tensor] = field(repr=False)
    estimator: str | Rule = field(repr=False)  # what a `Loop` takes for its rule
    source: str = field(default="", repr=False)

    def advantages(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        """Its advantages per token, 0 outside the mask."""
        advantages = self.function(batch)
        return (per_token(batch, advantages) if advantages.ndim == 1 else advantages).masked_fill(~batch.mask, 0.0)


def contender(estimator: str | Rule) -> Contender:
    """The contender that an `advantage_estimator` means: one of ALL, own:<file.py>:<function>, or a function.

    Raises ValueError, in one sentence, for an unknown name and for a file that can't be imported or lacks the function.

    >>> contender("dr_grpo").name
    'dr_grpo'
    """
    call = credit_call(estimator)
    if call is None:
        return Contender(estimator, lambda batch: batch.group_advantages(estimator), estimator)
    source = "".join(call.files.values())
    if not isinstance(estimator, str):  # a function at hand
        source = inspect.getsource(estimator) if inspect.isfunction(estimator) else repr(estimator)
    return Contender(call.name, call, estimator, source)


def exact_oracle(policy, task) -> Contender:
    """The upper bound: the true credit of each token under the policy as it is when asked, exact."""

    def oracle(batch: CreditBatch) -> Float[Tensor, "B T"]:
        ids, mask = pad_rows(tokenize_prompts(policy.tokenizer, batch.prompts), policy.tokenizer.pad_token_id, "left")
        columns = {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": batch.completion_ids}
        columns |= {"completion_mask": batch.mask.long(), "advantages": batch.rewards, "group_ids": batch.group_ids}
        rollouts = replace(Rollouts.from_batch(columns), prompts=tuple(batch.prompts))
        return chain_values(policy, task, rollouts.to(policy.model.device)).credit

    return Contender(UPPER, oracle, oracle)


# -- one unit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """How large a contest is."""

    name: str
    prompts: int  # of a generation batch, on which one optimizer step is taken
    batches: int  # that the budget of sampled tokens is made for
    held_out: int  # prompts whose exact value is the outcome
    marked: int  # prompts whose update is compared with the ideal one
    redraws: int  # of their rollouts
    units: int  # policies x seeds
    group_size: int = 8
    lr: float = 3e-4

    def tokens(self, task) -> int:
        """The budget: tokens of as many well-formed completions as the batches hold."""
        prompt = task.dataset(1)[0]["prompt"]
        return self.batches * self.prompts * self.group_size * (len(task.render(prompt).split()) + 1)


FULL = Setting("full", prompts=8, batches=12, held_out=48, marked=16, redraws=6, units=10)
SMALL = Setting("small", prompts=8, batches=6, held_out=24, marked=8, redraws=3, units=6)


def unit_tables(
    bench: Bench, setting: Setting, marked: Iterable[Contender], trained: Mapping[str | None, Iterable[Contender]]
) -> dict[str, pd.DataFrame]:
    """Tables marks (a row per rule) and runs (a row per rule, match and moment of its run) of one unit.

    marked: rules whose updates are compared with the ideal one.  trained: rules to train, by how their gradients are
    matched ("grad_norm", or None).
    """
    sizes = (setting.marked, setting.group_size, setting.redraws, bench.data_seed, bench.scale.max_new_tokens)
    runs = [train_rule(bench, rule, setting, match) for match, rules in trained.items() for rule in rules]
    return {"marks": rule_marks(bench.policy, bench.task, marked, *sizes), "runs": pd.concat(runs, ignore_index=True)}


def train_rule(bench: Bench, rule: Contender, setting: Setting, match: str | None = "grad_norm") -> pd.DataFrame:
    """A run of one rule until the budget is spent; match: "grad_norm", each step's gradient of length 1, or None."""
    policy, task = bench.policy, bench.task
    budget = setting.tokens(task)
    loop = Loop(
        prompts=setting.prompts,
        group_size=setting.group_size,
        batches=setting.batches,
        lr=setting.lr,
        rule=exact_oracle(policy, task).estimator if rule.name == UPPER else rule.estimator,
        match=match,
        max_new_tokens=bench.scale.max_new_tokens,
        token_budget=budget,
    )
    held_out = task.dataset(setting.held_out, bench.held_out_seed)["prompt"]
    rows = train_in_memory(policy, task, loop, bench.data_seed, list(held_out), every=max(setting.batches // 4, 1))
    return rows[KEPT].assign(rule=rule.name, match=match or "none", budget=budget)


def arena_study(bench: Bench, setting: Setting = FULL) -> dict[str, pd.DataFrame]:
    """Tables marks and runs of a unit: see `unit_tables`."""
    rules = {name: contender(name) for name in (ALL if bench.seed < WIDE else BOUNDS)}
    trained = {"grad_norm": [rule for name, rule in rules.items() if name not in NOT_TRAINED]}
    if bench.seed < UNMATCHED:
        trained[None] = [rules[name] for name in BOUNDS]
    return unit_tables(bench, setting, rules.values(), trained)


# -- a rule's update against the ideal one, its advantages against true credit ---------------------------------------


def rule_marks(
    policy,
    task,
    rules: Iterable[Contender],
    prompts: int,
    group_size: int,
    redraws: int,
    seed: int,
    max_new_tokens: int = 48,
) -> pd.DataFrame:
    """A row per rule: along, mean2, total2 (see above), agreement with true credit, its own time and tokens.

    Columns besides: correlation of its advantages with true credit, which is exact; auroc, tokens of positive true
    credit ranked by advantage against those of negative; where, all tokens ranked by the size of the advantage, those
    that decide something against those that don't; rule_ms, milliseconds per redraw; extra_tokens, sampled by the rule
    per redraw. redraws: 2 or more, as products of two tell signal from noise.
    """
    rows, rules = task.dataset(prompts, seed), list(rules)
    gradients, observed = {rule.name: [] for rule in rules}, []
    with evaluating(policy.model), torch.enable_grad():
        ideal = exact_gradient(policy, task, rows["prompt"])
        for redraw in range(redraws):
            rollouts = sample_rollouts(policy, task, rows, group_size, LARGE_PRIME * seed + redraw, max_new_tokens)
            credit = chain_values(policy, task, rollouts).credit  # (B, T)
            scored = rollout_logps(policy.model, *(getattr(rollouts, name) for name in FIELDS))  # (B, T)
            for rule in rules:  # a batch of its own each, so that none pays for what another has asked for
                given = {"known_credit": credit, "max_new_tokens": max_new_tokens}
                batch = credit_batch(policy, rollouts, task, (seed, redraw), redraw, **given)
                began = time.perf_counter()
                advantages = rule.advantages(batch)
                cost = {"rule_ms": 1e3 * (time.perf_counter() - began), "extra_tokens": batch.sampled_tokens}
                observed.append({"rule": rule.name, **agreement(advantages, batch.known_credit, batch.mask), **cost})
                objective = (advantages * scored).sum() / len(rollouts)  # its mean is g* for unbiased advantages
                gradients[rule.name].append(flat_gradient(policy, objective, keep_graph=True))
    means = pd.DataFrame(observed).groupby("rule", sort=False).mean()
    lengths = pd.DataFrame({name: products(torch.stack(rows), ideal) for name, rows in gradients.items()}).T
    return lengths.join(means).rename_axis("rule").reset_index()


def products(gradients: Float[Tensor, "M D"], ideal: Float[Tensor, " D"]) -> dict[str, float]:
    """along, mean2 and total2 of redrawn updates (see above).

    >>> gradients = torch.tensor([[1.0, 1.0], [1.0, -1.0]])  # signal (1, 0), and noise that changes its sign
    >>> products(gradients, torch.tensor([2.0, 0.0]))
    {'along': 0.5, 'mean2': 0.0, 'total2': 0.5}
    """
    gradients, ideal = gradients.double(), ideal.double()
    gram, unit = gradients @ gradients.T, float(ideal @ ideal)
    pairs, own = len(gradients) * (len(gradients) - 1), float(gram.trace())
    return {
        "along": float((gradients @ ideal).mean()) / unit,
        "mean2": (float(gram.sum()) - own) / pairs / unit,
        "total2": own / len(gradients) / unit,
    }


def agreement(
    advantages: Float[Tensor, "B T"], credit: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> dict[str, float]:
    """correlation, auroc and where of advantages and true credit (see `rule_marks`); NaN where nothing varies.

    >>> agreement(torch.tensor([[0.5, 0.5, -0.5]]), torch.tensor([[0.4, 0.0, -0.4]]), torch.ones(1, 3).bool())["auroc"]
    1.0
    """
    given, true = (tensor[mask].double().cpu().numpy() for tensor in (advantages, credit))
    varies = given.std() > 0 and true.std() > 0
    decides = np.abs(true) > DECIDES
    return {
        "correlation": float(np.corrcoef(given, true)[0, 1]) if varies else float("nan"),
        "auroc": auroc(given[decides], true[decides] > 0),
        "where": auroc(np.abs(given), decides),
    }


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The probability that a positive scores above a negative, ties counting half; NaN without either.

    >>> auroc(np.array([1.0, 2.0, 2.0]), np.array([False, True, False]))
    0.75
    """
    if positive.all() or not positive.any():
        return float("nan")
    pairs = int(positive.sum()) * int((~positive).sum())
    return float(mannwhitneyu(scores[positive], scores[~positive], method="asymptotic").statistic / pairs)
