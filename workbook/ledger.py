"""The ledger as it was last kept (data/book/ledger.parquet): its rows, their five words, and how
they are printed.

Whatever shows an outcome reads it here, and loads nothing that measures: `python -m workbook claims
--keep` writes it.
"""

import hashlib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from workbook.messages import InvalidValue
from workbook.places import data_path, parse_yaml

WORDS = HOLDS, DOES_NOT_HOLD, TOO_SMALL, OPEN, CANNOT = (
    "holds",
    "does not hold",
    "too small to matter",
    "open",
    "cannot be tested here",
)
SIGNS = dict(zip(WORDS, "✓✗≈?–", strict=True))
OWN = ("family", "smollm2:sums", "smollm2:ramble")  # scales whose rows have keys of their own
STALE = (
    "data/results has changed since the ledger was kept; `python -m workbook claims --keep`"
    " computes it anew."
)


def read_book(name: str):
    """Read data/book/<name>.yaml."""
    return parse_yaml(data_path("book", f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def experiments() -> dict[str, dict]:
    """{id: experiment} of data/book/evidence.yaml, whose first lines say what the fields are."""
    return read_book("evidence")["experiments"]


def primaries() -> list[tuple[str, str]]:
    """(scale, key) of the primary row of each experiment: those that Holm's correction is over."""
    return [split_key(one["primary"]) for one in experiments().values()]


def split_key(key: str) -> tuple[str, str]:
    """(scale, key in it) of a key of the family or fine-tunes, of key@world in a world, or of
    key@worlds over all.
    """
    name, _, world = key.rpartition("@")
    scale = world if world == "worlds" else f"world:{world}"
    if name and registered(scale):  # pass@8 names no world
        return scale, name
    return next((scale for scale in OWN if key in registered(scale)), OWN[0]), key


def fingerprint() -> str:
    """SHA-256 over the tables, manifests and registrations of data/results."""
    folder = data_path("results")
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*/*.parquet"), *folder.glob("*/*.yaml")]):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def kept_ledger(path: Path | None = None) -> pd.DataFrame:
    """Read the kept rows of all scales, and print a sentence if the tables have changed since."""
    table = pd.read_parquet(path or data_path("book", "ledger.parquet"))
    if (table["tables"] != fingerprint()).any():
        print(STALE)
    return table.drop(columns="tables")


@cache
def registered(scale: str = "family") -> Mapping[str, tuple]:
    """Every row of the kept ledger at a scale, by its key."""
    table = kept_ledger()
    return {
        row.key: row for row in table[(table["scale"] == scale) & (table["key"] != "")].itertuples()
    }


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


def signed(outcome: str) -> str:
    """An outcome with its sign before it; a dash before any other."""
    return f"{SIGNS.get(outcome, '–')} {outcome}"


def format_number(row, digits: int = 3) -> str:
    """Mean, interval and unit of a row, or why there is no number."""
    if row.unit == "octaves" and row.mean == row.low == row.high == 0:
        return "not reached"  # no run got half-way, and each counts with all of its tokens
    return (
        f"{format_effect(row, digits)} {row.unit}".rstrip()
        if np.isfinite(row.mean)
        else "no number"
    )


def format_effect(row, digits: int = 3) -> str:
    """Mean and interval of a row; the mean alone where there is no interval."""
    if not np.isfinite(row.low):
        return f"{row.mean:.{digits}g}"
    return f"{row.mean:.{digits}g} [{row.low:.{digits}g}, {row.high:.{digits}g}]"


def stated_of(row) -> str:
    """A row's number, how many units it rests on, on which side of its threshold the claim lies,
    and why its word.
    """
    shared = (
        f" on {row.policies:.0f} policies, whose means are judged"
        if row.policies < row.units
        else ""
    )
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
    return text if row.outcome in (HOLDS, DOES_NOT_HOLD) else f"{text}; {row.reason}"
