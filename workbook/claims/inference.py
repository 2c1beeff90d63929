"""What independent units say of a registered outcome: t interval, tests, power, and how much hangs on single units.

The numbers are one per unit (policy x seed), or jackknife pseudo-values; where several units share a policy they are
not independent, and their mean stands for the policy. d is the smallest effect of interest about the threshold.

    95 % interval    mean +- t_(n-1) s / sqrt(n)    supported or contradicted: all of it on one side of the threshold
    equivalence      the 90 % interval lies within threshold +- d, by two one-sided tests at 5 %
    power            the least distance from the threshold that n such units would detect with 80 % (noncentral t)
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from workbook.statistics import Interval, detectable_effect
from workbook.studies.registration import MIN_UNITS, Outcome

LEVEL = 0.05
MAX_EXACT = 12  # units up to which all 2^n sign flips are tried
DRAWN_FLIPS = 20_000  # beyond
MIN_LEFT = 3  # units that removals leave, at least
SUPPORTED, EQUIVALENT, CONTRADICTED, INCONCLUSIVE = "supported", "equivalent to none", "contradicted", "inconclusive"
TOO_SMALL, AT_THRESHOLD = "not zero, too small to matter here", "at its threshold"  # equivalence, in more words
NOT_TESTABLE, NOT_COMPARABLE, NOT_MEASURED = "not testable here", "not comparable", "not measured"
DESCRIBED = "described"  # role and outcome of a row that decides nothing
MET = {SUPPORTED: "not met", INCONCLUSIVE: "neither met nor excluded"}
MET |= dict.fromkeys((CONTRADICTED, EQUIVALENT, TOO_SMALL, AT_THRESHOLD), "met")


class Judged(NamedTuple):
    """What some units say of one outcome, in the outcome's own unit.

    sd: over units (of logarithms, of a ratio).  outcome: what follows from the intervals alone.  p, p_equivalent,
    p_flips: two-sided t, two one-sided t tests, exact sign flips.  detectable: minimum detectable effect.
    without_low, without_high: range of the estimate with one left out.  decided_by: the fewest whose removal changes
    `outcome`, searched greedily; NaN if none down to 3 does.  policies: how many numbers were independent.  p_units: of
    t over all units as if they were independent.
    """

    mean: float
    low: float
    high: float
    sd: float
    outcome: str
    p: float
    p_equivalent: float
    p_flips: float
    detectable: float
    without_low: float
    without_high: float
    decided_by: float
    policies: int
    p_units: float


def judge_units(values: pd.Series, registered: Outcome, policies: pd.Series | None = None) -> Judged:
    """What units say of a registered outcome; with fewer than `MIN_UNITS` of them their mean alone.

    values: finite, one per unit; `attrs["log"]`: logarithms, of which everything is given in the ratio's own unit.
    policies: each unit's policy, by its name.
    """
    log = bool(values.attrs.get("log"))
    x = independent(values, policies)
    back = np.exp if log else float
    if len(x) < MIN_UNITS:
        spread = float(x.std(ddof=1)) if len(x) > 1 else np.nan
        return Judged(float(back(x.mean())), np.nan, np.nan, spread, NOT_MEASURED, *[np.nan] * 7, len(x), np.nan)
    threshold, d, scaled = registered.threshold, registered.smallest_effect, np.log if log else float
    rule = Rule(*(float(scaled(end)) for end in (threshold, threshold - d, threshold + d)), registered.toward)
    without = back((x.sum() - x) / (len(x) - 1)) if log else (x.sum() - x) / (len(x) - 1)
    detectable = detectable_effect(x.std(ddof=1), len(x))
    if log:  # towards the claim, in the ratio's unit
        detectable = float(abs(np.exp(rule.threshold + rule.toward * detectable) - registered.threshold))
    return Judged(
        *(*(float(back(end)) for end in t_bounds(x)), float(x.std(ddof=1)), rule.outcome(x)),
        *(rule.p(x), rule.p_equivalent(x), sign_flip_p(x - rule.threshold), detectable),
        *(float(without.min()), float(without.max()), decided_by(x, rule)),
        *(len(x), rule.p(values.to_numpy(dtype=float))),
    )


def independent(values: pd.Series, policies: pd.Series | None) -> np.ndarray:
    """Numbers that are independent: units', or means of policies' where several units share some but not all one."""
    known = policies.reindex(values.index) if policies is not None else None
    if known is None or known.isna().any() or not 2 <= known.nunique() < len(values):
        return values.to_numpy(dtype=float)
    return values.groupby(known, sort=False).mean().to_numpy(dtype=float)


class Rule(NamedTuple):
    """A threshold, the zone of equivalence about it (all logarithms for a ratio), the claim's side (+1 above, -1)."""

    threshold: float
    low: float
    high: float
    toward: float

    def outcome(self, x: np.ndarray) -> str:
        """What follows from the intervals of (n,) values. Equivalence goes first: a clear effect may be too small."""
        if np.ptp(x) == 0 and x[0] == self.threshold:
            return NOT_TESTABLE  # floor, ceiling or no contrast
        _, low, high = t_bounds(x, 1 - 2 * LEVEL)
        if self.low < low and high < self.high:
            return EQUIVALENT
        _, low, high = t_bounds(x)
        if low > self.threshold or high < self.threshold:
            return SUPPORTED if (low > self.threshold) == (self.toward > 0) else CONTRADICTED
        return INCONCLUSIVE

    def p(self, x: np.ndarray) -> float:
        """Two-sided p of Student's t for the mean being at the threshold."""
        return min(1.0, 2 * min(_tail(x, self.threshold), _tail(-x, -self.threshold)))

    def p_equivalent(self, x: np.ndarray) -> float:
        """p of two one-sided tests: the larger of those for the mean lying beyond either end of the zone."""
        return max(_tail(x, self.low), _tail(-x, -self.high))

    def clearness(self, x: np.ndarray) -> float:
        """How far the outcome is from another one, in half-widths of the interval; for the greedy search."""
        mean, low, high = t_bounds(x)
        _, low_90, high_90 = t_bounds(x, 1 - 2 * LEVEL)
        apart = abs(mean - self.threshold) / max((high - low) / 2, 1e-300)
        inside = min(mean - self.low, self.high - mean) / max((high_90 - low_90) / 2, 1e-300)
        return max(apart, inside)


