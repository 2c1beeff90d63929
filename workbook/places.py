"""Where the workbook's own files lie: data/ beside the package in a clone, inside the package once it is installed.

A wheel carries the clone's data/ as workbook/data/, which is read there and never written to.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from platformdirs import user_cache_path

PACKAGE = Path(__file__).resolve().parent


def data_path(*parts: str) -> Path:
    """Return the path of a file or folder of data/, there or not: the package's own, else the one beside it."""
    inside = PACKAGE / "data"
    return (inside if inside.is_dir() else PACKAGE.parent / "data").joinpath(*parts)


def find_file(path: str | Path) -> Path:
    """Return `path`, or where nothing lies there the workbook's own file of that name, from whatever folder."""
    path = Path(path)
    if path.parts[:1] != ("data",) or ".." in path.parts or path.exists():
        return path
    own = data_path(*path.parts[1:])
    return own if own.is_file() else path


def clone(what: str) -> Path:
    """Return the folder of the clone that holds this package; ValueError, saying that `what` needs one, without it."""
    if not (PACKAGE.parent / "pyproject.toml").is_file() or (PACKAGE / "data").is_dir():
        raise ValueError(f"{what} needs a clone of the repository, and this workbook was installed without one.")
    return PACKAGE.parent


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Where what can be made anew is kept, models above all: WORKBOOK_CACHE, else ours in the platform's user cache."""
    if chosen := os.environ.get("WORKBOOK_CACHE"):
        return Path(chosen).expanduser()
    return user_cache_path("cancellation-workbook", appauthor=False, opinion=False)


def runs_folder() -> Path:
    """Where runs are kept: WORKBOOK_RUNS, by default runs/ in the folder one is in."""
    return Path(os.environ.get("WORKBOOK_RUNS", "runs"))


def predictions_file() -> Path:
    """Where a reader's predictions are kept: WORKBOOK_PREDICTIONS, else predictions.json beside the working copies."""
    in_clone = (PACKAGE.parent / "pyproject.toml").is_file()
    folder = PACKAGE.parent / "my_chapters" if in_clone else Path()
    return Path(os.environ.get("WORKBOOK_PREDICTIONS") or folder / "predictions.json")
