"""Multiple-choice questions of the chapters, each option with the sentence that a reader who chose it is shown."""

from __future__ import annotations

from functools import cache

import yaml

from workbook.places import data_path
from workbook.topics.grading import UNANSWERED


def check_choice(exercise: str, answer: str | None) -> None:
    """Print what a reader's letter says of an exercise in data/book/choices.yaml; None is no answer yet.

    exercise: chapter and number, such as "02-3".

    >>> check_choice("02-3", "c")
    Not quite: a larger group lowers the ratio with opposite signs and without them.
    >>> check_choice("02-3", "E")
    Not quite: 'E' is no option; choose one of A, B, C, D.
    """
    if answer is None:
        print(UNANSWERED)
        return
    options = choices()[exercise]
    letter = str(answer).strip().upper()
    if letter == options["right"]:
        print(options[letter])
    elif letter in options and letter != "RIGHT":
        print(f"Not quite: {options[letter]}")
    else:
        print(f"Not quite: {str(answer)[:40]!r} is no option; choose one of {', '.join(sorted(options)[:-1])}.")


@cache
def choices() -> dict[str, dict[str, str]]:
    """Read {exercise: {"right": letter, letter: sentence}}."""
    return yaml.safe_load(data_path("book", "choices.yaml").read_text(encoding="utf-8"))
