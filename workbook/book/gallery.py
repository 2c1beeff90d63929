"""The papers, figure by figure (chapter 14), from data/book/figures.yaml."""

import html
from types import SimpleNamespace

import pandas as pd

from workbook.book.cards import outcome_badge
from workbook.ledger import format_number, read_book, registered
from workbook.messages import InvalidValue

READING = "[reading] "


def figures() -> dict[str, SimpleNamespace]:
    """Read the records of data/book/figures.yaml, whose first lines say what the fields are, by
    their names.
    """
    records = read_book("figures")
    given = {"live": [], "measured": [], "controls": [], "keys": [], "reading": False}
    return {record["figure"]: SimpleNamespace(**given | record) for record in records}


class FigureCard:
    """A figure's record as a card on the page, and as text in a terminal."""

    def __init__(self, figure: SimpleNamespace):
        self.figure = figure
        self.outcomes = [registered()[key] for key in figure.keys]
        shows = READING * figure.reading + figure.shows
        self.lines = {f"Paper {figure.figure[-1]}, {figure.names}": shows, "Here": figure.here}
        self.lines |= {"Controls": ", ".join(figure.controls)} if figure.controls else {}
        self.lines |= {"What differs": figure.differs}

    def __repr__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.lines.items()]
        rows = [f"  {row.key}: {row.outcome}, {format_number(row)}" for row in self.outcomes]
        return "\n".join([*lines, *(["Outcomes:"] if rows else []), *rows])

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<p><b>{html.escape(name)}.</b> {html.escape(text)}</p>"
            for name, text in self.lines.items()
        )
        rows = ""
        for row in self.outcomes:
            number = html.escape(format_number(row))
            measured = f'<abbr title="{html.escape(row.key)}">{html.escape(row.measured)}</abbr>'
            rows += f"<li>{outcome_badge(row.outcome)} {measured}: {number}</li>"
        more = (
            f'<p>More: <a href="{self.figure.chapter}.ipynb">chapter'
            f" {self.figure.chapter[:2]}</a></p>"
        )
        return (
            lines + (f"<p><b>What the ledger says.</b></p><ul>{rows}</ul>" if rows else "") + more
        )


def show_figure(name: str) -> FigureCard:
    """Show what the paper has, what stands for it here with which controls, what differs, and the
    ledger's outcomes.
    """
    if name not in (known := figures()):
        raise InvalidValue("figure", name, tuple(known))
    return FigureCard(known[name])


def gallery_table() -> pd.DataFrame:
    """All figures at a glance: what the paper shows, whether it is computed anew, and the first
    row's outcome.
    """
    rows = [
        (
            one.figure,
            READING * one.reading + one.shows,
            "yes" if one.live else "no",
            outcome_word(one.keys),
        )
        for one in figures().values()
    ]
    columns = ["figure", "paper shows", "computed live", "outcome"]
    return pd.DataFrame(rows, columns=columns).set_index("figure")


def outcome_word(keys: list[str]) -> str:
    """The outcome of the first of some rows of the ledger."""
    return registered()[keys[0]].outcome if keys else "no counterpart"
