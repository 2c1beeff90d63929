"""make audit: recompute the ledger's rows from tables and registrations, and every number that the
book prints.

python -m audit [LEDGER.json]      with tests/ on the path

Without a file, `python -m workbook claims` writes one.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import yaml

from audit.definitions import DEFINITIONS, sets_of, taken
from audit.history import compare_with_git, compare_with_history
from audit.reckoning import (
    RESULTS,
    ROOT,
    Missing,
    Units,
    Void,
    conclude,
    holm,
    judge,
    says_no,
    standing,
)

NUMBERS = ("mean", "low", "high", "low_90", "high_90", "p", "p_holm")
EXACT = ("claim", "role", "units", "outcome", "policies")
BOOK = ROOT / "data" / "book"
TUNED = ("smollm2:sums", "smollm2:ramble")  # scales whose keys name no scale, as the family's


def main(path: str | None = None) -> int:
    """Print each row and each printed number that differs, and how many agree; 1 if any differs."""
    if path is None:
        path = Path(tempfile.mkdtemp()) / "ledger.json"
        command = [sys.executable, "-m", "workbook", "claims", "--json", str(path)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    rows = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    theirs = {
        (row["study"], row["scale"], row["key"]): row for row in rows if row["role"] != "described"
    }
    theirs = {key: row for key, row in theirs.items() if row["study"]}
    mine = recomputed()
    faults = [
        f"{key}: {what}"
        for key, row in mine.items()
        for what in differences(row, theirs.get(key), key[0])
    ]
    faults += [f"{key}: no registration has it" for key in set(theirs) - set(mine)]
    faults += [
        *single_tokens(),
        *printed({(scale, key): row for (_, scale, key), row in mine.items()}),
    ]
    faults += compare_with_history()
    older, sentence = compare_with_git()
    faults += older
    print(
        "\n".join([*faults, sentence, f"{len(mine)} rows with a word; {len(faults)} differences."])
    )
    return 1 if faults or not mine else 0


def recomputed() -> dict[tuple, dict]:
    """Every registered outcome with a threshold, at every scale it was registered for: {(study,
    scale, key): row}.
    """
    rows, untestable = {}, set()
    for reason in read("rows.yaml")["untestable"]:
        untestable |= {(study, key) for study, keys in reason["rows"].items() for key in keys}
    texts = {name: yaml.safe_load(text) for name, text in standing(RESULTS).items()}
    for study, text in sorted((name, text) for name, text in texts.items() if " " not in name):
        scales = text.get("units", [])
        for key, control in texts.get(f"{study} named", {"controls": {}})["controls"].items():
            text["outcomes"][key].setdefault("positive_control", control)
        for part in scales if isinstance(scales, list) else [scales]:
            units = Units(study, part["scale"], part["count"])
            for key, outcome in text["outcomes"].items():
                if outcome["role"] != "described" and part["scale"] in outcome.get(
                    "scales", [part["scale"]]
                ):
                    values, void = pd.Series(dtype=float), False
                    try:
                        values = DEFINITIONS[study][key](units)
                    except Missing:  # registered, and not measured yet
                        pass
                    except Void:
                        void = True
                    no = any(says_no(outcome, name) for name in ("testable", "comparable"))
                    row = judge(values, outcome, units.policies) | {
                        "registered": outcome,
                        "void": void,
                    }
                    row["excluded"] = no or (study, key) in untestable
                    rows[study, part["scale"], key] = row
    by_scale = {
        scale: {key: row for (_, here, key), row in rows.items() if here == scale}
        for _, scale, _ in rows
    }
    p = {}
    for one in read("evidence.yaml")["experiments"].values():
        row = find(one["primary"], {(scale, key): row for (_, scale, key), row in rows.items()})
        p |= {one["primary"]: row} if "p" in row and not row["excluded"] else {}
    for key, adjusted in holm({key: row["p"] for key, row in p.items()}).items():
        p[key]["p_holm"] = adjusted
    return {
        place: row | {"outcome": conclude(row, by_scale[place[1]])} for place, row in rows.items()
    }


def read(name: str):
    return yaml.safe_load((BOOK / name).read_text(encoding="utf-8"))


def find(key: str, rows: dict[tuple, dict]) -> dict:
    """A row by its key, as the book writes it: key, key@world or key@worlds."""
    name, _, world = key.rpartition("@")
    places = [
        (world, name),
        (f"world:{world}", name),
        *((scale, key) for scale in ("family", *TUNED)),
    ]
    return next(rows[place] for place in places if place in rows)


def single_tokens() -> list[str]:
    """Where cancelled shares from the single tokens of three units differ from those of the same
    units' sums.
    """
    units, faults = Units("cancelled", "family", 3), []
    for unit, tokens in units.table("tokens").groupby("seed"):
        for (kind, batch), share in sets_of(tokens).items():
            sums = taken(kind, 64, batch)(units)[unit]
            if not math.isclose(share, sums, rel_tol=1e-3, abs_tol=1e-4):
                faults.append(
                    f"cancelled, unit {unit}, {kind}: {sums} of the sums, {share} of single tokens"
                )
    return faults


# --- what is printed


def printed(rows: dict[tuple, dict]) -> list[str]:
    """Numbers of README, the findings, the settings and the page of the evidence that are not what
    they must be.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- findings -->")[1].split("<!-- /findings -->")[0]
    findings, faults = read("findings.yaml"), []
    shown = [filled(one["says"], rows) for one in findings["findings"]]
    faults += [f"README lacks: {text}" for text in shown if text not in block]
    command = [sys.executable, "-m", "workbook", "findings", "--decisions"]
    asked = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    said = " ".join(asked.stdout.replace("`", "").split())
    settings = [filled(one["says"], rows).replace("`", "") for one in findings["decisions"]]
    faults += [f"settings lack: {text}" for text in settings if text not in said]
    words = [
        (key, word)
        for part in findings.values()
        for one in part
        for key, word in one.get("when", {}).items()
    ]
    faults += [
        f"a sentence rests on {key}: {word}"
        for key, word in words
        if find(key, rows)["outcome"] != word
    ]
    return faults + evidence(rows)


