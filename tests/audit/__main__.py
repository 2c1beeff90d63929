"""make audit: recompute the ledger's deciding numbers from tables and registrations, and compare.

python -m audit [LEDGER.json]      with tests/ on the path; without a file, `python -m workbook claims` writes one
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from audit import chance, comparison
from audit.tables import ROOT


def main(ledger: str | None = None) -> int:
    mine = comparison.ours()
    table = comparison.compare(mine, comparison.theirs(Path(ledger) if ledger else written()))
    print(comparison.shown(table), end="\n\n")
    faults = [f"{row.study}, {row.scale}, {row.key}: {row.differ}" for row in table.itertuples() if row.differ]
    faults += comparison.rules(mine) + comparison.all_faults() + by_coin(mine) + by_simulation()
    for line in [*comparison.notes(), *(f"FAULT: {fault}" for fault in faults)]:
        print(line)
    decided = table[table["role"] != "described"]
    print(f"{(decided['differ'] == '').sum()} of {len(decided)} deciding rows agree; faults: {len(faults)}.")
    return 1 if faults else 0


def written() -> Path:
    """The package's ledger, made now by its own command."""
    file = Path(tempfile.mkdtemp()) / "ledger.json"
    command = [sys.executable, "-m", "workbook", "claims", "--json", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return file


def by_coin(mine: dict, draws: int = 2_000) -> list[str]:
    """Print the ledger under signs at random; a fault if more of it is supported than 5 %, noise of 3 sd allowed."""
    judged = [row for row in mine.values() if "q" in row]
    rows = [(row["values"].dropna(), row["registered"], row["policy_of"]) for row in judged]
    drawn = chance.by_coin(rows, draws)
    share, any_row = drawn.mean() / len(rows), (drawn["supported"] > 0).mean()
    print(
        f"Signs at random, {draws} draws of {len(rows)} primary rows: {share['supported']:.2%} of rows supported "
        f"({any_row:.1%} of draws have one; at most 5 % are expected), {share['alone']:.2%} by the interval alone "
        "(2.5 % are expected, less what is equivalent to none)."
    )
    high = any_row > 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5
    return [f"signs at random: {any_row:.1%} of draws have a supported row"] if high else []


def by_simulation() -> list[str]:
    """Print how often simulated intervals hold the truth; faults: normal cells outside 93 to 97 %, and departures."""
    cells = chance.coverage()
    within = cells["coverage"].between(*chance.BAR)
    normal = cells["outcomes"] == "normal"
    print(
        f"Simulated 95 % intervals hold the truth in 93 to 97 % of 4,000 tries in {(within & normal).sum()} of "
        f"{normal.sum()} cells of normal units, in {(within & ~normal).sum()} of {(~normal).sum()} of skewed ones."
    )
    outside = cells[normal & ~within]
    faults = [f"coverage: {row[1:5]}: {row.coverage:.3f}" for row in outside.itertuples()]
    faults += chance.coverage_faults(cells, "coverage")
    curve = chance.skewness()
    drops = [f"{part['coverage'].iloc[-1]:.1%} with {units}" for units, part in curve.groupby("units")]
    print(f"Of units with a skewness of {curve['skewness'].max():g} they hold it in {', '.join(drops)} units.")
    return faults + chance.coverage_faults(curve, "skewness")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
