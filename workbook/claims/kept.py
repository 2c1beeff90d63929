"""The ledger as it was last computed, kept as a table: what chapters and the findings read, in a moment.

`python -m workbook claims --keep` computes all registered rows from data/results/ and writes them, with a fingerprint
of the tables that they were computed from. A table that is older than the tables says so when it is read.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import pandas as pd

from workbook.places import data_path
from workbook.training.files import write_parquet

SOURCE = data_path("book", "ledger.parquet")
FINGERPRINT = "tables"  # column: of the tables that the rows were computed from
NESTED = ("added", "looked", "policy_of", "values", "clean", "commits")  # columns of lists and dicts
STALE = "data/results has changed since the ledger was kept; `python -m workbook claims --keep` computes it anew."


def keep_ledger(table: pd.DataFrame, path: Path = SOURCE) -> Path:
    """Write a `ledger` that was computed from data/results, without its columns of lists and dicts."""
    write_parquet(path, table.drop(columns=list(NESTED)).assign(**{FINGERPRINT: fingerprint()}))
    return path


@cache
def kept_ledger(path: Path = SOURCE) -> pd.DataFrame:
    """Read the kept rows of all scales, and print a sentence if the tables have changed since."""
    table = pd.read_parquet(path)
    if (table[FINGERPRINT] != fingerprint()).any():
        print(STALE)
    return table.drop(columns=FINGERPRINT)


def fingerprint() -> str:
    """SHA-256 over the manifests and registrations below data/results, which hold their tables' checksums."""
    folder = data_path("results")
    digest = hashlib.sha256()
    for path in sorted([*folder.rglob("manifest.json"), *folder.rglob("*.yaml")]):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
