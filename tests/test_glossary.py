"""The glossary: formulas render, constants are the code's own, every term leads to code and a chapter."""

import re
from pkgutil import resolve_name

import pytest
import yaml
from latex2mathml.converter import convert

from workbook.__main__ import main
from workbook.book import glossary as book
from workbook.book.chapters import find_chapters
from workbook.theory.coupling import UNSURE
from workbook.topics.flips.claims import EPS

TERMS = book.glossary()
RECORDS = yaml.safe_load(book.SOURCE.read_text(encoding="utf-8"))
PRIVATE = {"push", "learning tax", "score", "residual", "sure and unsure", "word-shared", "sign-shared", "specific"}


def test_the_books_own_words_are_there_once():
    names = [term.term for term in TERMS]
    assert len(names) == len(set(names)) >= 25
    assert set(names) >= PRIVATE | {"advantage", "credit", "coupling", "value gap", "jitter", "outcome of a claim"}


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.term)
def test_a_term_is_whole(term):
    markup = convert(term.formula)
    assert markup.startswith("<math")
    assert "merror" not in markup
    assert "\\" not in re.sub("&#x[0-9A-F]+;", "", markup), "a command that was not understood"
    assert "$" not in term.formula + term.meaning
    assert resolve_name(f"workbook.{term.code}") is not None
    assert term.meaning.endswith(".")
    assert len(find_chapters([term.chapter])) == 1


def test_constants_are_read_from_the_code(monkeypatch):
    assert f"below a probability of {UNSURE:g}" in book.find_term("unsure").meaning
    assert f"{EPS:g} nats" in book.find_term("boosted").meaning
    monkeypatch.setattr("workbook.theory.coupling.UNSURE", 0.123)
    assert "< 0.123" in book.find_term("unsure").formula
    for record in RECORDS:
        numbers = {f"{resolve_name(f'workbook.{name}'):g}" for name in record.get("constants", {}).values()}
        assert not numbers & set(re.findall(r"[\d.]+\d", record["meaning"] + record["formula"])), record["term"]


def test_the_page_has_every_formula_and_leads_to_chapters():
    page = book.glossary_body(["02_cancellation_in_a_group", "03_x"])
    assert page.count("<math") == page.count("<section") == len(TERMS)
    assert 'href="02_cancellation_in_a_group.html">chapter 02' in page
    assert 'id="learning-tax"' in page
    assert "<script" not in page


def test_the_command_prints_one_term_or_all(capsys):
    assert main(["glossary", "push"]) == 0
    assert capsys.readouterr().out.startswith("push  [")
    assert main(["glossary"]) == 0
    assert capsys.readouterr().out.count("workbook.") == len(TERMS)


@pytest.mark.parametrize(
    ("name", "words"),
    [("shared", "word-shared, sign-shared"), ("jiter", "did you mean jitter"), ("zebra", "lists them")],
)
def test_an_unknown_term_is_answered_with_its_neighbours(name, words, capsys):
    assert main(["glossary", name]) == 2
    assert words in capsys.readouterr().err
