"""The book's lists from data/book: glossary, literature and the ten questions, as records and as pages in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from string import Template

import yaml

from workbook.book import chapters
from workbook.places import data_path

ARXIV = "https://arxiv.org/abs/"


@dataclass(frozen=True)
class Term:
    """A term with its formula (TeX), unit, meaning (a sentence), the chapter that first uses it, and its code.

    words: the formula without TeX.  expect, worry: what a reader should see of it, and what is a bad sign, "" for
    neither.  forms: in which chapters use it, none for a word that means too much else.  code: name below `workbook` of
    what computes it.  constants: {$name in the texts: name below `workbook`}, so that no number stands in two places.
    """

    term: str
    formula: str
    unit: str
    meaning: str
    chapter: str
    code: str
    words: str
    expect: str = ""
    worry: str = ""
    forms: Sequence[str] = ()
    constants: dict[str, str] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        """What to expect and when to worry, as sentences; "" for neither."""
        parts = ("Expect", self.expect), ("Worry", self.worry)
        return " ".join(f"{begin}: {text}." for begin, text in parts if text)


@dataclass(frozen=True)
class Reference:
    """A work: label (its name in chapters), authors with year, claim (a sentence), and the chapters that link to it.

    title: "" where only the label is at hand.  arxiv: its number, "" for a work that appeared elsewhere, in `where`.
    """

    label: str
    authors: str
    claim: str
    chapters: Sequence[str] = ()
    title: str = ""
    arxiv: str = ""
    where: str = ""


@dataclass(frozen=True)
class Question:
    """A question of the self-test with its answer; cells: {chapter: the heading of the section that answers it}."""

    question: str
    answer: str
    cells: dict[str, str]


def read_list(kind: type) -> list:
    """Read the records of a kind (Term, Reference or Question), in the order of the file."""
    names = {Term: "glossary", Reference: "references", Question: "self_test"}
    return [kind(**record) for record in yaml.safe_load(data_path("book", f"{names[kind]}.yaml").read_text("utf-8"))]


def glossary() -> list[Term]:
    """Read all terms, with the values of their constants filled in."""
    terms = []
    for term in read_list(Term):
        values = {key: f"{resolve_name(f'workbook.{name}'):g}" for key, name in term.constants.items()}
        texts = ("formula", "meaning", "words", "expect", "worry")
        filled = {name: Template(getattr(term, name)).substitute(values) for name in texts}
        terms.append(Term(**vars(term) | filled))
    return terms


def chapter_line(chapter: str) -> str:
    """The line of a chapter (two digits) that links to its literature; "" for none."""
    works = [work for work in read_list(Reference) if chapter in work.chapters]
    links = [f"[{w.label}]({ARXIV}{w.arxiv})" if w.arxiv else f"{w.label} ({w.authors})" for w in works]
    return f"**Literature.** {' · '.join(links)}" if links else ""


def glossary_page() -> str:
    """Write the glossary as Markdown, a section for each term."""
    parts = ["# Glossary\n\nWhat do the book's terms mean, by which formula and in which unit?"]
    for one in sorted(glossary(), key=lambda term: term.term):
        parts += [f"## {one.term}\n\n$$\n{one.formula}\n$$\n\n{one.meaning} {one.advice}"]
        parts += [f"Unit: {one.unit}. First in {_chapter(one.chapter)}; `workbook.{one.code}`"]
    return "\n\n".join(parts)


def references_page() -> str:
    """Write the literature as Markdown, a section for each work."""
    parts = ["# Literature\n\nWhich works does the book build on, and what else has been proposed?"]
    for work in sorted(read_list(Reference), key=lambda work: work.label.lower()):
        where = f"[arXiv {work.arxiv}]({ARXIV}{work.arxiv})" if work.arxiv else work.where
        title = f"*{work.title}*. " if work.title else ""
        parts += [f"## {work.label}\n\n{work.authors}. {title}{where}.\n\n{work.claim}"]
        parts += [f"In {', '.join(map(_chapter, work.chapters))}."]
    return "\n\n".join(parts)


def self_test_page() -> str:
    """Write the self-test as Markdown: ten questions, whose folded answers lead to their sections."""
    head = "# Ten questions\n\nDo you know what chapters 00 to 05 say? Answer each for yourself, then open its answer."
    return f"{head}\n\n{_questions(_chapter)}"


def ten_questions():
    """Show the self-test in a notebook, each answer folded."""
    from IPython.display import Markdown

    return Markdown(_questions(lambda chapter, heading: f"chapter {chapter}, “{heading}”"))


def _questions(place) -> str:
    texts = []
    for k, one in enumerate(read_list(Question), 1):
        places = "; ".join(place(chapter, heading) for chapter, heading in one.cells.items())
        folded = f"<details><summary>Answer</summary>\n\n{one.answer} ({places})\n\n</details>"
        texts.append(f"**{k}.** {one.question}\n\n{folded}")
    return "\n\n".join(texts)


def _chapter(chapter: str, heading: str = "") -> str:
    """A link to a chapter by its number, or to one of its sections by the heading."""
    anchor = f"#{heading.replace(' ', '-')}" if heading else ""
    text = f"chapter {chapter}, “{heading}”" if heading else f"chapter {chapter}"
    path = next(chapters.NOTEBOOKS.glob(f"{chapter}_*.ipynb"), None)
    return text if path is None else f"[{text}](<{path.name}{anchor}>)"
