"""The tables that chapters draw, written from the studies' tables to data/figures.

A figure stands in data/figures/<room>/<name>.parquet.

Each room of studies has a module `figures` with

    FIGURES = {"dose": {"flips/follows": follows}}     study: {figure: function () -> table}

A function reads data/results (`load_measured`, `Tables`) and takes the means and intervals that the
chart shows. A figure that rests on several studies stands under the one that it is named after.
"""

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pandas as pd

from workbook import studies
from workbook.files import write_parquet
from workbook.messages import InvalidValue
from workbook.places import data_path


@cache
def figures() -> dict[str, dict[str, Callable[[], pd.DataFrame]]]:
    """{study: {figure: what makes its table}}, of all rooms of studies."""
    collected: dict[str, dict[str, Callable[[], pd.DataFrame]]] = {}
    for module in pkgutil.walk_packages(studies.__path__, f"{studies.__name__}."):
        if module.name.count(".") == 3 and module.name.endswith(".figures"):
            for study, tables in import_module(module.name).FIGURES.items():
                collected.setdefault(study, {}).update(tables)
    return collected


def write_figures(study: str, folder: str | Path | None = None) -> list[Path]:
    """Write every figure's table of a study; returns their files.

    folder: instead of data/figures.  Raises ValueError for a study that draws no figure.
    """
    if study not in figures():
        drawing = ", ".join(sorted(figures()))
        raise InvalidValue("study", study, f"one that writes a figure: {drawing}")
    written = []
    for name, make in figures()[study].items():
        path = Path(folder or data_path("figures")) / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(path, make().reset_index(drop=True))
        written.append(path)
    return written
