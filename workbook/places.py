"""Where things lie: the workbook's files, its lazily imported names, and the extras of imports.

data/ lies beside the package in a clone. A wheel carries it as workbook/data/, which is read there
and never written to.
"""

import gc
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from platformdirs import user_cache_path

PACKAGE = Path(__file__).resolve().parent
# {module that the core does without: the extra of pyproject.toml that brings it}
EXTRAS = {
    **dict.fromkeys(
        ("altair", "anywidget", "ipywidgets", "IPython", "traitlets", "vl_convert", "PIL"),
        "notebook",
    ),
    **dict.fromkeys(("reasoning_gym", "math_verify"), "tasks"),
    **dict.fromkeys(("bitsandbytes", "gguf"), "quant"),
    **dict.fromkeys(
        ("docutils", "jupyterlab", "latex2mathml", "nbclient", "nbformat", "sphinx"), "lab"
    ),
}


def data_path(*parts: str) -> Path:
    """Return the path of a file or folder of data/, there or not.

    data/ is the package's own where it has one, else the one beside it.
    """
    data = PACKAGE / "data"
    if not data.is_dir():
        data = PACKAGE.parent / "data"
    return data.joinpath(*parts)


def find_file(path: str | Path) -> Path:
    """Return `path`; where nothing lies there, the workbook's own file of that name under data/."""
    path = Path(path)
    if path.parts[:1] != ("data",) or ".." in path.parts or path.exists():
        return path
    own = data_path(*path.parts[1:])
    return own if own.is_file() else path


def clone(what: str) -> Path:
    """Return the folder of the clone that holds this package.

    Raises ValueError, which says that `what` needs a clone, for a package that was installed.
    """
    if not (PACKAGE.parent / "pyproject.toml").is_file() or (PACKAGE / "data").is_dir():
        raise ValueError(
            f"{what} needs a clone of the repository, and this workbook was installed without one."
        )
    return PACKAGE.parent


def file_hash(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_yaml(text: str) -> Any:
    """`yaml.safe_load` of a text, ten times as fast where PyYAML has its C parser."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def cache_folder() -> Path:
    """Where models, and what else can be made anew, are cached.

    WORKBOOK_CACHE, else a folder of its own in the platform's user cache.
    """
    chosen = os.environ.get("WORKBOOK_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return user_cache_path("cancellation-workbook", appauthor=False, opinion=False)


def runs_folder() -> Path:
    """Where runs are kept: WORKBOOK_RUNS, by default runs/ in the folder one is in."""
    return Path(os.environ.get("WORKBOOK_RUNS", "runs"))


def predictions_file() -> Path:
    """Where a reader's predictions are kept.

    WORKBOOK_PREDICTIONS, else predictions.json beside the working copies.
    """
    chosen = os.environ.get("WORKBOOK_PREDICTIONS")
    if chosen:
        return Path(chosen)
    in_clone = (PACKAGE.parent / "pyproject.toml").is_file()
    folder = PACKAGE.parent / "my_chapters" if in_clone else Path()
    return folder / "predictions.json"


def lazy_names(
    package: str, offered: Mapping[str, str]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's `__all__`, `__getattr__` and `__dir__`, so that imports wait for a use.

    offered: {module below `workbook`: the names it offers, set apart by spaces}.
    """
    homes = {name: home for home, names in offered.items() for name in names.split()}

    def attribute(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with naming_extras():
            return getattr(import_module(f"workbook.{homes[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return list(homes), attribute, names


def missing_package(module: str) -> str:
    """Return the sentence for a module that is not installed, with the extra that brings it."""
    package = module.partition(".")[0]
    extra = f"'cancellation-workbook[{EXTRAS[package]}]'" if package in EXTRAS else package
    return f"the package {package} is needed and not installed: pip install {extra}"


def require_package(module: str) -> None:
    """Raise a ModuleNotFoundError that names the extra unless a module can be imported."""
    if find_spec(module) is None:
        raise ModuleNotFoundError(missing_package(module), name=module)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Let an import that fails for want of a package name the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        raise ModuleNotFoundError(missing_package(error.name), name=error.name) from None


def import_to_stay(module: str) -> ModuleType:
    """Import a module whose objects the garbage collector never looks at again.

    Collecting them is a third of a short run's time.
    """
    if module not in sys.modules and gc.isenabled():
        gc.disable()
        try:
            import_module(module)
        finally:
            gc.freeze()
            gc.enable()
    return import_module(module)
