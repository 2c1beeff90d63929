"""The book's lists for readers: literature and self-test name what is there, and stand on pages of their own."""

import json
import re

import pytest

from workbook.book import references, self_test
from workbook.book.chapters import find_chapters
from workbook.book.parts import anchor

WORKS, QUESTIONS = references.references(), self_test.questions()
NAMES = [path.stem for path in find_chapters()]
NUMBERS = {name[:2] for name in NAMES}


def headings(chapter: str) -> list[str]:
    cells = json.loads(find_chapters([chapter])[0].read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.findall(r"^#{2,4} (.+)$", text, re.MULTILINE)


def test_the_works_that_the_book_stands_on_are_there_once():
    labels = [work.label for work in WORKS]
    assert len(labels) == len(set(labels))
    needed = {"GRPO", "Dr. GRPO", "DAPO", "GSPO", "RLOO", "REINFORCE", "Policy gradient theorem", "PPO", "NTHR"}
    assert needed <= set(labels)
    numbers = [work.arxiv for work in WORKS if work.arxiv]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.label)
def test_a_work_is_whole(work):
    assert bool(work.arxiv) != bool(work.where), "an arXiv number, or where it appeared"
    assert re.fullmatch(r"\d{4}\.\d{4,5}|", work.arxiv)
    assert re.search(r"\(\d{4}\)$", work.authors)
    assert work.claim.endswith(".")
    assert work.chapters
    assert set(work.chapters) <= NUMBERS


def test_the_page_of_works_links_to_them_and_to_chapters():
    page = references.references_body(NAMES)
    assert page.count("<section") == len(WORKS)
    assert 'href="https://arxiv.org/abs/2402.03300"' in page
    assert 'href="06_token_coupling.html">06' in page
    assert references.chapter_line("99") == ""


def test_ten_questions_cover_the_first_six_chapters():
    assert len(QUESTIONS) == 10
    assert {chapter for one in QUESTIONS for chapter in one.cells} == {f"0{k}" for k in range(6)}
    assert all(one.question.rstrip().endswith("?") and one.answer.endswith(".") for one in QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=range(1, 11))
def test_an_answer_leads_to_a_section_that_is_there(question):
    page = self_test.self_test_body(NAMES)
    for chapter, heading in question.cells.items():
        assert heading in headings(chapter)
        assert f"{chapter}_" in page
        assert f"#{anchor(heading)}" in page
    assert self_test.self_test_markdown().count("<details>") == 10
