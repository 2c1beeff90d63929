"""make audit: recompute the ledger's deciding rows from tables and registrations, and check what units registered.

python -m audit [LEDGER.json]      with tests/ on the path; without a file, `python -m workbook claims` writes one
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import yaml
from scipy import stats

from audit.definitions import DEFINITIONS, sets_of, taken
from audit.history import compare_with_git, compare_with_history
from audit.reckoning import RESULTS, ROOT, Missing, Units, Void, conclude, judge, standing

NUMBERS = ("mean", "low", "high", "p", "q", "q_all", "p_equivalent")
EXACT = ("claim", "role", "units", "outcome", "policies")


def main(path: str | None = None) -> int:
    """Print each row that differs, and how many agree; 1 if any differs."""
    if path is None:
        path = Path(tempfile.mkdtemp()) / "ledger.json"
        command = [sys.executable, "-m", "workbook", "claims", "--json", str(path)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    theirs = {(row["study"], row["scale"], row["key"]): row for row in rows if row["role"] != "described"}
    theirs = {key: row for key, row in theirs.items() if row["study"]}
    mine = recomputed()
    faults = [f"{key}: {what}" for key, row in mine.items() for what in differences(row, theirs.get(key))]
    faults += [f"{key}: no registration has it" for key in set(theirs) - set(mine)]
    faults += single_tokens()
    faults += compare_with_history()
    older, sentence = compare_with_git()
    faults += older
    print("\n".join([*faults, sentence, f"{len(mine)} deciding rows; {len(faults)} differences."]))
    return 1 if faults or not mine else 0


def recomputed() -> dict[tuple, dict]:
    """Every registered outcome that decides, at every scale it was registered for: {(study, scale, key): row}."""
    rows = {}
    texts = {name: yaml.safe_load(text) for name, text in standing(RESULTS).items()}
    for study, text in sorted((name, text) for name, text in texts.items() if " " not in name):
        scales = text.get("units", [])
        for key, control in texts.get(f"{study} named", {"controls": {}})["controls"].items():
            text["outcomes"][key].setdefault("positive_control", control)
        for part in scales if isinstance(scales, list) else [scales]:
            units = Units(study, part["scale"], part["count"])
            for key, outcome in text["outcomes"].items():
                if outcome["role"] != "described" and part["scale"] in outcome.get("scales", [part["scale"]]):
                    values, void = pd.Series(dtype=float), False
                    try:
                        values = DEFINITIONS[study][key](units)
                    except Missing:  # registered, and not measured yet
                        pass
                    except Void:
                        void = True
                    row = judge(values, outcome, units.policies) | {"registered": outcome, "void": void}
                    rows[study, part["scale"], key] = row
    every = [row for row in rows.values() if "p" in row and not row["excluded"]]
    for name, part in {"q": [row for row in every if row["role"] == "primary"], "q_all": every}.items():
        for row, q in zip(part, stats.false_discovery_control([row["p"] for row in part]), strict=True):
            row[name] = float(q)
    by_scale = {scale: {key: row for (_, here, key), row in rows.items() if here == scale} for _, scale, _ in rows}
    return {place: row | {"outcome": conclude(row, by_scale[place[1]])} for place, row in rows.items()}


def single_tokens() -> list[str]:
    """Where cancelled shares from the single tokens of three units differ from those of the same units' sums."""
    units, faults = Units("cancelled", "family", 3), []
    for unit, tokens in units.table("tokens").groupby("seed"):
        for (kind, batch), share in sets_of(tokens).items():
            sums = taken(kind, 64, batch)(units)[unit]
            if not math.isclose(share, sums, rel_tol=1e-3, abs_tol=1e-4):
                faults.append(f"cancelled, unit {unit}, {kind}: {sums} of the sums, {share} of single tokens")
    return faults


def differences(mine: dict, other: dict | None) -> list[str]:
    """What differs between two rows, in words."""
    if other is None:
        return ["the ledger has no such row"]
    names = [name for name in EXACT if mine[name] != (other[name] or 0)]
    names += [name for name in NUMBERS if not near(mine.get(name), other[name], name)]
    return [f"{name} is {other[name]}, recomputed {mine.get(name)}" for name in names]


def near(a: float | None, b: float | None, name: str) -> bool:
    """Whether two numbers agree; None and NaN are none. Estimates have an absolute dust, p-values none."""
    a, b = (None if number is None or math.isnan(number) else number for number in (a, b))
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=0.0 if name[0] in "pq" else 1e-12)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
