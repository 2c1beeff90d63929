"""Hostile reward functions: they fork, hang, exit, close files, forge answers, return what is no number.

A trial's function does one or two things (ACTS) and then ends in one way (ENDS); for the completion "honest" it gives
0.25. Nothing here tries to break out: the function runs with its user's rights, and is no stranger's.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from workbook.tasks import own_task

PROMISE = (
    "A reward function's call ends within its limit and two seconds, in its number or in one sentence; nothing that it "
    "started outlives it, and the next call is answered rightly."
)
TRIALS = 600
SECONDS, GRACE = 0.3, 2.0
MARK = "SOAK_OWN_REWARDS"
FORGED = 9.5

HEAD = """
import asyncio, atexit, ctypes, faulthandler, gc, json, math, multiprocessing, os, re, resource, signal, subprocess
import sys, threading, time
from decimal import Decimal
from fractions import Fraction

ID = b'"ready"', b'null', b'"1"', b'1'
LINE = b'\\n{"reward": 9.5}\\n' + b''.join(b'{"id": %s, "reward": 9.5}\\n' % name for name in ID)

def forge(line=LINE):
    for fd in range(64):
        try:
            os.set_blocking(fd, False)
            os.write(fd, line)
        except OSError:
            pass
        try:
            os.set_blocking(fd, True)
        except OSError:
            pass

def backtrack():
    re.match(r"(a+)+$", "a" * 60 + "b")

class Hostile(float):
    def __float__(self): raise RuntimeError("no float")
class Text(float):
    def __float__(self): return "9.5"
class Slow(float):
    def __float__(self): time.sleep(600)
class Shy:
    @property
    def ndim(self): raise KeyError("no")
class Endless:
    def __len__(self): raise OSError("no")
class Mute(Exception):
    def __str__(self): raise ValueError("no text")
class Base(BaseException): pass

def score(completion, answer):
    if completion == "honest":
        return 0.25
