"""Decoration of chapters: tooltips, literature and badge stand in pages and copies, never in the
source.
"""

import base64
import copy
import json
import re
from xml.etree import ElementTree

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbook.book.back_matter import chapter_line, glossary
from workbook.book.chapters import find_notebooks
from workbook.book.decoration import (
    LITERATURE,
    PLAIN_LINK,
    PROTECTED,
    TOOLTIP,
    decorate,
    tooltip,
    with_tooltips,
)

ADDRESS = "https://github.com/somebody/cancellation-workbook"
BADGE = re.compile(r"\[!\[Open in Colab\]\(data:image/svg\+xml;base64,([^)]+)\)\]\((\S+)\)")
TERMS = glossary()
JITTER = next(term for term in TERMS if term.term == "jitter")
JITTER_TAG = tooltip(JITTER, "").removesuffix("</abbr>")
# what has to be the same, character by character: code, formulas, links, headings
UNTOUCHED = (r"```.*?```", r"`[^`\n]+`", r"\$\$.*?\$\$", r"\]\([^)\n]+\)", r"(?m)^#{1,6} [^\n]+")
each_notebook = pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)


def read(path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def texts(notebook: dict) -> list[str]:
    cells = notebook["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


@each_notebook
def test_a_source_is_plain_and_names_no_repository(path):
    header, *rest = texts(read(path))
    assert header.split("\n\n")[1] == PLAIN_LINK
    assert not re.search(r"<abbr|\*\*Literature\.\*\*", "\n".join([header, *rest]))
    assert not re.search(r"github\.com/[\w-]+/[\w-]*workbook\b", path.read_text(encoding="utf-8"))


@each_notebook
def test_every_term_of_a_chapter_has_one_tooltip_at_its_first_use(path):
    source, decorated = read(path), decorate(read(path), path.stem, ADDRESS)
    assert "<abbr" not in texts(decorated)[0], "the header has none"
    shown = "\n\n".join(texts(decorated)[1:])
    running = PROTECTED.sub(lambda part: "\0" * len(part[0]), shown)
    used = 0
    for term in TERMS:
        tag = tooltip(term, "").removesuffix("</abbr>")
        forms = "|".join(map(re.escape, term.forms)) or "(?!)"
        left = re.search(rf"(?<![\w-])(?:{forms})(?![\w-])", running, re.IGNORECASE)
        assert shown.count(tag) <= 1
        if left:
            assert -1 < shown.find(tag) < left.start(), f"{term.term} is used before its tooltip"
        used += tag in shown
    assert used == shown.count('<abbr class="term"') > 0
    # and the text without what was added is the source
    bare = LITERATURE.sub("", TOOLTIP.sub(r"\1", shown))
    assert bare == "\n\n".join(texts(source)[1:])


@each_notebook
def test_code_formulas_links_and_headings_are_never_touched(path):
    source, decorated = read(path), decorate(read(path), path.stem, ADDRESS)
    for before, after in zip(source["cells"], decorated["cells"], strict=True):
        if before["cell_type"] == "code":
            assert after == before
    for before, after in zip(texts(source)[1:], texts(decorated)[1:], strict=True):
        for kind in UNTOUCHED:
            kept = re.findall(kind, LITERATURE.sub("", after), re.DOTALL)
            assert kept == re.findall(kind, before, re.DOTALL)


@each_notebook
def test_decorating_changes_nothing_given_and_twice_is_once(path):
    source = read(path)
    before = copy.deepcopy(source)
    once = decorate(source, path.stem, ADDRESS)
    assert source == before
    assert once != source
    assert decorate(once, path.stem, ADDRESS) == once


@each_notebook
def test_a_chapter_ends_with_its_literature_and_opens_in_colab(path):
    decorated = texts(decorate(read(path), path.stem, ADDRESS))
    line = chapter_line(path.name[:2])
    assert bool(line) == path.name[:2].isdigit()
    if line:
        assert decorated[-1].split("\n\n")[-2] == line
    picture, place = BADGE.search(decorated[0]).groups()
    assert place == (
        "https://colab.research.google.com/github/somebody/cancellation-workbook/blob/main/"
        f"notebooks/{path.name}"
    )
    drawn = ElementTree.fromstring(base64.b64decode(picture))
    assert drawn.attrib["aria-label"] == "Open in Colab"
    assert texts(decorate(read(path), path.stem))[0] == texts(read(path))[0], "no address, no badge"


def test_a_notebook_without_text_or_with_a_header_alone_is_decorated_too():
    code = new_notebook(cells=[new_code_cell("jitter = 1")])
    assert decorate(code, "05_a", ADDRESS) == code
    header = new_notebook(cells=[new_markdown_cell("# A jitter")])
    assert decorate(header, "05_a", ADDRESS) == header


@pytest.mark.parametrize(
    ("before", "rest"),
    [
        ("# jitter\n\nThe Jitter and the jitter.", "Jitter</abbr> and the jitter."),
        ("`jitter` $jitter$ [jitter](a.html) **jitter**", "jitter</abbr>**"),
        (
            (
                "| jitter | 1"
                " |\n\n<details><summary>jitter</summary>\n\njitter\n\n</details>\n\njitter"
            ),
            "jitter</abbr>",
        ),
        (
            '```python\njitter = 1\n```\n$$\njitter\n$$\n<b title="jitter">jitter</b>',
            "jitter</abbr></b>",
        ),
        ('<abbr title="D8">jitter falls</abbr>, and jittery jitter', "jitter</abbr>"),
    ],
)
def test_only_the_first_use_in_running_text_has_a_tooltip(before, rest):
    after = with_tooltips([before, "jitter"], [JITTER])
    assert after[0].endswith(JITTER_TAG + rest)
    assert after[1] == "jitter"
    assert with_tooltips(after, [JITTER]) == after
    assert with_tooltips(after, []) == [before, "jitter"]
