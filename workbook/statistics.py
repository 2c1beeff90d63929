"""Means and differences with intervals over independent units: prompts, runs or seeds.

What decides a claim is the t interval over few units (of jackknife pseudo-values, where the
statistic is a ratio): mean +- t_(n-1) s / sqrt(n). Bootstraps resample units, or seeds and the
prompts within them; over few units a bootstrap is too narrow.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from workbook.messages import InvalidValue


class Interval(NamedTuple):
    """An estimate and its confidence interval, in the unit of the data."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap_bounds(
    n: int,
    statistic: Callable[[np.ndarray], np.ndarray],
    level: float = 0.95,
    resamples: int | None = None,
    seed: int = 0,
) -> tuple:
    """Low and high end, (...) each, of a statistic's percentile bootstrap interval over n units.

    statistic: (resamples, n) indices of units -> (resamples, ...) values.
    """
    resamples = resamples or 9_999
    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    ends = [(1 - level) / 2, (1 + level) / 2]
    return tuple(np.quantile(statistic(drawn), ends, axis=0))


def bootstrap_mean(
    values, clusters=None, *, level: float = 0.95, resamples: int | None = None, seed: int = 0
) -> Interval:
    """Mean of `values` with a percentile bootstrap interval that resamples whole clusters.

    values: (N,) finite numbers, else ValueError.
    clusters: (N,) labels of what was drawn independently, e.g. each rollout's prompt; each value is
    its own by default. Clusters count equally, whatever their size.
    """
    values = np.asarray(values, dtype=float)
    if values.size == 0 or not np.isfinite(values).all():
        wrong = np.sum(~np.isfinite(values))
        raise InvalidValue(
            "values",
            values.tolist(),
            f"numbers, all of them finite; {wrong} of {values.size} are not",
        )
    # a cluster counts by its mean
    if clusters is not None:
        _, index = np.unique(np.asarray(clusters), return_inverse=True)
        values = np.bincount(index, values) / np.bincount(index)
    mean = float(values.mean())
    # where nothing varies, the interval is the point
    if np.ptp(values) == 0:
        return Interval(mean, mean, mean)

    def resampled_means(drawn: np.ndarray) -> np.ndarray:
        return values[drawn].mean(1)

    low, high = bootstrap_bounds(len(values), resampled_means, level, resamples, seed)
    return Interval(mean, float(low), float(high))


def paired_difference(after, before, **kwargs) -> Interval:
    """Mean of `after - before`, pair by pair, with its bootstrap interval.

    Further arguments are those of `bootstrap_mean`.
    """
    after = np.asarray(after, dtype=float)
    before = np.asarray(before, dtype=float)
    if after.shape != before.shape:
        raise InvalidValue("after.shape", after.shape, f"{before.shape}, paired with before")
    return bootstrap_mean(after - before, **kwargs)


def t_interval(values, level: float = 0.95) -> Interval:
    """Mean of independent units with its Student t interval: mean +- t_(n-1) s / sqrt(n).

    values: (n,) one number per unit, such as a seed's mean; two finite ones or more, else
    ValueError. A percentile bootstrap is too narrow for few units: over 5 it misses 16 % where it
    should miss 5 %.
    """
    # scipy.stats takes a second to import
    from scipy.special import stdtrit

    values = np.asarray(values, dtype=float)
    if values.size < 2 or not np.isfinite(values).all():
        raise InvalidValue("values", values.tolist(), "two finite numbers or more")
    quantile = stdtrit(values.size - 1, (1 + level) / 2)
    half = float(quantile * values.std(ddof=1) / values.size**0.5)
    mean = float(values.mean())
    return Interval(mean, mean - half, mean + half)


def detectable_effect(sd: float, n: int, level: float = 0.05, power: float = 0.8) -> float:
    """Minimum detectable effect delta sd / sqrt(n) of a t test on n units.

    delta is such that P(T' > t_(n-1)) = power, with T' noncentral t of delta.
    """
    from scipy.special import nctdtrinc, stdtrit

    critical = stdtrit(n - 1, 1 - level / 2)
    delta = nctdtrinc(n - 1, 1 - power, critical)
    return float(delta * sd / n**0.5)