def t_bounds(x: np.ndarray, level: float = 1 - LEVEL) -> Interval:
    """Mean and Student's t interval over the last axis: (..., n) values -> (...) means and ends."""
    from scipy.special import stdtrit

    n = x.shape[-1]
    mean = x.mean(-1)
    half = stdtrit(n - 1, (1 + level) / 2) * x.std(-1, ddof=1) / n**0.5
    return Interval(mean, mean - half, mean + half)


def _tail(x: np.ndarray, bound: float) -> float:
    """One-sided p of Student's t for the mean being at most `bound`."""
    from scipy.special import stdtr

    error = x.std(ddof=1) / len(x) ** 0.5
    if error == 0:
        return 0.0 if x.mean() > bound else 1.0
    return float(stdtr(len(x) - 1, -(x.mean() - bound) / error))


def sign_flip_p(x: np.ndarray, seed: int = 0) -> float:
    """Share of sign vectors s with |sum s_i x_i| >= |sum x_i|: of all 2^n up to `MAX_EXACT` units, else of drawn."""
    n = len(x)
    if n <= MAX_EXACT:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1, 1], size=(DRAWN_FLIPS, n))
        signs[0] = 1  # what was observed is one of them
    sums = np.abs(signs @ x)
    return float(np.mean(sums >= abs(x.sum()) * (1 - 1e-12)))


def decided_by(x: np.ndarray, rule: Rule) -> float:
    """Fewest units whose removal changes the outcome, searched greedily; NaN if none down to `MIN_LEFT` does."""
    outcome = rule.outcome(x)
    for removed in range(1, len(x) - MIN_LEFT + 1):
        rests = [np.delete(x, i) for i in range(len(x))]
        if any(rule.outcome(rest) != outcome for rest in rests):
            return float(removed)
        pick = max if outcome == INCONCLUSIVE else min
        x = pick(rests, key=rule.clearness)
    return np.nan


def adjusted(p: np.ndarray) -> np.ndarray:
    """Benjamini-Hochberg q of (m,) p-values: q_(i) = min over j >= i of m p_(j) / j."""
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    q = np.empty(len(p))
    q[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return q


def conclude(row: dict, primaries: int, control: dict | None = None) -> tuple[str, str, str]:
    """A judged row's outcome, what its interval would say here, and the reason of both.

    primaries: rows that q was corrected over.  control: the row of its positive control, where it names one. What could
    not have shown such an effect shows no equivalence either, so one that is not supported, or not named, voids that.
    """
    here, units, policies = row["here"], row["units"], row["policies"]
    if row["role"] == DESCRIBED or not row["values"]:
        return row["outcome"], here, row["reason"]
    if row["testable"].lower().startswith("no"):
        return NOT_TESTABLE, here, row["testable"].partition(":")[2].strip()
    if policies < MIN_UNITS:
        number = f"{units} units on {policies:.0f} policies" if policies < units else f"{units} units"
        return NOT_MEASURED, here, f"{number}; an outcome needs {MIN_UNITS}"
    if here == NOT_TESTABLE:
        return here, here, f"every unit lies at the threshold, {row['threshold']:g}: a floor, a ceiling or no contrast"
    threshold, unit = row["threshold"], row["unit"]
    clear = row["low"] > threshold or row["high"] < threshold
    if here == EQUIVALENT:
        none = 1.0 if row["log"] else 0.0  # a ratio's, or a difference's
        here = AT_THRESHOLD if threshold != none else TOO_SMALL if clear else EQUIVALENT
        reason = f"its 90 % interval lies within {threshold:g} ± {row['smallest_effect']:g} {unit}".rstrip()
        if name := row["positive_control"]:
            separates = conclude(control, primaries)[0] if control else NOT_MEASURED
            if separates != SUPPORTED:
                return NOT_TESTABLE, here, f"its positive control, {name}, does not separate ({separates}); {reason}"
            share = row["smallest_effect"] / abs(control["mean"] - control["threshold"])
            reason += f", which is {share:.0%} of its positive control, {name}"
        elif here == EQUIVALENT and row["role"] != "control":  # a control that shows nothing has its claim's row
            return NOT_TESTABLE, here, f"it names no positive control; {reason}"
    elif here == INCONCLUSIVE:
        detectable = f"80 % power for a distance of {row['detectable']:.2g} {unit}".rstrip()
        reason = f"its interval reaches both sides of {threshold:g}; {detectable} or more"
    else:
        reason = f"its whole interval lies {'above' if row['low'] > threshold else 'below'} {threshold:g}"
        if np.isfinite(row["q"]) and row["q"] > LEVEL:
            here, reason = INCONCLUSIVE, f"{reason}, but q = {row['q']:.2g} over {primaries} primary rows"
        if row["p_flips"] > LEVEL:
            reason += f"; sign flips disagree, p = {row['p_flips']:.2g}"
    if row["comparable"].lower().startswith("no"):
        return NOT_COMPARABLE, here, f"{row['comparable'].partition(':')[2].strip()}; at our place {here}: {reason}"
    if row["claim"].endswith("falsifier") and row["role"] == "primary":  # judged from the paper's side
        reason += f"; the falsifier is {MET[here]}"
    return here, here, reason
