"""A ledger as text: a line per claim, every measurement with what decided it, and rows in a chapter."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache

import numpy as np
import pandas as pd

from workbook.claims.inference import DESCRIBED
from workbook.claims.ledger import kept_ledger, summary


def format_summary(table: pd.DataFrame) -> str:
    """A `ledger` as text, one line per primary row: claim, scale, outcome, and what it states."""
    claims = summary(table)
    lines = [f"{row.claim:<13}{row.scale:<8}{row.outcome:<20}{row.statement}" for row in claims.itertuples()]
    counts = ", ".join(f"{count} {outcome}" for outcome, count in claims["outcome"].value_counts().items())
    return "\n".join([*lines, "", f"{len(claims)} primary rows: {counts}."])


def format_ledger(table: pd.DataFrame, commands: bool = False) -> str:
    """A `ledger` as text, claim by claim and scale by scale; commands: with those that recompute each measurement."""
    lines = []
    for claim, part in table.groupby("claim", sort=False):
        row = part.iloc[0]
        lines += ["", f"{claim}  {row['statement']}"]
        lines += [f"    {'met' if claim.endswith('falsifier') else 'refuted'} if {row['falsifier']}"]
        for scale, rows in part.groupby("scale", sort=False):
            deciding, described = rows[rows["role"] != DESCRIBED], rows[rows["role"] == DESCRIBED]
            lines += ["", f"    {scale}"]
            for one in deciding.itertuples():
                lines += [f"        {line}" for line in _deciding(one)]
            lines += ["        described, decides nothing:"] if len(described) else []
            lines += [f"            {one.measured}: {format_effect(one)}" for one in described.itertuples()]
            if commands:
                lines += [f"        $ {text}" for text in dict.fromkeys(rows["command"]) if text]
    return "\n".join(lines[1:])


def format_effect(row, digits: int = 3) -> str:
    """Mean and interval of a row of the ledger; the mean alone where there is no interval."""
    if not np.isfinite(row.mean):
        return "not measured"
    if not np.isfinite(row.low):
        return f"{row.mean:.{digits}g}"
    return f"{row.mean:.{digits}g} [{row.low:.{digits}g}, {row.high:.{digits}g}]"


def _stated(row) -> str:
    """A row's number, how many units it rests on, and what was registered of it."""
    shared = f" on {row.policies:.0f} policies, whose means are judged" if row.policies < row.units else ""
    text = f"{format_effect(row)} {row.unit}".rstrip() + f"; {row.units} of {row.registered_units} registered units"
    if not np.isfinite(row.toward):
        return text + shared
    zone = f", smallest effect of interest {row.smallest_effect:g}"
    return f"{text}{shared}; the claim: {'above' if row.toward > 0 else 'below'} {row.threshold:g}{zone}"


def _deciding(row) -> list[str]:
    """A registered measurement: outcome, number, what was computed beside the interval, and where it came from."""
    lines = [f"{row.role}: {row.outcome.upper()}" + (f" ({row.reason})" if row.reason else "")]
    if not row.values:
        return [*lines, *([f"    {row.measured}"] if row.measured else [])]
    lines += [f"    {row.measured}", f"    {_stated(row)}"]
    if np.isfinite(row.p):
        thing = ("policy", "policies") if row.policies < row.units else ("unit", "units")
        checks = [f"p = {row.p:.2g}" + (f", q = {row.q:.2g}" if np.isfinite(row.q) else "")]
        checks += [f"sign flips p = {row.p_flips:.2g}", f"equivalence p = {row.p_equivalent:.2g}"]
        checks += [f"as if all units were independent p = {row.p_units:.2g}"] if row.policies < row.units else []
        checks += [f"minimum detectable effect {row.detectable:.2g}"]
        checks += [f"one {thing[0]} left out {row.without_low:.3g} to {row.without_high:.3g}"]
        fewest = f"decided by {row.decided_by:.0f} {thing[row.decided_by > 1]}"
        checks += [fewest if np.isfinite(row.decided_by) else f"no removal of {thing[1]} changes it"]
        lines += [f"    {'; '.join(checks)}"]
    paper = f"{row.paper_effect or 'not known'}; comparable: {row.comparable}"
    lines += [f"    paper: {paper}" + (f"; place: {row.place}" if row.place else "")]
    clean = {True: "clean tree", False: "a modified tree"}.get(row.clean, "tree not known")
    origin = [f"source: {row.source}", f"seen before: {row.seen_before}", f"tables from {clean}"]
    origin += [f"registration {row.registration}"]
    origin += [f"{row.dropped} units without a number"] if row.dropped else []
    if row.looked:
        origin += [f"units {row.looked[0]} to {row.looked[-1]} were measured after the earlier ones' outcome was seen"]
    origin += [f"units added after registration: {', '.join(map(str, row.added))}"] if row.added else []
    return [*lines, f"    {'; '.join(origin)}"]


# --- in a chapter


@cache
def registered(scale: str = "family") -> dict[str, tuple]:
    """Every registered row of the kept ledger at a scale, by its key."""
    table = kept_ledger()
    return {row.key: row for row in table[(table["scale"] == scale) & (table["key"] != "")].itertuples()}


def show_outcomes(*keys: str, scale: str = "family") -> None:
    """Print registered rows of the ledger: role, outcome, what was measured, mean, interval and what was stated."""
    for key, row in ((key, _row(key, scale)) for key in keys):
        print(f"{key} ({row.role}): {row.outcome}\n    {row.measured}\n    {_stated(row)}")


def compare_with_ledger(key: str, mean: float, low: float = np.nan, high: float = np.nan, scale: str = "family") -> str:
    """Print, and return, whether a number measured here agrees with the ledger's row of this key.

    low, high: bounds of the number's own interval, if it has one.  It agrees where the intervals meet.
    """
    row = _row(key, scale)
    bounds = (low, high) if np.isfinite(low) else (mean, mean)
    ours = f"{mean:.3g}" + (f" [{low:.3g}, {high:.3g}]" if np.isfinite(low) else "")
    if bounds[1] >= row.low and bounds[0] <= row.high:
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
        raise ValueError(f"key={key!r} is no registered row of the ledger; rows are {', '.join(near)}, ...")
    return rows[key]
