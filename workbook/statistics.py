"""Means and differences with bootstrap intervals, over what was sampled independently: prompts, runs or seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import bootstrap


class Interval(NamedTuple):
    """An estimate and its bootstrap confidence interval, in the unit of the data."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


_SIZES: ContextVar[list[tuple[int, int]] | None] = ContextVar("sizes", default=None)
_AT_MOST: ContextVar[int | None] = ContextVar("at_most", default=None)


@contextmanager
def resamples_at_most(count: int) -> Iterator[None]:
    """Inside, no interval takes more bootstrap resamples than this, whatever was asked for: quicker, and rougher."""
    token = _AT_MOST.set(count)
    try:
        yield
    finally:
        _AT_MOST.reset(token)


@contextmanager
def sample_sizes() -> Iterator[list[tuple[int, int]]]:
    """What each `nested_statistic` made inside rests on: (seeds, prompts), in the order in which they were made.

    >>> table = pd.DataFrame({"seed": [0, 0, 1], "group": [0, 1, 0], "gap": [1.0, 1.0, 1.0]})
    >>> with sample_sizes() as sizes:
    ...     _ = nested_mean(table, "gap")
    >>> sizes
    [(2, 3)]
    """
    token = _SIZES.set(sizes := [])
    try:
        yield sizes
    finally:
        _SIZES.reset(token)


def bootstrap_mean(values, clusters=None, *, level: float = 0.95, resamples: int = 9_999, seed: int = 0) -> Interval:
    """Mean of `values` with a percentile bootstrap interval that resamples whole clusters.

    Args:
        values: (N,) numbers.
        clusters: (N,) labels of what was drawn independently, e.g. the prompt of each rollout; each value its own by
        default.
            Clusters count equally, whatever their size.
        level: confidence level in (0, 1).
        resamples: bootstrap resamples.
        seed: of the resampling.

    Raises:
        ValueError: if `values` is empty or holds a NaN or infinity.

    >>> bootstrap_mean([1.0, 1.0, 1.0])
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    values = np.asarray(values, dtype=float)
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(
            f"values needs numbers, all of them finite; of its {values.size}, {np.sum(~np.isfinite(values))} are not."
        )
    if clusters is not None:
        _, index = np.unique(np.asarray(clusters), return_inverse=True)
        values = np.bincount(index, values) / np.bincount(index)
    mean = float(values.mean())
    if np.ptp(values) == 0:  # nothing varies: the percentile interval is the point
        return Interval(mean, mean, mean)
    interval = bootstrap(
        (values,),
        np.mean,
        confidence_level=level,
        n_resamples=_limited(resamples),
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(interval.low), float(interval.high))


def normal_interval(values, errors: float = 1.96) -> Interval:
    """Mean over the last axis and its normal interval, `errors` standard errors each way; for sliders.

    A bootstrap is too slow there.  values: (..., n) array or tensor; the Interval holds (...) arrays or tensors.

    >>> normal_interval(np.array([1.0, 3.0]), errors=2)._asdict()
    {'mean': np.float64(2.0), 'low': np.float64(0.0), 'high': np.float64(4.0)}
    """
    unbiased = {"ddof": 1} if isinstance(values, np.ndarray) else {}  # as torch is by itself
    mean, half = values.mean(-1), errors * values.std(-1, **unbiased) / values.shape[-1] ** 0.5
    return Interval(mean, mean - half, mean + half)


def paired_difference(after, before, **kwargs) -> Interval:
    """Mean of `after - before`, pair by pair, with its bootstrap interval; arguments as in `bootstrap_mean`.

    Raises:
        ValueError: if the two differ in length.
    """
    after, before = np.asarray(after, dtype=float), np.asarray(before, dtype=float)
    if after.shape != before.shape:
        raise ValueError(f"after and before must be paired; got {after.size} and {before.size} values.")
    return bootstrap_mean(after - before, **kwargs)


def nested_mean(table: pd.DataFrame, column: str, **kwargs) -> Interval:
    """Mean of a column with a bootstrap interval over two levels: seeds are resampled, then prompts within each.

    Prompts of one seed share an update, so they are not independent of one another; seeds are. Rows of one prompt are
    averaged first, then prompts of a seed, then seeds, all with equal weights; rows with NaN are left out.
    Arguments as in `nested_statistic`.

    Raises ValueError if no row has a number.

    >>> table = pd.DataFrame({"seed": [0, 0, 1, 1], "group": [0, 1, 0, 1], "gap": [1.0, 1.0, 3.0, 3.0]})
    >>> nested_mean(table, "gap")
    Interval(mean=2.0, low=1.0, high=3.0)
    """
    return nested_statistic(table, [column], lambda means: means[..., 0], **kwargs)


def nested_statistic(
    table: pd.DataFrame,
    columns: list[str],
    statistic: Callable[[np.ndarray], np.ndarray],
    outer: str = "seed",
    inner: str = "group",
    level: float = 0.95,
    resamples: int = 4_999,
) -> Interval:
    """A statistic of several columns' means, e.g. their ratio, with the interval of `nested_mean`.

    statistic: (..., columns) means -> (...) numbers; it is taken of each resample's means.  Prompts that lack one of
    the columns are left out.  Raises ValueError if none has all of them.
    """
    prompts = table.groupby([outer, inner])[columns].mean().dropna()
    if prompts.empty:
        raise ValueError(f"{', '.join(columns)}: none of the {len(table)} rows given has numbers for all.")
    seeds, resamples = [rows.to_numpy(dtype=float) for _, rows in prompts.groupby(level=0)], _limited(resamples)
    if (sizes := _SIZES.get()) is not None:
        sizes.append((len(seeds), len(prompts)))
    means = np.empty((resamples, len(seeds), len(columns)))
    for values, (at, weights) in zip(seeds, _draws(tuple(map(len, seeds)), resamples), strict=True):
        means[at] = weights @ values / len(values)
    low, high = np.quantile(statistic(means.mean(1)), [(1 - level) / 2, (1 + level) / 2])
    whole = np.mean([values.mean(0) for values in seeds], axis=0)
    return Interval(float(statistic(whole)), float(low), float(high))


def _limited(resamples: int) -> int:
    return min(resamples, _AT_MOST.get() or resamples)


@lru_cache(maxsize=4)
def _draws(sizes: tuple[int, ...], resamples: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each seed, where it was drawn (resamples, seeds), and how often each of its prompts then: always the same."""
    rng, draws = np.random.default_rng(0), []
    drawn = rng.integers(len(sizes), size=(resamples, len(sizes)))
    for k, size in enumerate(sizes):
        at = drawn == k
        draws.append((at, rng.multinomial(size, np.full(size, 1 / size), size=int(at.sum())).astype(np.float32)))
    return draws


def verdict(interval: Interval, above: float | None = None, below: float | None = None) -> str:
    """What an interval says of a claim: "replicates" if all of it lies above (below) the threshold, "does not
    replicate" if none of it does, else "inconclusive". Raises ValueError unless exactly one threshold is given.

    >>> verdict(Interval(0.3, 0.2, 0.4), above=0), verdict(Interval(0.3, 0.2, 0.4), below=0.3)
    ('replicates', 'inconclusive')
    """
    if (above is None) == (below is None):
        raise ValueError(f"above={above!r} and below={below!r}: give exactly one of them.")
    if below is None:
        holds, fails = interval.low > above, interval.high <= above
    else:
        holds, fails = interval.high < below, interval.low >= below
    return "replicates" if holds else "does not replicate" if fails else "inconclusive"
