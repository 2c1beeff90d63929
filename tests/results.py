"""Folders of results as a study leaves them, for tests of what reads them."""

from pathlib import Path

import pandas as pd

from workbook.studies.registration import FILE, documents
from workbook.studies.storage import MANIFEST, experiment_folder, write_unit


def add_unit(
    folder: Path,
    study: str,
    scale: str,
    unit: int,
    tables: dict[str, pd.DataFrame],
    policy: str | None = None,
    registration: str | None = None,
    modified: bool = False,
) -> None:
    """A unit with tables, of a policy, measured under the registration of a hash, in place of any
    that is there.
    """
    remove_unit(folder, study, scale, unit)
    policy = policy or f"{scale},seed={unit}"
    facts = {"registration": registration, "git": {"commit": "c0ffee", "modified": modified}}
    facts |= {"policy": {"name": policy}, "scale": {"policy": policy}}
    assert write_unit(study, scale, unit, tables, facts, folder)


def remove_unit(folder: Path, study: str, scale: str, unit: int) -> None:
    """Take a unit out of the manifest, where it stands there: its rows are none then."""
    path = experiment_folder(study, folder) / MANIFEST
    if path.exists():
        units = pd.read_parquet(path)
        own = (units["part"] == study) & (units["scale"] == scale) & (units["seed"] == unit)
        replace_table(path, units[~own])


def replace_table(path: Path, table: pd.DataFrame) -> None:
    """Put a table in a file's place, as a new file."""
    table.to_parquet(path.with_suffix(".new"), index=False)
    path.with_suffix(".new").replace(path)


def write_text(folder: Path, study: str, text: str | None, note: str = "") -> None:
    """State a study's registration, or a note on it, in place of any that stands there; None: it
    stands no longer.
    """
    path = experiment_folder(study, folder) / FILE
    texts = documents(path.read_bytes().decode()) if path.exists() else {}
    texts |= {(study, note): text}
    parts = [
        f"--- # {' '.join(key).strip()}\n{text}" for key, text in texts.items() if text is not None
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(parts).encode())
