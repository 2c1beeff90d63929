"""What a heatmap shows of a table: one group's tokens, what stands beside them, and the scales of both."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from workbook.views.reading import Pane
from workbook.views.style import require
from workbook.views.token_cells import scales, wire
from workbook.views.token_compare import Beside, rows_beside
from workbook.views.token_scale import MOVES, Scale, common


@dataclass
class Panes:
    """One group of `table` and, with `other`, the rows that belong beside it.

    ends: the tables that give the scales of a run; else they are the table's own.
    """

    table: pd.DataFrame
    group: int
    ends: list[pd.DataFrame] = field(default_factory=list)
    other: Beside | None = None

    def __post_init__(self):
        tables = [*(self.ends or [self.table])]
        if self.other is not None and not self.other.column:
            tables.append(self.other.table)
        self.known = scales(self.table, tables)
        if self.other is not None:
            self.other_rows, self.note = rows_beside(self.rows, self.other.table)
            self.other_known = scales(self.other.table, [*tables, self.table])

    @property
    def rows(self) -> pd.DataFrame:
        """The tokens of the first pane."""
        return self.table[self.table["group"] == self.group]

    def traits(self, title: str) -> dict:
        """Both panes as the page gets them."""
        return wire(self.rows, self.table, self.known) | {"title": title, "other": self._wire_other(title)}

    def _wire_other(self, title: str) -> dict:
        if self.other is None:
            return {}
        sent = wire(self.other_rows, self.other.table, self.other_known)
        about = {"title": f"{self.other.names[1] or self.other.column}, beside: {title}", "column": self.other.column}
        return sent | about | {"names": list(self.other.names), "note": self.note, "same": not self.note}

    def drawn(self, column: str, rollouts: int | None = None, coupling=None, limit: float = 1.0) -> list[Pane]:
        """The panes as they are drawn without a page, at most so many rollouts of the group.

        coupling, limit: of each token with the pinned one, for a table that has no column of this name.
        """
        table, known = self.table, self.known
        if column in ("coupling", MOVES) and column not in table:
            values = pd.Series(np.nan, index=table.index)
            values[self.rows.index] = np.nan if coupling is None else coupling
            table, known = table.assign(**{column: values}), known | {column: Scale(limit)}
        require(table, (column,), "TokenHeatmap")
        few = pd.unique(self.rows["rollout"])[:rollouts]
        table = table[(table["group"] != self.group) | table["rollout"].isin(few)]
        pane = Pane(table, self.group, column, known.get(column))
        other = self._drawn_other(column, rollouts)
        if other is None:
            return [pane]
        scale = common(pane.scale, other.scale)
        pane = pane._replace(scale=scale or pane.scale, name=self.other.names[0])
        return [pane, other._replace(scale=scale or other.scale)]

    def _drawn_other(self, column: str, rollouts: int | None) -> Pane | None:
        if self.other is None or (name := self.other.column or column) not in self.other_rows:
            return None
        rows = self.other_rows
        rows = rows[rows["rollout"].isin(pd.unique(rows["rollout"])[:rollouts])]
        return Pane(rows, rows["group"].iloc[0], name, self.other_known.get(name), self.other.names[1])
