"""Memory of a device: what is free on it for a run, and what this process holds of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import torch

MIB = 2**20


def free_memory(device: str | torch.device | None = None) -> int:
    """Bytes that are free for a run on a device now; None is the one that runs train on here.

    A GPU's own memory, or the system's where it has none.
    """
    if device is None:
        from workbook.policies.devices import choose_device

        device = choose_device()
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def free_mib(device: str | torch.device) -> float:
    """`free_memory` in MiB."""
    return free_memory(device) / MIB


def used_mib(device: str | torch.device) -> float:
    """Memory this process holds now, in MiB: allocated by torch on a GPU, resident on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.memory_allocated(device) / MIB
    return psutil.Process().memory_info().rss / MIB


def peak_used_mib(device: str | torch.device) -> float:
    """The most this process has held so far, in MiB; on a CPU without that record (Windows), what it holds now."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    status = Path("/proc/self/status")  # Linux, where getrusage counts what the process held that started this one
    if status.exists() and (peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(peak[1]) / 1024
    try:
        import resource
    except ImportError:
        return used_mib(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024
