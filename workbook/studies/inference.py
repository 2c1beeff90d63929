"""What independent units say of a registered number, in one of five words.

The numbers are one per unit (policy x seed), or jackknife pseudo-values; units that share a policy
count as one, their mean. A claim lies on one side of a threshold c, and what lies nearer to c than
d, the smallest effect of interest, is of no interest. With Student's t intervals of the mean:

    cannot be tested here    a registration or data/book/rows.yaml says why; or the positive control
                             does not separate; or the arm without rewards gains
                             (`studies.record.Void`); or every unit lies at c
    too small to matter      the 90 % interval lies within c +- d; goes first where c is the null
                             (0, or a ratio of 1)
    holds, does not hold     the whole 95 % interval lies on the claim's side of c, or on the other
    open                     none of these, or fewer than `MIN_UNITS` units

A primary row of an experiment (data/book/evidence.yaml) that Holm's correction over all of them
leaves above 5 % is open, too. No other row is corrected.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from workbook.ledger import CANNOT, DESCRIBED, DOES_NOT_HOLD, HOLDS, OPEN, TOO_SMALL
from workbook.statistics import detectable_effect, t_interval
from workbook.studies.registration import MIN_UNITS, Outcome

_LEVEL = 0.05


class Rule(NamedTuple):
    """A threshold, the ends of what is too near to it, and the claim's side (+1 above, -1); of a
    ratio: logarithms.
    """

    threshold: float
    low: float
    high: float
    toward: float

    def word(self, x: np.ndarray) -> str:
        """The word for (n,) independent numbers, by their intervals alone."""
        if len(x) < MIN_UNITS:
            return OPEN
        near, whole = t_interval(x, 1 - 2 * _LEVEL), t_interval(x, 1 - _LEVEL)
        small = self.low < near.low and near.high < self.high
        if small and self.threshold == 0:  # the null: a clear effect may be too small, too
            return TOO_SMALL
        if whole.low > self.threshold or whole.high < self.threshold:
            return HOLDS if (whole.low > self.threshold) == (self.toward > 0) else DOES_NOT_HOLD
        return TOO_SMALL if small else OPEN

    def p(self, x: np.ndarray) -> float:
        """p of the word: two one-sided tests for what is too small, else the two-sided one of the
        threshold.
        """
        if self.word(x) == TOO_SMALL:
            return max(_one_sided(x, self.low), _one_sided(-x, -self.high))
        return min(1.0, 2 * min(_one_sided(x, self.threshold), _one_sided(-x, -self.threshold)))


class Judged(NamedTuple):
    """What units say of one outcome, in its own unit.

    low, high: ends of the 95 % interval; low_90, high_90: of the 90 % interval.  detectable:
    minimum detectable effect (80 % power).  policies: how many numbers were independent.  outcome:
    the word, by the intervals alone.
    """

    mean: float
    low: float
    high: float
    low_90: float
    high_90: float
    p: float
    detectable: float
    policies: int
    outcome: str


def judge_units(
    values: pd.Series, registered: Outcome, policies: pd.Series | None = None
) -> Judged:
    """What units say of a registered outcome; with fewer than `MIN_UNITS` of them their mean alone.

    values: finite, one per unit. Its attrs: log, logarithms, of which everything is given in the
    ratio's own unit; estimate, of pseudo-values, the statistic of all units, which stands for their
    mean.  policies: each unit's policy.
    """
    log = bool(values.attrs.get("log"))
    x = independent(values, policies)
    into, back = (np.log, np.exp) if log else (float, float)
    mean = float(back(values.attrs.get("estimate", x.mean())))
    if len(x) < MIN_UNITS:
        return Judged(mean, *[np.nan] * 6, len(x), OPEN)
    c, d = registered.threshold, registered.smallest_effect
    rule = Rule(*(float(into(end)) for end in (c, c - d, c + d)), registered.toward)
    detectable = detectable_effect(x.std(ddof=1), len(x))
    if log:  # towards the claim, in the ratio's unit
        detectable = float(abs(np.exp(rule.threshold + rule.toward * detectable) - c))
    ends = [
        float(back(end))
        for level in (1 - _LEVEL, 1 - 2 * _LEVEL)
        for end in t_interval(x, level)[1:]
    ]
    flat = np.ptp(x) == 0 and x[0] == rule.threshold  # a floor, a ceiling, or no contrast
    return Judged(mean, *ends, rule.p(x), detectable, len(x), CANNOT if flat else rule.word(x))


def independent(values: pd.Series, policies: pd.Series | None) -> np.ndarray:
    """Numbers that are independent: units', or means of policies' where several units share some
    but not all one.
    """
    known = policies.reindex(values.index) if policies is not None else None
    if known is None or known.isna().any() or not 2 <= known.nunique() < len(values):
        return values.to_numpy(dtype=float)
    return values.groupby(known, sort=False).mean().to_numpy(dtype=float)


def _one_sided(x: np.ndarray, bound: float) -> float:
    """p of Student's t for the mean being at most `bound`."""
    from scipy.special import stdtr

    error = x.std(ddof=1) / len(x) ** 0.5
    if error == 0:
        return 0.0 if x.mean() > bound else 1.0
    return float(stdtr(len(x) - 1, -(x.mean() - bound) / error))


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's adjusted p of (m,) p-values: the running maximum, in their order, of (m - i) p_(i)."""
    p = np.asarray(p, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return adjusted


def conclude(row: dict, reason: str, control: dict | None) -> tuple[str, str]:
    """A judged row's word and why.

    reason: why it cannot be tested here, if anything says so.  control: the row of its positive
    control.
    """
    outcome, unit = row["outcome"], row["unit"]
    if row["role"] == DESCRIBED:
        return DESCRIBED, row["reason"]
    if reason:
        return CANNOT, reason
    if not row["values"]:  # not measured, or void
        return outcome, row["reason"]
    if row["policies"] < MIN_UNITS:
        units = f"{row['units']} units on {row['policies']:.0f} policies"
        return OPEN, f"{units}; a word needs {MIN_UNITS}"
    if outcome == CANNOT:
        return (
            CANNOT,
            (
                f"every unit lies at the threshold, {row['threshold']:g}: a floor, a ceiling or no"
                " contrast"
            ),
        )
    if (name := row["positive_control"]) and (control is None or control["outcome"] != HOLDS):
        word = control["outcome"] if control else "not measured"
        return CANNOT, f"its positive control, {name}, does not separate ({word})"
    if row["p_holm"] > _LEVEL and outcome != OPEN:
        return (
            OPEN,
            (
                f"{outcome} uncorrected; Holm's correction over the experiments leaves p ="
                f" {row['p_holm']:.2g}"
            ),
        )
    if outcome == TOO_SMALL:
        return (
            outcome,
            f"its 90 % interval lies within {row['threshold']:g} ± {row['smallest_effect']:g}"
            f" {unit}".rstrip(),
        )
    if outcome == OPEN:
        detectable = f"80 % power for a distance of {row['detectable']:.2g} {unit}".rstrip()
        return (
            OPEN,
            f"its interval reaches both sides of {row['threshold']:g}; {detectable} or more",
        )
    return (
        outcome,
        (
            f"its whole interval lies {'above' if row['low'] > row['threshold'] else 'below'}"
            f" {row['threshold']:g}"
        ),
    )
