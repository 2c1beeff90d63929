"""One rule in the arena: trained beside the bounds in some units, resumable, and placed into the measured table.

    python -m workbook arena --rule own:credit.py:my_rule --small

Every unit trains the bounds and plain group credit anew at the same setting, so that the rule's score is in the same
unit as the measured ones, whatever the setting. What is done is kept in <folder>/<setting>/unit=<k>/<rule>-<digest>
(of the setting and the rule's source), and read when the command is given again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pandas as pd

from workbook.studies.bench import Bench
from workbook.studies.record import RESULTS, load_measured
from workbook.theory.credit import Rule
from workbook.topics.arena.claims import arena_table
from workbook.topics.arena.study import BOUNDS, FULL, PLAIN, SMALL, Contender, Setting, contender, unit_tables
from workbook.training.files import write_parquet

TABLES = ("marks", "runs")
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

    Raises ValueError for a rule that can't be called and for fewer than two units.
    """
    own, units = contender(rule), setting.units if units is None else units
    if units < 2:
        raise ValueError(f"units={units} must be 2 or more: an interval is over units.")
    if Path(folder).is_file():
        raise ValueError(f"folder={str(folder)!r} is no folder; give the path of one.")
    rules = [*(contender(name) for name in BOUNDS if name != own.name), own]
    parts = {name: [] for name in TABLES}
    for unit in range(units):
        bench = Bench(scale, unit)
        for entry in rules:
            tables = _unit(Path(folder) / setting.name / f"unit={unit}", bench, entry, setting, show)
            for name in TABLES:
                parts[name].append(tables[name].assign(seed=unit))
    return arena_table(*(pd.concat(parts[name], ignore_index=True) for name in TABLES))


def _unit(folder: Path, bench: Bench, rule: Contender, setting: Setting, show) -> dict[str, pd.DataFrame]:
    """A rule's tables in one unit, measured if they are not there."""
    digest = hashlib.sha256(repr((setting, bench.scale.name, rule.source)).encode()).hexdigest()[:8]
    place = folder / f"{short_name(rule.name)}-{digest}"
    paths = {name: place / f"{name}.parquet" for name in TABLES}
    if not all(path.exists() for path in paths.values()):
        tables = unit_tables(bench, setting, [rule], {"grad_norm": [rule]})
        for name, path in paths.items():
            write_parquet(path, tables[name])
        if show is not None:
            value = tables["runs"]["value"]
            show(f"unit {bench.seed}, {rule.name}: exact held-out value {value.iloc[0]:.3f} to {value.iloc[-1]:.3f}")
    return {name: pd.read_parquet(path) for name, path in paths.items()}


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


def short_name(rule: str) -> str:
    """A rule's name without the path of its file.

    >>> short_name("own:runs/own/credit.py:unsure"), short_name("dr_grpo")
    ('unsure', 'dr_grpo')
    """
    return rule.rpartition(":")[2]
