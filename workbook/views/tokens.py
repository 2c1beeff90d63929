"""The token strip: the rollouts of one group under one another, one cell a token, coloured by a column of the table."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.views.style import NEUTRAL, SERIES, diverging, finish, limit, printable_table, require, visible
from workbook.views.token_cells import MEANINGS, center, is_number, level_name, mark

CELL_HEIGHT, CHARACTER, PADDING = 30, 7.0, 12.0  # pixels


def token_strip(
    table: pd.DataFrame,
    column: str = "advantage",
    group: int | None = None,
    longest: int = 12,
    width: float | None = None,
) -> alt.LayerChart:
    """Rollouts of one group under one another, one cell a token with its text, coloured by `column`.

    table: a token table (columns group, rollout, position, token and `column`).  group: which one, else the first.
    A number is coloured around zero (a ratio around one), saturating at the 98th percentile of |x|, with its sign in
    the cell's corner; text (a category) takes one colour each. Where a column `stopped` says what took a token's
    gradient away, the other corner has a mark.  Cells are as wide as the longest token at their position, at most
    `longest` characters.  width: leave out the positions beyond so many pixels, and say so.
    """
    require(table, ("group", "rollout", "position", "token", column), "token_strip")
    table = printable_table(table)
    group = table["group"].iloc[0] if group is None else group
    if group not in set(table["group"]):
        raise ValueError(f"group={group!r} is not in the table: choose one of {sorted(set(table['group']))[:8]}.")
    cells, whole = _cells(table[table["group"] == group], column, longest)
    if cut := width is not None and whole > width:
        cells = cells[cells["right"] <= width]
        whole = float(cells["right"].max())
    numeric, middle = is_number(table[column]), center(column)
    if numeric:
        m = limit(table[column] - middle)
        color = alt.Color("value:Q", title=column).scale(diverging(m, middle))
        ink = (
            alt.when(f"abs(datum.value - {middle}) > {0.6 * m}").then(alt.value("white")).otherwise(alt.value("black"))
        )
    else:
        color = alt.Color("value:N", title=column).scale(range=SERIES)
        ink = alt.value("white")
    x = alt.X("left:Q", axis=None).scale(domain=[0, whole], nice=False)
    y = alt.Y("row:N", sort=list(dict.fromkeys(cells["row"])), title="rollout").axis(ticks=False, domain=False)
    value = alt.Tooltip("value:Q", title=column, format="+.4g") if numeric else alt.Tooltip("value:N", title=column)
    stops = ["stopped:N"] if "stopped" in cells else []
    base = alt.Chart(cells).encode(y=y, tooltip=["text:N", "position:Q", "rollout:N", value, *stops])
    layers = [
        base.mark_rect(stroke="white", strokeWidth=1).encode(x=x, x2="right:Q", color=color),
        base.mark_text(font="monospace", fontSize=11, dy=2).encode(x="middle:Q", text="text:N", color=ink),
        base.mark_text(fontSize=10, fontWeight="bold", align="right", dx=-2, dy=-9).encode(
            x="right:Q", text="sign:N", color=ink
        ),
    ]
    if (cells["mark"] != "").any():
        layers.append(
            base.mark_text(fontSize=8, align="left", dx=2, dy=-9).encode(x="left:Q", text="mark:N", color=ink)
        )
    steps = table["step"].unique() if "step" in table else []
    at = f" at step {steps[0]}" if len(steps) == 1 else ""
    zero = f"{middle:g}" if middle else "zero"
    subtitle = f"one cell a token; blue and +: above {zero}, orange and −: below" if numeric else "one cell a token"
    subtitle += "".join(f"; {sign} {MEANINGS[sign]}" for sign in MEANINGS if (cells["mark"] == sign).any())
    if cut:
        subtitle += f"; the first {int(cells['position'].max()) + 1} tokens of each"
    return finish(
        alt.layer(*layers).configure_axisY(labelFont="monospace", labelColor=NEUTRAL, titlePadding=12),
        f"Group {group}{at}: {column} of each token, rollout by rollout",
        subtitle,
        f"{cells['row'].nunique()} rollouts with up to {int(cells['position'].max()) + 1} tokens.",
        width=int(whole),
        height=alt.Step(CELL_HEIGHT),
    )


def _cells(rows: pd.DataFrame, column: str, longest: int) -> tuple[pd.DataFrame, float]:
    """Text, place and sign of each cell, and the width of all, in pixels."""
    text = rows["token"].astype(object).map(lambda token: visible(token, longest))
    widths = text.str.len().groupby(rows["position"]).max() * CHARACTER + PADDING
    ends, place = widths.sort_index().cumsum(), rows["position"]
    reward = rows["reward"].map("  reward {:.2f}".format) if "reward" in rows else ""
    signs, value = [""] * len(rows), rows[column]
    if not is_number(value):
        value = [level_name(column, str(level)) if pd.notna(level) else None for level in value]
    else:
        signs = np.select([rows[column] > center(column), rows[column] < center(column)], ["+", "−"], "")
    stopped = {"stopped": rows["stopped"].astype(object)} if "stopped" in rows else {}
    cells = pd.DataFrame(
        {
            "text": text,
            "rollout": rows["rollout"],
            "position": place,
            "row": rows["rollout"].astype(str) + reward,
            "value": value,
            "sign": signs,
            "mark": [mark(reason) for reason in stopped.get("stopped", [""] * len(rows))],
            "left": place.map(ends - widths),
            "middle": place.map(ends - widths / 2),
            "right": place.map(ends),
            **stopped,
        }
    )
    return cells, float(ends.iloc[-1])
