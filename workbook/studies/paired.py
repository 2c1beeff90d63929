"""Effects of a setting on the outcomes of runs: paired by seed, with bootstrap intervals over seeds.

Runs of one seed share their prompts, so each seed gives one difference, averaged over whatever else was varied; the
seeds are what was drawn independently. `comparison` makes a described row of a claim of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from workbook.statistics import Estimate, Interval, bootstrap_mean
from workbook.studies.claim import Tables


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


# --- a measurement of a claim


def comparison(
    study: str, outcome: str, chosen: dict, baseline: dict, by: Sequence[str] = ()
) -> Callable[[Tables], Estimate]:
    """A described measurement of a sweep's runs: the difference that a setting makes, over seeds."""

    def measure(tables: Tables) -> Estimate:
        runs = tables[f"{study}/runs"]
        varied = [name for name in by if name in runs]  # a setting that all runs share is no column
        interval = effect(runs, outcome, chosen, baseline, varied, tables.resamples)
        used = runs[having(runs, chosen) | having(runs, baseline)]
        return Estimate(*interval, used["seed"].nunique(), len(used))

    return measure
