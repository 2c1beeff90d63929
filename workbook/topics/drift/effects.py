"""Numbers per unit from the tables of the study `confidence`: what its outcomes, curves and explorers read.

A unit is a policy and prompts of its own. A run that collapses (its exact value falls below half of the start's) gives
no number to any of its unit's comparisons. A twin with permuted advantages only loses value; an arm is compared with
it as long as it has not collapsed. Arms are compared at the end, or at equal value: where each first reaches the
highest exact value that both reach.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
import pandas as pd

from workbook.statistics import unit_curve
from workbook.studies.claim import Tables
from workbook.topics.drift.arms import at_value, excess, living
from workbook.topics.drift.confidence import COMPARED, POINT

STUDY = "confidence"
G, P = POINT
OUTCOMES = {  # of a run, with its title
    "free_tax": "tax: movement of free words (nats)",
    "tax": "tax of style words (nats)",
    "template_tax": "tax of free template words (nats)",
    "odds": "change of odds of equal solutions (nats)",
    "style_entropy": "entropy of style words (nats)",
    "value": "exact held-out value",
}
Paths = Callable[[str, bool], pd.DataFrame]


@lru_cache(maxsize=8)
def runs_by_place(tables: Tables) -> dict[tuple[int, float], dict[int, Paths]]:
    """{(group size, confidence): {seed: (arm, permuted) -> run}}."""
    places: dict[tuple[int, float], dict[int, dict]] = {}
    keys = ["group_size", "confidence", "seed", "arm", "permuted"]
    for (size, confidence, seed, arm, permuted), run in tables[f"{STUDY}/runs"].groupby(keys):
        here = places.setdefault((int(size), float(confidence)), {}).setdefault(int(seed), {})
        here[arm, bool(permuted)] = run.sort_values("batch")
    return {place: {seed: _paths(runs) for seed, runs in units.items()} for place, units in places.items()}


def per_unit(tables: Tables, number: Callable[[Paths], float], group_size: int = G, confidence: float = P) -> pd.Series:
    """A number of every unit at one place of the plane: index seed.

    number: gets a function (arm, permuted) -> run, and returns NaN where a run that it needs has collapsed.
    """
    units = runs_by_place(tables).get((group_size, confidence), {})
    return pd.Series({seed: number(path) for seed, path in units.items()}, name="number", dtype=float)


class _NoNumber(Exception):
    pass


def _paths(runs: dict[tuple[str, bool], pd.DataFrame]) -> Paths:
    def path(arm: str, permuted: bool = False) -> pd.DataFrame:
        if (arm, permuted) not in runs:
            if permuted and (arm, False) in runs:
                raise _NoNumber  # its arm has no twin at this place
            raise ValueError(f"no run of {arm!r} was measured here.")
        run = runs[arm, permuted]
        if permuted:
            return living(run)
        if len(living(run)) < len(run):
            raise _NoNumber
        return run

    return path


def unless_collapsed(number: Callable[[Paths], float]) -> Callable[[Paths], float]:
    """The number, or NaN if one of its arms collapsed, or has no twin at this place."""

    def checked(path: Paths) -> float:
        try:
            return float(number(path))
        except _NoNumber:
            return float("nan")

    return checked


def excess_at_end(arm: str, outcome: str = "free_tax") -> Callable[[Paths], float]:
    """An outcome of an arm minus that of its permuted twin, at the end, or before the twin's collapse."""
    return unless_collapsed(lambda path: excess(path(arm), path(arm, True), outcome).iloc[-1])


def gap_at_end(one: str, other: str, outcome: str = "value") -> Callable[[Paths], float]:
    """An outcome of one arm minus that of another, at the end."""
    return unless_collapsed(lambda path: path(one)[outcome].iloc[-1] - path(other)[outcome].iloc[-1])


def gain_by_group(arm: str, path: Paths, pairs: Paths) -> float:
    """Exact value of an arm at the end minus that of the same unit in other groups; NaN where one collapsed."""
    return unless_collapsed(lambda path: path(arm)["value"].iloc[-1] - pairs(arm)["value"].iloc[-1])(path)


