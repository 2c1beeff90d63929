"""The processes of one run under `accelerate launch`: the main one decides and writes, the others follow.

    accelerate launch --multi_gpu --num_processes 4 -m workbook train CONFIG

On CPUs put ACCELERATE_USE_CPU=true before it: with --cpu accelerate starts a single process, whatever num_processes is.
Each trains on its share of every batch. The main process alone asks the disk (is there a checkpoint, was it asked to
stop?) and tells the others, since two looks at a file can differ and processes that disagree wait for one another for
ever.
"""

from __future__ import annotations

import os
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from workbook.policies.devices import choose_device

Value = TypeVar("Value")


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
    """The main process's `value`, on every process; each must call it, at the same place. Any picklable value.

    >>> broadcast_from_main("alone")
    'alone'
    """
    if process_count() == 1:
        return value
    _join()
    [value] = broadcast_object_list([value])
    return value


def all_gather(value: Value) -> list[Value]:
    """Every process's `value`, in the processes' order, on every process; each must call it, at the same place.

    >>> all_gather("alone")
    ['alone']
    """
    if process_count() == 1:
        return [value]
    _join()
    return gather_object([value])


def _join() -> None:
    """Meet the other processes; on a GPU each takes the one of its number."""
    if not PartialState._shared_state:
        PartialState(cpu=choose_device().type == "cpu")
