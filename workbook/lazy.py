"""Imports that cost less: of a package's names when they are first used, and of libraries that stay to the end."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType


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
