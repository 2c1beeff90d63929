"""What readers and models hand in, brought into one form: integers, completions, scores, functions in files."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def short(value: Any, most: int = 60) -> str:
    """Return a value as Python writes it, of one that is long the beginning."""
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits
        text = f"a {type(value).__name__} that can't be shown"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def positive_int(field: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return value if it is an integer in [least, most], else raise a ValueError that names the field."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{field} is {short(value)}, but must be an integer {limits}.")
    return value


def completion_text(completion: object) -> str:
    """Return the text of one completion: a string as it is, of chat messages the last one's content, of all else "".

    >>> completion_text([{"role": "assistant", "content": "so the answer is 2"}])
    'so the answer is 2'
    """
    if isinstance(completion, list | tuple) and completion:
        completion = completion[-1]
    if isinstance(completion, dict):
        completion = completion.get("content")
    return completion if isinstance(completion, str) else ""


def clamp(score: object) -> float:
    """Return a score as a float in [0, 1]; what is not a finite number gives 0.

    >>> clamp(1.7), clamp(float("nan")), clamp(None), clamp(True)
    (1.0, 0.0, 0.0, 1.0)
    """
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(1.0, max(0.0, number)) if math.isfinite(number) else 0.0


def function_file(named: str, kind: str) -> tuple[Path, str]:
    """Return file and function of "<file>.py:<function>"; ValueError, naming the kind, for anything else."""
    file, _, function = named.rpartition(":") if isinstance(named, str) else ("", "", "")
    if not file.endswith(".py") or not function.isidentifier():
        raise ValueError(f"{kind} is {short(named, 200)}, but must be '<file>.py:<function>', or a function.")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise ValueError(
            f"the {kind} file {short(file, 200)} is no Python file; give the path of an existing .py file."
        )
    return path, function


def load_function(named: str, kind: str) -> Callable:
    """Import "<file>.py:<function>" with its folder importable, for helpers beside it, and return the function.

    Raises ValueError, in one sentence with the line of the file, if it can't be imported or has no such function.
    """
    path, name = function_file(named, kind)
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # data classes look themselves up there
    sys.path.insert(0, str(path.parent))
    # bytecode left beside a file would, after an edit within the same second, pass for that of the new text
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"the {kind} file {path.name} can't be imported: {error_line(error, path)}.") from None
    finally:
        sys.dont_write_bytecode = kept
        sys.path.remove(str(path.parent))
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ValueError(f"{path.name} has no function {name!r}; it has {', '.join(own[:20]) or 'none'}.")
    return function


def error_line(error: BaseException, path: Path | None = None) -> str:
    """Return an exception in one line, with the last line of the file `path` that it came through.

    >>> error_line(KeyError("topic"))
    "KeyError: 'topic'"
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if path and frame.filename == str(path)
    ]
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    return f"{text} (line {lines[-1]} of {path.name})" if lines else text
