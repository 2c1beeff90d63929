"""The ledger as it was last kept: its rows, their five words, and their texts.

A row is one measurement of a claim, judged by its registration. `python -m workbook claims --keep`
computes all rows and writes them to data/book/ledger.parquet. Whatever shows an outcome reads it
here, and loads nothing that measures.
"""

import hashlib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from workbook.messages import InvalidValue
from workbook.places import data_path, load_yaml

HOLDS = "holds"
DOES_NOT_HOLD = "does not hold"
TOO_SMALL = "too small to matter"
OPEN = "open"
CANNOT = "cannot be tested here"
OUTCOME_WORDS = (HOLDS, DOES_NOT_HOLD, TOO_SMALL, OPEN, CANNOT)
OUTCOME_MARKS = dict(zip(OUTCOME_WORDS, "✓✗≈?–", strict=True))
# role of a row without a threshold, which gets no word
DESCRIBED = "described"
# scales whose rows have keys of their own; others' keys name their world
_OWN_KEYS = ("family", "smollm2:sums", "smollm2:ramble")
_STALE = (
    "data/results has changed since the ledger was kept; `python -m workbook claims --keep`"
    " computes it anew."
)


def read_book(name: str):
    """Read data/book/<name>.yaml."""
    return load_yaml(data_path("book", f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def experiments() -> dict[str, dict]:
    """{id: experiment} of data/book/evidence.yaml, whose first lines say what the fields are."""
    return read_book("evidence")["experiments"]


def primaries() -> list[tuple[str, str]]:
    """(scale, key) of the primary row of each experiment: those that Holm's correction is over."""
    return [split_key(one["primary"]) for one in experiments().values()]


def split_key(key: str) -> tuple[str, str]:
    """(scale, key in it): key@world lies in that world, key@worlds over all worlds.

    Any other key is one of the family or of fine-tunes.
    """
    name, _, world = key.rpartition("@")
    scale = world if world == "worlds" else f"world:{world}"
    # pass@8 names no world
    if name and registered(scale):
        return scale, name
    for scale in _OWN_KEYS:
        if key in registered(scale):
            return scale, key
    return _OWN_KEYS[0], key


def fingerprint() -> str:
    """SHA-256 over the tables, manifests and registrations of data/results."""
    folder = data_path("results")
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*/*.parquet"), *folder.glob("*/*.yaml")]):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def kept_ledger(path: Path | None = None, described: bool = False) -> pd.DataFrame:
    """Read the kept rows of all scales, and print a sentence if the tables have changed since.

    described: also the rows without a word.
    """
    table = pd.read_parquet(path or data_path("book", "ledger.parquet"))
    if (table["tables"] != fingerprint()).any():
        print(_STALE)
    if not described:
        table = table[table["role"] != DESCRIBED].reset_index(drop=True)
    return table.drop(columns="tables")


@cache
def registered(scale: str = "family") -> Mapping[str, tuple]:
    """Every row of the kept ledger at a scale, by its key."""
    table = kept_ledger()
    rows = table[(table["scale"] == scale) & (table["key"] != "")]
    return {row.key: row for row in rows.itertuples()}


def row_of(key: str, scale: str | None = None):
    """A row of the kept ledger by its key at a scale, else as `split_key` reads it.

    Raises ValueError, with neighbours, where there is none.
    """
    scale, name = (scale, key) if scale else split_key(key)
    rows = registered(scale)
    if name not in rows:
        near = get_close_matches(str(name), rows, 4, 0.3) or list(rows)[:8]
        raise InvalidValue("key", key, f"a registered row of the ledger, such as {', '.join(near)}")
    return rows[name]


def mark_outcome(outcome: str) -> str:
    """An outcome with its mark before it; a dash before any other."""
    return f"{OUTCOME_MARKS.get(outcome, '–')} {outcome}"


def format_number(row, digits: int = 3) -> str:
    """Mean, interval and unit of a row, or why there is no number."""
    # no run got half-way, and each counts with all of its tokens
    if row.unit == "octaves" and row.mean == row.low == row.high == 0:
        return "not reached"
    if not np.isfinite(row.mean):
        return "no number"
    return f"{format_effect(row, digits)} {row.unit}".rstrip()


def format_effect(row, digits: int = 3) -> str:
    """Mean and interval of a row; the mean alone where there is no interval."""
    if not np.isfinite(row.low):
        return f"{row.mean:.{digits}g}"
    return f"{row.mean:.{digits}g} [{row.low:.{digits}g}, {row.high:.{digits}g}]"


def stated_of(row) -> str:
    """A row's number, how many units it rests on, and why its word.

    The reason names the side of its threshold on which the claim lies.
    """
    shared = ""
    if row.policies < row.units:
        shared = f" on {row.policies:.0f} policies, whose means are judged"
    text = f"{format_number(row)}; {row.units} of {row.registered_units} registered units{shared}"
    if not np.isfinite(row.toward):
        return text
    side = "above" if row.toward > 0 else "below"
    text += (
        f"; the claim: {side} {row.threshold:g}, smallest effect of interest"
        f" {row.smallest_effect:g}"
    )
    if row.outcome == TOO_SMALL:
        return f"{text}; its 90 % interval is [{row.low_90:.3g}, {row.high_90:.3g}]"
    if row.outcome in (HOLDS, DOES_NOT_HOLD):
        return text
    return f"{text}; {row.reason}"


# --- many rows as text


def format_summary(table: pd.DataFrame) -> str:
    """A ledger as text, word by word: each primary row's claim, and its scales."""
    primary = table[table["role"] == "primary"]
    lines = []
    for outcome in OUTCOME_MARKS:
        part = primary[primary["outcome"] == outcome]
        if part.empty:
            continue
        lines.append(f"**{mark_outcome(outcome)}: {len(part)}**")
        for claim, own in part.groupby("claim", sort=False):
            scales = ", ".join(own["scale"]).replace(", world:", ", ")
            lines.append(f"  {claim:<13}{own['words'].iloc[0]:<57}{scales}")
        lines.append("")
    counts = ", ".join(
        f"{count} {outcome}" for outcome, count in primary["outcome"].value_counts().items()
    )
    return "\n".join([*lines, f"{len(primary)} primary rows: {counts}."])


def format_ledger(table: pd.DataFrame, commands: bool = False) -> str:
    """A ledger as text, claim by claim and scale by scale.

    commands: with those that recompute each measurement.
    """
    lines = []
    for claim, part in table.groupby("claim", sort=False):
        first = part.iloc[0]
        lines += ["", f"{claim}  {first['statement']}", f"    refuted if {first['falsifier']}"]
        for scale, rows in part.groupby("scale", sort=False):
            lines += ["", f"    {scale}"]
            lines += _scale_lines(rows)
            if commands:
                lines += [f"        $ {text}" for text in dict.fromkeys(rows["command"]) if text]
    return "\n".join(lines[1:])


def _scale_lines(rows: pd.DataFrame) -> list[str]:
    """A claim's rows at one scale: those that get a word, then those that are described."""
    lines = []
    for row in rows[rows["role"] != DESCRIBED].itertuples():
        lines += [f"        {line}" for line in _row_lines(row)]
    described = rows[rows["role"] == DESCRIBED]
    if len(described):
        lines.append("        described, without a word:")
    for row in described.itertuples():
        lines.append(f"            {row.measured}: {format_effect(row)}")
    return lines


def _row_lines(row) -> list[str]:
    """A registered measurement: its word, its number, and where that came from."""
    reason = f" ({row.reason})" if row.reason else ""
    lines = [f"{row.role}: {row.outcome.upper()}{reason}"]
    if not row.units:
        return [*lines, f"    {row.measured}"] if row.measured else lines
    lines += [f"    {row.measured}", f"    {stated_of(row)}"]
    facts = {
        "p by Holm": f"{row.p_holm:.2g}" if np.isfinite(row.p_holm) else "",
        "paper": row.paper_effect or "not known",
        "comparable": row.comparable.removeprefix("yes"),
        "place": row.place,
        "changed": row.changed.removeprefix("changed "),
        "predicted": "",
    }
    if np.isfinite(row.predicted_low):
        facts["predicted"] = f"[{row.predicted_low:g}, {row.predicted_high:g}]"
    lines.append("    " + "; ".join(f"{name}: {text}" for name, text in facts.items() if text))
    return [*lines, f"    {'; '.join(_origin(row))}"]


def _origin(row) -> list[str]:
    """Where a row's units came from, in phrases."""
    clean = {True: "clean tree", False: "a modified tree"}.get(row.clean, "tree not known")
    phrases = [
        f"source: {row.source}",
        f"seen before: {row.seen_before}",
        f"tables from {clean}",
        f"registration {row.registration}",
    ]
    if row.dropped:
        phrases.append(f"{row.dropped} units without a number")
    if len(row.looked):
        phrases.append(
            f"units {row.looked[0]} to {row.looked[-1]} were measured after the earlier ones'"
            " outcome was seen"
        )
    if len(row.added):
        phrases.append(f"units added after registration: {', '.join(map(str, row.added))}")
    return phrases
