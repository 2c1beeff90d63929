"""Values and errors as parts of one sentence: on one line, of bounded length."""

from __future__ import annotations

from typing import Any


def one_line(text: object, longest: int = 300) -> str:
    """Text on one line, cut off after so many characters.

    >>> one_line("no such layer:\\n  head", 18)
    'no such layer: ...'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= longest else line[: longest - 3] + "..."


def show_value(value: Any) -> str:
    """A value as Python writes it, on one line and cut off where it is long."""
    try:
        return one_line(repr(value), 80)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, or nested too deeply
        return f"a {type(value).__name__} that is too large to show"


def explain_error(error: BaseException, longest: int = 300) -> str:
    """An error's message as one sentence, without the names that Python has for errors.

    >>> explain_error(FileNotFoundError(2, "No such file or directory", "a.yaml"))
    'a.yaml: No such file or directory.'
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"the package {package} is needed and not installed: pip install {package}"
    if isinstance(error, OSError) and error.strerror:
        return one_line(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}.", longest)
    return one_line(error, longest) or f"{type(error).__name__}, without a message."
