"""Statistics of one registered outcome, written a second time on scipy.stats.

Units' numbers x (means by policy where several units share some policies, but not all one) against a threshold c, on
the claim's side of which the paper stands, and a zone c +- d of what is too small to be of interest:

    equivalent to none       the 90 % t interval lies inside the zone: two one-sided tests at 5 %. This goes first.
    supported, contradicted  the 95 % t interval lies on one side of c, and q <= 5 % over all primary rows
    inconclusive             else
    not testable here        registered as such, or every unit lies exactly at c
    not comparable           registered as such
    not measured             fewer than `MIN_UNITS` independent numbers

A series marked by `logs` holds logarithms of a ratio; c and c +- d are taken as logarithms, numbers are given back as
ratios, and the detectable effect is its distance from c on the claim's side.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pandas as pd
from scipy import optimize, stats

MIN_UNITS, LEVEL = 6, 0.05
MAX_EXACT = 12  # numbers up to which all sign flips are tried
SUPPORTED, CONTRADICTED, EQUIVALENT, INCONCLUSIVE = "supported", "contradicted", "equivalent to none", "inconclusive"
NOT_TESTABLE, NOT_COMPARABLE, NOT_MEASURED = "not testable here", "not comparable", "not measured"


def logs(values: pd.Series) -> pd.Series:
    """The series, marked as logarithms of a ratio."""
    values.attrs["log"] = True
    return values


class Rule:
    """A registered threshold, its zone and the claim's side; of logarithms for a ratio."""

    def __init__(self, outcome: dict, log: bool = False):
        self.c, self.d = float(outcome["threshold"]), float(outcome["smallest_effect"])
        self.sign, self.log = {"above": 1, "below": -1}[outcome["side"]], log
        self.into, self.back = (math.log, math.exp) if log else (float, float)
        self.at, self.low, self.high = (self.into(end) for end in (self.c, self.c - self.d, self.c + self.d))


def independent(values: pd.Series, policies: dict[int, str]) -> np.ndarray:
    """Units' numbers, or their means by policy where several units share some, but not all one."""
    names = [policies[unit] for unit in values.index]
    if not 2 <= len(set(names)) < len(values):
        return values.to_numpy(float)
    return np.array([np.mean([v for v, own in zip(values, names, strict=True) if own == name]) for name in set(names)])


def judge(values: pd.Series, outcome: dict, policies: dict[int, str]) -> dict:
    """Numbers of units against a registered outcome, and what the intervals alone say (`conclude` says the rest)."""
    values = values[np.isfinite(values.to_numpy(float))]
    if values.empty:
        return {"units": 0, "policies": 0, "outcome": NOT_MEASURED}
    log, x = bool(values.attrs.get("log")), independent(values, policies)
    counts = {"units": len(values), "policies": len(x)}
    if "threshold" not in outcome:  # described
        return counts | {"mean": math.exp(x.mean()) if log else x.mean(), "outcome": "described"}
    rule = Rule(outcome, log)
    if len(x) < MIN_UNITS:
        return counts | {"mean": rule.back(x.mean()), "outcome": NOT_MEASURED}
    low, high = interval(x)
    rests = [np.delete(x, i).mean() for i in range(len(x))]
    return counts | {
        "mean": rule.back(x.mean()),
        "low": rule.back(low),
        "high": rule.back(high),
        "outcome": by_intervals(x, rule),
        "p": p_value(x, rule.at),
        "p_equivalent": max(one_sided(x - rule.low), one_sided(rule.high - x)),
        "p_flips": sign_flips(x - rule.at),
        "detectable": detectable(x, rule),
        "without_low": rule.back(min(rests)),
        "without_high": rule.back(max(rests)),
    }


def conclude(row: dict, outcome: dict) -> str:
    """The outcome of a judged row, q of a primary one known."""
    here = row["outcome"]
    if not row["units"] or here == "described":
        return here
    if says_no(outcome, "testable"):
        return NOT_TESTABLE
    if row["policies"] < MIN_UNITS or here == NOT_TESTABLE:
        return here
    if here in (SUPPORTED, CONTRADICTED) and row.get("q", 0.0) > LEVEL:
        here = INCONCLUSIVE
    return NOT_COMPARABLE if says_no(outcome, "comparable") else here


def says_no(outcome: dict, name: str) -> bool:
    """Whether a registered outcome is not testable or not comparable. YAML reads a bare no as False."""
    value = outcome.get(name, "yes")
    return value is False or str(value).lower().startswith("no")


def benjamini_hochberg(p: dict) -> dict:
    """q of each key's p-value."""
    return dict(zip(p, stats.false_discovery_control(list(p.values()), method="bh"), strict=True)) if p else {}


def jackknife(statistic, units: list) -> list[float]:
    """Pseudo-values n T - (n - 1) T_without_i of a statistic of a list of units."""
    n, whole = len(units), statistic(units)
    return [n * whole - (n - 1) * statistic(units[:i] + units[i + 1 :]) for i in range(n)]


def interval(x: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Ends of Student's t interval over the last axis."""
    half = stats.t.ppf((1 + level) / 2, x.shape[-1] - 1) * stats.sem(x, axis=-1)
    return x.mean(-1) - half, x.mean(-1) + half


def by_intervals(x: np.ndarray, rule: Rule) -> str:
    if np.ptp(x) == 0 and x[0] == rule.at:
        return NOT_TESTABLE
    low, high = interval(x, 0.90)
    if rule.low < low and high < rule.high:
        return EQUIVALENT
    low, high = interval(x)
    if low <= rule.at <= high:
        return INCONCLUSIVE
    return SUPPORTED if (low > rule.at) == (rule.sign > 0) else CONTRADICTED


def p_value(x: np.ndarray, c: float) -> float:
    """Two-sided p of Student's t."""
    if np.ptp(x) == 0:
        return 1.0 if x[0] == c else 0.0
    return float(stats.ttest_1samp(x, c).pvalue)


def one_sided(x: np.ndarray) -> float:
    """p for the mean being at most 0."""
    if np.ptp(x) == 0:
        return 0.0 if x[0] > 0 else 1.0
    return float(stats.ttest_1samp(x, 0.0, alternative="greater").pvalue)


@cache
def noncentrality(n: int) -> float:
    """delta at which a two-sided t test at 5 % of n numbers has a power of 80 %."""
    critical = stats.t.ppf(0.975, n - 1)
    return optimize.brentq(lambda delta: stats.nct.sf(critical, n - 1, delta) - 0.8, 1, 10, xtol=1e-13, rtol=1e-13)


def detectable(x: np.ndarray, rule: Rule) -> float:
    """Least distance from the threshold that n such numbers find in four of five tries."""
    effect = noncentrality(len(x)) * stats.sem(x)
    return abs(math.exp(rule.at + rule.sign * effect) - rule.c) if rule.log else effect


def sign_flips(x: np.ndarray) -> float:
    """Exact two-sided p of sign flips; NaN beyond `MAX_EXACT` numbers, where the ledger draws."""
    if len(x) > MAX_EXACT:
        return math.nan
    sums = np.abs(np.array(list(itertools.product((-1, 1), repeat=len(x)))) @ x)
    return float(np.mean(sums >= abs(x.sum()) * (1 - 1e-12)))