def gap_of_values(one: str, other: str, number: Callable[[np.ndarray], float]) -> Callable[[Paths], float]:
    """A number of the exact value's curve, of one arm minus another's."""
    return unless_collapsed(
        lambda path: number(path(one)["value"].to_numpy()) - number(path(other)["value"].to_numpy())
    )


def gap_at_equal_value(one: str, other: str, outcome: str = "free_tax") -> Callable[[Paths], float]:
    """An outcome beyond the twin's, of one arm minus another's, where both first reach the value that both reach.

    No number where one of them never gets above its start: nothing was learned at which to compare them.
    """

    def number(path: Paths) -> float:
        beyond = [excess(path(name), path(name, True), outcome) for name in (one, other)]
        values = [path(name)["value"].iloc[: len(part)] for name, part in zip((one, other), beyond, strict=True)]
        level = _reached_by_all(values)
        first, second = (at_value(value, part, level) for value, part in zip(values, beyond, strict=True))
        return first - second

    return unless_collapsed(number)


def _reached_by_all(values: list[pd.Series]) -> float:
    """The highest value that every run reaches, above all of their starts."""
    level = min(value.max() for value in values)
    if level <= max(value.iloc[0] for value in values):
        raise _NoNumber
    return level


def batches_to_equal_value(one: str, other: str) -> Callable[[Paths], float]:
    """Generation batches until nine tenths of the gain that both reach: of one arm minus another's.

    No number where one of them gains nothing.
    """

    def number(path: Paths) -> float:
        runs = [path(one), path(other)]
        start = runs[0]["value"].iloc[0]
        level = start + 0.9 * (_reached_by_all([run["value"] for run in runs]) - start)
        first, second = (at_value(run["value"], run["batch"], level) for run in runs)
        return first - second

    return unless_collapsed(number)


def slope_by_group(tables: Tables, number: Callable[[Paths], float], sizes=(2, 4, 8, 16)) -> pd.Series:
    """Change of a number per doubling of the group's size at confidence 0.8, by least squares in each unit."""
    wide = pd.DataFrame({size: per_unit(tables, number, size) for size in sizes})
    doublings = np.log2(wide.columns.to_numpy(dtype=float))
    centred = doublings - doublings.mean()
    return wide.apply(lambda row: float((row * centred).sum(skipna=False) / (centred**2).sum()), axis=1)


def residual_gap(one: str, other: str | None, column: str = "residual", group_size: int = G, confidence: float = P):
    """A measure: a residual of one objective, minus that of another (None: of nothing)."""

    def measure(tables: Tables) -> pd.Series:
        rows = tables[f"{STUDY}/residuals"]
        rows = rows[(rows["group_size"] == group_size) & np.isclose(rows["confidence"], confidence)]
        wide = rows.pivot(index="seed", columns="objective", values=column)
        return wide[one] if other is None else wide[one] - wide[other]

    return measure


def shared_share(group_size: int, confidence: float = P) -> Callable[[Tables], pd.Series]:
    """A measure: share of a batch's energy on tokens that whole groups share."""

    def measure(tables: Tables) -> pd.Series:
        rows = tables[f"{STUDY}/energy"]
        rows = rows[(rows["group_size"] == group_size) & np.isclose(rows["confidence"], confidence)]
        return rows[rows["category"] == "all"].set_index("seed")["shared_energy"]

    return measure


# --- curves


def energy_curve(tables: Tables, category: str = "all", y: str = "shared_energy") -> pd.DataFrame:
    """Share of energy that whole groups share against template confidence: confidence, group, mean ... units."""
    rows = tables[f"{STUDY}/energy"].query("category == @category")
    rows = rows.assign(group=rows["group_size"].map("G = {}".format))
    return unit_curve(rows, "confidence", y, by="group")


