"""Registered rows of the ledger in a chapter: a line each with outcome, claim and interval; the rest folded."""

from __future__ import annotations

import math
import shutil
import textwrap
from difflib import get_close_matches

from workbook.claims.ledger import SIGNS, format_effect, measured_of, registered, stated_of
from workbook.views.style import NEUTRAL, SERIES, escape

COLOURS = {"✓": SERIES[5], "✗": SERIES[1], "≈": SERIES[4]}  # of a sign, as in the chart of the ledger
WIDTH = 100  # columns of a text, at most
BAR = 150, 18  # pixels of the picture of an interval: width, height
WORDS = "display: inline-block; vertical-align: middle; line-height: 1.35;"


class Outcomes:
    """Rows of the ledger: HTML on a page, text wrapped to a terminal."""

    def __init__(self, rows: dict[str, tuple]):
        self.rows = rows

    def __repr__(self) -> str:
        parts = []
        for key, row in self.rows.items():
            lines = [measured_of(row), stated_of(row)]
            parts += [f"{key} ({row.role}): {row.outcome}"]
            parts += [_filled(line, "    ") for line in lines]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        rows = "".join(_row_html(key, row) for key, row in self.rows.items())
        return f'<div class="outcomes" style="max-width: 960px; font-size: 14px">{rows}</div>'


def show_outcomes(*keys: str, scale: str = "family") -> None:
    """Show registered rows of the ledger: outcome, claim, mean and interval; role and what was stated folded."""
    from IPython.display import display

    display(Outcomes({key: _row(key, scale) for key in keys}))


def _filled(text: str, indent: str = "") -> str:
    """A text in lines as long as the terminal's, of WIDTH at most."""
    width = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def _row(key: str, scale: str):
    """The row of a key as an object; ValueError with neighbours where there is none."""
    rows = registered(scale)
    if key not in rows:
        near = get_close_matches(str(key), rows, 4, 0.3) or list(rows)[:8]
        raise ValueError(f"key={key!r} is no registered row of the ledger; rows are {', '.join(near)}, ...")
    return rows[key]


def _row_html(key: str, row) -> str:
    """A row that opens: its mark and outcome, what it is about, its interval."""
    mark = SIGNS.get(row.outcome, "–")
    colour = COLOURS.get(mark, NEUTRAL)
    sign = f'<b style="color: {colour}; font-size: 1.15em">{mark}</b>'
    about = row.words if row.role == "primary" else measured_of(row)
    about = f"{about[:1].upper()}{about[1:]}"
    head = f'<span style="{WORDS} width: 11em; padding-right: 4px">{sign} <b>{escape(row.outcome)}</b></span>'
    head += f'<span style="{WORDS} width: min(100%, 22em); padding-right: 1em">{escape(about)}</span>'
    effect = escape(f"{format_effect(row)} {row.unit}".rstrip()) if math.isfinite(row.mean) else ""
    head += f'<span style="{WORDS} white-space: nowrap">{_bar(row, colour)} {effect}</span>'
    more = f"<b>{escape(key)}</b> ({escape(row.role)}). {escape(measured_of(row))}: {escape(stated_of(row))}."
    return (
        f'<details style="padding: 3px 0; border-bottom: 1px solid #8884"><summary style="cursor: pointer">{head}'
        f'</summary><p style="margin: 4px 0 6px 1em">{more}</p></details>'
    )


def _bar(row, colour: str) -> str:
    """The interval as a picture; "" without one. Grey: too small to matter; dashed: the threshold, with a mark to the
    side on which the claim lies."""
    numbers = (row.low, row.high, row.mean, row.threshold, row.smallest_effect, row.toward)
    if not all(map(math.isfinite, numbers)) or (row.log and min(row.low, row.threshold) <= 0):
        return ""
    scale = math.log if row.log else float
    zone = [row.threshold - row.smallest_effect, row.threshold + row.smallest_effect]
    ends = [scale(number) for number in (row.low, row.high, *zone)]
    start, span, (width, height) = min(ends), (max(ends) - min(ends)) or 1.0, BAR

    def x(number: float) -> float:
        return round(6 + (scale(number) - start) / span * (width - 12), 1)

    alt_text = f"{format_effect(row)}; threshold {row.threshold:g}, smallest effect of interest {row.smallest_effect:g}"
    middle = height / 2
    parts = f'<rect x="{x(zone[0])}" y="0" width="{x(zone[1]) - x(zone[0]):.1f}" height="{height}" fill="#8883"/>'
    parts += f'<path d="M{x(row.threshold)} 0V{height}" stroke="currentColor" stroke-dasharray="3 2"/>'
    parts += f'<path d="M{x(row.threshold)} 0l{6 * row.toward:g} 3l{-6 * row.toward:g} 3z" fill="currentColor"/>'
    parts += f'<path d="M{x(row.low)} {middle}H{x(row.high)}" stroke="{colour}" stroke-width="3"/>'
    parts += f'<circle cx="{x(row.mean)}" cy="{middle}" r="4" fill="{colour}"/>'
    look = f'width="{width}" height="{height}" style="vertical-align: middle"'
    return f'<svg role="img" aria-label="{escape(alt_text)}" {look}><title>{escape(alt_text)}</title>{parts}</svg>'
