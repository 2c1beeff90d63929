"""What a token table's columns mean to whoever draws it: which to colour by and around what, and which tokens to mark.

A recorded table's `stopped` says what took a token's gradient away. It is drawn as a mark, too, so that colour, which
shows one column at a time, is not the only cue.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.views.style import limit, printable_table, visible

PLACES = ("group", "rollout", "position", "token", "token_id", "step", "prompt")  # where a token stands: no colour
CENTERS = {"ratio": 1.0, "importance": 1.0}  # the value that changes nothing; else 0
MARKS = {"": "", "no advantage": "", "clip low": "▼", "clip high": "▲"}  # by `stopped`; else MASKED
MASKED = "■"
MEANINGS = {"▲": "clipped above", "▼": "clipped below", MASKED: "masked"}
MAX_POSITIONS = 1_000_000  # of a rollout: the page keeps the place of each
MAX_CHARACTERS, MAX_LEVEL = 14, 24  # of a token's text in its cell, of a category's name


def prepare(table: pd.DataFrame) -> pd.DataFrame:
    """A token table that can be drawn, whatever is in it; with what a step moved, `dlogp`, if it holds both ends.

    Raises ValueError for a table without rows, and rows without a place.
    """
    check_places(table)
    if {"logp", "logp_after"} <= set(table) and "dlogp" not in table:
        table = table.assign(dlogp=table["logp_after"] - table["logp"])
    return printable_table(table)


def check_places(table: pd.DataFrame) -> None:
    """Raise a ValueError unless there are tokens, each in a group and at a position that are whole numbers."""
    if not len(table):
        raise ValueError("TokenHeatmap needs a token to show; the table has no rows.")
    for name, least, most in (("group", -(2**31), 2**31 - 1), ("position", 0, MAX_POSITIONS - 1)):
        values = pd.to_numeric(table[name], errors="coerce")
        wrong = np.flatnonzero(~((values % 1 == 0) & values.between(least, most)))
        if len(wrong):
            raise ValueError(
                f"{name} must be a whole number from {least} to {most}; row {wrong[0]} of the table has "
                f"{str(table[name].iloc[wrong[0]])[:40]!r}."
            )


def is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def center(name: str) -> float:
    """What a column is coloured around."""
    return CENTERS.get(name, 0.0)


def mark(stopped) -> str:
    """The mark of a token whose gradient was taken away.

    >>> [mark(reason) for reason in ("", "clip high", "clip low", "tool", float("nan"))]
    ['', '▲', '▼', '■', '']
    """
    return "" if pd.isna(stopped) else MARKS.get(str(stopped), MASKED)


def level_name(name: str, level: str) -> str:
    """A category's value as legends and menus name it.

    >>> level_name("stopped", ""), level_name("stopped", "clip low"), level_name("kind", "a\\nb")
    ('not stopped', 'clip low', 'a⏎b')
    """
    if level.strip():
        return visible(level, MAX_LEVEL, space=" ")
    return "not stopped" if name == "stopped" else "(empty)"


def limits(*tables: pd.DataFrame) -> dict[str, float]:
    """Of each column that all tables have as numbers, the distance from its center at which colours saturate."""
    first = tables[0] if tables else ()
    names = [name for name in first if name not in PLACES and all(name in t and is_number(t[name]) for t in tables)]
    return {name: max(limit(t[name].to_numpy(dtype=float) - center(name)) for t in tables) for name in names}


def encode(rows: pd.DataFrame, table: pd.DataFrame, ends: dict[str, float]) -> tuple[list[dict], np.ndarray]:
    """Columns to colour by, and their values as numbers (columns, tokens); levels are of the whole table.

    ends: `limits` of the columns.
    """
    columns, values = [], []
    for name in rows.columns:
        if name in PLACES:
            continue
        if is_number(rows[name]):
            column = {"limit": ends[name]} | ({"center": middle} if (middle := center(name)) else {})
            numbers = rows[name].to_numpy(dtype=float)
        else:
            column, numbers = _categorical(name, rows[name], table[name])
        columns.append({"name": name, "slot": len(values)} | column)
        values.append(numbers)
    return columns, np.array(values)


def _categorical(name: str, values: pd.Series, everywhere: pd.Series) -> tuple[dict, np.ndarray]:
    levels = sorted(map(str, everywhere.dropna().unique()))
    ranks = {level: rank for rank, level in enumerate(levels)}
    about = {"levels": [level_name(name, level) for level in levels]}
    if name == "stopped":
        about["marks"] = [mark(level) for level in levels]
    return about, np.array([ranks[str(v)] if pd.notna(v) else np.nan for v in values], dtype=float)
