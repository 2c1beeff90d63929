"""Texts in light Markdown on a terminal: wrapped to its width, in colour where somebody looks,
plain in a pipe.

Known are **bold**, *aside*, `code`, tables, and lines that begin with spaces, a number or a dash
and hang below that.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from workbook.messages import markdown_table

WIDTH = 100  # columns, at most
MARKS = {
    r"\*\*(.+?)\*\*": "bold",
    r"(?<![\w*])\*(?=\S)([^*]+?)(?<=\S)\*(?![\w*])": "dim",
    r"`([^`]+)`": "cyan",
}
SIGNS = {"✓": "green", "✗": "red", "≈": "blue", "?": "yellow"}  # where a text begins
LITERAL = {ord(mark): 0xE000 + k for k, mark in enumerate("*`|")}  # a mark that is none
HANGING = re.compile(r" *(?:\d+\. |- )?")


def show(text: str) -> None:
    """Print a text for whoever reads standard output."""
    looks = sys.stdout.isatty()
    print(laid_out(text, min(shutil.get_terminal_size().columns, WIDTH) if looks else WIDTH, looks))


def laid_out(text: str, width: int = WIDTH, rich: bool = False) -> str:
    """Lay a text out in lines of at most `width` columns; rich: with a terminal's codes.

    >>> print(laid_out("1. **So** it is, and so on.\\n| a | b |\\n|---|---|\\n| c | ✓ d e |", 14))
    1. So it is,
       and so on.
    a  b
    c  ✓ d e
    """
    look = {
        "force_terminal": rich,
        "force_jupyter": False,
        "highlight": False,
        "legacy_windows": False,
    }
    console = Console(file=io.StringIO(), width=width, **look)
    for is_table, block in groupby(text.split("\n"), key=lambda line: line.startswith("|")):
        if is_table:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True)
            names, *rows = (
                map(_styled, line[2:-2].split(" | ")) for line in block if set(line) - set("|- ")
            )
            for name in names:
                table.add_column(name, overflow="fold")
            for row in rows:
                table.add_row(*row)
            console.print(table)
            continue
        for line in block:
            start = HANGING.match(line)[0]
            whole = line[len(start) :].startswith("$ ")  # a command, to be copied
            parts = (
                [_styled(line[len(start) :])]
                if whole
                else _styled(line[len(start) :]).wrap(console, width - len(start))
            )
            for k, part in enumerate(parts or [Text()]):
                console.print(
                    Text(" " * len(start) if k else start).append_text(part), soft_wrap=True
                )
    lines = (line.rstrip() for line in console.file.getvalue().split("\n")[:-1])
    return "\n".join(lines).translate({private: mark for mark, private in LITERAL.items()})


def frame_table(frame) -> str:
    """Write a DataFrame's columns as a table in Markdown, its texts as they are."""
    cells = frame.map(
        lambda x: f"{x:.4g}".replace("nan", "") if isinstance(x, float) else literal(x)
    )
    return markdown_table(list(frame), cells.itertuples(index=False))


def literal(text) -> str:
    """Text of somebody else's, in which no mark means anything."""
    return str(text).translate(LITERAL)


def _styled(text: str) -> Text:
    text = escape(text)
    for mark, style in MARKS.items():
        text = re.sub(mark, rf"[{style}]\1[/]", text)
    sign = text.lstrip()[:1]
    return Text.from_markup(
        text.replace(sign, f"[{SIGNS[sign]}]{sign}[/]", 1) if sign in SIGNS else text
    )
