"""Processes that outlive their starter: launch them, watch them from any other process, stop them and wait for them.

A process is known by its number and by when it began. On Linux that is counted from the machine's start, since setting
the clock moves every other time; a process on another machine that shares the folder is known by the lock it holds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

FINAL_STATES = ("stopped", "finished", "failed", "interrupted")
_children: dict[int, subprocess.Popen] = {}


def launch(folder: Path, module: str, *arguments: str) -> dict:
    """Start `python -m module arguments` with folder/log.txt for its output; returns its `identity`."""
    no_link = getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | no_link, 0o666)
    with open(descriptor, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"PYTHONHASHSEED": "0"},  # what iterates over a set does so in the same order again
        )
    _children[process.pid] = process  # kept, so that poll() can reap it
    return identity(process.pid)


def identity(pid: int) -> dict:
    """Marks of a process: pid; born, its start by the clock; since, its start after the machine's, on Linux.

    Raises psutil.Error if there is no such process.
    """
    return {"pid": pid, "born": psutil.Process(pid).create_time(), "since": _since(pid)}


def is_alive(process: dict) -> bool:
    """Whether a process of this machine is still at work; process: its `identity`."""
    if (child := _children.get(process["pid"])) is not None and child.poll() is not None:
        return False
    try:
        there = psutil.Process(process["pid"])
        if there.status() == psutil.STATUS_ZOMBIE:
            return False
        if since := process.get("since"):
            return _since(process["pid"]) == since
        return abs(there.create_time() - process["born"]) < 1
    except (psutil.Error, ValueError, TypeError, OverflowError):  # the latter: of numbers that no process has
        return False


def _since(pid: int) -> str | None:
    """The machine's start, by its id, and the clock ticks from there to a process's; None where /proc does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}+{stat.rpartition(')')[2].split()[19]}"  # field 22; the name before it may hold spaces
    except (OSError, IndexError):
        return None


def is_locked(path: Path) -> bool:
    """Whether some process, on whatever machine, holds the lock at `path`; False where that can't be asked."""
    try:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who only ask don't shut each other out
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


class Watched:
    """A folder in which another process trains: whether it does, to stop it, and to wait for it."""

    folder: Path  # where it lies

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, {self.status()['message']!r})"

    def status(self) -> dict:
        """state (starting, running, stopped, finished, failed, interrupted), step, total, message, pid."""
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop since it last started."""
        return (self.folder / "stop").exists()

    @property
    def running(self) -> bool:
        return self.status()["state"] not in FINAL_STATES

    def stop(self) -> None:
        """Ask it to stop after the optimizer step in hand; what was trained stays resumable."""
        from workbook.training.files import write_text  # which imports torch, and a monitor does without

        write_text(self.folder / "stop", "stop\n")

    def wait(self, timeout: float | None = None):
        """Block until it ends; returns itself. TimeoutError after `timeout` seconds, RuntimeError if it failed."""
        start = time.monotonic()
        while self.running:
            if timeout is not None and time.monotonic() - start > timeout:
                raise TimeoutError(f"{self.folder} is still running after {timeout:.0f} s: {self.status()['message']}")
            time.sleep(0.1)
        if self.status()["state"] == "failed":
            raise RuntimeError(self.status()["message"])
        return self

    def check_idle(self) -> None:
        """Raise a ValueError if it is running."""
        if self.running:
            raise ValueError(f"{self.folder} is running (process {self.status()['pid']}); stop() it first.")
