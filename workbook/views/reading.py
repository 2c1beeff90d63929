"""Rollouts as HTML to read that needs no script: wrapped text, one span a token, coloured, with its value as title."""

from __future__ import annotations

import html
from typing import NamedTuple

import altair as alt
import pandas as pd

from workbook.views.style import NEUTRAL, titled
from workbook.views.token_cells import are_words, level_name, mark, rank_levels, readable, rollout_names
from workbook.views.token_scale import PALETTE, UNKNOWN, Scale
from workbook.views.tokens import aligned, token_strip

READING = "application/vnd.workbook.reading+html"  # beside a picture, for pages that are too narrow for it
PAPER = "margin: 0; padding: 6px; background: #fff; color: #222"
BLOCK = "flex: 1 1 280px; min-width: 0; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; line-height: 2"
SIGN = "font-size: 0.7em; line-height: 0"
GAP = 16  # pixels between two pictures


class Pane(NamedTuple):
    """One pane of a heatmap as it is drawn without a page: a group of a table, in the colours of a column.

    scale: None of a category.  name: what stands above it, "" above a single one.
    """

    table: pd.DataFrame
    group: int
    column: str
    scale: Scale | None
    name: str = ""

    @property
    def rows(self) -> pd.DataFrame:
        """The tokens that are drawn."""
        return self.table[self.table["group"] == self.group]


def is_cut(panes: list[Pane], width: float) -> bool:
    """Whether aligned cells of a pane are wider than the page."""
    return any(aligned(pane.rows, 12)["right"].max() > width for pane in panes)


def strips(panes: list[Pane], width: float, wrap: bool):
    """A chart of the panes: aligned cells below one another, so that positions can be compared, texts side by side."""
    wide = (width - GAP) / len(panes) if wrap else width
    charts = [token_strip(p.table, p.column, p.group, width=wide, scale=p.scale, wrap=wrap) for p in panes]
    if len(charts) == 1:
        return charts[0]
    for pane, chart in zip(panes, charts, strict=True):
        chart.title.text = f"{pane.name or pane.column}: {chart.title.text}"
    joined = alt.hconcat(*charts, spacing=GAP) if wrap else alt.vconcat(*charts, spacing=GAP)
    title = " beside ".join(pane.name or pane.column for pane in panes)
    return titled(joined.resolve_scale(color="independent", x="independent", y="independent"), title, "", "Two panes.")


def reading_html(panes: list[Pane], title: str) -> str:
    """The panes as HTML: texts escaped, spaces and line breaks as they were written."""
    blocks = "".join(_block(pane) for pane in panes)
    return (
        f'<figure style="{PAPER}"><figcaption>{html.escape(title)}</figcaption>'
        f'<div style="display: flex; flex-wrap: wrap; gap: 0 {GAP}px">{blocks}</div></figure>'
    )


def _block(pane: Pane) -> str:
    rows, gap = pane.rows, " " if are_words(pane.table["token"]) else ""
    spans = pd.Series(_spans(pane), index=rows.index)
    parts = [f"<b>{html.escape(pane.name or pane.column)}</b>"]
    for rollout, name in rollout_names(rows[~rows["rollout"].duplicated()]).items():
        answer = spans[rows["rollout"] == rows["rollout"][rollout]]
        parts.append(f'<span style="color: {NEUTRAL}">{html.escape(name)}</span>\n{gap.join(answer)}')
    return f'<div style="{BLOCK}">' + "\n".join(parts) + "</div>"


def _spans(pane: Pane) -> list[str]:
    """One span for each token, in the order of the rows."""
    rows, column = pane.rows, pane.column
    marks = rows["stopped"].map(mark) if "stopped" in rows else [""] * len(rows)
    if pane.scale is not None:
        looks, signs = pane.scale.looks(rows[column]), pane.scale.signs(rows[column])
        shown = [pane.scale.format(value) for value in rows[column]]
    else:
        levels, ranks = rank_levels(rows[column], pane.table[column])
        colors = list(zip(PALETTE["categories"]["fills"], PALETTE["categories"]["inks"], strict=True))
        looks = [UNKNOWN if pd.isna(rank) else colors[int(rank) % len(colors)] for rank in ranks]
        signs = [""] * len(rows)
        shown = ["unknown" if pd.isna(rank) else level_name(column, levels[int(rank)]) for rank in ranks]
    cells = zip(rows["token"], looks, signs, shown, marks, strict=True)
    return [_span(token, look, sign, f"{column} {value}", stop) for token, look, sign, value, stop in cells]


def _span(token, look: tuple[str, str], sign: str, hint: str, stop: str) -> str:
    fill, ink = look
    style = f' style="background: {fill}; color: {ink}"' if fill else ""
    text = html.escape(readable(token)).replace("\n", "⏎\n")
    raised = f'<sup style="{SIGN}">{sign}</sup>' if sign else ""
    return f'<span title="{html.escape(hint, quote=True)}"{style}>{stop}{text or "∅"}{raised}</span>'
