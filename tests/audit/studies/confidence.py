"""confidence: residuals, shared energy, and runs of arms and of their twins with permuted advantages.

What the registration's sentences leave to the tables: an arm that collapses gives no number, a twin counts up to the
batch before; "at equal exact value" is at the highest value that both arms reach, where each first reaches it, straight
between batches. The weights' space is the column gradient; free words' tax is free_tax, style's tax, template's
template_tax; entropy lost is the start's minus the run's.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from audit.tables import Missing, at, each, one

P = 0.8


class Collapsed(Exception):
    """A run that gives no number."""


def residual(first, second=None, column="residual", size=2):
    def number(units):
        rows = at(units.table("residuals"), group_size=size, confidence=P)
        less = one(rows, column, objective=second) if second else 0.0
        return one(rows, column, objective=first) - less

    return number


def energy(size):
    return lambda units: one(units.table("energy"), "shared_energy", category="all", group_size=size, confidence=P)


def run(rows: pd.DataFrame, arm: str, permuted=False) -> pd.DataFrame:
    """A run, batches in order; a twin's before it collapses."""
    try:
        here = at(rows, arm=arm, permuted=permuted).sort_values("batch").set_index("batch")
    except Missing:
        raise Collapsed from None
    dead = here["value"] < here["value"].iloc[0] / 2
    if dead.any() and not permuted:
        raise Collapsed
    return here[~dead.cummax()]


def beyond(rows: pd.DataFrame, arm: str, column: str) -> pd.DataFrame:
    """Columns value and y, a column of an arm minus its twin's, at the batches of both."""
    own, twin = run(rows, arm), run(rows, arm, permuted=True)
    y = lost(own) - lost(twin) if column == "lost" else own[column] - twin[column]
    return pd.DataFrame({"value": own["value"], "y": y}).dropna(subset=["y"])


def lost(path: pd.DataFrame) -> pd.Series:
    return path["style_entropy"].iloc[0] - path["style_entropy"]


def when(values: pd.Series, y: pd.Series, level: float) -> float:
    """y where values first reach a level, on straight lines; NaN for a level that is that of the start."""
    values, y = values.to_numpy(float), y.to_numpy(float)
    k = int(np.argmax(values >= level))
    if k == 0:
        return np.nan
    return float(np.interp(level, values[k - 1 : k + 1], y[k - 1 : k + 1]))


def equal_value(first, second, column="free_tax"):
    def number(rows):
        one_, other = beyond(rows, first, column), beyond(rows, second, column)
        level = min(one_["value"].max(), other["value"].max())
        return when(one_["value"], one_["y"], level) - when(other["value"], other["y"], level)

    return of_runs(number)


def excess(arm, size=2):
    return of_runs(lambda rows: beyond(rows, arm, "free_tax")["y"].iloc[-1], size)


def at_end(first, second):
    return lambda rows: run(rows, first)["value"].iloc[-1] - run(rows, second)["value"].iloc[-1]


def bend(rows, arm):
    v = run(rows, arm)["value"].to_numpy(float)
    return np.mean(np.abs(v[2:] - 2 * v[1:-1] + v[:-2]))


def batches(rows):
    runs = [run(rows, arm)["value"] for arm in ("min-replace", "GSPO")]
    start = runs[0].iloc[0]
    level = start + 0.9 * (min(values.max() for values in runs) - start)
    first, second = (when(values, values.index.to_series(), level) for values in runs)
    return first - second


def of_runs(number, size=2):
    """number(runs of a unit) of every unit, NaN where an arm that it needs collapsed."""

    def safe(rows):
        try:
            return number(rows)
        except Collapsed:
            return np.nan

    return lambda units: each(at(units.table("runs"), group_size=size, confidence=P), safe)


def slope(units):
    """Per doubling of G; NaN where a size is missing."""
    gain = at_end("min-replace", "GSPO")
    sizes = pd.DataFrame({np.log2(size): of_runs(gain, size)(units) for size in (2, 4, 8, 16)})
    away = np.array(sizes.columns) - np.mean(sizes.columns)
    return pd.Series(sizes.to_numpy() @ away / (away @ away), sizes.index)


def lever(units):
    return energy(16)(units) - energy(2)(units)


OUTCOMES = {
    "D1": residual("equal weights", column="gradient"),
    "D1 energy": energy(2),
    "D1 energy of eight": energy(8),
    "D1 consequence": equal_value("min-replace", "GSPO", "template_tax"),
    "D2": residual("sequence ratio", "token ratio"),
    "D2 groups of eight": residual("sequence ratio", "token ratio", size=8),
    "D2 clipped": residual("sequence, clipped", "sequence ratio"),
    "D3": residual("token, clipped", "token, symmetric"),
    "D3 sequence": residual("sequence, clipped", "sequence, symmetric"),
    "D3 usual range": residual("PPO's clip, 0.2", column="stopped"),
    "D3 consequence": equal_value("PPO", "PPO, symmetric"),
    "D4": equal_value("GSPO", "min-replace"),
    "D4 clip off": equal_value("clip off", "min-replace"),
    "D4 style": equal_value("GSPO", "min-replace", "tax"),
    "D5": equal_value("GSPO", "min-replace", "lost"),
    "D5 odds": equal_value("GSPO", "min-replace", "odds"),
    "D6": residual("min-replace"),
    "D6 mechanism": residual("min-replace", "sequence ratio", "gradient"),
    "D6 consequence": equal_value("min-replace, clamped", "GSPO"),
    "D6 control": equal_value("min-replace, clamped", "clip off"),
    "D7": residual("orthogonal"),
    "D7 mechanism": residual("orthogonal", "sequence ratio", "gradient"),
    "D7 consequence": equal_value("orthogonal", "GSPO"),
    "D8": of_runs(at_end("min-replace", "GSPO")),
    "D8 clamped": of_runs(at_end("min-replace, clamped", "GSPO")),
    "D8 control": of_runs(at_end("min-replace, clamped", "clip off")),
    "D8 orthogonal": of_runs(at_end("orthogonal", "GSPO")),
    "D8 symmetric": of_runs(at_end("PPO, symmetric", "PPO")),
    "D8 jitter": of_runs(lambda rows: bend(rows, "min-replace") - bend(rows, "GSPO")),
    "D8 compute": of_runs(batches),
    "D9": slope,
    "D9 mechanism": lever,
    "D-falsifier": excess("GSPO"),
    "D-falsifier clip off": excess("clip off"),
    "D-falsifier token ratios": excess("PPO"),
    "D-falsifier exchangeable": excess("min-replace"),
    "D-falsifier groups of eight": excess("GSPO", 8),
}
