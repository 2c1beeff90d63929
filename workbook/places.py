"""Where things lie: the workbook's files, and the names that a package offers before its modules are imported.

data/ lies beside the package in a clone, inside the package once it is installed.

A wheel carries the clone's data/ as workbook/data/, which is read there and never written to.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

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


def lazy_names(
    package: str, offered: Mapping[str, str]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's `__all__`, `__getattr__` and `__dir__`: {module below `workbook`: the names it offers}."""
    homes = {name: home for home, names in offered.items() for name in names.split()}

    def attribute(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"workbook.{homes[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return list(homes), attribute, names


def import_to_stay(module: str) -> ModuleType:
    """Import a module for good: collecting garbage, a third of a short run's time, never looks at it again."""
    if module not in sys.modules and gc.isenabled():
        gc.disable()
        try:
            import_module(module)
        finally:
            gc.freeze()
            gc.enable()
    return import_module(module)