def residual_curve(tables: Tables, objectives: list[str], axis: str = "confidence") -> pd.DataFrame:
    """Residual of some objectives against confidence (groups of 2) or group_size (confidence 0.8), by objective."""
    rows = on_axis(tables[f"{STUDY}/residuals"], axis)
    return unit_curve(rows[rows["objective"].isin(objectives)], axis, "residual", by="objective")


def run_curve(tables: Tables, outcome: str = "free_tax", axis: str = "confidence", beyond: bool = True) -> pd.DataFrame:
    """An outcome of GSPO and min-replace at the end, beyond that of their twins, along an axis: a line an arm.

    beyond: minus that of the twin with permuted advantages; else of both, arm and twin, as four lines.
    """
    rows = []
    for at, path_of in places_on(tables, axis).items():
        for arm, permuted in product(COMPARED, (False,) if beyond else (False, True)):
            number = excess_at_end(arm, outcome) if beyond else _at_end(arm, permuted, outcome)
            name = arm + (", permuted" if permuted else "")
            rows += [(seed, at, name, number(path)) for seed, path in path_of.items()]
    return unit_curve(pd.DataFrame(rows, columns=["seed", axis, "arm", "number"]), axis, "number", by="arm")


def places_on(tables: Tables, axis: str) -> dict[float, dict[int, Paths]]:
    """Units along one axis of the plane: {its value: {seed: paths}}."""
    along = {"confidence": lambda size, p: size == G, "group_size": lambda size, p: p == P}[axis]
    along_it = {place: units for place, units in runs_by_place(tables).items() if along(*place)}
    return {place[axis == "confidence"]: units for place, units in sorted(along_it.items())}


def _at_end(arm: str, permuted: bool, outcome: str) -> Callable[[Paths], float]:
    """At the end; of a twin that collapses, before that."""
    return unless_collapsed(lambda path: path(arm, permuted)[outcome].iloc[-1])


def on_axis(table: pd.DataFrame, axis: str) -> pd.DataFrame:
    """The rows along one axis of the plane: groups of two for confidence, confidence 0.8 for group_size."""
    fixed = table["group_size"] == G if axis == "confidence" else np.isclose(table["confidence"], P)
    return table[fixed]


def arm_effects(tables: Tables) -> pd.DataFrame:
    """What every arm reaches at the deciding point: columns arm, outcome, mean, low, high, units.

    Outcomes: gain, the exact value at the end minus GSPO's in the same unit; free_tax; excess, that minus the twin's.
    """
    runs, rows = tables[f"{STUDY}/runs"], []
    numbers = {
        "gain": lambda arm: gap_at_end(arm, "GSPO"),
        "free_tax": lambda arm: _at_end(arm, False, "free_tax"),
        "excess": lambda arm: excess_at_end(arm),
    }
    for outcome, number in numbers.items():
        for arm in runs["arm"].unique():
            values = per_unit(tables, number(arm))
            rows.append(pd.DataFrame({"arm": arm, "outcome": outcome, "seed": values.index, "number": values.values}))
    table = pd.concat(rows)
    order = {name: k for k, name in enumerate(runs["arm"].unique())}
    curve = unit_curve(table.assign(place=table["arm"].map(order)), "place", "number", by=["outcome", "arm"])
    return curve.drop(columns="place").sort_values("outcome", key=lambda c: c.map(list(numbers).index), kind="stable")


def collapses(tables: Tables) -> pd.DataFrame:
    """Units in which an arm, and in which its twin, collapsed at the deciding point: columns arm, runs, twins."""
    runs = tables[f"{STUDY}/runs"]
    runs = runs[(runs["group_size"] == G) & np.isclose(runs["confidence"], P)]
    dead = runs.groupby(["arm", "permuted", "seed"], sort=False).apply(lambda run: len(living(run)) < len(run))
    counts = dead.groupby(level=["arm", "permuted"], sort=False).sum().unstack("permuted")
    return counts.rename(columns={False: "runs", True: "twins"}).rename_axis(columns=None).reset_index()
