"""How often the ledger's intervals hold the truth, simulated: t intervals of unit means and of
pseudo-values.

    PYTHONPATH=tests python -m audit.coverage build/results   # a minute; a table, a manifest

A unit (policy x seed) has `PROMPTS` prompts, whose outcomes share what is the unit's own:

    y_up = sqrt(ICC) a_u + sqrt(1 - ICC) e_up,   a and e normal, or exponential minus 1

The mean of y is 0; the ratio is of two such means, (2 + 0.6 y) / (3 + 0.6 y'), with y and y'
correlated by a half: 2/3. An interval of 95 % should hold the truth in 93 to 97 % of repetitions
(`BAR`).

Beside that cell by cell table stands a curve: coverage against the skewness of the units themselves
(gamma), and where on it the ledger's own rows lie, by the skewness that their units show.

Where several units have one policy they are not independent: in `SHARING` `SHARED` of them have,
and ICC is the policy's share of the variance. The ledger judges the policies' means; t over all
units stands beside it, not used.
"""

from __future__ import annotations

import sys
import time
from itertools import product

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from workbook.files import made_on
from workbook.statistics import Interval
from workbook.studies import compute_ledger
from workbook.studies.inference import independent
from workbook.studies.registration import MIN_UNITS
from workbook.studies.storage import table_paths, write_unit

UNITS, ICCS, OUTCOMES = (6, 8, 10, 30), (0.0, 0.05, 0.2, 0.8), ("normal", "skewed")
PROMPTS = 16
REPETITIONS = 10_000
BAR = (0.93, 0.97)
STATISTICS = ("mean of units", "ratio, pseudo-values", "ratio, pseudo-values of its logarithm")
UNUSED = "mean of units, three a policy (not used)"
SHARING = (UNUSED, "mean of policies' means, three units each")
SHARED = 3
NUMERATOR, DENOMINATOR, SLOPE = 2.0, 3.0, 0.6
SKEWNESSES = (0.0, 0.5, 1.0, 1.5, 2.0)  # of units: normal at 0, exponential at 2
COLUMNS = ["statistic", "outcomes", "units", "icc", "coverage", "too_high", "too_low", "within"]
AT_ONCE = 2_000  # repetitions in memory


def coverage_table(repetitions: int = REPETITIONS, seed: int = 0) -> pd.DataFrame:
    """Share of repetitions whose 95 % interval holds the truth, for each of STATISTICS, OUTCOMES,
    UNITS and ICCS.

    Columns: statistic, outcomes, units, icc, coverage, too_high and too_low (shares of intervals
    that lie wholly above or below the truth), within (whether coverage lies in `BAR`).
    """
    rows = []
    for k, (outcomes, units, icc) in enumerate(product(OUTCOMES, UNITS, ICCS)):
        rng = np.random.default_rng([seed, k])
        sizes = [min(AT_ONCE, repetitions - start) for start in range(0, repetitions, AT_ONCE)]
        above, below = sum(_misses(rng, outcomes, size, units, icc) for size in sizes) / repetitions
        for statistic, high, low in zip(_names(units), above, below, strict=True):
            held = 1 - high - low
            rows.append(
                (statistic, outcomes, units, icc, held, high, low, BAR[0] <= held <= BAR[1])
            )
    order = {name: k for k, name in enumerate((*STATISTICS, *SHARING))}
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(
        "statistic", key=lambda names: names.map(order), kind="stable", ignore_index=True
    )


def t_bounds(x: np.ndarray, level: float = 0.95) -> Interval:
    """Mean and Student's t interval over the last axis: (..., n) values -> (...) means and ends."""
    mean = x.mean(-1)
    half = stdtrit(x.shape[-1] - 1, (1 + level) / 2) * x.std(-1, ddof=1) / x.shape[-1] ** 0.5
    return Interval(mean, mean - half, mean + half)


