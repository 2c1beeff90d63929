"""The papers, figure by figure (chapter 14), from data/book/figures.yaml."""

import html
from types import SimpleNamespace

import pandas as pd

from workbook.book.cards import outcome_badge
from workbook.ledger import format_number, read_book, registered
from workbook.messages import require_one_of

# before what is reconstructed, not read off the paper
_READING = "[reading] "


def read_figures() -> dict[str, SimpleNamespace]:
    """Read {name: record} of data/book/figures.yaml, whose first lines say what the fields are."""
    defaults = {"live": [], "measured": [], "controls": [], "keys": [], "reading": False}
    return {
        record["figure"]: SimpleNamespace(**{**defaults, **record})
        for record in read_book("figures")
    }


def _what_it_shows(figure: SimpleNamespace) -> str:
    return _READING + figure.shows if figure.reading else figure.shows


class FigureCard:
    """A figure's record as a card on the page, and as text in a terminal."""

    def __init__(self, figure: SimpleNamespace):
        self.figure = figure
        self.outcomes = [registered()[key] for key in figure.keys]
        self.lines = {
            f"Paper {figure.figure[-1]}, {figure.names}": _what_it_shows(figure),
            "Here": figure.here,
        }
        if figure.controls:
            self.lines["Controls"] = ", ".join(figure.controls)
        self.lines["What differs"] = figure.differs

    def __repr__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.lines.items()]
        rows = [f"  {row.key}: {row.outcome}, {format_number(row)}" for row in self.outcomes]
        if rows:
            lines += ["Outcomes:", *rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<p><b>{html.escape(name)}.</b> {html.escape(text)}</p>"
            for name, text in self.lines.items()
        )
        rows = []
        for row in self.outcomes:
            number = html.escape(format_number(row))
            measured = f'<abbr title="{html.escape(row.key)}">{html.escape(row.measured)}</abbr>'
            rows.append(f"<li>{outcome_badge(row.outcome)} {measured}: {number}</li>")
        outcomes = ""
        if rows:
            outcomes = f"<p><b>What the ledger says.</b></p><ul>{''.join(rows)}</ul>"
        chapter = self.figure.chapter
        link = f'<a href="{chapter}.ipynb">chapter {chapter[:2]}</a>'
        return f"{lines}{outcomes}<p>More: {link}</p>"


def show_figure(name: str) -> FigureCard:
    """Show what the paper has, what stands for it here, what differs, and the ledger's outcomes."""
    figures = read_figures()
    require_one_of("figure", name, tuple(figures))
    return FigureCard(figures[name])


def gallery_table() -> pd.DataFrame:
    """All figures: what the paper shows, whether it is computed live, the first row's outcome."""
    rows = []
    for one in read_figures().values():
        live = "yes" if one.live else "no"
        rows.append((one.figure, _what_it_shows(one), live, outcome_word(one.keys)))
    columns = ["figure", "paper shows", "computed live", "outcome"]
    return pd.DataFrame(rows, columns=columns).set_index("figure")


def outcome_word(keys: list[str]) -> str:
    """The outcome of the first of some rows of the ledger."""
    return registered()[keys[0]].outcome if keys else "no counterpart"
