"""The recorded steps of a run, one table at a time, and what each of them did to a word.

A run is anything with token_steps(), its recorded steps, and tokens(step), the token table of one. The tables are large
and stay on disk: what is kept of a table is a mean for each of its words.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pandas as pd

from workbook.views.style import require

MAX_STEPS = 60  # of a biography: as many tables are read for it
MEANS = ("logp", "logp_after", "push", "advantage")
UNREADABLE = (ValueError, OSError, KeyError)  # a table that was thinned away or damaged since it was listed


class RecordedSteps:
    """Which steps a run has recorded, and their tables; ValueError if it is no run, or has recorded nothing."""

    def __init__(self, run):
        if not all(callable(getattr(run, name, None)) for name in ("token_steps", "tokens")):
            raise ValueError(
                "TokenHeatmap takes a token table, or a run with token_steps() and tokens(step), "
                f"and not a {type(run).__name__}."
            )
        self.run, self.steps, self._means = run, [], {}
        if not self.refresh():
            raise ValueError(
                "This run has recorded no tokens so far: wait for its first step, or train with record_tokens=10, "
                "which keeps a table of every tenth."
            )

    def refresh(self) -> list[int]:
        """Look which steps there are by now."""
        self.steps = sorted(int(step) for step in self.run.token_steps())
        return self.steps

    def table(self, step: int) -> pd.DataFrame:
        """The token table of one step; ValueError if it has none, or lacks a token's place."""
        table = self.run.tokens(step)
        require(table, ("group", "rollout", "position", "token"), "TokenHeatmap")
        return table

    def ends(self) -> list[pd.DataFrame]:
        """The tables of the first and the last step, where they can be read."""
        tables = []
        for step in dict.fromkeys((self.steps[0], self.steps[-1])):
            with suppress(*UNREADABLE):
                tables.append(self.table(step))
        return tables

    def biography(self, word, column: str = "token_id") -> pd.DataFrame:
        """What the recorded steps did to a word: a row per step, at most MAX_STEPS of them, evenly chosen.

        word: its value in `column`.  Columns: step, places (how often it stood in the step's table), logp and
        logp_after (mean, nats), push and advantage (mean), stopped (share of its places whose gradient was taken away);
        NaN where a step has no place of it. Steps that can't be read are left out.
        """
        rows = []
        for step in _evenly(self.steps):
            means = self._step_means(step, column)
            if means is not None:
                known = means.loc[word].to_dict() if word in means.index else {"places": 0.0}
                rows.append({"step": step} | known)
        return pd.DataFrame(rows, columns=["step", "places", *MEANS, "stopped"])

    def _step_means(self, step: int, column: str) -> pd.DataFrame | None:
        if (step, column) not in self._means:
            try:
                self._means[step, column] = word_means(self.table(step), column)
            except UNREADABLE:
                return None
        return self._means[step, column]


def word_means(table: pd.DataFrame, column: str = "token_id") -> pd.DataFrame:
    """Means of a table's numbers for each of its words, indexed by `column`.

    >>> table = pd.DataFrame({"token_id": [5, 5, 7], "logp": [-1.0, -2.0, 0.0], "stopped": ["clip high", "", ""]})
    >>> word_means(table)[["places", "logp", "stopped"]].to_dict("index")
    {5: {'places': 2, 'logp': -1.5, 'stopped': 0.5}, 7: {'places': 1, 'logp': 0.0, 'stopped': 0.0}}
    """
    numbers = {name: table[name].astype(float) if name in table else np.nan for name in MEANS}
    stopped = np.nan
    if "stopped" in table:
        stopped = table["stopped"].notna() & ~table["stopped"].isin(["", "no advantage"])
    columns = pd.DataFrame(numbers | {"stopped": stopped}, index=table.index).groupby(table[column], observed=True)
    return columns.mean().assign(places=columns.size())


def _evenly(steps: list[int]) -> list[int]:
    """At most MAX_STEPS of the steps, the first and the last among them."""
    if len(steps) <= MAX_STEPS:
        return steps
    return [steps[round(i * (len(steps) - 1) / (MAX_STEPS - 1))] for i in range(MAX_STEPS)]
