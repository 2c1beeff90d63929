"""Rows of the ledger in a chapter: a line each with a word in its colour, which opens the row
behind it.
"""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Mapping
from html import escape

from workbook.ledger import DOES_NOT_HOLD, HOLDS, format_number, row_of, stated_of

BLUE, ORANGE, GREY = "#1f5fa8", "#a8480c", "#555555"
COLOURS = {HOLDS: BLUE, DOES_NOT_HOLD: ORANGE}
BADGE = '<b style="background: {}; color: white; padding: 0 0.4em; border-radius: 0.3em">{}</b>'
WIDTH = 100  # columns of a text, at most
BAR = 150, 18  # pixels of the picture of an interval: width, height


def outcome_badge(outcome: str) -> str:
    """The word on its colour, as HTML."""
    return BADGE.format(COLOURS.get(outcome, GREY), outcome)


class ClaimLines:
    """Rows of the ledger under a sentence each: HTML that opens on a page, text wrapped to a
    terminal.
    """

    def __init__(self, lines: list[tuple[str, tuple]]):
        self.lines = lines

    def __repr__(self) -> str:
        width = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
        parts = []
        for text, row in self.lines:
            parts.append(f"{row.outcome}: {text} ({row.key}, {row.role})")
            more = f"{row.measured}: {stated_of(row)}"
            parts.append(
                textwrap.fill(more, width, initial_indent="    ", subsequent_indent="    ")
            )
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        parts = []
        for text, row in self.lines:
            line = f"{outcome_badge(row.outcome)} {escape(text, quote=False)} {interval_bar(row)}"
            more = escape(f"{row.key}, {row.role}: {row.measured}: {stated_of(row)}.")
            parts.append(f"<details><summary>{line}</summary><p>{more}</p></details>")
        return "".join(parts)


def show_claims(sentences: Mapping[str, str], scale: str = "family") -> ClaimLines:
    """Show sentences, each of which states the claim of a row {key: sentence}, with the row's word;
    a click opens it.

    scale: of the rows, such as "world:third".

    >>> show_claims({"H3": "Identical unsure tokens move together."})  # doctest: +ELLIPSIS
    holds: Identical unsure tokens move together. (H3, primary)
    ...
    """
    return ClaimLines([(text, row_of(key, scale)) for key, text in sentences.items()])


def show_outcomes(*keys: str, scale: str = "family") -> None:
    """Show registered rows: a primary one under its claim in a few words, others under what was
    measured.
    """
    from IPython.display import display

    rows = show_claims(dict.fromkeys(keys, ""), scale).lines
    display(
        ClaimLines([(row.words if row.role == "primary" else row.measured, row) for _, row in rows])
    )


def interval_bar(row) -> str:
    """The interval as a picture with its number; the number alone without one. Grey: too small to
    matter; dashed: the threshold, with a mark to the side on which the claim lies."""
    number = escape(format_number(row))
    ends = (row.low, row.high, row.mean, row.threshold, row.smallest_effect, row.toward)
    if not all(map(math.isfinite, ends)) or (row.log and min(row.low, row.threshold) <= 0):
        return number if math.isfinite(row.mean) else ""
    scale = math.log if row.log else float
    zone = [row.threshold - row.smallest_effect, row.threshold + row.smallest_effect]
    ends = [scale(number) for number in (row.low, row.high, row.mean, *zone)]
    start, span, (width, height) = min(ends), (max(ends) - min(ends)) or 1.0, BAR

    def x(number: float) -> float:
        return round(6 + (scale(number) - start) / span * (width - 12), 1)

    alt_text = (
        f"{number}; threshold {row.threshold:g}, smallest effect of interest"
        f" {row.smallest_effect:g}"
    )
    middle, colour = height / 2, COLOURS.get(row.outcome, GREY)
    parts = (
        f'<rect x="{x(zone[0])}" y="0" width="{x(zone[1]) - x(zone[0]):.1f}" height="{height}"'
        ' fill="#8883"/>'
    )
    parts += (
        f'<path d="M{x(row.threshold)} 0V{height}" stroke="currentColor" stroke-dasharray="3 2"/>'
    )
    parts += (
        f'<path d="M{x(row.threshold)} 0l{6 * row.toward:g} 3l{-6 * row.toward:g} 3z"'
        ' fill="currentColor"/>'
    )
    parts += f'<path d="M{x(row.low)} {middle}H{x(row.high)}" stroke="{colour}" stroke-width="3"/>'
    parts += f'<circle cx="{x(row.mean)}" cy="{middle}" r="4" fill="{colour}"/>'
    look = f'width="{width}" height="{height}" style="vertical-align: middle"'
    return (
        f'<svg role="img" aria-label="{alt_text}" {look}><title>{alt_text}</title>{parts}</svg>'
        f" {number}"
    )
