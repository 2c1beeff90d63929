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
    print(comparison.shown(table))
    faults = [f"{row.study}, {row.scale}, {row.key}: {row.differ}" for row in table.itertuples() if row.differ]
    faults += comparison.rules(mine) + comparison.all_faults()
    print(by_coin(mine))
    simulated = chance.coverage()
    within = simulated["coverage"].between(*chance.BAR)
    print(
        f"Simulated 95 % intervals, {len(simulated)} cells: {within.sum()} hold the truth in 93 to 97 % of 4,000 tries."
    )
    faults += chance.coverage_faults(simulated)
    for line in [*comparison.notes(), *faults]:
        print(line)
    decided = table[table["role"] != "described"]
    agreed = (decided["differ"] == "").sum()
    print(f"{agreed} of {len(decided)} deciding rows agree; {len(faults)} faults.")
    return 1 if faults else 0


def written() -> Path:
    """The package's ledger, made now by its own command."""
    file = Path(tempfile.mkdtemp()) / "ledger.json"
    command = [sys.executable, "-m", "workbook", "claims", "--scale", "family", "--json", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return file


def by_coin(mine: dict) -> str:
    """The ledger under signs at random, in a sentence."""
    judged = [row for row in mine.values() if "q" in row]
    rows = [(row["values"].dropna(), row["registered"], row["policy_of"]) for row in judged]
    drawn = chance.by_coin(rows)
    share = drawn.mean() / len(rows)
    return (
        f"Signs at random, {len(drawn)} draws of {len(rows)} primary rows: {share['supported']:.2%} of rows supported "
        f"({(drawn['supported'] > 0).mean():.1%} of draws have one; at most 5 % expected), {share['alone']:.2%} by the "
        "interval alone (2.5 % expected, less what is equivalent to none)."
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
