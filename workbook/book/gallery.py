"""The papers, figure by figure (chapter 14): data/book/figures.yaml as records, and as cards in the chapter.

show_figure("H 1")        what the paper shows, what stands for it here, what differs, and what the ledger says
"""

from __future__ import annotations

import html
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path

import pandas as pd
import yaml

from workbook.claims.show import registered
from workbook.claims.text import format_effect
from workbook.places import data_path
from workbook.training.messages import show_value

SOURCE = data_path("book", "figures.yaml")
PAPERS = {
    "H": "The Cancellation Hypothesis in Critic-Free RL (arXiv 2605.08666)",
    "D": "Design Conditions for Intra-Group Learning: Token Gradient Cancellation (arXiv 2604.13088)",
}
READING = "[reading] "


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, and what stands for it in the book; fields as data/book/figures.yaml says."""

    figure: str
    names: str
    shows: str
    here: str
    differs: str
    keys: list[str]
    chapter: str
    live: list[str] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    knobs: list[str] = field(default_factory=list)
    reading: bool = False

    @property
    def paper(self) -> str:
        return self.figure[0]

    @property
    def functions(self) -> list[str]:
        """Names, below `workbook`, of what computes or draws it."""
        return [*self.live, *self.measured]


LISTS = tuple(part.name for part in fields(Figure) if "list" in part.type)
NEEDED = tuple(part.name for part in fields(Figure) if part.default is MISSING and part.default_factory is MISSING)


def figures(path: Path = SOURCE) -> dict[str, Figure]:
    """Read all records, by their names.

    Raises ValueError, a sentence that names the record, the field and what would be valid, for one that is wrong.
    """
    records = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(records, list) or not records:
        raise ValueError(f"{path.name} must be a list of records, one a figure.")
    read = [_figure(path.name, record) for record in records]
    names = [one.figure for one in read]
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise ValueError(f"{path.name}: figure {show_value(twice[0])} stands twice; name each once.")
    return {one.figure: one for one in read}


def _figure(file: str, record) -> Figure:
    """A record, checked."""
    if not isinstance(record, dict):
        raise ValueError(f"{file}: {show_value(record)} must be a mapping with the fields {', '.join(NEEDED)}.")
    here = f"{file}: the record {show_value(record.get('figure'))}"
    known = [part.name for part in fields(Figure)]
    if unknown := [name for name in record if name not in known]:
        raise ValueError(f"{here} has the field {show_value(unknown[0])}; it may have {', '.join(known)}.")
    if missing := [name for name in NEEDED if record.get(name) in (None, "")]:
        raise ValueError(f"{here} lacks {missing[0]}.")
    for name, value in record.items():
        if name in LISTS and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise ValueError(f"{here}: {name} is {show_value(value)}; it must be a list of texts.")
        if name not in (*LISTS, "reading") and not isinstance(value, str):
            raise ValueError(f"{here}: {name} is {show_value(value)}; it must be a text.")
    if record["figure"][0] not in PAPERS:
        raise ValueError(f"{here}: its name must begin with one of {', '.join(PAPERS)}, the paper's letter.")
    if not isinstance(record.get("reading", False), bool):
        raise ValueError(f"{here}: reading is {show_value(record['reading'])}; it must be true or false.")
    return Figure(**record)


def find_figure(name: str) -> Figure:
    """The record of a figure. Raises ValueError, with neighbours, where there is none of this name."""
    known = figures()
    if name not in known:
        near = get_close_matches(str(name), known, 3, 0.4) or list(known)
        raise ValueError(f"figure={show_value(name)} is not in the gallery; there are {', '.join(near)}.")
    return known[name]


class FigureCard:
    """A figure's record as a card on the page, and as text in a terminal."""

    def __init__(self, figure: Figure):
        self.figure = figure
        self.outcomes = [registered()[key] for key in figure.keys]

    @property
    def lines(self) -> dict[str, str]:
        """What the card says, by the heading of each line."""
        one = self.figure
        lines = {f"Paper {one.paper}, {one.names}": READING * one.reading + one.shows, "Here": one.here}
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
    return FigureCard(find_figure(name))


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
