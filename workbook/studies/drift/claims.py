"""Claims of chapter 09: whether unequal weights are what moves words that no reward asked for (D1
to D9, D-falsifier).

What each row measures, and against which number, stands in
data/results/unequal_weights/registration.yaml. Paper D claims that unequal weights cause the tax.
So the falsifier's row lays a run with unequal weights beside the same run with equal ones; a twin
with permuted advantages keeps the weights, and so the cause.

A unit is a policy and prompts of its own. A run that collapses (its exact value falls below half of
the start's) gives no number to any of its unit's comparisons; its twin, which only loses value, is
read as long as it has not collapsed. Arms are compared at the end, or where each first reaches the
highest exact value that both reach.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import pandas as pd

from workbook.statistics import logs
from workbook.studies.drift.equal_weights import BOTH, OBJECTIVES, SHORT, curve_of, taxes
from workbook.studies.drift.study import CURVES, DEAD, GROUPS, PAIRS, POINT
from workbook.studies.record import Tables

STUDY = "confidence"
G, P = POINT
Paths = Callable[[str, bool], pd.DataFrame]  # (arm, permuted) -> its run
Number = Callable[[Paths], float]


class _NoNumber(Exception):
    """A run that a number needs has collapsed, or has no twin."""


# --- runs of one unit


def living(run: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run before it collapses: before its exact value falls below half of what it
    started with.
    """
    dead = np.flatnonzero(run["value"].to_numpy() < DEAD * run["value"].iloc[0])
    return run.iloc[: dead[0]] if len(dead) else run


def at_value(values: np.ndarray, outcome: np.ndarray, level: float) -> float:
    """An outcome where a run's value first reaches a level, linear between batches; NaN if it never
    does.

    >>> at_value(np.array([0.4, 0.6, 0.5]), np.array([0.0, 1.0, 2.0]), 0.5)
    0.5
    """
    values, outcome = np.asarray(values, float), np.asarray(outcome, float)
    reached = np.flatnonzero(values >= level)
    if not len(reached):
        return math.nan
    k = reached[0]
    if k == 0:
        return float(outcome[0])
    share = (level - values[k - 1]) / (values[k] - values[k - 1])
    return float(outcome[k - 1] + share * (outcome[k] - outcome[k - 1]))


@lru_cache(maxsize=8)
def runs_by_place(tables: Tables) -> dict[tuple[int, float], dict[int, Paths]]:
    """{(group size, confidence): {seed: (arm, permuted) -> run}}; lost: entropy of style words,
    since the start.
    """
    places: dict[tuple[int, float], dict[int, dict]] = {}
    keys = ["group_size", "confidence", "seed", "arm", "permuted"]
    for (size, confidence, seed, arm, permuted), run in tables[f"{STUDY}/runs"].groupby(keys):
        here = places.setdefault((int(size), float(confidence)), {}).setdefault(int(seed), {})
        run = run.sort_values("batch")
        here[arm, bool(permuted)] = run.assign(
            lost=run["style_entropy"].iloc[0] - run["style_entropy"]
        )
    return {
        place: {seed: _paths(runs) for seed, runs in units.items()}
        for place, units in places.items()
    }


def _paths(runs: dict[tuple[str, bool], pd.DataFrame]) -> Paths:
    def path(arm: str, permuted: bool = False) -> pd.DataFrame:
        if (arm, permuted) not in runs:
            if permuted and (arm, False) in runs:
                raise _NoNumber  # its arm has no twin at this place
            raise ValueError(f"no run of {arm!r} was measured here.")
        run = runs[arm, permuted]
        if not permuted and len(living(run)) < len(run):
            raise _NoNumber
        return living(run)

    return path


def places_on(tables: Tables, axis: str) -> dict[float, dict[int, Paths]]:
    """Units along one axis of the plane, confidence at G = 2 or group_size at p = 0.8: {its value:
    {seed: paths}}.
    """
    along = {"confidence": lambda size, p: size == G, "group_size": lambda size, p: p == P}[axis]
    along_it = {place: units for place, units in runs_by_place(tables).items() if along(*place)}
    return {place[axis == "confidence"]: units for place, units in sorted(along_it.items())}


