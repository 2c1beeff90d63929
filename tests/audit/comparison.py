"""Both ledgers side by side: the package's, as JSON, and this one, from tables and registrations."""

from __future__ import annotations

import json
import math
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pandas as pd

from audit import provenance
from audit.reckoning import MIN_UNITS, benjamini_hochberg, conclude, judge, says_no
from audit.studies import DEFINITIONS
from audit.tables import RESULTS, Missing, Registered, Units, registrations

TOLERANCES = dict.fromkeys(("mean", "low", "high", "without_low", "without_high"), 1e-9)  # relative
TOLERANCES |= dict.fromkeys(("p", "q", "p_equivalent", "p_flips"), 1e-9)
TOLERANCES["detectable"] = 1e-7  # scipy.special inverts the noncentral t to 2e-8, as the package has it
EXACT = ("claim", "role", "units", "outcome", "policies")
DUST = 1e-12  # absolute, of estimates and intervals; p-values have none
Key = tuple[str, str, str]  # study, scale, key of the outcome


def ours(results: Path = RESULTS) -> dict[Key, dict]:
    """Every registered outcome at every scale it was registered for: {key: row with outcome and numbers}."""
    rows: dict[Key, dict] = {}
    for registered, units in scales(results):
        for name, outcome in registered.outcomes.items():
            rows[registered.study, units.scale, name] = row_of(units, name, outcome)
    primary = {key: row for key, row in rows.items() if row["role"] == "primary" and "p" in row}
    judged = {key: row["p"] for key, row in primary.items() if not row["excluded"]}
    for key, q in benjamini_hochberg(judged).items():
        rows[key]["q"] = float(q)
    return {key: row | {"outcome": conclude(row, row["registered"])} for key, row in rows.items()}


def row_of(units: Units, name: str, outcome: dict) -> dict:
    """A registered outcome's row, before the correction for their number; `values`: of its units."""
    values = pd.Series(dtype=float)
    with suppress(Missing):
        values = DEFINITIONS[units.study][name](units)
    row = judge(values, outcome, {unit: units.policy(unit) for unit in values.index})
    excluded = says_no(outcome, "testable") or says_no(outcome, "comparable")
    facts = {"claim": outcome["claim"], "role": outcome["role"], "excluded": excluded, "registered": outcome}
    return row | facts | {"values": values, "policy_of": {unit: units.policy(unit) for unit in values.index}}


def theirs(path: Path) -> dict[Key, dict]:
    """The rows of `python -m workbook claims --json PATH` that a study has."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {(row["study"], row["scale"], row["key"]): row for row in rows if row["study"]}


def differences(mine: dict, other: dict | None) -> list[str]:
    """The names of what differs between two rows; of described ones, only estimate and units are compared."""
    if other is None:
        return ["no such row"]
    described = mine["role"] == "described"
    facts = EXACT[:-1] if described else EXACT
    names = [name for name in facts if mine[name] != (other[name] or 0)]
    numbers = ("mean",) if described else TOLERANCES
    return names + [name for name in numbers if not near(mine.get(name), other[name], name)]


def near(a: float | None, b: float | None, name: str) -> bool:
    """Whether two numbers agree; None and NaN are none. Flips of many units are drawn there, and not here."""
    a, b = (None if number is None or math.isnan(number) else number for number in (a, b))
    if a is None or b is None:
        return a is b or (name == "p_flips" and a is None)
    dust = 0.0 if name.startswith(("p", "q")) else DUST
    return math.isclose(a, b, rel_tol=TOLERANCES[name], abs_tol=dust)


def compare(mine: dict[Key, dict], other: dict[Key, dict]) -> pd.DataFrame:
    """A row per registered outcome: study, scale, key, role, theirs, ours (texts), differ (names that do).

    Outcomes that describe and were not measured are left out, as in the ledger.
    """
    rows = []
    for key, row in mine.items():
        match = other.get(key)
        if row["role"] != "described" or row["units"] or match is not None:
            rows.append((*key, row["role"], text(match), text(row), ", ".join(differences(row, match))))
    for key in set(other) - set(mine):
        if other[key]["role"] != "described":
            rows.append((*key, other[key]["role"], text(other[key]), "-", "no registration has it"))
    return pd.DataFrame(rows, columns=["study", "scale", "key", "role", "theirs", "ours", "differ"])


def text(row: dict | None) -> str:
    """A row's outcome and numbers in one line."""
    if row is None:
        return "-"
    numbers = ""
    if row["units"]:
        numbers = f" {row['mean']:.4g}"
    if row["role"] != "described" and row.get("low") is not None:
        numbers += f" [{row['low']:.4g}, {row['high']:.4g}]"
    return f"{row['outcome']}{numbers} of {row['units']}"


def rules(mine: dict[Key, dict]) -> list[str]:
    """What is wrong with the ledger's shape: one primary row a claim, and no outcome of too few units."""
    counts = Counter(row["claim"] for row in mine.values() if row["role"] == "primary")
    claims = sorted({row["claim"] for row in mine.values() if row["role"] != "described"})
    wrong = [f"claim {claim} has {counts[claim]} primary outcomes" for claim in claims if counts[claim] != 1]
    few = [key for key, row in mine.items() if row["role"] == "primary" and row["policies"] < MIN_UNITS]
    return wrong + [f"{key} has an outcome of few units" for key in few if not mine[key]["outcome"].startswith("not ")]


def scales(results: Path = RESULTS) -> list[tuple[Registered, Units]]:
    """Every registered study with its units, at every scale that it was registered for."""
    studies = [(one, scale, count) for one in registrations(results) for scale, count in one.counts.items()]
    return [(one, Units(one.study, scale, count, results)) for one, scale, count in studies]


def all_faults(results: Path = RESULTS) -> list[str]:
    """Faults of provenance of every registered study and scale."""
    return [fault for one, units in scales(results) for fault in provenance.faults(units, one)]


def notes(results: Path = RESULTS) -> list[str]:
    """Studies with fewer units than registered. That is a fault only below the stopping rule's minimum."""
    counted = [(units, len(units.registered)) for _, units in scales(results)]
    lines = [
        f"{units.study}, {units.scale}: {have} of {units.count} units" for units, have in counted if have < units.count
    ]
    return [f"{line} that were registered" for line in lines]


def shown(table: pd.DataFrame) -> str:
    """The comparison as text, columns flush left."""
    agrees = table["differ"].map(lambda names: f"NO: {names}" if names else "yes")
    plain = table[["study", "key", "role", "theirs", "ours"]].assign(agrees=agrees)
    plain.loc[table["theirs"] == table["ours"], "ours"] = "the same"
    rows = [list(plain.columns), *plain.to_numpy().tolist()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
