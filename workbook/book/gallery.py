"""The papers, figure by figure (chapter 14), from data/book/figures.yaml."""

import html
import textwrap
from types import SimpleNamespace

import pandas as pd

from workbook.book.cards import outcome_badge
from workbook.ledger import format_number, read_book, registered
from workbook.messages import require_one_of

# before what is reconstructed, not read off the paper
_READING = "[reading] "
_NO_COUNTERPART = "no counterpart"
PAPERS = ("H", "D")
_CELL = "text-align: left; vertical-align: top"


def read_figures() -> dict[str, SimpleNamespace]:
    """Read {name: record} of data/book/figures.yaml, whose first lines say what the fields are."""
    defaults = {"live": [], "keys": [], "reading": False}
    return {
        record["figure"]: SimpleNamespace(**{**defaults, **record})
        for record in read_book("figures")
    }


def gallery_table(paper: str | None = None) -> pd.DataFrame:
    """A row per figure: what the paper shows, what is here, the chapter, the first row's word.

    paper: "H" (arXiv 2605.08666) or "D" (arXiv 2604.13088); both by default.
    """
    if paper is not None:
        require_one_of("paper", paper, PAPERS)
    rows = []
    for one in read_figures().values():
        if paper in (None, one.figure[-1]):
            shows = _READING + one.shows if one.reading else one.shows
            word = registered()[one.keys[0]].outcome if one.keys else _NO_COUNTERPART
            chapter = one.chapter[:2] if one.keys else ""
            rows.append((one.figure, shows, one.here, chapter, word))
    columns = ["figure", "the paper shows", "here", "chapter", "word"]
    return pd.DataFrame(rows, columns=columns).set_index("figure")


class Gallery:
    """The figures of a paper as a table whose words open their rows; text in a terminal."""

    def __init__(self, paper: str):
        self.table = gallery_table(paper)
        figures = read_figures()
        self.figures = [figures[name] for name in self.table.index]

    def __repr__(self) -> str:
        lines = []
        for row in self.table.itertuples():
            _, shows, here, chapter, word = row
            lines.append(f"{row.Index}: {word}" + (f", chapter {chapter}" if chapter else ""))
            for name, text in (("The paper", shows), ("Here", here)):
                indent = "    "
                lines.append(
                    textwrap.fill(
                        f"{name}: {text}", 100, initial_indent=indent, subsequent_indent=indent
                    )
                )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        names = [self.table.index.name, *self.table.columns]
        head = "".join(f'<th style="{_CELL}">{name}</th>' for name in names)
        body = []
        for one, row in zip(self.figures, self.table.itertuples(), strict=True):
            _, shows, here, chapter, word = row
            link = f'<a href="{one.chapter}.ipynb">{chapter}</a>' if chapter else "—"
            texts = [f"<b>{one.figure}</b>", html.escape(shows), html.escape(here), link]
            cells = "".join(f'<td style="{_CELL}">{text}</td>' for text in texts)
            body.append(f'<tr>{cells}<td style="{_CELL}">{_word(one, word)}</td></tr>')
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _word(one: SimpleNamespace, word: str) -> str:
    """A figure's word, which opens what was measured."""
    if not one.keys:
        return word
    rows = []
    for key in one.keys:
        row = registered()[key]
        measured = html.escape(f"{row.measured}: {format_number(row)}")
        rows.append(f"<p>{row.outcome}: {measured} ({html.escape(key)})</p>")
    return f"<details><summary>{outcome_badge(word)}</summary>{''.join(rows)}</details>"


def show_gallery(paper: str) -> Gallery:
    """Show the figures and tables of paper "H" or "D", with what stands for each in this book."""
    return Gallery(paper)
