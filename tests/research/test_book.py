"""Lists and sentences of the book: glossary, literature, self-test, gallery, findings name what is
there.
"""

import html
import importlib
import json
import re
from dataclasses import fields
from pkgutil import resolve_name
from types import SimpleNamespace

import numpy as np
import pytest
from latex2mathml.converter import convert
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from refusals import refused

from workbook.book import back_matter, conclusions, evidence, gallery
from workbook.book.back_matter import glossary, read_list
from workbook.book.chapters import ROOT, find_chapters
from workbook.book.conclusions import (
    Finding,
    decisions_text,
    findings_markdown,
    read_findings,
    write_readme,
)
from workbook.book.decoration import tooltip_text
from workbook.book.pages import page_source
from workbook.colab import FOLDED
from workbook.ledger import CANNOT, OUTCOME_WORDS, experiments, kept_ledger, registered, row_of
from workbook.training import CancellationConfig

TERMS = {term.term: term for term in glossary()}
FIGURES = gallery.read_figures()
FINDINGS, DECISIONS = read_findings()
CODE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "workbook").rglob("*.py"))

INTERVAL = re.compile(r"(-?\d+(?:\.\d+)?)(?: %)? \[(-?\d+(?:\.\d+)?), (-?\d+(?:\.\d+)?)\]")
# numbers of two decimals or more, and what holds others: tags, formulas, code, addresses, arXiv's
# numbers
TEXTS = ("text/plain", "text/html", "application/vnd.workbook.controls+json")
TYPED = re.compile(r"\b\d+\.\d{2,}\b")
NO_PROSE = re.compile(
    r"<[^>]+>|```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|\b\d{4}\.\d{5}\b", re.DOTALL
)


def cells(chapter: str, kind: str) -> list[str]:
    notebook = json.loads(find_chapters([chapter])[0].read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_a_page_folds_what_jupyterlab_folds_and_of_set_up_also_what_it_prints():
    setup = "".join(cells("00", "code")[0])
    folded = [
        new_code_cell(text, metadata=FOLDED)
        for text in ("checked('b', 0, 1)\n", setup, f"{setup}\nform")
    ]
    page = page_source(
        new_notebook(cells=[new_markdown_cell("# A"), new_code_cell("chart"), *folded]), None
    )
    tags = [None, None, ["hide-input"], ["hide-cell"], ["hide-input"]]
    assert [cell["metadata"].get("tags") for cell in page["cells"]] == tags


@pytest.mark.parametrize("chapter", ["00", "try"])
def test_a_page_asks_nobody_to_run_its_cells(chapter):
    first = cells(chapter, "markdown")[0]
    page = page_source(new_notebook(cells=[new_markdown_cell(first)]), None)["cells"][0]["source"]
    assert "Shift + Enter" in first
    assert "Shift + Enter" not in page
    assert page.startswith(first.split("\n\n")[0])


@pytest.mark.parametrize("path", find_chapters(), ids=lambda path: path.stem)
def test_an_interval_typed_in_a_chapter_is_a_rows_or_printed_there(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))["cells"]
    printed = json.dumps([cell.get("outputs") for cell in notebook])
    rows = kept_ledger()[["mean", "low", "high"]].to_numpy()
    for cell in notebook:
        text = "".join(cell["source"]).replace("−", "-") if cell["cell_type"] == "markdown" else ""
        for found in INTERVAL.finditer(text):
            places = [len(number.partition(".")[2]) for number in found.groups()]
            typed = np.array(found.groups(), dtype=float)
            near = [
                np.all(abs(unit * rows - typed) <= 0.5 * 0.1 ** np.array(places) + 1e-9, axis=1)
                for unit in (1, 100)
            ]
            assert found[0] in printed or np.any(near), f"{cell['id']}: nothing says {found[0]}"


@pytest.mark.parametrize("path", find_chapters(), ids=lambda path: path.stem)
def test_a_number_typed_in_a_chapter_is_printed_there(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in notebook if cell["cell_type"] == "code"]
    texts = [
        [made.get("text"), *map(made.get("data", {}).get, TEXTS)]
        for cell in code
        for made in cell["outputs"]
    ]
    printed = np.array(
        re.findall(r"\d+\.\d+", json.dumps([texts, [cell["source"] for cell in code]])), dtype=float
    )
    for cell in notebook:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and "**Exercise" not in text:
            for typed in TYPED.findall(NO_PROSE.sub("", INTERVAL.sub("", text.replace("−", "-")))):
                half = 0.5 * 0.1 ** len(typed.partition(".")[2]) + 1e-9
                assert np.any(abs(printed - float(typed)) <= half), (
                    f"{cell['id']}: nothing says {typed}"
                )


