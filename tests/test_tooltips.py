"""Tooltips stand at the first use of a term in running text, once, and follow the glossary."""

import json
import re

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbook import __main__
from workbook.book import chapters, tooltips
from workbook.book.cells import markdown
from workbook.book.glossary import find_term, glossary
from workbook.book.references import chapter_line

JITTER = find_term("jitter")
TITLE = f'<abbr class="term" title="{tooltips.tooltip(JITTER)}">'


@pytest.mark.parametrize(
    ("before", "rest"),
    [
        ("# jitter\n\nThe Jitter and the jitter.", "Jitter</abbr> and the jitter."),
        ("`jitter` $jitter$ [jitter](a.html) **jitter**", "jitter</abbr>**"),
        ("| jitter | 1 |\n\n<details><summary>jitter</summary>\n\njitter\n\n</details>\n\njitter", "jitter</abbr>"),
        ('```python\njitter = 1\n```\n$$\njitter\n$$\n<b title="jitter">jitter</b>', "jitter</abbr></b>"),
        ('<abbr title="D8">jitter falls</abbr>, and jitter', "jitter</abbr>"),
    ],
)
def test_only_the_first_use_in_running_text_has_a_tooltip(before, rest):
    after = tooltips.with_tooltips([before, "jitter"], [JITTER])
    assert after[0].endswith(TITLE + rest)
    assert after[1] == "jitter"
    assert tooltips.with_tooltips(after, [JITTER]) == after
    assert tooltips.OURS.sub(r"\1", after[0]) == before


def test_a_word_that_is_part_of_another_is_no_use():
    cells = ["jittery, jitter-free, non-jitter, and no more"]
    assert tooltips.with_tooltips(cells, [JITTER]) == cells


def test_an_older_title_is_renewed():
    old = '<abbr class="term" title="what it was">jitter</abbr>'
    assert tooltips.with_tooltips([f"No {old} here"], [JITTER]) == [f"No {TITLE}jitter</abbr> here"]
    assert tooltips.with_tooltips([f"No {old} here"], []) == ["No jitter here"]


@pytest.mark.parametrize("term", glossary(), ids=lambda term: term.term)
def test_a_tooltip_is_a_title_that_nothing_else_reads(term):
    text = tooltips.tooltip(term)
    assert not set(text) & set('"$`\n'), "it stands in an attribute, in Markdown with formulas"
    assert len(text) < 450
    assert text.endswith(".")
    page = markdown(tooltips.with_tooltips([" ".join(term.forms)], [term])[0])
    assert page.count("<abbr") == page.count('<abbr tabindex="0" class="term"') == bool(term.forms)


def test_the_command_writes_them_and_then_has_nothing_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(chapters, "NOTEBOOKS", tmp_path)
    cells = [
        new_markdown_cell("# A jitter"),
        new_code_cell("jitter = 1"),
        new_markdown_cell("Its jitter\nis new.\n\n[on](06_b.ipynb)"),
    ]
    path = tmp_path / "05_a.ipynb"
    path.write_text(json.dumps(new_notebook(cells=cells)))
    assert __main__.main(["chapters", "--terms"]) == 0
    assert capsys.readouterr().out == "New tooltips or literature in 05_a.\n"
    written = [re.sub("<[^>]*>", "", "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    assert written[:2] == [cell.source for cell in cells[:2]]
    before, line, after = written[2].split("\n\n")
    assert (before, after) == ("Its jitter\nis new.", "[on](06_b.ipynb)")
    assert line == chapter_line("05")
    assert "[The cancellation hypothesis](https://arxiv.org/abs/2605.08666)" in line
    assert __main__.main(["chapters", "--terms"]) == 0
    assert capsys.readouterr().out == "All are up to date.\n"
    assert __main__.main(["chapters", "--terms", "--in-place"]) == 2


def test_the_chapters_have_todays_tooltips():
    assert tooltips.stale_chapters() == [], "python -m workbook chapters --terms"
