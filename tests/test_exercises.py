"""Every exercise of the chapters has its form, a hint and a solution, and the solution passes the
exercise's check.

A chapter is not run for it: what an exercise needs is imported before it, or made by its check. So
a solution runs in a namespace of its own, in a moment.
"""

import ast
import json
import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest

from workbook.book.back_matter import choice_options, grade_choice
from workbook.book.chapters import find_chapters

LABEL = re.compile(r"^\*\*Exercise", re.MULTILINE)
FORM = re.compile(
    r"^\*\*Exercise (?P<number>\d+)\*\* \((?P<kind>interpret, |open, )?(?:easy|medium|hard), "
    r"importance [1-5] of 5, \d+ minutes?\)\. \S",
    re.MULTILINE,
)
FOLDED = re.compile(
    r"<details><summary>(Hint|Solution)</summary>\n\n(.+?)\n\n</details>", re.DOTALL
)
CODE = re.compile(r"```python\n(.+?)\n```", re.DOTALL)
UNSOLVED, SOLVED = "Not answered yet", re.compile(r"(?:\w+: r|R)ight\b|\d+ pairs, ")
# tried on a stand-in with the same settings: the chapter is not run
OPEN = re.compile(r"check_hypothesis\((\w+), ")
FEWEST = 2  # a chapter
# of all exercises ask to interpret, to design a control, to find a flaw, or for a hypothesis
INTERPRETED = 1 / 3


@dataclass(frozen=True)
class Exercise:
    """One exercise: its text, the cell after it, and the imports that stand before it in its
    chapter.
    """

    chapter: str
    text: str
    cell: str
    imports: str

    @property
    def folded(self) -> dict[str, str]:
        return dict(FOLDED.findall(self.text))

    def script(self) -> str:
        """Imports, the cell as it stands, the solution, and the cell's check once more."""
        solution = "\n".join(CODE.findall(self.folded.get("Solution", "")))
        checks = [
            ast.unparse(one) for one in ast.parse(self.cell).body if isinstance(one, ast.Expr)
        ]
        check = OPEN.sub(
            r"check_hypothesis(__import__('functools').wraps(\1)(lambda **settings: 0.0), ",
            checks[-1],
        )
        return "\n".join([self.imports, self.cell, "print('SOLVED')", solution, check])


def code_of(cell: dict) -> str:
    """A code cell without its magic lines."""
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", "".join(cell["source"]), flags=re.MULTILINE)


def exercises_of(path: Path) -> list[Exercise]:
    exercises, imports = [], []
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        if cell["cell_type"] == "code":
            body = ast.parse(code_of(cell)).body
            imports += [
                ast.unparse(one) for one in body if isinstance(one, ast.Import | ast.ImportFrom)
            ]
        elif LABEL.search(text := "".join(cell["source"])):
            source = code_of(after) if after and after["cell_type"] == "code" else ""
            exercises.append(Exercise(path.stem, text, source, "\n".join(imports)))
    return exercises


EXERCISES = {path.stem: exercises_of(path) for path in find_chapters()}
ALL = [
    pytest.param(one, id=f"{name[:2]}-{k}")
    for name, own in EXERCISES.items()
    for k, one in enumerate(own, 1)
]


@pytest.mark.parametrize("exercise", ALL)
def test_an_exercise_has_its_form(exercise):
    assert FORM.search(exercise.text), (
        "**Exercise 1** (medium, importance 3 of 5, 10 minutes). Text"
    )
    assert len(LABEL.findall(exercise.text)) == 1, "an exercise has a cell of its own"
    assert list(exercise.folded) == ["Hint", "Solution"]
    assert CODE.search(exercise.folded["Solution"])
    assert CODE.sub("", exercise.folded["Solution"]).strip(), "and a sentence why"


@pytest.mark.parametrize("exercise", ALL)
def test_a_solution_passes_its_check(exercise, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORKBOOK_RUNS", str(tmp_path))
    (tmp_path / "exercise.py").write_text(exercise.script(), encoding="utf-8")
    runpy.run_path(str(tmp_path / "exercise.py"))
    before, _, after = capsys.readouterr().out.partition("SOLVED\n")
    assert UNSOLVED in before
    assert after.strip()
    assert [line for line in after.splitlines() if not SOLVED.match(line)] == []


@pytest.mark.parametrize("name", EXERCISES)
def test_a_chapter_has_exercises_in_order(name):
    numbers = [int(match["number"]) for one in EXERCISES[name] if (match := FORM.search(one.text))]
    assert numbers == list(range(1, len(EXERCISES[name]) + 1))
    assert len(numbers) >= FEWEST


def test_a_third_ask_for_more_than_a_formula():
    forms = [FORM.search(one.text) for own in EXERCISES.values() for one in own]
    asked = [bool(form and form["kind"]) for form in forms]
    assert sum(asked) >= INTERPRETED * len(asked), f"{sum(asked)} of {len(asked)}"


def test_every_option_of_a_choice_has_its_sentence(capsys):
    asked = {
        (name[:2], k): one.text for name, own in EXERCISES.items() for k, one in enumerate(own, 1)
    }
    for name, options in choice_options().items():
        chapter, number = name.split("-")
        letters = re.findall(r"^- \*\*([A-Z])\*\* ", asked[chapter, int(number)], re.MULTILINE)
        assert {"right", *letters} == set(options), name
        for letter in letters:
            grade_choice(name, letter)
            assert capsys.readouterr().out.startswith(
                "Right: " if letter == options["right"] else "Not quite: "
            )
