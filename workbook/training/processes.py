"""Processes: those of one run under `accelerate launch`, and a run's own, which outlives the one that started it.

    accelerate launch --multi_gpu --num_processes 4 -m workbook train CONFIG

On CPUs put ACCELERATE_USE_CPU=true before it: with --cpu accelerate starts a single process, whatever num_processes is.
Each trains on its share of every batch. The main one decides and writes, and alone asks the disk (is there a
checkpoint, was it asked to stop?): two looks at a file can differ, and processes that disagree wait for one another
for ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from workbook.policies.devices import choose_device

Value = TypeVar("Value")
_children: dict[int, subprocess.Popen] = {}


def process_count() -> int:
    """Number of processes of this launch; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """This process's number, 0 for the main one."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this process writes the run folder."""
    return process_index() == 0


def broadcast_from_main(value: Value) -> Value:
    """The main process's `value`, on every process; each must call it, at the same place. Any picklable value."""
    if process_count() == 1:
        return value
    _join()
    [value] = broadcast_object_list([value])
    return value


def all_gather(value: Value) -> list[Value]:
    """Every process's `value`, in the processes' order, on every process; each must call it, at the same place."""
    if process_count() == 1:
        return [value]
    _join()
    return gather_object([value])


def _join() -> None:
    """Meet the other processes; on a GPU each takes the one of its number."""
    if not PartialState._shared_state:
        PartialState(cpu=choose_device().type == "cpu")


# --- processes that outlive their starter


def launch(folder: Path, module: str, *arguments: str) -> dict:
    """Start `python -m module arguments` with folder/log.txt for its output; returns its `identity`."""
    with open(folder / "log.txt", "ab") as log:
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
    """A process's number, and when it began; psutil.Error if there is none."""
    return {"pid": pid, "born": psutil.Process(pid).create_time()}


def is_alive(process: dict) -> bool:
    """Whether a process of this machine is still at work; process: its `identity`."""
    if (child := _children.get(process["pid"])) is not None and child.poll() is not None:
        return False
    try:
        there = psutil.Process(process["pid"])
        return there.status() != psutil.STATUS_ZOMBIE and abs(there.create_time() - process["born"]) < 1
    except (psutil.Error, ValueError, OverflowError):  # the latter: of numbers that no process has
        return False


def kill(process: dict) -> None:
    """End a process that `launch` started, and all that it started, at once; nothing if it has ended."""
    if is_alive(process):
        for one in [*psutil.Process(process["pid"]).children(recursive=True), psutil.Process(process["pid"])]:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def is_locked(path: Path) -> bool:
    """Whether some process, on whatever machine, holds the lock at `path`; False where that can't be asked."""
    try:
        import fcntl

        with open(path, "rb") as file:  # closing it ends the shared lock
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