def unit_curve(
    table: pd.DataFrame,
    x: str,
    y: str,
    unit: str = "seed",
    by: str | Sequence[str] | None = None,
    level: float = 0.95,
) -> pd.DataFrame:
    """A curve with its t interval over units: columns of `by`, x, mean, low, high, units.

    Rows of one unit at one x are averaged first, then units, all with equal weights; NaN rows are
    left out.  by: the columns that tell curves apart, one or several.  One unit alone has no
    interval: low and high are NaN.

    Raises ValueError for columns that the table lacks, and if no row has a number.
    """
    curves = [by] if isinstance(by, str) else list(by or ())
    keys = [*curves, x]
    lacking = [name for name in (*keys, y, unit) if name not in table]
    if lacking:
        raise ValueError(
            f"unit_curve needs the column(s) {', '.join(lacking)}; the table has"
            f" {', '.join(table)}."
        )
    units = table.dropna(subset=y).groupby([*keys, unit], observed=True, sort=False)[y].mean()
    if units.empty:
        raise ValueError(f"{y}: none of the {len(table)} rows given has a number.")
    # at each point of a curve the list of its units' means
    points = units.groupby(level=list(range(len(keys))), sort=False).agg(list)
    intervals = [
        t_interval(means, level) if len(means) > 1 else Interval(means[0], np.nan, np.nan)
        for means in points
    ]
    table = pd.DataFrame(intervals, columns=Interval._fields, index=points.index)
    table = table.assign(units=points.map(len))
    return table.reset_index().sort_values(x, kind="stable", ignore_index=True)


def pseudo_values(
    table: pd.DataFrame,
    statistic: Callable[[pd.DataFrame], float],
    unit: str = "seed",
    log: bool = False,
) -> pd.Series:
    """Jackknife pseudo-values, one per unit, for a t interval of what is no mean of units.

        x_i = n theta(all) - (n - 1) theta(without unit i)

    For a mean they are the units' own values; for a ratio of means their average also takes off
    most of its bias.

    table: rows of all units.  statistic: table -> number.  log: of its logarithm, for a ratio that
    is positive; the series is then marked (`attrs["log"]`), so that an interval is given in the
    ratio's own unit. `attrs["estimate"]` is theta(all), which is what is printed: the mean of the
    pseudo-values is not.

    Returns a Series, index = unit.  Raises ValueError for fewer than two units, or with log for a
    value not above 0.
    """
    units = np.sort(table[unit].unique())
    if len(units) < 2:
        raise ValueError(
            f"pseudo-values need two units or more; the table has {len(units)} in {unit}."
        )
    without = np.array([statistic(table[table[unit] != one]) for one in units], dtype=float)
    whole = float(statistic(table))
    if log and min(whole, *without) <= 0:
        raise ValueError(f"a logarithm needs a statistic above 0; got {min(whole, *without):g}.")
    if log:
        whole = np.log(whole)
        without = np.log(without)
    n = len(units)
    values = pd.Series(n * whole - (n - 1) * without, index=pd.Index(units, name="unit"))
    values.attrs |= {"log": log, "estimate": whole}
    return values


def logs(ratios: pd.Series) -> pd.Series:
    """Logarithms of ratios, marked so that their interval is given in the ratio's own unit."""
    values = np.log(ratios)
    values.attrs["log"] = True
    return values


def nested_mean(table: pd.DataFrame, column: str, resamples: int = 4_999) -> Interval:
    """Mean of a column with a bootstrap interval over two levels: seeds are resampled, then prompts
    within each.

    Prompts of one seed share an update, so they are not independent of one another; seeds are. Rows
    of one prompt are averaged first, then prompts of a seed, then seeds, all with equal weights;
    rows with NaN are left out. ValueError if no row has a number.
    """
    prompts = table.groupby(["seed", "group"])[[column]].mean().dropna()
    if prompts.empty:
        raise ValueError(f"{column}: none of the {len(table)} rows given has a number.")
    # a (prompts, 1) array of means for each seed
    seeds = [rows.to_numpy(dtype=float) for _, rows in prompts.groupby(level=0)]
    rng = np.random.default_rng(0)
    # (resamples, seeds): which seed stands in each place
    drawn = rng.integers(len(seeds), size=(resamples, len(seeds)))
    means = np.empty((resamples, len(seeds), 1))
    for k, values in enumerate(seeds):
        n = len(values)
        is_drawn = drawn == k
        # how often each prompt is drawn, wherever its seed is
        counts = rng.multinomial(n, np.full(n, 1 / n), size=int(is_drawn.sum()))
        means[is_drawn] = counts.astype(np.float32) @ values / n
    low, high = np.quantile(means.mean(1)[:, 0], [0.025, 0.975])
    mean = np.mean([values.mean() for values in seeds])
    return Interval(float(mean), float(low), float(high))
