"""One unit of the arena: rules under one budget of sampled tokens, from one policy, on one stream of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbook.studies.bench import Bench
from workbook.studies.loop import Loop, train_in_memory
from workbook.topics.arena.marks import rule_marks
from workbook.topics.arena.rules import UPPER, Contender, exact_oracle

KEPT = ["batch", "value", "reward", "grad_norm", "moved", "tax", "sampled_tokens", "seconds"]


@dataclass(frozen=True)
class Setting:
    """How large a contest is.

    prompts, group_size: of a generation batch, on which one optimizer step is taken.  batches: that the budget of
    sampled tokens is made for.  held_out: prompts whose exact value is the outcome.  marked, redraws: prompts whose
    update is compared with the ideal one, and how often their rollouts are redrawn.  units: policies x seeds.
    """

    name: str
    prompts: int
    batches: int
    held_out: int
    marked: int
    redraws: int
    units: int
    group_size: int = 8
    lr: float = 3e-4

    def tokens(self, task) -> int:
        """The budget: tokens of as many well-formed completions as the batches hold."""
        prompt = task.dataset(1)[0]["prompt"]
        return self.batches * self.prompts * self.group_size * (len(task.render(prompt).split()) + 1)


FULL = Setting("full", prompts=8, batches=12, held_out=48, marked=16, redraws=6, units=10)
SMALL = Setting("small", prompts=8, batches=6, held_out=24, marked=8, redraws=3, units=6)
SETTINGS = {setting.name: setting for setting in (FULL, SMALL)}


def unit_tables(
    bench: Bench,
    setting: Setting,
    marked: Iterable[Contender],
    trained: Mapping[str | None, Iterable[Contender]],
) -> dict[str, pd.DataFrame]:
    """Tables marks (a row per rule) and runs (a row per rule, match and moment of its run) of one unit.

    marked: rules whose updates are compared with the ideal one.  trained: rules to train, by how their gradients are
    matched ("grad_norm", or None).
    """
    sizes = (setting.marked, setting.group_size, setting.redraws, bench.data_seed, bench.scale.max_new_tokens)
    runs = [train_rule(bench, rule, setting, match) for match, rules in trained.items() for rule in rules]
    return {"marks": rule_marks(bench.policy, bench.task, marked, *sizes), "runs": pd.concat(runs, ignore_index=True)}


def train_rule(bench: Bench, rule: Contender, setting: Setting, match: str | None = "grad_norm") -> pd.DataFrame:
    """A run of one rule until the budget is spent, with the columns KEPT, rule, match and budget.

    match: "grad_norm", each step's gradient rescaled to length 1, or None.
    """
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


def at_budget(tokens: np.ndarray, values: np.ndarray, budget: float) -> tuple[float, float]:
    """Value of a run when its budget was spent, on a straight line between two readings, and the mean on the way.

    tokens, values: of the run's readings, in order; one that ended before its budget counts with its last value.

    >>> value, area = at_budget(np.array([0, 100, 200]), np.array([0.4, 0.5, 0.7]), 150)
    >>> round(value, 3), round(area, 3)
    (0.6, 0.483)
    """
    places = np.append(tokens[tokens < budget], budget)
    curve = np.interp(places, tokens, values)
    return float(curve[-1]), float(np.trapezoid(curve, places) / budget)