def number_of(number: Number, *paths: Paths) -> float:
    """A number of runs, NaN where a run that it needs has collapsed, or has no twin."""
    try:
        return float(number(*paths))
    except _NoNumber:
        return math.nan


def per_unit(
    tables: Tables, number: Number, group_size: int = G, confidence: float = P
) -> pd.Series:
    """A number of every unit at one place of the plane: index seed."""
    units = runs_by_place(tables).get((group_size, confidence), {})
    return pd.Series(
        {seed: number_of(number, path) for seed, path in units.items()}, name="number", dtype=float
    )


# --- numbers of a unit's runs


def excess(path: Paths, arm: str, outcome: str = "free_tax") -> pd.Series:
    """An outcome of an arm minus that of its twin with permuted advantages, after every batch that
    both have.
    """
    one, twin = (path(arm, permuted).set_index("batch")[outcome] for permuted in (False, True))
    return (one - twin)[one.index.intersection(twin.index)]


def excess_at_end(arm: str, outcome: str = "free_tax") -> Number:
    """An outcome of an arm minus that of its permuted twin, at the end, or before the twin's
    collapse.
    """
    return lambda path: excess(path, arm, outcome).iloc[-1]


def gap_of_values(
    one: str, other: str, number: Callable[[np.ndarray], float] = lambda values: values[-1]
) -> Number:
    """A number of the exact value's curve (by default its end), of one arm minus another's."""
    return lambda path: (
        number(path(one)["value"].to_numpy()) - number(path(other)["value"].to_numpy())
    )


def gap_at_equal_value(one: str, other: str, outcome: str = "free_tax") -> Number:
    """An outcome beyond the twin's, of one arm minus another's, where both first reach the value
    that both reach.

    No number where one of them never gets above its start: nothing was learned at which to compare
    them.
    """

    def number(path: Paths) -> float:
        beyond = [excess(path, name, outcome) for name in (one, other)]
        values = [
            path(name)["value"].iloc[: len(part)]
            for name, part in zip((one, other), beyond, strict=True)
        ]
        level = _reached_by_all(values)
        first, second = (
            at_value(value, part, level) for value, part in zip(values, beyond, strict=True)
        )
        return first - second

    return number


def _reached_by_all(values: list[pd.Series]) -> float:
    """The highest value that every run reaches, above all of their starts."""
    level = min(value.max() for value in values)
    if level <= max(value.iloc[0] for value in values):
        raise _NoNumber
    return level


def batches_to_equal_value(one: str, other: str) -> Number:
    """Generation batches until nine tenths of the gain that both reach: of one arm minus another;
    NaN without gain.
    """

    def number(path: Paths) -> float:
        runs = [path(one), path(other)]
        start = runs[0]["value"].iloc[0]
        level = start + 0.9 * (_reached_by_all([run["value"] for run in runs]) - start)
        first, second = (at_value(run["value"], run["batch"], level) for run in runs)
        return first - second

    return number


def value_jitter(values: np.ndarray) -> float:
    """Mean size of the second difference of a run's exact values: without sampling noise."""
    return float(np.abs(np.diff(values, 2)).mean())


# --- measures: Tables -> a number per unit


def slope_by_group(tables: Tables, number: Number, sizes=(2, 4, 8, 16)) -> pd.Series:
    """Change of a number per doubling of the group's size at confidence 0.8, by least squares in
    each unit.
    """
    wide = pd.DataFrame({size: per_unit(tables, number, size) for size in sizes})
    doublings = np.log2(wide.columns.to_numpy(dtype=float))
    centred = doublings - doublings.mean()
    return wide.apply(
        lambda row: float((row * centred).sum(skipna=False) / (centred**2).sum()), axis=1
    )


def residual_gap(one: str, other: str | None, column: str = "residual", group_size: int = G):
    """A residual of one objective at confidence 0.8, minus that of another (None: of nothing)."""

    def measure(tables: Tables) -> pd.Series:
        rows = tables[f"{STUDY}/residuals"]
        rows = rows[(rows["group_size"] == group_size) & np.isclose(rows["confidence"], P)]
        wide = rows.pivot(index="seed", columns="objective", values=column)
        return wide[one] if other is None else wide[one] - wide[other]

    return measure


