"""Calls a reader's own reward function, and turns every way to fail into a sentence.

    python reward_server.py FILE FUNCTION

is the process that `own_reward.InProcess` talks to: a line of JSON with an id for each call, a line of JSON with the
same id back. It ends when its requests do: where it leads a group of processes, a second one waits for that, and ends
them all. This file imports the standard library alone, so that such a process starts in milliseconds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import math
import numbers
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

MAX_REWARD = 1e18  # its square, of which a group's spread is made, is finite in float32
CLOSED = 65  # exit status of a process whose function has closed the file that it answers through


def load_function(path: Path, name: str, kind: str = "reward") -> Callable:
    """Return the function `name` of a Python file; its folder is importable meanwhile, for helpers beside it.

    Raises ValueError, in one sentence, if the file cannot be imported or has no such function.
    """
    spec = importlib.util.spec_from_file_location(module_name(path), path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # data classes look themselves up there
    sys.path.insert(0, str(path.parent))
    # Bytecode left beside a file would, after an edit within the same second, pass for that of the new text.
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise ValueError(f"the {kind} file {path.name} can't be imported: {one_line(error, path)}.") from None
    finally:
        sys.dont_write_bytecode = kept
        if str(path.parent) in sys.path:
            sys.path.remove(str(path.parent))
    function = getattr(module, name, None)
    if not callable(function):
        functions = {key: value for key, value in vars(module).items() if inspect.isfunction(value)}
        own = [key for key in functions if functions[key].__module__ == spec.name and not key.startswith("_")]
        raise ValueError(f"{path.name} has no function {name!r}; it has {', '.join(own[:20]) or 'none'}.")
    return function


def module_name(path: Path) -> str:
    """Name under which a file is imported: none that a module of this process has."""
    return f"own_{path.stem}"


def source_files(path: Path) -> dict[str, str]:
    """Return the SHA-256 of a loaded reward file and of those modules beside it that it has imported, by their paths.

    Packages that are installed below its folder do not count as the reader's own.
    """
    loaded = [Path(name).resolve() for module in list(sys.modules.values()) if (name := _module_file(module))]
    own = {other for other in (path, *loaded) if other.is_relative_to(path.parent) and other.is_file()}
    installed = {"site-packages", "dist-packages", "lib"}
    names = {other: other.relative_to(path.parent) for other in own}
    return {
        name.as_posix(): hashlib.sha256(other.read_bytes()).hexdigest()
        for other, name in sorted(names.items())
        if not installed & set(name.parts) and other != Path(__file__).resolve()
    }


def outcome(function: Callable, completion: str, answer: str, row: dict) -> dict:
    """Call function(completion, answer, **row), with those columns that it takes: {"reward": x} or {"problem": why}."""
    try:
        taken = inspect.signature(function).parameters
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
            row = {key: value for key, value in row.items() if key in taken}
        return as_reward(function(completion, answer, **row))
    except BaseException as error:
        return {"problem": f"raised {one_line(error, _file(function))}"}


def as_reward(value) -> dict:
    """Return {"reward": value} if it is one finite number, else {"problem": a sentence without subject and full stop}.

    >>> as_reward(True), as_reward([0.5, 0.5])
    ({'reward': 1.0}, {'problem': 'returned a list of length 2, not one number'})
    >>> as_reward(1e39)
    {'problem': 'returned 1e+39, but a reward must lie between -1e+18 and 1e+18'}
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    if not isinstance(value, numbers.Real | Decimal):
        size = f" of length {len(value)}" if hasattr(value, "__len__") and not isinstance(value, str) else ""
        hint = "; does it lack a return?" if value is None else ""
        kind = "None" if value is None else f"a {printable(type(value).__name__, 60)}{size}"
        return {"problem": f"returned {kind}, not one number{hint}"}
    limits = f"but a reward must lie between {-MAX_REWARD:g} and {MAX_REWARD:g}"
    try:
        number = float(value)
    except OverflowError:  # of an integer or a fraction
        return {"problem": f"returned a number beyond every float, {limits}"}
    if not math.isfinite(number):
        return {"problem": f"returned {number}, not a finite number"}
    if abs(number) > MAX_REWARD:
        return {"problem": f"returned {number:g}, {limits}"}
    return {"reward": number}


def one_line(error: BaseException, path: Path | None) -> str:
    """Return an exception in one line, with the last line of the reader's file that it came through.

    >>> one_line(KeyError("topic"), None)
    "KeyError: 'topic'"
    """
    kind = printable(type(error).__name__, 60)
    if isinstance(error, SyntaxError):
        return f"{kind}: {printable(str(error.msg), 200)}" + f" (line {error.lineno})" * bool(error.lineno)
    try:
        message = printable(str(error), 200)
    except BaseException:
        message = "a message that can't be shown"
    text = f"{kind}: {message}".rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if path and Path(frame.filename) == path]
    return f"{text} (line {lines[-1]} of {path.name})" if lines else text


def printable(text: str, most: int) -> str:
    """Return the beginning of a text in one line, without characters that a log or a terminal can't show."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[: 10 * most]).split())[:most]


def _file(function: Callable) -> Path | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Path(code.co_filename) if code and code.co_filename.endswith(".py") else None


def _module_file(module) -> str | None:
    name = getattr(module, "__file__", None)
    return name if isinstance(name, str) and name.endswith(".py") else None


class Channel:
    """Requests read and answers written through files of its own, which the function is not given."""

    def __init__(self):
        self.requests, self.answers = os.fdopen(os.dup(0), "rb"), os.dup(1)  # not inherited by programs it starts
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)  # what the function prints goes to the log
        self.process, self.pipe = os.getpid(), self._identity()

    def reply(self, **message) -> None:
        """Write a line; ends this process where it is a copy that the function made, or its pipe has been closed."""
        if os.getpid() != self.process:
            os._exit(0)
        if self._identity() != self.pipe:  # closed, or another file by now
            os._exit(CLOSED)
        line = b"\n" + json.dumps(message).encode() + b"\n"  # a line of its own, whatever was written before it
        while line:
            line = line[os.write(self.answers, line) :]

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.fstat(self.answers)
        except OSError:
            return None
        return status.st_dev, status.st_ino


def end_with_user() -> None:
    """Begin a process that ends this one's group as soon as nobody can write requests any more, whatever hangs here."""
    if not hasattr(os, "fork") or os.getpgid(0) != os.getpid():
        return
    if child := os.fork():
        os.waitpid(child, 0)
        return
    if os.fork():  # so it is no child of this process, for which the function might wait
        os._exit(0)
    os.close(1)
    hung_up = select.poll()
    hung_up.register(0, 0)
    hung_up.poll()
    os.killpg(0, signal.SIGKILL)


def serve(file: str, name: str) -> None:
    """Answer requests on stdin until it ends; the first has an id alone, and is answered once the file is imported."""
    end_with_user()
    channel, path = Channel(), Path(file)
    with suppress(OSError):  # where memory runs out, Linux ends this process, not the one that trains
        Path("/proc/self/oom_score_adj").write_text("1000")
    first = json.loads(channel.requests.readline())
    try:
        function = load_function(path, name)
        channel.reply(id=first["id"], files=source_files(path))
    except ValueError as error:
        channel.reply(id=first["id"], problem=str(error))
        return
    for line in channel.requests:
        request = json.loads(line)
        answer = outcome(function, request["completion"], request["answer"], request["row"])
        channel.reply(id=request["id"], **answer)
    os._exit(0)  # without waiting for threads that the function has left behind


if __name__ == "__main__":
    del sys.path[0]  # this folder's modules are none of the reader's
    serve(sys.argv[1], sys.argv[2])
