"""Tables of registered units, and the word for one outcome on scipy.stats.

Units' numbers x (means by policy where several units share some policies, but not all one) against
a threshold c, on the claim's side of which it stands, and a zone c +- d of what is too small to be
of interest:

    cannot be tested here    by the registration or by rows.yaml; or the positive control does not
                             hold; or a Void; or every unit lies exactly at c
    too small to matter      the 90 % t interval lies inside the zone; goes first where c is 0
                             (1 for a ratio)
    holds, does not hold     the 95 % t interval lies on the claim's side of c, or on the other
    open                     else, or fewer than 6 independent numbers, or a primary row that Holm
                             leaves above 5 %

A series marked by `logs` holds logarithms of a ratio; numbers are given back as ratios. One with
attrs["estimate"] holds pseudo-values, whose interval it is, and that estimate is printed.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "data" / "results"
WORLDS = yaml.safe_load((ROOT / "data" / "worlds" / "worlds.yaml").read_text(encoding="utf-8"))
MIN_UNITS, LEVEL = 6, 0.05
DOCUMENT = re.compile(r"^--- # (.+)\n", re.MULTILINE)


class Missing(Exception):
    """A place in a table that was not measured."""


class Void(Exception):
    """A row whose registration lets another row take its meaning from it."""


def texts(registration: str) -> dict[str, str]:
    """{what the line above it says: text} of a registration.yaml: a study's name, or that and a
    note's.
    """
    parts = DOCUMENT.split(registration)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def standing(results: Path) -> dict[str, str]:
    """The texts of all registrations and notes of a folder of results."""
    every: dict[str, str] = {}
    for path in sorted(results.glob("*/registration.yaml")):
        every |= texts(path.read_text("utf-8"))
    return every


class Units:
    """Tables of one study at one scale, of its registered units alone, and the policy of each.

    At the scale "worlds" a unit is a world, by its number; worlds: the units of each that has any.
    """

    def __init__(self, study: str, scale: str, count: int, results: Path | None = None):
        results = results or RESULTS
        self.scale, self.results, self.policies = scale, results, {}
        folder = next((path.parent for path in results.glob(f"*/{study}.*.parquet")), results)
        if folder != results and f"{study} sealed" not in standing(results):
            made = pd.read_parquet(
                folder / "manifest.parquet", columns=["part", "scale", "seed", "sizes"]
            )
            made = made[(made["part"] == study) & (made["scale"] == scale) & (made["seed"] < count)]
            policies = [json.loads(sizes)["policy"] for sizes in made["sizes"]]
            self.policies = dict(zip(made["seed"].tolist(), policies, strict=True))
        if scale == "worlds":
            every = [Units(study, f"world:{name}", 10, results) for name in list(WORLDS)[:count]]
            self.worlds = {number: units for number, units in enumerate(every) if units.policies}
            self.policies = {number: units.scale for number, units in self.worlds.items()}

        @cache
        def table(name: str) -> pd.DataFrame:
            path = folder / f"{study}.{name}.parquet"
            if self.policies and path.exists():
                rows = pd.read_parquet(
                    path, filters=[("scale", "==", scale), ("seed", "in", list(self.policies))]
                )
                if set(rows["seed"]) == set(self.policies):
                    return rows.drop(columns="scale")
            raise Missing(f"{study} has no table {name}")

        self.table = table


def at(table: pd.DataFrame, **place) -> pd.DataFrame:
    """Rows of a table at one place; Missing if there are none."""
    here = np.ones(len(table), bool)
    for name, value in place.items():
        column = table[name].to_numpy()
        here &= np.abs(column - value) < 1e-9 if isinstance(value, float) else column == value
    if not here.any():
        raise Missing(f"no row at {place}")
    return table[here]


def one(table: pd.DataFrame, column: str, **place) -> pd.Series:
    """A column at one place, one row per unit."""
    rows = at(table, **place)
    assert not rows["seed"].duplicated().any(), f"{place} has several rows of a unit"
    return pd.Series(rows[column].to_numpy(float), rows["seed"].to_numpy())


def each(table: pd.DataFrame, number) -> pd.Series:
    """number(rows of a unit) of every unit."""
    return pd.Series(
        {unit: float(number(rows)) for unit, rows in table.groupby("seed")}, dtype=float
    )


def logs(values: pd.Series) -> pd.Series:
    """The series, marked as logarithms of a ratio."""
    values.attrs["log"] = True
    return values


def judge(values: pd.Series, outcome: dict, policies: dict[int, str]) -> dict:
    """Numbers of units against a registered outcome, and what the intervals alone say (`conclude`
    says the rest).
    """
    log, estimate = bool(values.attrs.get("log")), values.attrs.get("estimate")
    values = values[np.isfinite(values.to_numpy(float))]
    x, names = values.to_numpy(float), [policies[unit] for unit in values.index]
    if 2 <= len(set(names)) < len(values):
        x = np.array(
            [
                np.mean([v for v, own in zip(x, names, strict=True) if own == name])
                for name in set(names)
            ]
        )
    into, back = (math.log, math.exp) if log else (float, float)
    c, d, sign = (
        outcome["threshold"],
        outcome["smallest_effect"],
        {"above": 1, "below": -1}[outcome["side"]],
    )
    row = {
        "claim": outcome["claim"],
        "role": outcome["role"],
        "units": len(values),
        "policies": len(x),
    }
    mean = x.mean() if len(x) and estimate is None else estimate
    row |= {"here": "open", "mean": back(mean) if len(x) else math.nan}
    if len(x) < MIN_UNITS:
        return row
    threshold, low_end, high_end = into(c), into(c - d), into(c + d)
    (low, high), inner, flat = interval(x), interval(x, 0.90), np.ptp(x) == 0
    row |= dict(
        zip(("low", "high", "low_90", "high_90"), map(back, (low, high, *inner)), strict=True)
    )
    small = (
        low_end < inner[0] and inner[1] < high_end and (threshold == 0 or low <= threshold <= high)
    )
    if flat and x[0] == threshold:
        row["here"] = "cannot be tested here"
    elif small:
        row["here"] = "too small to matter"
    elif not low <= threshold <= high:
        row["here"] = "holds" if (low > threshold) == (sign > 0) else "does not hold"
    if small:
        p = max(one_sided(x - low_end), one_sided(high_end - x))
    else:
        p = float(x[0] == threshold) if flat else float(stats.ttest_1samp(x, threshold).pvalue)
    return row | {"p": p}


def conclude(row: dict, controls: dict[str, dict]) -> str:
    """The word of a judged row, p_holm of a primary one known; controls: rows of its scale by their
    keys.
    """
    here, control = row["here"], row["registered"].get("positive_control")
    if row["excluded"] or row["void"]:
        return "cannot be tested here"
    if row["policies"] < MIN_UNITS or here == "cannot be tested here":
        return here
    if control and (control not in controls or conclude(controls[control], controls) != "holds"):
        return "cannot be tested here"
    return "open" if row.get("p_holm", 0.0) > LEVEL else here


def holm(p: dict) -> dict:
    """Holm's adjusted p-values, step by step down the ordered list."""
    adjusted, largest = {}, 0.0
    for left, key in zip(range(len(p), 0, -1), sorted(p, key=p.get), strict=True):
        largest = max(largest, min(1.0, left * p[key]))
        adjusted[key] = largest
    return adjusted


def says_no(outcome: dict, name: str) -> bool:
    """Whether a registered outcome is not testable or not comparable. YAML reads a bare no as
    False.
    """
    value = outcome.get(name, "yes")
    return value is False or str(value).lower().startswith("no")


def interval(x: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Ends of Student's t interval."""
    half = stats.t.ppf((1 + level) / 2, len(x) - 1) * stats.sem(x)
    return x.mean() - half, x.mean() + half


def one_sided(x: np.ndarray) -> float:
    """p for the mean being at most 0."""
    if np.ptp(x) == 0:
        return 0.0 if x[0] > 0 else 1.0
    return float(stats.ttest_1samp(x, 0.0, alternative="greater").pvalue)