def test_a_term_has_one_entry_and_a_word_of_it_leads_to_one_term():
    names = [term.term for term in glossary()]
    assert len(names) == len(set(names))
    forms = [form.lower() for term in glossary() for form in term.forms]
    assert sorted(forms) == sorted(set(forms))


@pytest.mark.parametrize("term", TERMS.values(), ids=list(TERMS))
def test_a_term_is_whole(term):
    markup = convert(term.formula)
    assert "merror" not in markup
    assert "\\" not in re.sub("&#x[0-9A-F]+;", "", markup), "a command that was not understood"
    assert "$" not in term.formula + term.meaning
    assert resolve_name(f"workbook.{term.code}") is not None
    for name in term.constants.values():
        assert f"{resolve_name(f'workbook.{name}'):g}" in term.meaning + term.words + term.expect
    assert term.meaning.endswith(".")
    assert len(find_chapters([term.chapter])) == 1
    text = tooltip_text(term)
    assert not set(text) & set('"$`\n'), "it stands in an attribute, in Markdown with formulas"


@pytest.mark.parametrize("work", read_list("references"), ids=lambda work: work.label)
def test_a_work_is_whole(work):
    assert bool(work.arxiv) != bool(work.where), "an arXiv number, or where it appeared"
    assert re.fullmatch(r"\d{4}\.\d{4,5}|", work.arxiv)
    assert re.search(r"\(\d{4}\)$", work.authors)
    assert all(find_chapters([number]) for number in work.chapters)


def test_ten_questions_lead_to_sections_that_are_there():
    asked = read_list("self_test")
    assert len(asked) == 10
    for chapter, heading in (place for one in asked for place in one.cells.items()):
        text = "\n".join(cells(chapter, "markdown"))
        assert heading in re.findall(r"^#{2,4} (.+)$", text, re.MULTILINE)
    assert back_matter.ten_questions().data.count("<details>") == 10


@pytest.mark.parametrize("one", FIGURES.values(), ids=list(FIGURES))
def test_what_a_figures_record_names_is_there(one):
    assert set(one.keys) <= set(registered())
    code = "\n".join(cells(one.chapter[:2], "code"))
    assert (ROOT / "notebooks" / f"{one.chapter}.ipynb").exists()
    for name in one.live:
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(f"workbook.{module}"), function))
        assert re.search(rf"\b{function}\(", code), f"{function} is not called in {one.chapter}"
    assert len(one.shows.split()) <= 25, "a sentence"
    assert len(one.here.split()) <= 30, "one or two"


def test_the_gallery_says_what_is_shown_what_is_here_and_the_words(monkeypatch):
    table = gallery.gallery_table()["word"]
    assert list(table.index) == list(FIGURES)
    assert table["Fig. 1 of H"] == registered()["H1"].outcome
    assert table["Table 3 of D"] == "no counterpart"
    card = gallery.show_gallery("D")
    page = card._repr_html_()
    assert 'href="09_drift_fixing.ipynb"' in page
    for one in FIGURES.values():
        assert (f"<b>{one.figure}</b>" in page) == one.figure.endswith(" D")
    for key in FIGURES["Curves of D"].keys:
        row = registered()[key]
        assert f"{row.outcome}: {html.escape(row.measured)}" in page, "a click opens the row"
    assert f"Curves of D: {table['Curves of D']}, chapter 09" in repr(card)
    hostile = SimpleNamespace(**vars(FIGURES["Curves of D"]) | {"shows": "<script>"})
    monkeypatch.setattr(gallery, "read_figures", lambda: {"Curves of D": hostile})
    assert "<script>" not in gallery.show_gallery("D")._repr_html_()
    with refused("paper", "E"):
        gallery.show_gallery("E")


# --- findings and settings
@pytest.mark.parametrize("one", [*FINDINGS, *DECISIONS], ids=lambda one: one.says[:40])
def test_a_sentence_stands_while_its_rows_have_their_words(one):
    assert set(one.when.values()) <= set(OUTCOME_WORDS)
    assert one.holds(), {key: row_of(key).outcome for key in one.when}
    assert "{" not in one.sentence()


