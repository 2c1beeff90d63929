"""What chance alone does to the ledger: signs at random, and how often intervals of simulated units hold the truth."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from audit.reckoning import LEVEL, Rule, independent, interval
from audit.tables import RESULTS

PROMPTS = 16  # of a simulated unit
BAR = (0.93, 0.97)


def by_coin(rows: list[tuple[pd.Series, dict, dict]], draws: int = 2_000, seed: int = 0) -> pd.DataFrame:
    """Primary rows that are supported where each policy's side of the threshold is a coin: a row per draw.

    rows: (values, registered outcome, {unit: policy}).  A policy has one coin for all rows, as its units share what
    makes them differ.  Columns alone (by the interval) and supported (with q <= 5 % over the rows of the draw).
    """
    rng, alone, p = np.random.default_rng(seed), [], []
    names = sorted({name for _, _, policies in rows for name in policies.values()})
    coins = {name: rng.choice([-1.0, 1.0], draws) for name in names}
    for values, outcome, policies in rows:
        rule = Rule(outcome, bool(values.attrs.get("log")))
        signs = np.array([coins[policies[unit]] for unit in values.index])  # (units, draws)
        away = (values.to_numpy(float) - rule.at)[:, None] * signs
        x = rule.at + np.array([independent(pd.Series(column, values.index), policies) for column in away.T])
        alone.append(supported(x, rule))
        p.append(stats.ttest_1samp(x, rule.at, axis=1).pvalue)
    alone, q = np.array(alone), stats.false_discovery_control(np.array(p), axis=0)
    return pd.DataFrame({"alone": alone.sum(0), "supported": (alone & (q <= LEVEL)).sum(0), "rows": len(rows)})


def supported(x: np.ndarray, rule: Rule) -> np.ndarray:
    """Whether (draws, n) numbers support the claim by their intervals alone."""
    low, high = interval(x, 0.90)
    equivalent = (rule.low < low) & (high < rule.high)
    low, high = interval(x)
    return ~equivalent & (low > rule.at if rule.sign > 0 else high < rule.at)


def coverage(repetitions: int = 4_000, seed: int = 1) -> pd.DataFrame:
    """Share of simulated 95 % intervals that hold the truth: columns statistic, outcomes, units, icc, coverage.

    A unit's y is its mean over prompts of sqrt(ICC) a_u + sqrt(1 - ICC) e_up; the ratio is (2 + 0.6 y) / (3 + 0.6 y'),
    y and y' correlated by a half; with three units a policy, ICC is the policy's share.
    """
    rng, rows = np.random.default_rng(seed), []
    for skewed, n, icc in itertools.product((False, True), (6, 8, 10, 30), (0.0, 0.05, 0.2, 0.8)):

        def draw(*shape, skewed=skewed):
            return rng.exponential(size=shape) - 1 if skewed else rng.standard_normal(shape)

        def unit_means(own, n=n, icc=icc, draw=draw):
            return np.sqrt(icc) * own + np.sqrt(1 - icc) * draw(repetitions, n, PROMPTS).mean(-1)

        y = unit_means(draw(repetitions, n))
        held = {"mean of units": holds(y, 0.0)}
        other = 0.5 * y + np.sqrt(0.75) * unit_means(draw(repetitions, n))
        top, bottom = 2 + 0.6 * y, 3 + 0.6 * other
        held["ratio, pseudo-values"] = holds(pseudo(top, bottom), 2 / 3)
        held["ratio, pseudo-values of its logarithm"] = holds(pseudo(top, bottom, np.log), np.log(2 / 3))
        if n % 3 == 0 and n >= 18:
            shared = np.sqrt(icc) * draw(repetitions, n // 3)[..., None] + np.sqrt(1 - icc) * draw(
                repetitions, n // 3, 3
            )
            held["mean of policies' means, three units each"] = holds(shared.mean(-1), 0.0)
        place = ("skewed" if skewed else "normal", n, icc)
        rows += [(name, *place, share) for name, share in held.items()]
    return pd.DataFrame(rows, columns=["statistic", "outcomes", "units", "icc", "coverage"])


def pseudo(top: np.ndarray, bottom: np.ndarray, scaled=np.asarray) -> np.ndarray:
    """Pseudo-values of the ratio of two means, (repetitions, units)."""
    n, tops, bottoms = top.shape[-1], top.sum(-1, keepdims=True), bottom.sum(-1, keepdims=True)
    return n * scaled(tops / bottoms) - (n - 1) * scaled((tops - top) / (bottoms - bottom))


def holds(x: np.ndarray, truth: float) -> float:
    low, high = interval(x)
    return float(np.mean((low <= truth) & (truth <= high)))


def skewness(repetitions: int = 4_000, seed: int = 2) -> pd.DataFrame:
    """The same share, of units whose skewness is stated: columns units, skewness, coverage, shown, error.

    shown: root mean square of the skewness that so many units show.  error: its standard error.
    """
    rng, rows = np.random.default_rng(seed), []
    for n, skew in itertools.product((6, 8, 10, 30), (0.0, 0.5, 1.0, 1.5, 2.0)):
        x = stats.pearson3.rvs(skew, size=(repetitions, n), random_state=rng)
        squares = stats.skew(x, axis=1) ** 2
        shown = np.sqrt(squares.mean())
        rows.append((n, skew, holds(x, 0.0), shown, squares.std() / (2 * shown * np.sqrt(repetitions))))
    return pd.DataFrame(rows, columns=["units", "skewness", "coverage", "shown", "error"])


def coverage_faults(mine: pd.DataFrame, name: str, results: Path = RESULTS, repetitions: int = 4_000) -> list[str]:
    """Cells whose coverage, or the skewness shown, is not the committed table's, by more than 5 standard errors."""
    keys = [key for key in ("statistic", "outcomes", "units", "icc", "skewness") if key in mine]
    both = mine.merge(pd.read_parquet(results / "coverage" / f"{name}.parquet"), on=keys, suffixes=("", "_theirs"))
    committed = json.loads((results / "coverage" / "manifest.json").read_text(encoding="utf-8"))["repetitions"]
    spread = (both["coverage_theirs"] * (1 - both["coverage_theirs"]) * (1 / repetitions + 1 / committed)) ** 0.5
    off = (both["coverage"] - both["coverage_theirs"]).abs() > 5 * spread
    if "shown" in both:
        off |= (both["shown"] - both["shown_theirs"]).abs() > 5 * both["error"] * (1 + repetitions / committed) ** 0.5
    faults = [f"{name}: {len(mine)} cells, {len(both)} of them in the committed table"] * (len(both) < len(mine))
    for row in both[off].to_dict("records"):
        cell = ", ".join(str(row[key]) for key in keys)
        faults.append(f"{name}: {cell}: {row['coverage']:.3f}, committed {row['coverage_theirs']:.3f}")
    return faults