def shared_share(group_size: int, less: int | None = None):
    """Share of energy on tokens that whole groups share, at confidence 0.8; minus that in groups of
    `less`.
    """

    def measure(tables: Tables) -> pd.Series:
        rows = tables[f"{STUDY}/energy"]
        rows = rows[np.isclose(rows["confidence"], P) & (rows["category"] == "all")]
        wide = rows.pivot(index="seed", columns="group_size", values="shared_energy")
        return wide[group_size] if less is None else wide[group_size] - wide[less]

    return measure


def curve_at(tables: Tables, place: tuple[int, float], arm: str, column: str) -> pd.DataFrame:
    """A column of one arm's runs in `training_curves`, units x batches; NaN throughout where a run
    collapsed.

    "lost": entropy of style words that is gone since the first reading, nats a word.
    """
    rows = tables[f"{CURVES}/curves"]
    rows = rows[
        (rows["group_size"] == place[0])
        & np.isclose(rows["confidence"], place[1])
        & ~rows["permuted"]
    ]
    runs, name = rows[rows["arm"] == arm], "style_entropy" if column == "lost" else column
    value, wanted = (
        runs.pivot(index="seed", columns="batch", values=one) for one in ("value", name)
    )
    wanted = (-wanted).add(wanted.iloc[:, 0], axis=0) if column == "lost" else wanted
    alive = value.min(axis=1) >= DEAD * value.iloc[:, 0]
    return wanted[alive].reindex(wanted.index)


def at_last(
    name: str, less: str | None = None, column: str = "value", place=PAIRS, readings: int = 1
):
    """A column of `training_curves` at the last readings of an arm, minus another arm's."""

    def measure(tables: Tables) -> pd.Series:
        runs = [curve_at(tables, place, arm, column) for arm in (name, less) if arm]
        ends = [run.iloc[:, -readings:].mean(axis=1, skipna=False) for run in runs]
        return ends[0] - ends[1] if less else ends[0]

    return measure


def tax_at_equal_value(tables: Tables) -> pd.Series:
    """Tax of GSPO over that of GSPO with min-replace, where both first reach the highest value that
    both reach.
    """
    tax, value = (
        [curve_of(tables, name, column) for name in _LEAST] for column in ("tax", "value")
    )
    levels = np.minimum(*(values.max(axis=1) for values in value))
    at = [
        [at_value(y.loc[unit], x.loc[unit], levels[unit]) for unit in levels.index]
        for x, y in zip(tax, value, strict=True)
    ]
    return logs(pd.Series(np.divide(*at), levels.index))


def beyond_twins(tables: Tables) -> pd.Series:
    """Tax under unequal minus under equal weights, minus the same of their permuted twins, after
    SHORT batches.
    """
    return taxes(*BOTH, SHORT, nats=True)(tables) - taxes(*BOTH, SHORT, nats=True, permuted=True)(
        tables
    )


def at_worst(column: str):
    """The least of a column of `training_curves` along PPO's run in groups of eight."""
    return lambda tables: curve_at(tables, GROUPS, "PPO", column).min(axis=1, skipna=False)


def _at(number: Number, group_size: int = G):
    """A number of a unit's runs at confidence 0.8."""
    return partial(per_unit, number=number, group_size=group_size)


