"""The claims ledger in a notebook: a line a claim that opens into its card, as HTML that needs no script."""

from __future__ import annotations

from html import escape

import pandas as pd

from workbook.claims.judge import DESCRIBED
from workbook.claims.text import format_effect, format_stated, format_units
from workbook.views.ledger import OUTCOME_MARKS
from workbook.views.style import NEUTRAL


class LedgerCards:
    """A card a claim; in a terminal, a line a claim."""

    def __init__(self, table: pd.DataFrame):
        self.table = table[table["role"] != DESCRIBED]

    def __repr__(self) -> str:
        primary = self.table[self.table["role"] == "primary"]
        return "\n".join(f"{row.claim} ({row.scale}): {row.outcome}; {row.statement}" for row in primary.itertuples())

    def _repr_html_(self) -> str:
        return "\n".join(_card(name, rows) for name, rows in self.table.groupby("claim", sort=False))


def ledger_cards(table: pd.DataFrame) -> LedgerCards:
    """Show the rows of a `workbook.claims.ledger` as cards: statement and outcome, and below them what was measured."""
    return LedgerCards(table)


def _card(name: str, rows: pd.DataFrame) -> str:
    primary = rows[rows["role"] == "primary"]
    first = primary.iloc[0]
    outcomes = " ".join(_mark(outcome) for outcome in dict.fromkeys(primary["outcome"]))
    title = f"{outcomes} <b>{escape(name)}</b> {escape(first['statement'])}"
    body = "".join(_row(row) for row in rows.sort_values("role", key=lambda r: r != "primary").itertuples())
    return (
        f"<details><summary>{title}</summary><p>Refuted if {escape(first['falsifier'])}.</p><ul>{body}</ul></details>"
    )


def _mark(outcome: str) -> str:
    color, _, mark = OUTCOME_MARKS.get(outcome, (NEUTRAL, "", "·"))
    sign = f'<span aria-hidden="true" style="color: {color}">{mark}</span>'
    return f'<span style="white-space: nowrap">{sign} {escape(outcome)}</span>'


def _row(row) -> str:
    words = [f"{format_effect(row)} {row.unit}".strip(), format_units(row), format_stated(row)] if row.values else []
    numbers = f"<br>{escape('; '.join(words))}" if words else ""
    return (
        f"<li>{escape(row.role)}, {escape(row.scale)}: {escape(row.measured or '')} {_mark(row.outcome)}{numbers}</li>"
    )
