"""Values and errors as parts of one sentence: on one line, of bounded length."""

from __future__ import annotations

from typing import Any

LONGEST_VALUE, LONGEST_MESSAGE = 80, 300  # characters


def one_line(text: object, longest: int = LONGEST_MESSAGE) -> str:
    """Text on one line, cut off after so many characters.

    >>> one_line("no such layer:\\n  head", 18)
    'no such layer: ...'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= longest else line[: longest - 3] + "..."


def show_value(value: Any) -> str:
    """A value as Python writes it, on one line and cut off where it is long.

    >>> show_value("5e-4"), show_value(10**5000)
    ("'5e-4'", 'a number of more than 4,300 digits')
    """
    try:
        return one_line(repr(value), LONGEST_VALUE)
    except ValueError:  # Python writes no integer beyond that
        return "a number of more than 4,300 digits"
    except RecursionError:
        return "a value that is nested too deeply"


def explain_error(error: BaseException, longest: int = LONGEST_MESSAGE) -> str:
    """An error's message as one sentence, without the names that Python has for errors.

    >>> explain_error(FileNotFoundError(2, "No such file or directory", "a.yaml"))
    'a.yaml: No such file or directory.'
    >>> explain_error(ModuleNotFoundError("No module named 'vllm'", name="vllm"))
    'the package vllm is needed and not installed: pip install vllm'
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"the package {package} is needed and not installed: pip install {package}"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return one_line(f"{where}{error.strerror}.", longest)
    if isinstance(error, MemoryError):
        return "there is not enough memory for this."
    return one_line(error, longest) or f"{type(error).__name__}, without a message."
