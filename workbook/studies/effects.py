"""Effects of a setting on what runs come to: paired by seed, with bootstrap intervals over seeds.

Runs of one seed share their prompts, so each seed gives one difference, averaged over whatever else was varied; the
seeds are what was drawn independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from workbook.statistics import Interval, bootstrap_mean


def differences(runs: pd.DataFrame, outcome: str, chosen: dict, baseline: dict, by: Sequence[str] = ()) -> pd.DataFrame:
    """One difference per seed and combination of `by`: the outcome under `chosen` less that under `baseline`.

    runs: as from `load_runs`.  chosen, baseline: {setting: value} that select the two kinds of runs; None is a setting
    left at nothing.  Settings besides those named and `by` are averaged over, in each kind.

    Columns: those of `by`, seed, chosen, baseline, difference.  Raises ValueError if a kind has no runs.
    """
    keys = [*by, "seed"]
    found = {}
    for name, settings in {"chosen": chosen, "baseline": baseline}.items():
        rows = runs[having(runs, settings)]
        if rows.empty:
            raise ValueError(f"no run has the settings {settings}.")
        found[name] = rows.groupby(keys, dropna=False)[outcome].mean()
    table = pd.DataFrame(found).dropna().reset_index()
    return table.assign(difference=table["chosen"] - table["baseline"])


def effect(runs: pd.DataFrame, outcome: str, chosen: dict, baseline: dict, by: Sequence[str] = ()) -> Interval:
    """Mean paired difference with its 95 % bootstrap interval over seeds; arguments as in `differences`.

    by: what to pair on beside the seed, where one kind lacks some settings of the other.
    """
    table = differences(runs, outcome, chosen, baseline, by)
    if table.empty:
        raise ValueError(f"no seed has the outcome {outcome} under both {chosen} and {baseline}.")
    return bootstrap_mean(table.groupby("seed")["difference"].mean())


def ratio(runs: pd.DataFrame, outcome: str, chosen: dict, baseline: dict, by: Sequence[str] = ()) -> Interval:
    """Ratio of the two kinds' means, with the bootstrap interval of `effect`: seeds are resampled in pairs."""
    pairs = differences(runs, outcome, chosen, baseline, by).groupby("seed")[["chosen", "baseline"]].mean().to_numpy()
    if len(pairs) == 0:
        raise ValueError(f"no seed has the outcome {outcome} under both {chosen} and {baseline}.")
    drawn = np.random.default_rng(0).integers(len(pairs), size=(9_999, len(pairs)))
    ratios = np.divide(*pairs[drawn].mean(1).T)
    mean = pairs.mean(0)
    return Interval(float(mean[0] / mean[1]), *map(float, np.quantile(ratios, [0.025, 0.975])))


def effects(runs: pd.DataFrame, outcome: str, chosen: dict, baseline: dict, by: Sequence[str]) -> pd.DataFrame:
    """`effect` in each combination of `by`: columns by..., mean, low, high, seeds."""
    table, rows = differences(runs, outcome, chosen, baseline, by), []
    for values, part in table.groupby(list(by), dropna=False):
        interval = bootstrap_mean(part.groupby("seed")["difference"].mean())
        rows.append((*values, *interval, part["seed"].nunique()))
    return pd.DataFrame(rows, columns=[*by, *Interval._fields, "seeds"])


def slope(runs: pd.DataFrame, outcome: str, setting: str, chosen: dict, baseline: dict | None = None) -> Interval:
    """How the difference grows with the binary logarithm of a setting: least-squares slope per seed, over seeds.

    baseline: None for the outcome itself under `chosen`.  Unit: the outcome's per doubling.  Seeds with fewer than two
    values of the setting have no slope and are left out; raises ValueError if no seed has two.
    """
    if baseline is None:
        rows = runs[having(runs, chosen)]
        table = rows.groupby([setting, "seed"])[outcome].mean().dropna().rename("difference").reset_index()
    else:
        table = differences(runs, outcome, chosen, baseline, [setting])
    slopes = [
        np.polyfit(np.log2(part[setting].astype(float)), part["difference"], 1)[0]
        for _, part in table.groupby("seed")
        if part[setting].nunique() > 1
    ]
    if not slopes:
        raise ValueError(f"{setting}: no seed has the outcome {outcome} at two of its values under {chosen}.")
    return bootstrap_mean(slopes)