def filled(says: str, rows: dict[tuple, dict]) -> str:
    """A sentence with the recomputed numbers at its places."""

    def number(match) -> str:
        mean = find(match[1], rows)["mean"]
        return f"{100 * mean:.0f} %" if match[2] else f"{mean:.2g}"

    return re.sub(r"\{([^{}:]+)(:%)?\}", number, says)


def evidence(rows: dict[tuple, dict]) -> list[str]:
    """What the page of the evidence has beside the recomputed numbers, words, minutes and counts of
    its experiments.
    """
    page, faults = (BOOK / "evidence.md").read_text(encoding="utf-8"), []
    files = sorted(RESULTS.glob("*/manifest.parquet"))
    manifests = pd.concat(
        [pd.read_parquet(file, columns=["part", "scale", "seconds"]) for file in files]
    )
    sections = dict(part.split('"></a>', 1) for part in page.split('<a id="')[1:])
    for name, one in read("evidence.yaml")["experiments"].items():
        keys = [
            one["primary"],
            *(key for part in ("positive", "negative", "beside") for key in one.get(part) or {}),
        ]
        shown = [find(key, rows) for key in keys]
        wanted = ["{mean:.2g} [{low:.2g}, {high:.2g}]".format(**row) for row in shown]
        if (there := re.findall(r"\S+ \[[^\]\[]+, [^\]\[]+\](?!\()", sections[name])) != wanted:
            faults.append(f"evidence.md, {name}: {there}, recomputed {wanted}")
        words = re.findall(r"\*\*?([a-z ]+)\*?\*[;:.]", sections[name])
        if words != [row["outcome"] for row in shown]:
            faults.append(
                f"evidence.md, {name}: {words}, recomputed {[row['outcome'] for row in shown]}"
            )
        if "p_holm" in shown[0] and f"Holm's p {shown[0]['p_holm']:.2g}." not in sections[name]:
            faults.append(f"evidence.md, {name}: Holm's p is {shown[0]['p_holm']:.2g}")
        for study, scale, shown_minutes in re.findall(
            r"measure (\S+) --scale (\S+)` \(([\d,]+) minutes?\)", sections[name]
        ):
            seconds = manifests.loc[
                (manifests["part"] == study) & of_scale(manifests["scale"], scale), "seconds"
            ].sum()
            if abs(seconds / 60 - int(shown_minutes.replace(",", ""))) > 0.5:
                faults.append(f"evidence.md, {name}: {study} took {seconds / 60:.1f} minutes")
    guessed = [
        row["registered"]
        for row in rows.values()
        if "predicted" in row["registered"] and row["units"]
    ]
    seen = sum(str(one.get("seen_before", "no")) not in ("no", "False") for one in guessed)
    tested = sum("p_holm" in row for row in rows.values())
    counts = f"over the {tested} primary rows", f"of {seen} of {len(guessed)} registered numbers"
    return faults + [
        f"evidence.md lacks: {count!r}" for count in counts if count not in " ".join(page.split())
    ]


def of_scale(scales: pd.Series, scale: str) -> pd.Series:
    """Which units are of a command's scale: `worlds` is every world's."""
    return scales.str.startswith("world") if scale == "worlds" else scales == scale


def differences(mine: dict, other: dict | None, study: str) -> list[str]:
    """What differs between two rows, in words."""
    if other is None:
        return ["the ledger has no such row"]
    names = [name for name in EXACT if mine[name] != (other[name] or 0)]
    names += [name for name in NUMBERS if not near(mine.get(name), other[name], name, study)]
    return [f"{name} is {other[name]}, recomputed {mine.get(name)}" for name in names]


def near(a: float | None, b: float | None, name: str, study: str) -> bool:
    """Whether two numbers agree; None and NaN are none. Estimates have an absolute dust, p-values
    none.

    The tokens of `pairs` are kept in float32, its numbers were made before that: there, and in
    Holm's p, which compares its p with others', 1e-6 of a number is no difference; elsewhere 1e-9.
    """
    a, b = (None if number is None or math.isnan(number) else number for number in (a, b))
    if a is None or b is None:
        return a is b
    rounded = study == "pairs" or name == "p_holm"
    return math.isclose(
        a, b, rel_tol=1e-6 if rounded else 1e-9, abs_tol=0.0 if name[0] == "p" else 1e-12
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
