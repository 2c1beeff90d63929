"""Names of a package that are imported when first used, so that a chapter's first cell need not wait for its last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__` (PEP 562): homes gives the module of each name, below `workbook`."""

    def attribute(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"workbook.{homes[name]}"), name)

    return attribute