def test_a_sentence_follows_the_ledger(monkeypatch):
    one = next(one for one in DECISIONS if one.when)
    key = next(iter(one.when))
    row = row_of(key)._replace(outcome=CANNOT, mean=0.25)
    monkeypatch.setattr(conclusions, "row_of", lambda asked: row if asked == key else row_of(asked))
    assert one.sentence().startswith("Outcomes have changed since this was written. ")
    assert f"{row.measured}: {CANNOT}" in one.sentence()
    assert CANNOT in one.words()
    number = Finding(f"It is {{{key}}}, or {{{key}:%}}.", {key: CANNOT})
    assert number.sentence() == "It is 0.25, or 25 %."


@pytest.mark.parametrize("one", FINDINGS, ids=lambda one: one.says[:40])
def test_a_finding_is_one_sentence_with_a_figure_and_an_experiment(one):
    says = one.sentence()
    assert len(re.findall(r"\d+(?:\.\d+)?", says)) <= 1
    assert not set(says) & set("[]()"), "no brackets, hence no interval"
    assert not re.search(r"\b[A-Z]\d", says), "no codes"
    assert re.fullmatch(r"[^.!?]+(?:\.\d[^.!?]*)*\.", says), "one sentence"
    assert bool(one.when) == bool(one.experiment), "measured, or proved"
    assert one.experiment in ("", *experiments())
    assert find_chapters([one.chapter[:2]])[0].stem == one.chapter
    assert one.figure in find_chapters([one.chapter[:2]])[0].read_text(encoding="utf-8")


def test_settings_that_a_decision_names_are_the_trainers():
    valid = {field.name for field in fields(CancellationConfig)}
    assert [name for one in DECISIONS for name in one.setting if name not in valid] == []
    assert decisions_text().count("Where it stops: ") == len(DECISIONS)
    assert [one.do for one in DECISIONS if INTERVAL.search(one.sentence())] == [], (
        "their page has the intervals"
    )


def test_readme_opens_with_at_most_ten_findings(tmp_path):
    block = findings_markdown()
    assert block in (ROOT / "README.md").read_text(encoding="utf-8"), "findings --readme README.md"
    assert len(FINDINGS) <= 10
    assert not INTERVAL.search(block)
    copy = tmp_path / "README.md"
    copy.write_text("before\n<!-- findings -->\nold\n<!-- /findings -->\nafter\n", encoding="utf-8")
    assert write_readme(copy)
    assert not write_readme(copy)
    assert copy.read_text().startswith("before\n<!-- findings -->\n1. Where a whole group")


# --- the page of the evidence
def test_the_page_of_the_evidence_is_current(tmp_path):
    page = (ROOT / "data" / "book" / "evidence.md").read_text(encoding="utf-8")
    assert page == evidence.evidence_markdown(), (
        "python -m workbook findings --evidence data/book/evidence.md"
    )
    assert page.count("<a id=") == len(experiments()) == len(evidence.evidence_table())
    assert evidence.write_evidence(tmp_path / "page.md")
    assert not evidence.write_evidence(tmp_path / "page.md")


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_is_whole(name):
    """Its rows are in the ledger, its figure is in the chapter or drawn by the code that the
    chapter calls.
    """
    one = experiments()[name]
    section = evidence._section(name, one)
    keys = [
        one["primary"],
        *(key for part in ("positive", "negative", "beside") for key in one.get(part) or {}),
    ]
    for row in map(row_of, keys):
        assert row.outcome in OUTCOME_WORDS
        assert f"{row.mean:.2g} [{row.low:.2g}, {row.high:.2g}]" in section
    assert row_of(one["primary"]).units >= 6
    [chapter] = find_chapters([one["chapter"][:2]])
    assert one["figure"] in chapter.read_text(encoding="utf-8") or one["figure"] in CODE
    assert all(
        evidence.minutes(study, row_of(one["primary"]).scale) > 1
        for study in one.get("studies", ())
    )


def test_no_row_of_an_experiment_is_corrected_but_its_primary_one():
    table = kept_ledger()
    tested = table[table["p_holm"].notna()]
    assert set(zip(tested["scale"], tested["key"], strict=True)) <= {
        (row_of(one["primary"]).scale, row_of(one["primary"]).key) for one in experiments().values()
    }
    assert (tested["p_holm"] >= tested["p"]).all()