def _misses(rng, outcomes: str, repetitions: int, units: int, icc: float) -> np.ndarray:
    """How many intervals of each statistic lie above the truth, and how many below: (2,
    statistics).
    """
    y, other = _unit_means(rng, outcomes, repetitions, units, icc)
    numerator, denominator = NUMERATOR + SLOPE * y, DENOMINATOR + SLOPE * other
    truth = NUMERATOR / DENOMINATOR
    log_ratio = ratio_pseudo_values(numerator, denominator, log=True)
    intervals = [(t_bounds(y), 0.0), (t_bounds(ratio_pseudo_values(numerator, denominator)), truth)]
    intervals.append((t_bounds(log_ratio), np.log(truth)))
    if units // SHARED >= MIN_UNITS:
        policies = _drawn(rng, outcomes, (repetitions, units // SHARED))
        units_own = _drawn(rng, outcomes, (repetitions, units // SHARED, SHARED))
        shared = icc**0.5 * policies[..., None] + (1 - icc) ** 0.5 * units_own
        intervals += [
            (t_bounds(shared.reshape(repetitions, -1)), 0.0),
            (t_bounds(shared.mean(-1)), 0.0),
        ]
    return np.array(
        [[_count(i.low > t) for i, t in intervals], [_count(i.high < t) for i, t in intervals]]
    )


def _names(units: int) -> tuple[str, ...]:
    """Statistics of so many units: those over policies where there are enough of these."""
    return (*STATISTICS, *SHARING) if units // SHARED >= MIN_UNITS else STATISTICS


def _drawn(rng, outcomes: str, shape: tuple[int, ...]) -> np.ndarray:
    """Independent numbers of mean 0 and variance 1."""
    return (
        rng.standard_normal(shape) if outcomes == "normal" else rng.standard_exponential(shape) - 1
    )


def _unit_means(
    rng, outcomes: str, repetitions: int, units: int, icc: float
) -> tuple[np.ndarray, np.ndarray]:
    """Means over prompts of two outcomes that correlate by a half, (repetitions, units) each."""
    drawn = []
    for shape in ((repetitions, units), (repetitions, units, PROMPTS)):
        first, second = _drawn(rng, outcomes, shape), _drawn(rng, outcomes, shape)
        drawn.append((first, 0.5 * first + 0.75**0.5 * second))
    (own, own_other), (prompts, prompts_other) = drawn
    weights = icc**0.5, (1 - icc) ** 0.5
    return (
        weights[0] * own + weights[1] * prompts.mean(-1),
        weights[0] * own_other + weights[1] * prompts_other.mean(-1),
    )


def ratio_pseudo_values(
    numerator: np.ndarray, denominator: np.ndarray, log: bool = False
) -> np.ndarray:
    """`statistics.pseudo_values` of a ratio of means over units, for many tables at once: (...,
    units) each.
    """
    n, scaled = numerator.shape[-1], np.log if log else np.asarray
    sums = numerator.sum(-1, keepdims=True), denominator.sum(-1, keepdims=True)
    return n * scaled(sums[0] / sums[1]) - (n - 1) * scaled(
        (sums[0] - numerator) / (sums[1] - denominator)
    )


def skewness_table(repetitions: int = REPETITIONS, seed: int = 0) -> pd.DataFrame:
    """Coverage of the t interval against the skewness of its independent units, for each of UNITS
    and SKEWNESSES.

    Columns: units, skewness (of the gamma distribution that they are drawn from), shown (root mean
    square of the skewness that so many units show), coverage, too_high, too_low, within.
    """
    rows = []
    for k, (units, skewness) in enumerate(product(UNITS, SKEWNESSES)):
        rng = np.random.default_rng([seed, 1, k])
        x = (
            rng.standard_normal((repetitions, units))
            if skewness == 0
            else _gamma(rng, skewness, (repetitions, units))
        )
        interval = t_bounds(x)
        high, low = (
            _count(missed) / repetitions for missed in (interval.low > 0, interval.high < 0)
        )
        held = 1 - high - low
        rows.append(
            (
                units,
                skewness,
                _root_mean_square(shown_skewness(x)),
                held,
                high,
                low,
                BAR[0] <= held <= BAR[1],
            )
        )
    return pd.DataFrame(rows, columns=["units", "skewness", "shown", *COLUMNS[4:]])


def ledger_skewness(table: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """Where on the curve of `skewness_table` the rows of a `ledger` lie, for each number of units
    that it has.

    Columns: units (independent numbers of a row), rows, shown (root mean square over rows),
    skewness and coverage (on the curve, at that). Rows of one study share units, so a line is of
    fewer independent rows than it says.
    """
    shown: dict[int, list[float]] = {}
    for row in table.to_dict("records"):
        values = pd.Series(row["values"], dtype=float)
        x = independent(
            values, pd.Series(row["policy_of"], dtype=object) if row["policy_of"] else None
        )
        if len(x) >= MIN_UNITS and np.ptp(x) > 0:
            shown.setdefault(len(x), []).append(float(shown_skewness(x)))
    rows = []
    for units, of_curve in curve.groupby("units"):
        if units in shown:
            size = _root_mean_square(np.array(shown[units]))
            at = float(np.interp(size, of_curve["shown"], of_curve["skewness"]))
            rows.append(
                (
                    units,
                    len(shown[units]),
                    size,
                    at,
                    float(np.interp(at, SKEWNESSES, of_curve["coverage"])),
                )
            )
    return pd.DataFrame(rows, columns=["units", "rows", "shown", "skewness", "coverage"])


def shown_skewness(x: np.ndarray) -> np.ndarray:
    """Skewness of values over the last axis, the third central moment over the cubed standard
    deviation.

    >>> shown_skewness(np.array([0.0, 0.0, 3.0])).round(3)
    np.float64(0.707)
    """
    away = x - x.mean(-1, keepdims=True)
    return (away**3).mean(-1) / (away**2).mean(-1) ** 1.5


def _gamma(rng, skewness: float, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of mean 0, variance 1 and this skewness."""
    k = 4 / skewness**2
    return (rng.standard_gamma(k, shape) - k) / k**0.5


def _root_mean_square(x: np.ndarray) -> float:
    return float((x**2).mean() ** 0.5)


def _count(missed: np.ndarray) -> int:
    return int(np.count_nonzero(missed))


if __name__ == "__main__":
    began, curve = time.perf_counter(), skewness_table()
    tables = {
        "coverage": coverage_table(),
        "skewness": curve,
        "placed": ledger_skewness(compute_ledger(described=False), curve),
    }
    for name, table in tables.items():
        print(name, table.to_string(index=False), sep="\n")
    rows = pd.concat(
        [table.assign(table=name) for name, table in tables.items()], ignore_index=True
    )
    facts = {
        "command": "python -m audit.coverage build/results",
        "seconds": round(time.perf_counter() - began, 1),
    }
    facts |= {"scale": {"repetitions": REPETITIONS}, **made_on("cpu")}
    write_unit("coverage", "", 0, {"intervals": rows}, facts, sys.argv[1])
    print(*table_paths("coverage", sys.argv[1]))
