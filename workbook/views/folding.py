"""A table folded under its title: what a reader may open, and a page does not have to carry."""

from __future__ import annotations

import html

import pandas as pd


class Fold:
    """A table under a line that opens it; in a terminal, the table itself."""

    def __init__(self, table: pd.DataFrame, title: str):
        self.table, self.title = table, title

    def __repr__(self) -> str:
        return f"{self.title}\n{self.table}"

    def _repr_html_(self) -> str:
        count = f"{len(self.table)} row{'s' * (len(self.table) != 1)}"
        body = self.table.to_html(border=0, escape=True, max_rows=None)
        scroll = f'<div style="overflow-x: auto" tabindex="0" role="region" aria-label="{html.escape(self.title)}">'
        return f"<details><summary>{html.escape(self.title)} ({count})</summary>{scroll}{body}</div></details>"


def fold(table: pd.DataFrame, title: str) -> Fold:
    """Return a table that shows its title and number of rows until it is opened; its cells are escaped."""
    return Fold(table, title)
