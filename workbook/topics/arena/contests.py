"""One rule in the arena: trained beside the bounds in some units, resumable, and placed into the measured table.

    python -m workbook arena --rule own:credit.py:my_rule --small

Every unit trains the bounds and plain group credit anew at the same setting, so that the rule's score is in the same
unit as the measured ones, whatever the setting. What is done is kept and read when the command is given again:

    <folder>/<setting>/unit=<k>/<rule>/    marks.parquet, runs.parquet, made_of.json

What was measured of another policy (by its weights), by other code, or of a rule's file as it was before is measured
anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import pandas as pd

from workbook.studies.bench import Bench
from workbook.studies.record import RESULTS, load_measured
from workbook.theory.credit import Rule
from workbook.topics.arena.rules import BOUNDS, PLAIN, Contender, contender
from workbook.topics.arena.runs import FULL, SMALL, Setting, unit_tables
from workbook.topics.arena.scores import arena_table
from workbook.training.files import atomic_folder, damage, read_json, sources_sha256, write_json, write_parquet

TABLES = ("marks", "runs")
CODE = ("theory", "tasks", "policies", "rollouts", "training", "probes", "studies", "topics/arena")
YOURS, MEASURED = "yours", "measured"  # where a row of the table comes from


def contest(
    rule: str | Rule,
    setting: Setting = SMALL,
    units: int | None = None,
    folder: str | Path = "runs/arena",
    show: Callable[[str], None] | None = None,
    scale: str = "family",
) -> pd.DataFrame:
    """`arena_table` of a rule, the bounds and plain group credit, over the first units of a scale.

    rule: as `contender` takes it.  units: by default the setting's.  show: called with a line per unit and rule.
    scale: "family", whose units differ in policy and prompts, or "bundled", one policy that is there at once.

    Raises ValueError for a rule that can't be called, fewer than two units, and a folder of another setting.
    """
    own, units = contender(rule), setting.units if units is None else units
    if units < 2:
        raise ValueError(f"units={units} must be 2 or more: an interval is over units.")
    place = _opened(Path(folder), setting, scale)
    rules = [*(contender(name) for name in BOUNDS if name != own.name), own]
    parts = {name: [] for name in TABLES}
    for unit in range(units):
        bench = Bench(scale, unit)
        for entry in rules:
            tables = _unit(place / f"unit={unit}" / entry.key, bench, entry, setting, show)
            for name in TABLES:
                parts[name].append(tables[name].assign(seed=unit))
    return arena_table(*(pd.concat(parts[name], ignore_index=True) for name in TABLES))


def _opened(folder: Path, setting: Setting, scale: str) -> Path:
    """The folder of a setting's contests, which are all of that setting and scale."""
    place, sizes = folder / setting.name, asdict(setting) | {"scale": scale}
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is no folder; give the path of one.")
    if (place / "setting.json").exists():
        if read_json(place / "setting.json", dict) != sizes:
            raise ValueError(f"{place} holds contests of another setting; give another folder.")
    else:
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / "setting.json", sizes)
    return place


def _unit(place: Path, bench: Bench, rule: Contender, setting: Setting, show) -> dict[str, pd.DataFrame]:
    """A rule's tables in one unit, measured if they are not there, or were made of something else."""
    made_of = {"policy": bench.policy.provenance["sha256"], "code": sources_sha256(*CODE), "rule": rule.files}
    if not place.exists() or _made_of(place) != made_of:
        tables = unit_tables(bench, setting, [rule], {"grad_norm": [rule]})
        with atomic_folder(place) as new:
            for name in TABLES:
                write_parquet(new / f"{name}.parquet", tables[name])
            write_json(new / "made_of.json", made_of)
        if show is not None:
            value = tables["runs"]["value"]
            show(f"unit {bench.seed}, {rule.name}: exact held-out value {value.iloc[0]:.3f} to {value.iloc[-1]:.3f}")
    return {name: pd.read_parquet(place / f"{name}.parquet") for name in TABLES}


def _made_of(place: Path) -> dict | None:
    """What the tables in a folder were made of; None where nothing says so, or a file is damaged."""
    if damage(place, ["made_of.json", *(f"{name}.parquet" for name in TABLES)]):
        return None
    return read_json(place / "made_of.json", dict)


def measured_table(folder: str | Path | None = None) -> pd.DataFrame:
    """The `arena_table` of the committed study, over the units that trained every rule.

    Further units trained the bounds and plain group credit alone: they decide A1, but beside other rules they would be
    compared over other prompts.  folder: of results, instead of data/results.  Raises NotMeasured where the study was
    not made.
    """
    return _measured(str(folder or RESULTS)).copy()


@lru_cache(maxsize=4)
def _measured(folder: str) -> pd.DataFrame:
    marks, runs = (load_measured("arena", "family", name, folder) for name in TABLES)
    rules = runs.groupby("seed")["rule"].nunique()
    whole = rules.index[rules == rules.max()]
    return arena_table(marks[marks["seed"].isin(whole)], runs[runs["seed"].isin(whole)]).assign(source=MEASURED)


def setting_of(small: bool) -> Setting:
    """The setting of the measured table, or the small one."""
    return SMALL if small else FULL


def place(measured: pd.DataFrame, own: pd.DataFrame, rule: str) -> pd.DataFrame:
    """The measured table with a contest's row of `rule` in its place, and that of plain group credit beside.

    Scores are of each row's own bounds. The second row shows what the contest's setting does to a rule that is known.
    """
    rows = own[own["rule"].isin([rule, PLAIN])].assign(source=YOURS)
    table = pd.concat([measured, rows], ignore_index=True)
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)
