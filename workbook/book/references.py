"""The literature: data/book/references.yaml as records, as a page of the book, and as the links that end a chapter."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from workbook.places import data_path

SOURCE = data_path("book", "references.yaml")
TITLE = "Literature"
QUESTION = "Which works does the book build on, and what else has been proposed for which tokens a reward should move?"
ARXIV = "https://arxiv.org/abs/"


@dataclass(frozen=True)
class Reference:
    """A work: label (its name in chapters), authors with year, claim (a sentence), and the chapters that link to it.

    title: "" where only the label is at hand.  arxiv: its number, "" for a work that appeared elsewhere, in `where`.
    """

    label: str
    authors: str
    claim: str
    chapters: list[str] = field(default_factory=list)
    title: str = ""
    arxiv: str = ""
    where: str = ""

    @property
    def link(self) -> str:
        """It as Markdown: linked where it has an arXiv number, with author and year otherwise."""
        return f"[{self.label}]({ARXIV}{self.arxiv})" if self.arxiv else f"{self.label} ({self.authors})"


def references() -> list[Reference]:
    """Read all works, in the order of the file."""
    return [Reference(**record) for record in yaml.safe_load(SOURCE.read_text(encoding="utf-8"))]


def chapter_line(chapter: str) -> str:
    """The line of a chapter (two digits) that links to its literature; "" for none."""
    links = [work.link for work in references() if chapter in work.chapters]
    return f"**Literature.** {' · '.join(links)}" if links else ""


def references_body(chapters: Sequence[str] = ()) -> str:
    """What stands on the page, as HTML; chapters: file names to link to."""
    body = "".join(_section(work, chapters) for work in sorted(references(), key=lambda work: work.label.lower()))
    return f"<h1>{TITLE}</h1><p>{QUESTION}</p>{body}"


def _section(work: Reference, chapters: Sequence[str]) -> str:
    title = f"<i>{html.escape(work.title)}</i>. " if work.title else ""
    where = f'<a href="{ARXIV}{work.arxiv}">arXiv {work.arxiv}</a>' if work.arxiv else html.escape(work.where)
    pages = [(number, next((name for name in chapters if name.startswith(number)), None)) for number in work.chapters]
    links = ", ".join(f'<a href="{page}.html">{number}</a>' if page else number for number, page in pages)
    authors = f"({work.authors[-5:]}" if work.arxiv and work.arxiv in work.authors else html.escape(work.authors)
    return (
        f'<section id="{work.label.replace(" ", "-")}"><h2>{html.escape(work.label)}</h2>'
        f"<p>{authors}. {title}{where}.</p><p>{html.escape(work.claim)}</p>"
        f"<p>In {'chapters' if len(pages) > 1 else 'chapter'} {links}.</p></section>\n"
    )