FIX, _LEAST, ONE_SIGN = ("GSPO", "min-replace"), ("unequal", "least"), ("one sign", "equal")
MEASURES = {
    STUDY: {
        "D1": residual_gap("equal weights", None, "gradient"),
        "D1 energy": shared_share(G),
        "D1 energy of eight": shared_share(8),
        "D1 consequence": _at(gap_at_equal_value("min-replace", "GSPO", "template_tax")),
        "D2": residual_gap("sequence ratio", "token ratio"),
        "D2 groups of eight": residual_gap("sequence ratio", "token ratio", group_size=8),
        "D2 clipped": residual_gap("sequence, clipped", "sequence ratio"),
        "D3": residual_gap("token, clipped", "token, symmetric"),
        "D3 sequence": residual_gap("sequence, clipped", "sequence, symmetric"),
        "D3 usual range": residual_gap("PPO's clip, 0.2", None, "stopped"),
        "D3 consequence": _at(gap_at_equal_value("PPO", "PPO, symmetric")),
        "D4 beyond twins": _at(gap_at_equal_value("GSPO", "min-replace")),
        "D4 clip off": _at(gap_at_equal_value("clip off", "min-replace")),
        "D4 style": _at(gap_at_equal_value("GSPO", "min-replace", "tax")),
        "D5": _at(gap_at_equal_value("GSPO", "min-replace", "lost")),
        "D5 odds": _at(gap_at_equal_value("GSPO", "min-replace", "odds")),
        "D6": residual_gap("min-replace", None),
        "D6 mechanism": residual_gap("min-replace", "sequence ratio", "gradient"),
        "D6 consequence": _at(gap_at_equal_value("min-replace, clamped", "GSPO")),
        "D6 control": _at(gap_at_equal_value("min-replace, clamped", "clip off")),
        "D7": residual_gap("orthogonal", None),
        "D7 mechanism": residual_gap("orthogonal", "sequence ratio", "gradient"),
        "D7 consequence": _at(gap_at_equal_value("orthogonal", "GSPO")),
        "D8": _at(gap_of_values("min-replace", "GSPO")),
        "D8 clamped": _at(gap_of_values("min-replace, clamped", "GSPO")),
        "D8 control": _at(gap_of_values("min-replace, clamped", "clip off")),
        "D8 orthogonal": _at(gap_of_values("orthogonal", "GSPO")),
        "D8 symmetric": _at(gap_of_values("PPO, symmetric", "PPO")),
        "D8 jitter": _at(gap_of_values("min-replace", "GSPO", value_jitter)),
        "D8 compute": _at(batches_to_equal_value("min-replace", "GSPO")),
        "D9": partial(slope_by_group, number=gap_of_values("min-replace", "GSPO")),
        "D9 mechanism": shared_share(16, 2),
        "D-falsifier twin": _at(excess_at_end("GSPO")),
    },
    CURVES: {
        "D4 over training": at_last(*FIX, "tax"),
        "D4 over training, eight": at_last(*FIX, "tax", GROUPS),
        "D5 over training": at_last(*FIX, "lost"),
        "D8 over training": at_last(*FIX[::-1]),
        "D8 over training, eight": at_last(*FIX[::-1], place=GROUPS),
        "H4 over training": at_worst("agreement, moved"),
        "H4 over training, all": at_worst("agreement, all"),
        "H7 over training": at_last("PPO", None, "gap", GROUPS, 3),
    },
    "equal_weights": {
        "D-falsifier": taxes(*BOTH),
        "D-falsifier nats": taxes(*BOTH, nats=True),
        "D-falsifier entropy": taxes(*BOTH, nats=True, column="style_entropy"),
        "D-falsifier value": taxes(*BOTH, nats=True, column="value"),
        "D-falsifier 12 batches": taxes(*BOTH, SHORT),
        "D-falsifier permuted": taxes(*BOTH, SHORT, permuted=True),
        "D-falsifier beyond twins": beyond_twins,
        **{
            f"D-falsifier {name}": taxes(*BOTH, SHORT, objective=name)
            for name in list(OBJECTIVES)[1:]
        },
        "D-falsifier eight": taxes(*BOTH, size=8),
        "D-falsifier eight, 12 batches": taxes(*BOTH, SHORT, size=8),
        "D-falsifier eight, PPO": taxes(*BOTH, SHORT, size=8, objective="PPO, 0.2 and 0.28"),
        "D-falsifier control": taxes(*ONE_SIGN),
        "D-falsifier control, 12 batches": taxes(*ONE_SIGN, SHORT),
        "D-falsifier control, eight": taxes(*ONE_SIGN, SHORT, size=8),
        "D4": tax_at_equal_value,
        "D4 at the end": taxes(*_LEAST),
        "D4 eight": taxes(*_LEAST, SHORT, size=8),
    },
}
