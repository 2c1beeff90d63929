"""Light Markdown on a terminal: wrapped to its width, coloured on a screen, plain in a pipe.

It knows **bold**, *aside*, `code` and tables. A line that begins with spaces, a number or a dash is
wrapped to hang below its text.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from workbook.messages import markdown_table

_MAX_COLUMNS = 100
# {mark: style}
_STYLES = {
    r"\*\*(.+?)\*\*": "bold",
    r"(?<![\w*])\*(?=\S)([^*]+?)(?<=\S)\*(?![\w*])": "dim",
    r"`([^`]+)`": "cyan",
}
# colours of a mark at the beginning of a text
_MARK_COLORS = {"✓": "green", "✗": "red", "≈": "blue", "?": "yellow"}
# a character that means nothing stands for each mark in somebody else's text
_LITERAL = {ord(mark): 0xE000 + k for k, mark in enumerate("*`|")}
_HANGING = re.compile(r" *(?:\d+\. |- )?")


def print_text(text: str) -> None:
    """Print a text for whoever reads standard output."""
    is_screen = sys.stdout.isatty()
    width = _MAX_COLUMNS
    if is_screen:
        width = min(shutil.get_terminal_size().columns, width)
    print(laid_out(text, width, is_screen))


def laid_out(text: str, width: int = _MAX_COLUMNS, rich: bool = False) -> str:
    """Lay a text out in lines of at most `width` columns; rich: with a terminal's codes.

    >>> print(laid_out("1. **So** it is, and so on.\\n| a | b |\\n|---|---|\\n| c | ✓ d e |", 14))
    1. So it is,
       and so on.
    a  b
    c  ✓ d e
    """
    # in a notebook rich would display the text instead of returning it
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=rich,
        force_jupyter=False,
        highlight=False,
        legacy_windows=False,
    )
    for is_table, block in groupby(text.split("\n"), key=lambda line: line.startswith("|")):
        if is_table:
            _print_table(console, block)
        else:
            for line in block:
                _print_line(console, line, width)
    lines = [line.rstrip() for line in console.file.getvalue().split("\n")[:-1]]
    return "\n".join(lines).translate({private: mark for mark, private in _LITERAL.items()})


def _print_table(console: Console, lines: Iterable[str]) -> None:
    """Print a table in Markdown, its rule of dashes left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True)
    rows = [line[2:-2].split(" | ") for line in lines if set(line) - set("|- ")]
    names, *rows = [list(map(_styled, row)) for row in rows]
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_line(console: Console, line: str, width: int) -> None:
    """Print a line, wrapped below its text."""
    start = _HANGING.match(line)[0]
    text = line[len(start) :]
    # a command stays on one line, to be copied
    if text.startswith("$ "):
        parts = [_styled(text)]
    else:
        parts = _styled(text).wrap(console, width - len(start)) or [Text()]
    for k, part in enumerate(parts):
        indent = " " * len(start) if k else start
        console.print(Text(indent).append_text(part), soft_wrap=True)


def frame_table(frame) -> str:
    """Write a DataFrame's columns as a table in Markdown, its texts as they are."""

    def cell(value) -> str:
        return f"{value:.4g}".replace("nan", "") if isinstance(value, float) else literal(value)

    return markdown_table(list(frame), frame.map(cell).itertuples(index=False))


def literal(text) -> str:
    """Text of somebody else's, in which no mark means anything."""
    return str(text).translate(_LITERAL)


def _styled(text: str) -> Text:
    text = escape(text)
    for mark, style in _STYLES.items():
        text = re.sub(mark, rf"[{style}]\1[/]", text)
    first = text.lstrip()[:1]
    if first in _MARK_COLORS:
        text = text.replace(first, f"[{_MARK_COLORS[first]}]{first}[/]", 1)
    return Text.from_markup(text)
