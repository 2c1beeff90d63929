"""A study's registration, its units' manifests and its Parquet tables, read without the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "data" / "results"


class Missing(Exception):
    """A table, or a place in it, that was not measured."""


@dataclass(frozen=True)
class Registered:
    """registration.yaml of a study: counts is {scale: units}, outcomes {key: its fields}."""

    study: str
    counts: dict[str, int]
    outcomes: dict[str, dict]
    stopping_rule: str

    @property
    def decides(self) -> bool:
        """Whether any of its outcomes decides something."""
        return any(outcome["role"] != "described" for outcome in self.outcomes.values())


def read_registration(path: Path) -> Registered | None:
    """The registration in a file; None for one in words alone, which judges nothing."""
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not text.get("outcomes"):
        return None
    units = text["units"] if isinstance(text["units"], list) else [text["units"]]
    counts = {part["scale"]: part["count"] for part in units}
    return Registered(path.parent.name, counts, text["outcomes"], text["stopping_rule"])


def registrations(results: Path = RESULTS) -> list[Registered]:
    """All registrations that have outcomes."""
    read = [read_registration(path) for path in sorted(results.glob("*/registration.yaml"))]
    return [registered for registered in read if registered]


class Units:
    """Tables and manifests of one study at one scale, of its registered units alone."""

    def __init__(self, study: str, scale: str, count: int, results: Path = RESULTS):
        self.study, self.scale, self.count, self.folder = study, scale, count, results / study / scale
        self.table = cache(self._read)  # each table once

    @cached_property
    def manifests(self) -> dict[int, dict]:
        """{unit: its manifest}, of every unit that lies there."""
        paths = self.folder.glob("seed=*/manifest.json")
        read = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
        return {manifest["seed"]: manifest for manifest in sorted(read, key=lambda one: one["seed"])}

    @property
    def registered(self) -> list[int]:
        return [unit for unit in self.manifests if unit < self.count]

    def policy(self, unit: int) -> str:
        """The policy of a unit, by its manifest."""
        return self.manifests[unit]["scale"]["policy"]

    def _read(self, name: str) -> pd.DataFrame:
        paths = {unit: self.folder / f"seed={unit}" / f"{name}.parquet" for unit in self.registered}
        parts = [pd.read_parquet(path).assign(seed=unit) for unit, path in paths.items() if path.exists()]
        if not parts:
            raise Missing(f"{self.study} has no table {name} at scale {self.scale}")
        return pd.concat(parts, ignore_index=True)


def at(table: pd.DataFrame, **place) -> pd.DataFrame:
    """Rows of a table at one place; Missing if there are none."""
    here = np.ones(len(table), bool)
    for name, value in place.items():
        column = table[name].to_numpy()
        here &= np.abs(column - value) < 1e-9 if isinstance(value, float) else column == value
    if not here.any():
        raise Missing(f"no row at {place}")
    return table[here]


def one(table: pd.DataFrame, column: str, **place) -> pd.Series:
    """A column at one place, one row per unit; ValueError where a unit has several."""
    rows = at(table, **place)
    if rows["seed"].duplicated().any():
        raise ValueError(f"{place} has several rows of a unit")
    return pd.Series(rows[column].to_numpy(float), rows["seed"].to_numpy())


def each(table: pd.DataFrame, number) -> pd.Series:
    """number(rows of a unit) of every unit."""
    return pd.Series({unit: float(number(rows)) for unit, rows in table.groupby("seed")}, dtype=float)
