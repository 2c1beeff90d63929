"""A reader's own reward function, called with its time bounded and every way to fail turned into a sentence.

Only a process can be ended when a function hangs: a thread goes on, and while a regular expression backtracks nothing
else in its process runs. So a function that is named by its file runs in a process of its own (`reward_server`), in a
session of its own, which an interrupt of this one does not reach. After each call that fails to answer in time that
process is ended with all that it has started.

That is isolation from accidents, not from malice: the function may read, write and start whatever its user may. It
can answer its own call with any number, which is what a reward is; it can't answer a call that has not been made, since
an answer counts only under the random id of the call.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType
from typing import BinaryIO

import psutil

from workbook.tasks import reward_server
from workbook.tasks.inputs import short
from workbook.tasks.reward_server import CLOSED, as_reward, outcome, printable

IMPORT_SECONDS = 30.0  # for the file's own imports
MAX_ANSWER_BYTES = 2**16  # of one line of the protocol; what is longer is none
MARK = "WORKBOOK_REWARD_PROCESS"  # environment variable by which a process, and all that it starts, is known again
SETTLE_SECONDS = 0.5  # between the end of a pipe and that of its process
MAX_PROBLEM = 600  # characters of what a process says is wrong
MAX_SWEEPS = 20  # for processes that start others while they are ended
PIPE_BYTES = 4096  # that a pipe takes at once, when nothing is in it
LOOK_SECONDS = 0.05  # how often the death of a process is looked for while its answer is awaited


class InThread:
    """Calls a function at hand, and gives up waiting after `seconds`; what hangs goes on until its process ends."""

    def __init__(self, function: Callable, seconds: float):
        self.function, self.seconds = function, seconds
        self.name = getattr(function, "__name__", type(function).__name__)
        self.files = {self.name: code_sha256(function)}

    def __call__(self, completion: str, answer: str, row: dict) -> dict:
        """Return {"reward": x} or {"problem": why}."""
        results = [{"problem": f"took longer than {self.seconds:g} s"}]

        def call():
            results.append(outcome(self.function, completion, answer, row))

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(self.seconds)
        return results[-1]


class InProcess:
    """Calls a file's function in a process of its own, which is ended when a call takes longer than `seconds`.

    Raises ValueError, in one sentence, if the file cannot be imported or has no such function.
    """

    def __init__(self, file: str | Path, function: str, seconds: float):
        self.file, self.name, self.seconds = python_file(file), function, seconds
        self._lock = threading.Lock()
        self.files = self._start()

    def __call__(self, completion: str, answer: str, row: dict) -> dict:
        """Return {"reward": x} or {"problem": why}; the process begins anew where the call before has ended it."""
        with self._lock:
            if self.process.poll() is not None:
                self._end()
                self._start()
            return self._ask({"completion": completion, "answer": answer, "row": row}, self.seconds)

    def _start(self) -> dict[str, str]:
        """Start the process; returns the checksums of the files that the function is made of."""
        mark = secrets.token_hex(16)
        self.process = subprocess.Popen(
            [sys.executable, reward_server.__file__, str(self.file), self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {MARK: mark},
            start_new_session=True,
        )
        self._end = weakref.finalize(self, end_all, self.process, mark, os.getpid())
        self._mailbox = Mailbox(self.process.stdout)
        ready = self._ask({}, IMPORT_SECONDS)
        if "problem" in ready:
            self._end()
            died = f"the reward file {self.file.name} {ready['problem']}, while it was imported."
            raise ValueError(ready["problem"] if "id" in ready else died)
        return ready["files"]

    def _ask(self, request: dict, seconds: float) -> dict:
        """Return the answer to a request, or a problem after which the process is no more."""
        name = secrets.token_hex(8)
        line = (json.dumps({"id": name} | request) + "\n").encode()
        try:
            answer, in_time = self._exchange(name, line, time.monotonic() + seconds)
            if answer is not None:
                return checked(answer)
            if in_time:  # the pipe has ended, and its process may be about to
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(SETTLE_SECONDS)
            status = self.process.poll()
        except BaseException:  # an interrupt leaves nobody to take the answer
            self._end()
            raise
        self._end()
        if status is None and not in_time:
            return {"problem": f"took longer than {seconds:g} s"}
        if status in (None, CLOSED):
            return {"problem": "closed the files through which it is asked"}
        signals = {known.value: known.name for known in signal.Signals}
        died_of = f"signal {signals.get(-status, -status)}" if status < 0 else f"exit status {status}"
        return {"problem": f"ended its process ({died_of})"}

    def _exchange(self, name: str, request: bytes, end: float) -> tuple[dict | None, bool]:
        """Return the answer, None if there will be none, and whether that was clear in time."""
        process, dead = self.process, False
        self._mailbox.awaited = name
        if len(request) <= PIPE_BYTES:
            send(process, request)
        else:  # it may be that nobody reads
            threading.Thread(target=send, args=(process, request), daemon=True).start()
        while not dead:
            dead = process.poll() is not None  # its pipe may be kept open by others
            try:
                return self._mailbox.answers.get(timeout=max(0.0, min(LOOK_SECONDS, end - time.monotonic()))), True
            except queue.Empty:
                if time.monotonic() >= end:
                    return None, False
        return None, True


class Mailbox:
    """Takes the answer that is awaited out of whatever comes through a pipe, in a thread, since pipes know no time."""

    def __init__(self, pipe: BinaryIO):
        self.pipe, self.awaited, self.answers = pipe, None, queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Put each awaited answer once; at the end None."""
        with suppress(OSError, ValueError):
            while line := self.pipe.readline(MAX_ANSWER_BYTES):
                answer = parsed(line)
                if self.awaited is not None and answer.get("id") == self.awaited:
                    self.awaited = None
                    self.answers.put(answer)
        self.answers.put(None)


