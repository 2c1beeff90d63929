"""The glossary: data/book/glossary.yaml as records, as text for the command line, and as a page of the book.

Constants in it are read from the code, so that no number stands in two places.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pkgutil import resolve_name
from string import Template

import yaml

from workbook.book.parts import FORMULA
from workbook.places import data_path

SOURCE = data_path("book", "glossary.yaml")
TITLE = "Glossary"
QUESTION = "What do the book's terms mean, by which formula and in which unit?"


@dataclass(frozen=True)
class Term:
    """A term with its formula (TeX), unit, meaning (a sentence), the chapter that first uses it, and its code.

    words: the formula without TeX.  expect, worry: what a reader should see of it, and what is a bad sign, "" for
    neither.  forms: in which chapters use it, none for a word that means too much else.  code: name below `workbook` of
    what computes it.  constants: {$name in the texts: name below `workbook`}.
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
    forms: list[str] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        """What to expect and when to worry, as sentences; "" for neither."""
        parts = ("Expect", self.expect), ("Worry", self.worry)
        return " ".join(f"{begin}: {text}." for begin, text in parts if text)

    @property
    def anchor(self) -> str:
        """The id of its section on the page."""
        return self.term.replace(",", "").replace(" ", "-")


def glossary() -> list[Term]:
    """Read all terms, with the values of their constants filled in."""
    return [_filled(Term(**record)) for record in yaml.safe_load(SOURCE.read_text(encoding="utf-8"))]


def find_term(name: str) -> Term:
    """Find a term by its name, or by a part of it that no other has. Raises ValueError, with neighbours, otherwise."""
    terms = {term.term: term for term in glossary()}
    if name in terms:
        return terms[name]
    holding = [term for term in terms if name.lower() in term]
    if len(holding) == 1:
        return terms[holding[0]]
    near = holding or get_close_matches(name.lower(), terms, 3, 0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`python -m workbook glossary` lists them."
    raise ValueError(f"{name!r} is no term of the glossary; {hint}")


def glossary_text(name: str | None = None) -> str:
    """Format one term, or all of them, as text with formulas in TeX."""
    return "\n\n".join(_text(term) for term in ([find_term(name)] if name else glossary()))


def glossary_body(chapters: Sequence[str] = ()) -> str:
    """What stands on the page, as HTML; chapters: file names to link to."""
    body = "".join(_section(term, chapters) for term in sorted(glossary(), key=lambda term: term.term))
    return f"<h1>{TITLE}</h1><p>{QUESTION}</p>{body}"


def _filled(term: Term) -> Term:
    values = {key: f"{resolve_name(f'workbook.{name}'):g}" for key, name in term.constants.items()}
    texts = ("formula", "meaning", "words", "expect", "worry")
    filled = {name: Template(getattr(term, name)).substitute(values) for name in texts}
    return Term(**vars(term) | filled)


def _text(term: Term) -> str:
    advice = f"    {term.advice}\n" if term.advice else ""
    return (
        f"{term.term}  [{term.unit}]\n    {term.formula}\n    {term.meaning}\n{advice}"
        f"    chapter {term.chapter}, workbook.{term.code}"
    )


def _section(term: Term, chapters: Sequence[str]) -> str:
    """One term in HTML, its formula as MathML, with an anchor and a link to its chapter if there is a page of it."""
    from latex2mathml.converter import convert

    page = next((name for name in chapters if name.startswith(term.chapter)), None)
    chapter = f'<a href="{page}.html">chapter {term.chapter}</a>' if page else f"chapter {term.chapter}"
    return (
        f'<section id="{term.anchor}"><h2>{html.escape(term.term)}</h2>'
        f"{FORMULA.format(convert(term.formula, display='block'))}<p>{html.escape(term.meaning)}</p>"
        f"{f'<p>{html.escape(term.advice)}</p>' if term.advice else ''}"
        f"<p>Unit: {html.escape(term.unit)}. First in {chapter}; <code>workbook.{term.code}</code></p></section>\n"
    )
