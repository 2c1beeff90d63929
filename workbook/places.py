"""Where the workbook's own files lie: data/ beside the package in a clone, inside the package once it is installed.

In a clone (an editable install and Colab's among them) a reader sees data/ at the top. A wheel carries the same folder
as workbook/data/, which is read there and never written to.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from platformdirs import user_cache_path

PACKAGE = Path(__file__).resolve().parent


def data_path(*parts: str, package: Path = PACKAGE) -> Path:
    """Return the path of a file or folder of data/, there or not, e.g. data_path("configs", "chain.yaml").

    package: the folder of this package, whose own data/ comes before the one beside it.

    >>> data_path("bundled").is_dir()
    True
    """
    inside = package / "data"
    return (inside if inside.is_dir() else package.parent / "data").joinpath(*parts)


def find_file(path: str | Path) -> Path:
    """Return `path`, or where nothing lies there and it names a file of data/, the workbook's own file.

    So `data/configs/chain.yaml` is found from every folder. A path that leads out of data/ stays as it is.
    """
    path = Path(path)
    if path.parts[:1] != ("data",) or ".." in path.parts or path.exists():
        return path
    own = data_path(*path.parts[1:])
    return own if own.is_file() else path


def clone(what: str, package: Path = PACKAGE) -> Path:
    """Return the folder of the clone that holds this package.

    Raises ValueError, saying that `what` needs one, where the package was installed without it.
    """
    if not (package.parent / "pyproject.toml").is_file() or (package / "data").is_dir():
        raise ValueError(f"{what} needs a clone of the repository, and this workbook was installed without one.")
    return package.parent


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