def checked(answer: dict) -> dict:
    """Return an answer of a process whose own checks the function may have changed: a number, a problem, or files."""
    if isinstance(answer.get("problem"), str):
        return answer | {"problem": printable(answer["problem"], MAX_PROBLEM)}
    return as_reward(answer.get("reward")) if "files" not in answer else answer


def python_file(file: str | Path, kind: str = "reward") -> Path:
    """Return the full path of a Python file; ValueError, in one sentence, if there is none."""
    with suppress(OSError, RuntimeError, ValueError):  # a name too long, a home folder that nobody has, a NUL
        path = Path(file).expanduser().resolve()
        if path.suffix == ".py" and path.is_file():
            return path
    raise ValueError(
        f"the {kind} file {short(str(file), 200)} is no Python file; give the path of an existing .py file."
    )


def send(process: subprocess.Popen, data: bytes) -> None:
    """Write to a process, past the file's own buffer, which would be flushed again once the process has ended."""
    with suppress(OSError, ValueError):  # it has ended: its mailbox says so
        while data:
            data = data[os.write(process.stdin.fileno(), data) :]


def parsed(line: bytes) -> dict:
    """Return the JSON object of a line, {} where there is none."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def end_all(process: subprocess.Popen, mark: str, owner: int) -> None:
    """End a process, its group and whatever else bears its mark, and wait until it has ended."""
    if os.getpid() != owner:  # a copy of the process that began it, on its own way out
        return
    if hasattr(os, "killpg"):
        with suppress(OSError):  # nobody is left
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    quiet = 0
    for _ in range(MAX_SWEEPS):  # one that is about to be looked at may start another, and end
        marked = [other for other in psutil.process_iter() if bears(other, mark)]
        for other in marked:
            with suppress(psutil.Error):
                other.kill()
        quiet = 0 if marked else quiet + 1
        if quiet == 2:
            break


def bears(process: psutil.Process, mark: str) -> bool:
    """Return whether a living process was started with a mark in its environment."""
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # gone, or somebody else's
        return False


def code_sha256(function: Callable) -> str:
    """Return the SHA-256 of a function's source or, where none is kept, of its byte code; of an object, of its class.

    What it finds elsewhere, in globals or in a closure, does not count.
    """
    function = inspect.unwrap(function.func if isinstance(function, partial) else function)
    if not hasattr(function, "__code__") and not isinstance(function, type):
        function = type(function)
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = _code_text(getattr(function, "__code__", None)) or f"{function.__module__}.{function.__qualname__}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _code_text(code: CodeType | None) -> str:
    """Byte code with its names and constants, the same in every process."""
    if code is None:
        return ""
    constants = [_code_text(value) if isinstance(value, CodeType) else _constant(value) for value in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
