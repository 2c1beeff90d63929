"""Charts of many chapters: reward before and after, measurements with intervals, and a table folded away."""

from __future__ import annotations

import html

import altair as alt
import pandas as pd

from workbook.views.figures import forest
from workbook.views.style import describe_rows, require, titled


def reward_before_after(summary: pd.DataFrame, interval: str = "95 % interval") -> alt.LayerChart:
    """Mean rewards with their intervals, one line per label: columns label, mean, low, high."""
    require(summary, ("label", "mean", "low", "high"), "reward_before_after")
    reward = alt.X("mean:Q", title="mean reward (0 to 1)").scale(domain=[0, 1])
    return titled(
        forest(summary, "label", reward, number=".2f", form=".3f", height=alt.Step(52)),
        "Reward on held-out prompts, before and after training",
        f"dot: mean; bar: {interval}",
        describe_rows(summary, "label", form=".3f", interval=True),
    )


def intervals_chart(
    table: pd.DataFrame, title: str, subtitle: str, unit: str, threshold: float | None = None, zero: bool = True
) -> alt.LayerChart:
    """A line per row: dot, interval and number; columns label, mean, low, high, and scale (colour, shape) if there.

    threshold: what was stated beforehand, as a dashed line.  zero: whether the axis must reach 0.
    """
    require(table, ("label", "mean", "low", "high"), "intervals_chart")
    x = alt.X("mean:Q", title=unit).scale(zero=zero, padding=30)
    ends = [*table["low"], *table["high"], *([] if threshold is None else [threshold])]
    if zero and 0 <= min(ends) < max(ends):  # what can't be negative has no axis there
        x = x.scale(domain=[0, 1.08 * max(ends)])
    look = {"by": "scale"} if "scale" in table else {}
    return titled(
        forest(table, "label", x, number=".3~g", form=".4g", threshold=threshold, **look),
        title,
        subtitle,
        describe_rows(table, "label", interval=True),
    )


class Fold:
    """A table under a line that opens it; in a terminal, the table itself."""

    def __init__(self, table: pd.DataFrame, title: str):
        self.table, self.title = table, title

    def __repr__(self) -> str:
        return f"{self.title}\n{self.table}"

    def _repr_html_(self) -> str:
        title, count = html.escape(self.title), f"{len(self.table)} row{'s' * (len(self.table) != 1)}"
        body = self.table.to_html(border=0, escape=True, max_rows=None)
        scroll = f'<div style="overflow-x: auto" tabindex="0" role="region" aria-label="{title}">'
        return f"<details><summary>{title} ({count})</summary>{scroll}{body}</div></details>"


def fold(table: pd.DataFrame, title: str) -> Fold:
    """Return a table that shows its title and number of rows until it is opened; its cells are escaped."""
    return Fold(table, title)
