"""Outcomes of claims as a chapter shows them: read from the ledger, and compared with what a reader measured anew."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache

import numpy as np

from workbook.claims.kept import kept_ledger
from workbook.claims.text import format_effect, format_stated, format_units
from workbook.training.messages import show_value


@cache
def registered(scale: str = "family") -> dict[str, tuple]:
    """Every registered row of the ledger at a scale, by its key."""
    table = kept_ledger()
    return {row.key: row for row in table[(table["scale"] == scale) & (table["key"] != "")].itertuples()}


def show_outcomes(*keys: str, scale: str = "family") -> None:
    """Print registered rows of the ledger: role, outcome, what was measured, mean, interval and what was stated.

    Raises ValueError for a key that the ledger does not hold.
    """
    for key in keys:
        row = _row(key, scale)
        print(f"{key} ({row.role}): {row.outcome}")
        print(f"    {row.measured}")
        print(f"    {format_effect(row)} {row.unit}".rstrip() + f"; {format_units(row)}; {format_stated(row)}")


def compare_with_ledger(key: str, mean: float, low: float = np.nan, high: float = np.nan, scale: str = "family") -> str:
    """Print, and return, whether a number measured here agrees with the ledger's row of this key.

    low, high: bounds of the number's own interval, if it has one.  It agrees where the intervals meet, or where the
    number lies in the ledger's. Nothing fails where it does not: one policy is no test of an interval over policies.
    """
    row = _row(key, scale)
    bounds = (low if np.isfinite(low) else mean, high if np.isfinite(high) else mean)
    ours = f"{mean:.3g}" + (f" [{low:.3g}, {high:.3g}]" if np.isfinite(low) else "")
    if not np.isfinite(row.low):
        text = f"{key}: {ours} here; the book has no interval to compare it with ({row.outcome})."
    elif bounds[1] >= row.low and bounds[0] <= row.high:
        text = f"{key}: {ours} here agrees with the book's {format_effect(row)} over {row.units} units."
    else:
        side = "above" if bounds[0] > row.high else "below"
        text = (
            f"{key}: {ours} here lies {side} the book's {format_effect(row)}, an interval of the mean over "
            f"{row.units} units: one policy, other sizes or another seed may well lie outside."
        )
    print(text)
    return text


def _row(key: str, scale: str):
    """The row of a key as an object; ValueError with neighbours where there is none."""
    rows = registered(scale)
    if key not in rows:
        near = get_close_matches(str(key), rows, 4, 0.3) or list(rows)[:8]
        raise ValueError(f"key={show_value(key)} is no registered row of the ledger; rows are {', '.join(near)}, ...")
    return rows[key]
