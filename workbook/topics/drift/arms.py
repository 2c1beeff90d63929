"""Arms of the study `confidence`: objectives whose weights are, or are not, exchangeable within a group, in training.

Every arm trains with reuse, so that ratios differ: a generation batch of 128 rollouts is cut into two mini-batches of
whole groups and gone over twice. Each has a twin whose advantages are permuted within their groups: it learns nothing,
so what it moves is the price of noise, ratios and clip at this rate. An arm's tax minus its twin's is its *excess*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from workbook.probes.drift import learning_tax, odds_drift
from workbook.probes.values import expected_reward
from workbook.studies.loop import Loop, Readings, train_in_memory
from workbook.theory.choices import check_choice

ROLLOUTS = 128  # of a generation batch, whatever the group's size
LOOP = Loop(batches=4, minibatches=2, epochs=2, order="query_preserved", rule="dr_grpo")
MIN_FREE_ENTROPY = 0.05  # nats: a word whose entropy at the start is above is a free choice
DEAD = 0.5  # of the start's exact value: below, a run has collapsed


@dataclass(frozen=True)
class Arm:
    """One objective: its ratio's level, whether it is clipped, and how; transform and what that works on.

    exchangeable: whether its weights are equal within a group, or cancel there by construction.
    """

    level: str = "sequence"
    clipped: bool = True
    clipping: str = "asymmetric"
    transform: str | None = None
    transform_on: str = "clipped"

    @property
    def exchangeable(self) -> bool:
        return self.transform is not None

    def loop(self, group_size: int, lr: float, epsilon: float, permuted: bool = False) -> Loop:
        """The loop of a run of this arm, at 128 rollouts a batch; epsilon: of the clip range, where it has one."""
        return replace(
            LOOP,
            prompts=ROLLOUTS // group_size,
            group_size=group_size,
            lr=lr,
            level=self.level,
            clip=(epsilon, epsilon) if self.clipped else None,
            clipping=self.clipping,
            transform=self.transform,
            transform_on=self.transform_on,
            permuted=permuted,
        )


ARMS = {
    "GSPO": Arm(),
    "clip off": Arm(clipped=False),
    "min-replace": Arm(transform="min_replace"),
    "min-replace, clamped": Arm(transform="min_replace", transform_on="ratios"),
    "orthogonal": Arm(transform="advantage_orthogonal"),
    "PPO": Arm(level="token"),
    "PPO, symmetric": Arm(level="token", clipping="symmetric"),
}
# Learning rate and clip range of each arm: the best of the study `confidence_tuning`, on unit 100
RATES = {
    "GSPO": (6e-4, 0.01),
    "clip off": (3e-4, 0.01),
    "min-replace": (6e-4, 0.01),
    "min-replace, clamped": (3e-4, 0.03),
    "orthogonal": (6e-4, 0.03),
    "PPO": (6e-4, 0.2),
    "PPO, symmetric": (6e-4, 0.2),
}


class FreeWords(Readings):
    """Readings of a chain policy with the movement of all free words: of style, and of templates that have a synonym.

    tax: mean KL of style words from the start; template_tax: of the free template words; free_tax: of both, per word;
    odds: mean |change of log-odds| between equivalent solutions; all in nats.
    """

    def now(self, policy) -> dict[str, float]:
        """The readings of a later policy; template_tax is NaN where no template word is free."""
        report = self.drift.report(policy)
        free = report[(report["entropy_before"] > MIN_FREE_ENTROPY) & report["category"].isin(["style", "template"])]
        style = learning_tax(report).mean()
        return {
            "value": float(expected_reward(policy, self.task, self.held_out).mean()),
            "tax": float(style["tax"]),
            "style_entropy": float(style["style_entropy"]),
            "template_tax": float(free.loc[free["category"] == "template", "kl"].mean()),
            "free_tax": float(free["kl"].mean()),
            "odds": float(odds_drift(report)["odds"].mean()),
        }


def run_arm(
    policy,
    task,
    readings: FreeWords,
    name: str,
    group_size: int,
    seed: int,
    permuted: bool = False,
    batches: int = LOOP.batches,
    every: int = 1,
    **rate: float,
) -> pd.DataFrame:
    """Train one arm in memory: the table of `train_in_memory`, with the columns arm, permuted, group_size, lr, epsilon.

    every: generation batches from one reading to the next.  rate: lr and epsilon, where they are not the tuned ones.

    Raises ValueError for an arm that is not in ARMS.
    """
    check_choice("arm", name, tuple(ARMS))
    lr, epsilon = RATES[name]
    rate = {"lr": lr, "epsilon": epsilon} | rate
    loop = replace(ARMS[name].loop(group_size, permuted=permuted, **rate), batches=batches)
    table = train_in_memory(policy, task, loop, seed, readings, every)
    return table.assign(arm=name, permuted=permuted, group_size=group_size, **rate)


# --- comparisons of runs, each of one unit


def living(run: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run before it collapses: before its exact value falls below half of what it started with."""
    dead = np.flatnonzero(run["value"].to_numpy() < DEAD * run["value"].iloc[0])
    return run.iloc[: dead[0]] if len(dead) else run


def excess(arm: pd.DataFrame, twin: pd.DataFrame, outcome: str = "free_tax") -> pd.Series:
    """An outcome of an arm minus that of its twin with permuted advantages, after every batch that both have."""
    one, other = (run.set_index("batch")[outcome] for run in (arm, twin))
    common = one.index.intersection(other.index)
    return one[common] - other[common]


def at_value(values: np.ndarray, outcome: np.ndarray, level: float) -> float:
    """An outcome where a run's value first reaches a level, linear between batches; NaN if it never does.

    >>> at_value(np.array([0.4, 0.6, 0.5]), np.array([0.0, 1.0, 2.0]), 0.5)
    0.5
    """
    values, outcome = np.asarray(values, float), np.asarray(outcome, float)
    reached = np.flatnonzero(values >= level)
    if not len(reached):
        return math.nan
    k = reached[0]
    if k == 0:
        return float(outcome[0])
    share = (level - values[k - 1]) / (values[k] - values[k - 1])
    return float(outcome[k - 1] + share * (outcome[k] - outcome[k - 1]))
