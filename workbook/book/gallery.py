"""The papers, figure by figure (chapter 14): data/book/figures.yaml as records, and as cards in the chapter.

show_figure("H 1")        what the paper shows, what stands for it here, what differs, and what the ledger says
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import yaml

from workbook.claims.text import format_effect, registered
from workbook.places import data_path

READING = "[reading] "


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, and what stands for it in the book; fields as data/book/figures.yaml says."""

    figure: str
    names: str
    shows: str
    here: str
    differs: str
    keys: Sequence[str]
    chapter: str
    live: Sequence[str] = ()
    measured: Sequence[str] = ()
    knobs: Sequence[str] = ()
    reading: bool = False


def figures() -> dict[str, Figure]:
    """Read all records, by their names."""
    records = yaml.safe_load(data_path("book", "figures.yaml").read_text(encoding="utf-8"))
    return {record["figure"]: Figure(**record) for record in records}


class FigureCard:
    """A figure's record as a card on the page, and as text in a terminal."""

    def __init__(self, figure: Figure):
        self.figure = figure
        self.outcomes = [registered()[key] for key in figure.keys]

    @property
    def lines(self) -> dict[str, str]:
        """What the card says, by the heading of each line."""
        one = self.figure
        lines = {f"Paper {one.figure[0]}, {one.names}": READING * one.reading + one.shows, "Here": one.here}
        return lines | ({"Knobs": ", ".join(one.knobs)} if one.knobs else {}) | {"What differs": one.differs}

    def __repr__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.lines.items()]
        rows = [f"  {row.key}: {row.outcome}, {format_effect(row)} {row.unit}".rstrip() for row in self.outcomes]
        return "\n".join([*lines, "Outcomes:", *rows])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p><b>{html.escape(name)}.</b> {html.escape(text)}</p>" for name, text in self.lines.items())
        rows = "".join(map(_outcome, self.outcomes))
        more = f'<p>More: <a href="{self.figure.chapter}.ipynb">chapter {self.figure.chapter[:2]}</a></p>'
        return f"{lines}<p><b>What the ledger says.</b></p><ul>{rows}</ul>{more}"


def _outcome(row) -> str:
    """One row of the ledger as an item of a list: outcome, number with interval, and what was measured."""
    number = html.escape(f"{format_effect(row)} {row.unit}".rstrip())
    measured = f'<abbr title="{html.escape(row.key)}">{html.escape(row.measured.rstrip("."))}</abbr>'
    return f"<li><b>{row.outcome}</b>: {measured}: {number}</li>"


def show_figure(name: str) -> FigureCard:
    """A card: what the paper shows, what stands for it here with which knobs, what differs, and the ledger's outcomes.

    Raises ValueError for a name that the gallery does not have.
    """
    if name not in (known := figures()):
        raise ValueError(f"figure={name!r} is not in the gallery; there are {', '.join(known)}.")
    return FigureCard(known[name])


def gallery_table() -> pd.DataFrame:
    """All figures at a glance: index the figure; what the paper shows, live (whether it is computed anew), outcome.

    outcome: of the first row of the ledger that is named.
    """
    rows = [
        {
            "figure": one.figure,
            "paper shows": READING * one.reading + one.shows,
            "computed live": "yes" if one.live else "no",
            "row": one.keys[0],
            "outcome": registered()[one.keys[0]].outcome,
        }
        for one in figures().values()
    ]
    return pd.DataFrame(rows).set_index("figure")
