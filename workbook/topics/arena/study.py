"""The arena's study: the credit rules of ALL under one budget of sampled tokens, in ten units; the bounds in thirty.

    python -m workbook arena --rule own:credit.py:my_rule --small

A unit is a policy of the family and a stream of prompts. What was stated before: data/results/arena/registration.yaml.
Each rule's update is also compared with the ideal one, the gradient g* of the prompts' exact expected reward. A rule
makes a gradient g_m of each of M redraws of the rollouts; redraws have independent noise, so

    along  = mean_m <g_m, g*> / |g*|^2             how far the mean update goes along the ideal one
    mean2  = mean_{m != n} <g_m, g_n> / |g*|^2     squared norm of the mean update
    total2 = mean_m |g_m|^2 / |g*|^2               mean squared norm of one redraw's update

are unbiased. The cosine of the mean update with the ideal one is along / sqrt(mean2), that of one redraw's update
along / sqrt(total2), the noise per signal (total2 - mean2) / mean2, each of means over policies.
"""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.stats import mannwhitneyu
from torch import Tensor

from workbook.policies.models import evaluating
from workbook.probes.recovered import exact_gradient, flat_gradient
from workbook.probes.step import scores
from workbook.probes.values import exact_values
from workbook.rollouts.credit import credit_batch
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import pad_rows, tokenize_prompts
from workbook.studies.bench import Bench
from workbook.studies.loop import LARGE_PRIME, Loop, train_in_memory
from workbook.studies.record import load_measured
from workbook.theory.credit import CreditBatch, Rule, per_token
from workbook.topics.arena.claims import LOWER, PLAIN, UPPER, arena_table
from workbook.training.credit import credit_call
from workbook.training.files import write_parquet

BOUNDS = (LOWER, PLAIN, UPPER)  # trained in every unit, whichever rule is asked for
ALL = (
    *("grpo", "dr_grpo", "rloo", "reinforce", "positive_only", "negative_only", "prefix_credit", "lambda_grpo"),
    *("edit_mask", "ibpo", "gtpo", "nthr", "token_hidden_reward", "advantage_reweighting", "lopti", "w_reinforce"),
    *("negative_token_filtering", "balanced_aggregation", "coin_reward", "permuted", "oracle"),
)  # what the registered study trained
WIDE = 10  # units that train every rule; those after them train the bounds and plain group credit
UNMATCHED = 6  # units that also train these three at unmatched update size
NOT_TRAINED = ("rloo",)  # dr_grpo times G / (G - 1) in groups of one size: at equal gradient norm it is the same run
DECIDES = 0.01  # reward: a token whose true credit is larger than this, up or down, decides something
TABLES = ("marks", "runs")
YOURS, MEASURED = "yours", "measured"  # where a row of the table comes from
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
    """The contender that an `advantage_estimator` means: a name, own:<file.py>:<function>, or a function.

    Raises ValueError, in one sentence, for an unknown name and for a file that can't be imported or lacks the function.
    """
    call = credit_call(estimator)
    if call is None:
        return Contender(estimator, lambda batch: batch.group_advantages(estimator), estimator)
    source = "".join(call.files.values())
    if not isinstance(estimator, str):  # a function at hand
        source = inspect.getsource(estimator) if inspect.isfunction(estimator) else repr(estimator)
    return Contender(call.name, call, estimator, source)


