"""The book's self-test: ten questions over chapters 00 to 05, whose folded answers lead to their sections."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from workbook.book.parts import anchor
from workbook.places import data_path

SOURCE = data_path("book", "self_test.yaml")
TITLE = "Ten questions"
QUESTION = "Do you know what chapters 00 to 05 say?"
INTRODUCTION = "Answer each question for yourself, then open its answer and the section that gives it."


@dataclass(frozen=True)
class Question:
    """A question with its answer; cells: {chapter: the heading of the section that answers it}."""

    question: str
    answer: str
    cells: dict[str, str]


def questions() -> list[Question]:
    """Read the questions, in order."""
    return [Question(**record) for record in yaml.safe_load(SOURCE.read_text(encoding="utf-8"))]


def self_test_body(chapters: Sequence[str] = ()) -> str:
    """What stands on the page, as HTML; chapters: file names to link to."""
    items = "".join(f"<li>{_item(one, chapters)}</li>\n" for one in questions())
    return f"<h1>{TITLE}</h1><p>{QUESTION} {INTRODUCTION}</p><ol>{items}</ol>"


def ten_questions():
    """Show the questions in a notebook, each answer folded."""
    from IPython.display import Markdown

    return Markdown(self_test_markdown())


def self_test_markdown() -> str:
    """The questions as Markdown with folded answers."""
    texts = []
    for k, one in enumerate(questions(), 1):
        places = "; ".join(f"chapter {chapter}, “{heading}”" for chapter, heading in one.cells.items())
        folded = f"<details><summary>Answer</summary>\n\n{one.answer} ({places})\n\n</details>"
        texts.append(f"**{k}.** {one.question}\n\n{folded}")
    return "\n\n".join(texts)


def _item(one: Question, chapters: Sequence[str]) -> str:
    links = "; ".join(_link(chapter, heading, chapters) for chapter, heading in one.cells.items())
    return (
        f"<p>{html.escape(one.question)}</p><details><summary>Answer</summary>"
        f"<p>{html.escape(one.answer)}</p><p>{links}</p></details>"
    )


def _link(chapter: str, heading: str, chapters: Sequence[str]) -> str:
    page, text = next((name for name in chapters if name.startswith(chapter)), None), html.escape(heading)
    text = f"chapter {chapter}, {text}"
    return f'<a href="{page}.html#{anchor(heading)}">{text}</a>' if page else text