"""

ACTS = {
    "nothing": "pass",
    "fork": "if os.fork() == 0: time.sleep(600)",
    "fork-session": "if os.fork() == 0: (os.setsid(), time.sleep(600))",
    "daemon": "if os.fork() == 0: (os.setsid(), os.fork() and os._exit(0), os.closerange(0, 256), time.sleep(600))",
    "fork-returns": "if os.fork() == 0: return 9.5",
    "fork-raises": "if os.fork() == 0: raise ValueError('copy')",
    "fork-exits": "if os.fork() == 0: sys.exit(0)",
    "fork-forges": "if os.fork() == 0: [(forge(), time.sleep(0.01)) for _ in range(10_000)]",
    "fork-floods": "if os.fork() == 0:\n        while True: forge()",
    "program": "subprocess.Popen(['sleep', '600'])",
    "program-session": "subprocess.Popen(['sleep', '600'], start_new_session=True)",
    "program-holds": "subprocess.Popen(['sleep', '600'], close_fds=False)",
    "multiprocessing": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,)).start()",
    "pool": "multiprocessing.get_context('fork').Pool(2)",
    "watchdog": "faulthandler.cancel_dump_traceback_later()",
    "watchdog-later": "faulthandler.dump_traceback_later(600)",
    "thread": "threading.Thread(target=time.sleep, args=(600,)).start()",
    "thread-hogs": "threading.Thread(target=backtrack).start()",
    "thread-forges": "threading.Thread(target=lambda: [(forge(), time.sleep(0.01)) for _ in range(10_000)]).start()",
    "thread-exits": "threading.Timer(0.1, os._exit, (7,)).start()",
    "prints": "print('noise ' * 20_000, file=open(os.devnull, 'w')); print()",
    "forges": "forge()",
    "forges-half": "forge(b'{\"reward\": 9.5, ')",
    "closes": "os.closerange(3, 256)",
    "closes-all": "os.closerange(0, 256)",
    "reopens": "os.closerange(3, 256); kept = [open('/dev/null', 'w') for _ in range(16)]",
    "redirects": "null = os.open(os.devnull, os.O_RDWR); [os.dup2(null, fd) for fd in range(3, 32)]",
    "no-stdio": "sys.stdout = sys.stderr = sys.stdin = None",
    "ignores": "[signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]",
    "alarm": "signal.setitimer(signal.ITIMER_REAL, 0.1)",
    "cpu-limit": "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    "file-limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "directory": "os.chdir('/')",
    "environment": "os.environ.clear()",
    "atexit": "atexit.register(time.sleep, 600)",
    "recursion": "sys.setrecursionlimit(60)",
    "no-json": "json.dumps = lambda *a, **k: '{\"reward\": 9.5}'",
    "no-pid": "os.getpid = lambda: 1",
    "no-math": "math.isfinite = lambda value: True",
    "modules": "sys.modules.clear()",
    "trace": "sys.settrace(lambda *a: None)",
    "collector": "gc.disable()",
}

NUMBERS = {"0.5": 0.5, "True": 1.0, "0": 0.0, "-3": -3.0, "Fraction(1, 2)": 0.5, "Decimal('0.5')": 0.5, "1e17": 1e17}
ENDS = {
    **{f"return {value}": f"return {value}" for value in NUMBERS},
    **{
        f"return {value}": f"return {value}"
        for value in [
            "1e39",
            "float('nan')",
            "-float('inf')",
            "10**400",
            "'1'",
            "b'1'",
            "None",
            "[1]",
            "(0.5,)",
            "{}",
            "1j",
            "Decimal('NaN')",
            "Decimal('sNaN')",
            "Decimal('1e400')",
            "Fraction(10**400)",
            "Hostile(1)",
            "Text(1)",
            "Slow(1)",
            "Shy()",
            "Endless()",
            "type('a\\nb' * 1000, (), {})()",
            "(x for x in [1])",
            "score",
            "Ellipsis",
            "asyncio.sleep(0)",
            "'9.5' * 10**6",
        ]
    },
    **{
        f"raise {error}": f"raise {error}"
        for error in [
            "KeyboardInterrupt",
            "GeneratorExit",
            "SystemExit('x' * 10**5)",
            "Base('\\ud800\\x1b[31m\\n')",
            "Mute()",
            "StopIteration",
            "ExceptionGroup('several', [ValueError(1)])",
            "ValueError('a\\nb' * 10**5)",
            "SyntaxError(None)",
            "type('E\\n', (Exception,), {})('x')",
        ]
    },
    "recurses": "return score.__call__(completion, answer)",
    "allocates": "return bytearray(2**62)",
    **{f"exits {status}": f"os._exit({status})" for status in (0, 3, 65, 255)},
    "aborts": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    **{
        f"dies of {name}": f"os.kill(os.getpid(), signal.{name}); time.sleep(600)"
        for name in ("SIGKILL", "SIGSTOP", "SIGTERM")
    },
    "dies of no name": "os.kill(os.getpid(), signal.SIGRTMIN + 5); time.sleep(600)",
    "faults": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); ctypes.string_at(0)",
    "sleeps": "time.sleep(600)",
    "spins": "while True: pass",
    "backtracks": "backtrack()",
    "waits": "threading.Lock().acquire() and threading.Event().wait()",
    "reads": "[os.read(fd, 1) for fd in range(3, 12)]",
    "becomes sleep": "os.execvp('sleep', ['sleep', '600'])",
    "becomes true": "os.execvp('true', ['true'])",
}


def trials(seed: int) -> Iterator[tuple[str, tuple]]:
    """Every act and every end once, paired at random; then two acts and an end, at random, without end."""
    rng = random.Random(seed)
    acts, ends = list(ACTS), list(ENDS)
    rng.shuffle(acts), rng.shuffle(ends)
    for i in range(max(len(acts), len(ends))):
        act, end = acts[i % len(acts)], ends[i % len(ends)]
        yield f"{i}: {act}, {end}"[:80], ((act,), end)
    while True:
        i += 1
        chosen, end = tuple(rng.sample(acts, 2)), rng.choice(ends)
        yield f"{i}: {' and '.join(chosen)}, {end}"[:80], (chosen, end)


def attempt(folder: Path, acts: tuple[str, ...], end: str) -> str | None:
    """Call the function once in a hostile and once in an honest way."""
    body = "".join(f"    {ACTS[act]}\n" for act in acts) + f"    {ENDS[end]}\n"
    (folder / "reward.py").write_text(HEAD + body)
    mark = os.environ[MARK] = uuid.uuid4().hex
    rows = [{"prompt": "p", "answer": "a"}]
    task = own_task(rows, f"{folder / 'reward.py'}:score", seconds=SECONDS)
    try:
        start = time.monotonic()
        result, problem = call(task, "hostile")
        took = time.monotonic() - start
        finding = judge(end, result, problem)
        if took > SECONDS + GRACE:
            finding = finding or f"took {took:.1f} s"
        if (
            problem is not None
            and ("ended" in problem or "longer" in problem or "closed" in problem)
            and (living := alive(mark))
        ):
            finding = finding or f"left alive after {problem!r}: {living}"
        honest, problem = call(task, "honest")
        if honest != 0.25:  # what is left behind may still end the process: a sentence, and then an answer
            again, _ = call(task, "honest") if problem is not None and one_sentence(problem) else (None, None)
            finding = finding or (None if again == 0.25 else f"an honest call gave {honest}, {problem}; then {again}")
    finally:
        task._call._end()
    if living := alive(mark):
        finding = finding or f"left alive: {living}"
    return finding


def call(task, completion: str) -> tuple[float | None, str | None]:
    """A call's reward, or the sentence of the ValueError that it raised."""
    try:
        return task.reward(["p"], [completion], ["a"], line=[1])[0], None
    except ValueError as error:
        return None, str(error)


def judge(end: str, result: float | None, problem: str | None) -> str | None:
    """What is wrong with a hostile call's result."""
    if problem is not None:
        return None if one_sentence(problem) else f"no sentence: {problem[:300]!r}"
    if (value := NUMBERS.get(end.removeprefix("return "))) is None or result != value:
        return f"{end} gave {result}"
    return None


def one_sentence(text: str) -> bool:
    """Whether a refusal is one printable sentence of fair length."""
    starts, ends = text.startswith("The reward function score "), text.endswith(", at line 1 of rows.")
    return starts and ends and text.isprintable() and len(text) < 400


def alive(mark: str) -> list[str]:
    """Commands of processes that were started in this trial and outlive the seconds of GRACE."""
    end = time.monotonic() + GRACE
    while (commands := living_commands(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return commands


def living_commands(mark: str) -> list[str]:
    """Commands of this trial's processes at this moment."""
    commands = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                commands.append(" ".join(process.cmdline())[:100])
        except (psutil.Error, OSError):
            pass
    return commands
