"""The arena's table as text for a terminal and for README."""

from __future__ import annotations

import math

import pandas as pd

from workbook.topics.arena.contests import YOURS
from workbook.topics.arena.rules import short_name
from workbook.topics.arena.scores import headline

COLUMNS = {  # heading: (measure, decimals, whether its interval is shown)
    "score": ("score", 2, True),
    "of the oracle's gain": ("gain", 2, True),
    "minus dr_grpo": ("over_plain", 3, True),
    "held-out value": ("value", 3, False),
    "cosine": ("cosine", 2, False),
    "one batch": ("one", 2, False),
    "noise / signal": ("noise", 2, False),
    "correlation": ("correlation", 2, False),
    "AUROC": ("auroc", 2, False),
    "s / batch": ("step_s", 2, False),
}
LEGEND = (
    "score: held-out exact value at equal sampled tokens, 0 as for permuted advantages, 1 as for true credit; minus "
    "dr_grpo: difference of that value in the same units; intervals: 95 % t over units (policy x seed). cosine: of the "
    "mean update with the exact policy gradient; one batch: of a single update; noise / signal: squared, of a single "
    "update. correlation, AUROC: of advantages with true credit."
)


def table_rows(table: pd.DataFrame) -> list[list[str]]:
    """Heading and rows of the table as texts."""
    rows = [["rule", "units", *COLUMNS]]
    for row in table.to_dict("records"):
        rows.append(
            [row_name(row), f"{row['units']}" if row["units"] else "", *(_cell(row, *c) for c in COLUMNS.values())]
        )
    return rows


def row_name(row: dict) -> str:
    """What a row of the table is called: the rule, marked where it was measured by oneself."""
    return short_name(row["rule"]) + f" ({YOURS})" * (row.get("source") == YOURS)


def _cell(row: dict, name: str, decimals: int, interval: bool) -> str:
    """A number with its interval, in brackets; empty for what is not there."""
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if math.isnan(value):
        return ""
    shown = interval and not math.isnan(low) and high > low
    return f"{value:.{decimals}f}" + (f" [{low:.{decimals}f}, {high:.{decimals}f}]" if shown else "")


def table_text(table: pd.DataFrame) -> str:
    """The table for a terminal, with its headline and what the columns are."""
    rows = table_rows(table)
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = ["".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    measured = table[table["source"] != YOURS] if "source" in table else table
    return "\n".join([*lines, "", headline(measured), LEGEND])


def table_markdown(table: pd.DataFrame) -> str:
    """The table for README: the headline above it, and fewer columns."""
    kept = [
        "rule",
        "units",
        "score",
        "of the oracle's gain",
        "minus dr_grpo",
        "one batch",
        "noise / signal",
        "correlation",
    ]
    heading, *rows = table_rows(table)
    places = [heading.index(name) for name in kept]
    lines = [f"| {' | '.join(kept)} |", "|" + "---|" * len(kept)]
    lines += [f"| {' | '.join(row[place] for place in places)} |" for row in rows]
    return "\n".join([headline(table), "", *lines])