def exact_oracle(policy, task) -> Contender:
    """The upper bound: the exact credit of each token under the policy given, which in a run is that of the start.

    A `Loop` with rule="oracle" has the credit under the policy as it is at each batch instead.
    """

    def oracle(batch: CreditBatch) -> Float[Tensor, "B T"]:
        ids, mask = pad_rows(tokenize_prompts(policy.tokenizer, batch.prompts), policy.tokenizer.pad_token_id, "left")
        columns = {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": batch.completion_ids}
        columns |= {"completion_mask": batch.mask.long(), "advantages": batch.rewards, "group_ids": batch.group_ids}
        rollouts = replace(Rollouts.from_batch(columns), prompts=tuple(batch.prompts))
        return exact_values(policy, task, rollouts.to(policy.model.device)).credit

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

    marked: rules whose updates are compared with the ideal one.  trained: rules to train, by their match.
    """
    sizes = (setting.marked, setting.group_size, setting.redraws, bench.data_seed, bench.scale.max_new_tokens)
    runs = [train_rule(bench, rule, setting, match) for match, rules in trained.items() for rule in rules]
    return {"marks": rule_marks(bench.policy, bench.task, marked, *sizes), "runs": pd.concat(runs, ignore_index=True)}


def train_rule(bench: Bench, rule: Contender, setting: Setting, match: str | None = "grad_norm") -> pd.DataFrame:
    """A run of one rule until the budget is spent; match: "grad_norm", each step's gradient of length 1, or None."""
    policy, task, budget = bench.policy, bench.task, setting.tokens(bench.task)
    estimator = exact_oracle(policy, task).estimator if rule.name == UPPER else rule.estimator
    sizes = {name: getattr(setting, name) for name in ("prompts", "group_size", "batches", "lr")}
    limits = {"max_new_tokens": bench.scale.max_new_tokens, "token_budget": budget}
    loop = Loop(**sizes, rule=estimator, match=match, **limits)
    readings, every = bench.readings(setting.held_out), max(setting.batches // 4, 1)
    rows = train_in_memory(policy, task, loop, bench.data_seed, readings, every)
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
            credit = exact_values(policy, task, rollouts).credit  # (B, T)
            scored = scores(policy.model, rollouts)  # (B, T)
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
    """along, mean2 and total2 of redrawn updates (see above)."""
    gradients, ideal = gradients.double(), ideal.double()
    gram, unit, redraws = gradients @ gradients.T, float(ideal @ ideal), len(gradients)
    own = float(gram.trace())
    return {
        "along": float((gradients @ ideal).mean()) / unit,
        "mean2": (float(gram.sum()) - own) / (redraws * (redraws - 1)) / unit,
        "total2": own / redraws / unit,
    }


def agreement(advantages: Tensor, credit: Tensor, mask: Bool[Tensor, "B T"]) -> dict[str, float]:
    """correlation, auroc and where of advantages and true credit (see `rule_marks`); NaN where nothing varies."""
    given, true = (tensor[mask].double().cpu().numpy() for tensor in (advantages, credit))
    varies = given.std() > 0 and true.std() > 0
    decides = np.abs(true) > DECIDES
    return {
        "correlation": float(np.corrcoef(given, true)[0, 1]) if varies else float("nan"),
        "auroc": auroc(given[decides], true[decides] > 0),
        "where": auroc(np.abs(given), decides),
    }


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The probability that a positive scores above a negative, ties counting half; NaN without either."""
    if positive.all() or not positive.any():
        return float("nan")
    pairs = int(positive.sum()) * int((~positive).sum())
    return float(mannwhitneyu(scores[positive], scores[~positive], method="asymptotic").statistic / pairs)


# -- a rule of one's own beside the measured ones ---------------------------------------------------------------------


def contest(
    rule: str | Rule, setting: Setting = SMALL, units: int | None = None, folder: str | Path = "runs/arena",
    show: Callable[[str], None] | None = None, scale: str = "family",
) -> pd.DataFrame:  # fmt: skip
    """`arena_table` of a rule, the bounds and plain group credit, over the first units of a scale.

    Every unit trains the bounds anew at the same setting, so that scores compare with the measured ones. What is done
    is kept in <folder>/<setting>/unit=<k>/<rule>-<digest> (of the setting and the rule's source), and read again.

    rule: as `contender` takes it.  units: by default the setting's.  show: called with a line per unit and rule.
    scale: "family", whose units differ in policy and prompts, or "bundled", one policy that is there at once.
    Raises ValueError for a rule that can't be called and for fewer than two units.
    """
    own, units = contender(rule), setting.units if units is None else units
    if units < 2:
        raise ValueError(f"units={units} must be 2 or more: an interval is over units.")
    if Path(folder).is_file():
        raise ValueError(f"folder={str(folder)!r} is no folder; give the path of one.")
    rules, parts = [*(contender(name) for name in BOUNDS if name != own.name), own], {name: [] for name in TABLES}
    for unit in range(units):
        bench = Bench(scale, unit)
        for entry in rules:
            digest = hashlib.sha256(repr((setting, bench.scale.name, entry.source)).encode()).hexdigest()[:8]
            place = Path(folder) / setting.name / f"unit={unit}" / f"{short_name(entry.name)}-{digest}"
            paths = {name: place / f"{name}.parquet" for name in TABLES}
            if not all(path.exists() for path in paths.values()):
                tables = unit_tables(bench, setting, [entry], {"grad_norm": [entry]})
                for name, path in paths.items():
                    write_parquet(path, tables[name])
                if show is not None:
                    first, *_, last = tables["runs"]["value"]
                    show(f"unit {bench.seed}, {entry.name}: exact held-out value {first:.3f} to {last:.3f}")
            for name, path in paths.items():
                parts[name].append(pd.read_parquet(path).assign(seed=unit))
    return arena_table(*(pd.concat(parts[name], ignore_index=True) for name in TABLES))


@cache
def measured_table() -> pd.DataFrame:
    """The `arena_table` of the committed study, over the units that trained every rule.

    Further units trained the bounds and plain group credit alone: they decide A1, but beside other rules they would be
    compared over other prompts.  Raises NotMeasured where there is none.
    """
    marks, runs = (load_measured("arena", "family", name) for name in TABLES)
    rules = runs.groupby("seed")["rule"].nunique()
    whole = rules.index[rules == rules.max()]
    return arena_table(marks[marks["seed"].isin(whole)], runs[runs["seed"].isin(whole)]).assign(source=MEASURED)


def place(measured: pd.DataFrame, own: pd.DataFrame, rule: str) -> pd.DataFrame:
    """The measured table with a contest's row of `rule` in its place, and that of plain group credit beside.

    Scores are of each row's own bounds. The second row shows what the contest's setting does to a rule that is known.
    """
    rows = own[own["rule"].isin([rule, PLAIN])].assign(source=YOURS)
    table = pd.concat([measured, rows], ignore_index=True)
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def short_name(rule: str) -> str:
    """A rule's name without the path of its file."""
    return rule.rpartition(":")[2]
