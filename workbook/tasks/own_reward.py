"""A reader's own reward function, called with its time bounded and every way to fail turned into a sentence.

    python own_reward.py FILE FUNCTION SECONDS

is the process that `InProcess` talks to: a line of JSON for each call, a line of JSON back. Only a process can be ended
when a function hangs: a thread goes on, and while a regular expression backtracks nothing else in its process runs.
This file imports the standard library alone, so that such a process starts in milliseconds.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import inspect
import json
import math
import numbers
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path

IMPORT_SECONDS = 30.0  # for the file's own imports


def load_function(file: str | Path, name: str) -> Callable:
    """The function `name` of a Python file; its folder is importable meanwhile, for helpers beside it.

    Raises ValueError, in one sentence, if the file cannot be read or imported or has no such function.
    """
    path = Path(file).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"the reward file {str(file)!r} is no Python file; give the path of an existing .py file.")
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"the reward file {path.name} can't be imported: {told(error, path)}.") from None
    finally:
        sys.path.remove(str(path.parent))
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ValueError(f"{path.name} has no function {name!r}; it has {', '.join(own) or 'none'}.")
    return function


def outcome(function: Callable, completion: str, answer: str, row: dict) -> dict:
    """Call function(completion, answer, **row), with those columns that it takes: {"reward": x} or {"problem": why}."""
    try:
        taken = inspect.signature(function).parameters
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values()):
            row = {key: value for key, value in row.items() if key in taken}
        return as_reward(function(completion, answer, **row))
    except (Exception, SystemExit) as error:
        return {"problem": f"raised {told(error, _file(function))}"}


def as_reward(value) -> dict:
    """{"reward": value} if it is one finite number, else {"problem": a sentence without subject and full stop}.

    >>> as_reward(True), as_reward([0.5, 0.5])
    ({'reward': 1.0}, {'problem': 'returned a list of length 2, not one number'})
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    if not isinstance(value, numbers.Real):
        size = f" of length {len(value)}" if hasattr(value, "__len__") and not isinstance(value, str) else ""
        hint = "; does it lack a return?" if value is None else ""
        kind = "None" if value is None else f"a {type(value).__name__}{size}"
        return {"problem": f"returned {kind}, not one number{hint}"}
    if not math.isfinite(value):
        return {"problem": f"returned {float(value)}, not a finite number"}
    return {"reward": float(value)}


def told(error: BaseException, path: Path | None) -> str:
    """An exception in one line, with the last line of the reader's file that it came through.

    >>> told(KeyError("topic"), None)
    "KeyError: 'topic'"
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if path and Path(frame.filename) == path]
    return f"{text} (line {lines[-1]} of {path.name})" if lines else text


def _file(function: Callable) -> Path | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Path(code.co_filename) if code and code.co_filename.endswith(".py") else None


class InThread:
    """Calls a function at hand, and gives up waiting after `seconds`; what hangs goes on until its process ends."""

    def __init__(self, function: Callable, seconds: float):
        self.function, self.seconds = function, seconds
        self.name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, completion: str, answer: str, row: dict) -> dict:
        found = {"problem": f"took longer than {self.seconds:g} s"}

        def call():
            nonlocal found
            found = outcome(self.function, completion, answer, row)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(self.seconds)
        return found


class InProcess:
    """Calls a file's function in a process of its own, which is ended when a call takes longer than `seconds`.

    Raises ValueError, in one sentence, if the file cannot be imported or has no such function.
    """

    def __init__(self, file: str | Path, function: str, seconds: float):
        self.file, self.name, self.seconds, self.process = Path(file), function, seconds, None
        self._start()

    def __call__(self, completion: str, answer: str, row: dict) -> dict:
        if self.process.poll() is not None:  # the call before took too long
            self._start()
        began = time.monotonic()
        found = self._ask({"completion": completion, "answer": answer, "row": row})
        if found is not None:
            return found
        if time.monotonic() - began >= self.seconds:
            return {"problem": f"took longer than {self.seconds:g} s"}
        return {"problem": f"ended its process (exit status {self.process.returncode})"}

    def _start(self) -> None:
        command = [sys.executable, str(Path(__file__)), str(self.file), self.name, str(self.seconds)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", errors="replace"
        )
        weakref.finalize(self, _end, self.process)
        ready = self._read() or {
            "problem": f"the reward file {self.file.name} ended its process while it was imported."
        }
        if "problem" in ready:
            raise ValueError(ready["problem"])

    def _ask(self, request: dict) -> dict | None:
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:
            self.process.wait()
            return None
        return self._read()

    def _read(self) -> dict | None:
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
        return json.loads(line) if line else None


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def serve(file: str, name: str, seconds: float) -> None:
    """Answer requests on stdin until it ends; a call that takes too long ends this process, wherever it hangs."""
    requests, answers = (os.fdopen(os.dup(fd), mode, encoding="utf-8") for fd, mode in ((0, "r"), (1, "w")))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # the function can't read requests ...
    os.dup2(2, 1)  # ... and what it prints goes to the log

    def reply(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    faulthandler.dump_traceback_later(IMPORT_SECONDS, exit=True, file=nothing)
    try:
        function = load_function(file, name)
    except ValueError as error:
        reply({"problem": str(error)})
        return
    reply({"ready": True})
    faulthandler.cancel_dump_traceback_later()
    for line in requests:
        request = json.loads(line)
        faulthandler.dump_traceback_later(seconds, exit=True, file=nothing)
        found = outcome(function, request["completion"], request["answer"], request["row"])
        faulthandler.cancel_dump_traceback_later()
        reply(found)


if __name__ == "__main__":
    del sys.path[0]  # this folder's modules are none of the reader's
    serve(sys.argv[1], sys.argv[2], float(sys.argv[3]))
