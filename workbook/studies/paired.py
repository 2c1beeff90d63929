"""Effects of a setting on the outcomes of runs: paired by seed, with bootstrap intervals over seeds.

Runs of one seed share their prompts, so each seed gives one difference, averaged over whatever else was varied; the
seeds are what was drawn independently. `of_runs` and `comparison` make a claim's measurements of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from workbook.statistics import Estimate, Interval, bootstrap_bounds, bootstrap_mean
from workbook.studies.claim import Tables
from workbook.studies.sweeps import passes

DEFAULTS = {"clipping": "asymmetric", "group_transform": "none"}  # where a run sets none


def differences(runs: pd.DataFrame, outcome: str, chosen: dict, baseline: dict, by: Sequence[str] = ()) -> pd.DataFrame:
    """One difference per seed and combination of `by`: the outcome under `chosen` minus that under `baseline`.

    runs: as from `load_runs`.  chosen, baseline: {setting: value} that select the two kinds of runs; None is a setting
    left at nothing.  Settings besides those named and `by` are averaged over, in each kind.

    Columns: those of `by`, seed, chosen, baseline, difference.  Raises ValueError if a kind has no runs.
    """
    keys, means = [*by, "seed"], {}
    for name, settings in {"chosen": chosen, "baseline": baseline}.items():
        rows = runs[having(runs, settings)]
        if rows.empty:
            raise ValueError(f"no run has the settings {settings}.")
        means[name] = rows.groupby(keys, dropna=False)[outcome].mean()
    table = pd.DataFrame(means).dropna().reset_index()
    return table.assign(difference=table["chosen"] - table["baseline"])


def effect(runs, outcome: str, chosen: dict, baseline: dict, by: Sequence[str] = (), resamples=None) -> Interval:
    """Mean paired difference with its 95 % bootstrap interval over seeds; arguments as in `differences`.

    by: what to pair on beside the seed, where one kind lacks some settings of the other.
    """
    return bootstrap_mean(_pairs(runs, outcome, chosen, baseline, by)["difference"], resamples=resamples)


def ratio(runs, outcome: str, chosen: dict, baseline: dict, by: Sequence[str] = (), resamples=None) -> Interval:
    """Ratio of the two kinds' means, with the bootstrap interval of `effect`: seeds are resampled in pairs."""
    pairs = _pairs(runs, outcome, chosen, baseline, by)[["chosen", "baseline"]].to_numpy()
    bounds = bootstrap_bounds(len(pairs), lambda drawn: np.divide(*pairs[drawn].mean(1).T), resamples=resamples)
    return Interval(*map(float, (np.divide(*pairs.mean(0)), *bounds)))


def _pairs(runs, outcome, chosen, baseline, by) -> pd.DataFrame:
    """Each seed's means of `differences`; raises ValueError if there are none."""
    table = differences(runs, outcome, chosen, baseline, by)
    if table.empty:
        raise ValueError(f"no seed has the outcome {outcome} under both {chosen} and {baseline}.")
    return table.groupby("seed")[["chosen", "baseline", "difference"]].mean()


def effects(runs: pd.DataFrame, outcome: str, chosen: dict, baseline: dict, by: Sequence[str]) -> pd.DataFrame:
    """`effect` in each combination of `by`: columns by..., mean, low, high, seeds."""
    table, rows = differences(runs, outcome, chosen, baseline, by), []
    for values, part in table.groupby(list(by), dropna=False):
        interval = bootstrap_mean(part.groupby("seed")["difference"].mean())
        rows.append((*values, *interval, part["seed"].nunique()))
    return pd.DataFrame(rows, columns=[*by, *Interval._fields, "seeds"])


def slope(runs, outcome: str, setting: str, chosen: dict, baseline: dict | None = None, resamples=None) -> Interval:
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
    return bootstrap_mean(slopes, resamples=resamples)


def level(runs: pd.DataFrame, outcome: str, chosen: dict, resamples: int | None = None) -> Interval:
    """Mean of the outcome itself under `chosen`, each seed's runs averaged first, with its interval over seeds."""
    values = runs[having(runs, chosen)].groupby("seed")[outcome].mean().dropna()
    if values.empty:
        raise ValueError(f"no run with the settings {chosen} has the outcome {outcome}.")
    return bootstrap_mean(values, resamples=resamples)


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
    runs_of = [np.flatnonzero(seeds == seed) for seed in np.unique(seeds)]

    def coefficients(drawn: np.ndarray) -> np.ndarray:  # (resamples, seeds) -> (resamples, terms)
        indices = (np.concatenate([runs_of[seed] for seed in row]) for row in drawn)
        return np.array([np.linalg.lstsq(design[i], values[i], rcond=None)[0][1:] for i in indices])

    low, high = bootstrap_bounds(len(runs_of), coefficients, resamples=2_000)
    fitted = np.linalg.lstsq(design, values, rcond=None)[0][1:]
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
    return {term: x for levels in main.values() for term, x in levels.items()} | pairs


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


# --- measurements of a claim


def of_runs(study: str, among: dict, measure: Callable, kinds: Callable | None = None) -> Callable[[Tables], Estimate]:
    """A claim's measurement: `measure(runs, resamples=...)` of the study's runs with the settings `among`.

    kinds: runs -> which of them count as n; all of them by default.
    """

    def of(tables: Tables) -> Estimate:
        runs = labelled_runs(study, tables)
        runs = runs[having(runs, among)]
        interval, used = measure(runs, resamples=tables.resamples), runs[kinds(runs)] if kinds else runs
        return Estimate(*interval, used["seed"].nunique(), len(used))

    return of


def comparison(
    study: str,
    outcome: str,
    chosen: dict,
    baseline: dict,
    among: dict | None = None,
    by: Sequence[str] = (),
    how=effect,
) -> Callable[[Tables], Estimate]:
    """A claim's measurement: the difference (or how=ratio) that a setting makes among the runs with some others."""

    def measure(runs, resamples):
        varied = [name for name in by if name in runs]  # a setting that all runs share is no column
        return how(runs, outcome, chosen, baseline, varied, resamples)

    return of_runs(study, among or {}, measure, lambda runs: having(runs, chosen) | having(runs, baseline))


def labelled_runs(study: str, tables: Tables) -> pd.DataFrame:
    """A sweep's runs, what they left at its default filled in, with the columns that claims select or compare by.

    reused: whether a batch of rollouts serves two epochs or more.  spent: compute to a score, or of the whole run if
    it never got there.  sparsity: none, less able policy or false negatives.
    """
    runs = tables[f"{study}/runs"]
    runs = runs.fillna({name: value for name, value in DEFAULTS.items() if name in runs})
    if "num_iterations" in runs:
        batches = tables[f"{study}/curves"].groupby("run")["reward"].count()
        whole = runs["run"].map(batches) * passes(runs["num_iterations"])
        runs = runs.assign(reused=runs["num_iterations"] > 1, spent=runs["compute_to_score"].fillna(whole))
    if "false_negative_rate" in runs:
        conditions = [runs["false_negative_rate"] > 0, runs["policy"] != "bundled"]
        runs = runs.assign(sparsity=np.select(conditions, ["false negatives", "less able policy"], "none"))
    return runs
