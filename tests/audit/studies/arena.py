"""arena: exact held-out value at equal sampled tokens, and what a rule's advantages know.

Scores and the cosine are ratios of means over units; a unit's number is its jackknife pseudo-value. The cosine is
mean along / sqrt(mean of mean2), both in units of the exact gradient's length.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from audit.reckoning import jackknife
from audit.tables import at


def read(run: pd.DataFrame, what: str) -> float:
    """value: when the budget is spent, straight between rows; area: mean on the way there; start: before training."""
    run = run.sort_values("batch")
    tokens, value, budget = run["sampled_tokens"].to_numpy(float), run["value"].to_numpy(float), run["budget"].iloc[0]
    if what == "start":
        return value[0]
    end = np.interp(budget, tokens, value)
    if what == "value":
        return float(end)
    x, y = np.append(tokens[tokens < budget], budget), np.append(value[tokens < budget], end)
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / budget)


def runs(units, rule, what="value", match="grad_norm") -> pd.Series:
    rows = at(units.table("runs"), rule=rule, match=match)
    return pd.Series({unit: read(run, what) for unit, run in rows.groupby("seed")})


def less(rule, base, what="value"):
    return lambda units: (runs(units, rule, what) - runs(units, base, what)).dropna()


def pseudo(statistic, table: pd.DataFrame) -> pd.Series:
    """Pseudo-values of statistic(means over units) of the units that have every column."""
    table = table.dropna()
    rows = [row for _, row in table.iterrows()]
    return pd.Series(jackknife(lambda kept: statistic(pd.DataFrame(kept).mean()), rows), table.index)


def score(match="grad_norm", floor="permuted"):
    def number(units):
        best = runs(units, "oracle", match=match)
        least = runs(units, "oracle", "start", match) if floor == "start" else runs(units, floor, match=match)
        table = pd.DataFrame({"rule": runs(units, "dr_grpo", match=match), "floor": least, "best": best})
        return pseudo(lambda mean: (mean["rule"] - mean["floor"]) / (mean["best"] - mean["floor"]), table)

    return number


def cosine(units):
    table = at(units.table("marks"), rule="dr_grpo").set_index("seed")[["along", "mean2"]]
    return pseudo(lambda mean: mean["along"] / np.sqrt(mean["mean2"]), table)


def knows(rule, base):
    def number(units):
        marks = {name: at(units.table("marks"), rule=name).set_index("seed")["correlation"] for name in (rule, base)}
        return (marks[rule] - marks[base]).dropna()

    return number


OUTCOMES = {
    "A1": score(),
    "A1 gain": score(floor="start"),
    "A1 mechanism": cosine,
    "A1 distance": less("dr_grpo", "oracle"),
    "A1 control": less("coin_reward", "permuted"),
    "A1 unmatched": score(match="none"),
}
for claim, (rule, base) in {
    "P1": ("prefix_credit", "dr_grpo"),
    "P2": ("ibpo", "grpo"),
    "P3": ("edit_mask", "grpo"),
}.items():
    OUTCOMES |= {
        claim: less(rule, base),
        f"{claim} mechanism": knows(rule, base),
        f"{claim} area": less(rule, base, "area"),
    }
