"""Rows of the ledger in a chapter: each a line with its word in colour, which opens the row."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Mapping
from html import escape

from workbook.ledger import DOES_NOT_HOLD, HOLDS, format_number, row_of, stated_of

_GREY = "#555555"
# blue and orange; every other word is grey
_OUTCOME_COLORS = {HOLDS: "#1f5fa8", DOES_NOT_HOLD: "#a8480c"}
_OUTCOME_BADGE = (
    '<b style="background: {}; color: white; padding: 0 0.4em; border-radius: 0.3em">{}</b>'
)
_MAX_COLUMNS = 100
# pixels of the picture of an interval
_BAR_WIDTH = 150
_BAR_HEIGHT = 18


def outcome_badge(outcome: str) -> str:
    """The word on its colour, as HTML."""
    return _OUTCOME_BADGE.format(_OUTCOME_COLORS.get(outcome, _GREY), outcome)


class ClaimLines:
    """Rows of the ledger, each under a sentence: HTML that opens on a page, text in a terminal."""

    def __init__(self, lines: list[tuple[str, tuple]]):
        self.lines = lines

    def __repr__(self) -> str:
        width = min(shutil.get_terminal_size((_MAX_COLUMNS, 24)).columns, _MAX_COLUMNS)
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
    """Show sentences with the words of their rows; a click opens the row.

    sentences: {key of a row: what it claims}.  scale: of the rows, such as "world:third".

    >>> show_claims({"H3": "Identical unsure tokens move together."})  # doctest: +ELLIPSIS
    holds: Identical unsure tokens move together. (H3, primary)
    ...
    """
    return ClaimLines([(text, row_of(key, scale)) for key, text in sentences.items()])


def interval_bar(row) -> str:
    """The interval as a picture with its number; the number alone without an interval.

    Grey is what is too small to matter. The dashed line is the threshold, and a mark points to the
    side on which the claim lies.
    """
    number = escape(format_number(row))
    known = (row.low, row.high, row.mean, row.threshold, row.smallest_effect, row.toward)
    has_logarithm = not row.log or min(row.low, row.threshold) > 0
    if not all(map(math.isfinite, known)) or not has_logarithm:
        return number if math.isfinite(row.mean) else ""
    small_low = row.threshold - row.smallest_effect
    small_high = row.threshold + row.smallest_effect

    scale = math.log if row.log else float
    places = [scale(end) for end in (row.low, row.high, row.mean, small_low, small_high)]
    start = min(places)
    span = (max(places) - start) or 1.0

    # pixels, with room for half a dot at either end
    def x(value: float) -> float:
        return round(6 + (scale(value) - start) / span * (_BAR_WIDTH - 12), 1)

    middle = _BAR_HEIGHT / 2
    color = _OUTCOME_COLORS.get(row.outcome, _GREY)
    threshold = x(row.threshold)
    drawn = [
        f'<rect x="{x(small_low)}" y="0" width="{x(small_high) - x(small_low):.1f}"'
        f' height="{_BAR_HEIGHT}" fill="#8883"/>',
        f'<path d="M{threshold} 0V{_BAR_HEIGHT}" stroke="currentColor" stroke-dasharray="3 2"/>',
        f'<path d="M{threshold} 0l{6 * row.toward:g} 3l{-6 * row.toward:g} 3z"'
        ' fill="currentColor"/>',
        f'<path d="M{x(row.low)} {middle}H{x(row.high)}" stroke="{color}" stroke-width="3"/>',
        f'<circle cx="{x(row.mean)}" cy="{middle}" r="4" fill="{color}"/>',
    ]
    alt_text = (
        f"{number}; threshold {row.threshold:g}, smallest effect of interest"
        f" {row.smallest_effect:g}"
    )
    size = f'width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" style="vertical-align: middle"'
    svg = f'<svg role="img" aria-label="{alt_text}" {size}><title>{alt_text}</title>'
    return f"{svg}{''.join(drawn)}</svg> {number}"