def level(runs: pd.DataFrame, outcome: str, chosen: dict) -> Interval:
    """Mean of the outcome itself under `chosen`, each seed's runs averaged first, with its interval over seeds."""
    values = runs[having(runs, chosen)].groupby("seed")[outcome].mean().dropna()
    if values.empty:
        raise ValueError(f"no run with the settings {chosen} has the outcome {outcome}.")
    return bootstrap_mean(values)


def attribution(runs: pd.DataFrame, outcome: str, factors: dict[str, Sequence]) -> pd.DataFrame:
    """What each factor adds to an outcome: ordinary least squares on main effects and two-way interactions.

        y = b0 + sum_f b_f x_f + sum_{f<g} b_fg x_f x_g

    factors: {column: its levels, the first being what the others are compared with}; the outcome's rows whose values
    are not among them are left out. Each x is coded -1/2 and +1/2 (for more than two levels: 1 - 1/L at its own level,
    -1/L elsewhere), so that a main effect is the mean difference over the levels of the others, whatever the
    interactions.

    Columns: term, mean, low, high (95 %, seeds resampled), share (of the outcome's sum of squares about its mean that
    falls when the factor and its interactions are left out; one number for all terms of a main factor, NaN for
    interactions).  Raises ValueError if a combination of levels has no run.
    """
    rows = runs[np.logical_and.reduce([runs[name].isin(list(levels)) for name, levels in factors.items()])]
    rows = rows.dropna(subset=outcome)
    terms = _design(rows, factors)
    design = np.column_stack([np.ones(len(rows)), *terms.values()])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise ValueError(f"factors {', '.join(factors)}: some combination of their levels has no run with {outcome}.")
    values, seeds = rows[outcome].to_numpy(float), rows["seed"].to_numpy()
    fitted = np.linalg.lstsq(design, values, rcond=None)[0][1:]
    rng, drawn = np.random.default_rng(0), []
    places = {seed: np.flatnonzero(seeds == seed) for seed in np.unique(seeds)}
    for _ in range(2_000):
        index = np.concatenate([places[seed] for seed in rng.choice(list(places), len(places))])
        drawn.append(np.linalg.lstsq(design[index], values[index], rcond=None)[0][1:])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    table = pd.DataFrame({"term": list(terms), "mean": fitted, "low": low, "high": high})
    shares = {name: _share(terms, values, name) for name in factors}
    return table.assign(share=[shares.get(term.split("=")[0]) if " x " not in term else np.nan for term in terms])


def _design(rows: pd.DataFrame, factors: dict[str, Sequence]) -> dict[str, np.ndarray]:
    main = {
        name: {f"{name}={level}": (rows[name] == level).to_numpy(float) - 1 / len(levels) for level in levels[1:]}
        for name, levels in factors.items()
    }
    pairs = {
        f"{a} x {b}": x * y for f, g in combinations(factors, 2) for a, x in main[f].items() for b, y in main[g].items()
    }
    return {term: x for each in main.values() for term, x in each.items()} | pairs


def _share(terms: dict[str, np.ndarray], values: np.ndarray, name: str) -> float:
    """Share of the sum of squares that only a factor and its interactions explain."""
    kept = [x for term, x in terms.items() if not any(part.startswith(f"{name}=") for part in term.split(" x "))]

    def residual(columns):
        design = np.column_stack([np.ones(len(values)), *columns])
        return np.square(values - design @ np.linalg.lstsq(design, values, rcond=None)[0]).sum()

    total = np.square(values - values.mean()).sum()
    return float((residual(kept) - residual(terms.values())) / total) if total > 0 else 0.0


def having(runs: pd.DataFrame, settings: dict) -> np.ndarray:
    """Which runs have these settings, (runs,) of booleans; None is a setting left at nothing.

    Raises ValueError for a setting that is no column.
    """
    if unknown := [name for name in settings if name not in runs]:
        raise ValueError(f"{', '.join(unknown)}: no such setting among the columns {', '.join(runs.columns)}.")
    chosen = np.ones(len(runs), dtype=bool)
    for name, value in settings.items():
        chosen &= (runs[name].isna() if value is None else runs[name] == value).to_numpy()
    return chosen
