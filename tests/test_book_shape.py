"""The book keeps its form: a short story and a lab in each chapter from 05 on, charts that are computed, findings that
are read from the ledger, and an end in one sentence."""

import re

import nbformat
import pytest

from workbook.book import chapters
from workbook.claims import CLAIMS

CHAPTERS = chapters.find_chapters()
PARTED = [path for path in CHAPTERS if 5 <= int(path.name[:2]) <= 12]  # those with a story and a lab
MOST_WORDS, MOST_CHARTS, LEAST_LIVE = 1_200, 5, 0.6
LAB = re.compile(r"^## (?:\d+ · )?Lab\b", re.MULTILINE)
HIDDEN = re.compile(r"<details>.*?</details>|<[^>]+>|```.*?```", re.DOTALL)  # folded, tags, and code


def notebook(path):
    return nbformat.read(path, as_version=4)


def words(cells) -> int:
    """Words of text in view: not folded, no code, no tags."""
    return sum(len(HIDDEN.sub(" ", cell.source).split()) for cell in cells if cell.cell_type == "markdown")


def charts(cells) -> list:
    """Cells that committed a picture."""
    kinds = [[kind for output in cell.get("outputs", []) for kind in output.get("data", {})] for cell in cells]
    return [cell for cell, shown in zip(cells, kinds, strict=True) if "image/png" in shown]


def parts(path) -> tuple[list, list]:
    """The cells of the story, without header and setup, and those of the lab."""
    cells = notebook(path).cells
    first = next((i for i, cell in enumerate(cells) if cell.cell_type == "markdown" and LAB.search(cell.source)), None)
    assert first is not None, f"{path.stem} has no heading '## Lab'"
    return cells[2:first], cells[first:]


each_parted = pytest.mark.parametrize("path", PARTED, ids=[path.stem for path in PARTED])
each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])


@each_parted
def test_a_story_is_short_and_a_lab_follows(path):
    story, lab = parts(path)
    assert words(story) <= MOST_WORDS
    assert len(charts(story)) <= MOST_CHARTS
    assert len(charts(lab)) + len(lab) > 2


@pytest.mark.parametrize("path", [path for path in PARTED if int(path.name[:2]) <= 10], ids=lambda path: path.stem)
def test_most_charts_are_computed_in_the_chapter(path):
    """Those that show committed tables say so by their tag; one that reads them, and takes no step, may not hide it."""
    shown = charts(notebook(path).cells)
    measured = [cell for cell in shown if "measured" in cell.metadata.get("tags", [])]
    assert len(shown) - len(measured) >= LEAST_LIVE * len(shown), f"{len(measured)} of {len(shown)} are measured"
    reads = [cell.source for cell in shown if re.search(r"load_measured|Tables\(|measured_table", cell.source)]
    hidden = [source for source in reads if source not in {cell.source for cell in measured}]
    assert [source for source in hidden if "workbook.probes" not in source] == []


@each_chapter
def test_a_chapter_ends_in_a_sentence_asks_for_predictions_and_for_no_input(path):
    cells = notebook(path).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert len(re.findall(r"^\*\*Takeaway\.\*\* \S", text, re.MULTILINE)) == 1
    assert not re.search(r"(?<![\w.])input\(", code)
    asked, answered = (re.findall(rf'\b{name}\(\s*"([\w-]+)"', code) for name in ("predict", "reveal"))
    assert all(key.startswith(f"{path.name[:2]}-") for key in asked)
    assert asked, "no prediction is recorded"
    assert sorted(asked) == sorted(answered)


@each_chapter
def test_no_outcome_is_typed(path):
    """An outcome is printed from the ledger, never asserted."""
    code = "\n".join(cell.source for cell in notebook(path).cells if cell.cell_type == "code")
    outcomes = "supported|contradicted|inconclusive|equivalent to none|replicates|does not replicate"
    assert re.findall(rf"assert[^\n]*[\"'](?:{outcomes})[\"']", code) == []


@each_chapter
def test_claims_are_named_by_sentences_with_their_code_beside(path):
    """Every code in a tooltip is a registered row, so that a sentence can be looked up."""
    from workbook.claims.show import registered

    text = "\n".join(cell.source for cell in notebook(path).cells if cell.cell_type == "markdown")
    named = re.findall(r'<abbr title="([^"]+)">', text)
    known = set(registered()) | set(CLAIMS)
    assert [key for title in named for key in title.split(", ") if key not in known] == []
