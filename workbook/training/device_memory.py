"""Memory of a device: what is free on it for a run, and what this process holds of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import torch

MIB = 2**20
CGROUPS = Path("/sys/fs/cgroup")
# version 2 of control groups, then 1: limit, usage, and the line of memory.stat that can be given back at once
GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory(device: str | torch.device | None = None) -> int:
    """Bytes that are free for a run on a device now; None is the one that runs train on here.

    A GPU's own memory, or the system's where it has none: what the kernel can give, and no more than is left of the
    limit of the container that this process is in.
    """
    if device is None:
        from workbook.policies.devices import choose_device

        device = choose_device()
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(min([psutil.virtual_memory().available, *_left_in_groups()]))


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


def _left_in_groups() -> list[int]:
    """Bytes below the limit of each control group that holds this process; none where there is no limit."""
    left_over = [_left_in(folder) for folder in _own_groups()]
    return [size for size in left_over if size is not None]


def _own_groups() -> list[Path]:
    """Folders of this process's control groups and of those around them; a container shows its own as the root."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return []
    folders = []
    for number, controllers, path in (line.split(":", 2) for line in lines):
        if number == "0" or "memory" in controllers.split(","):
            root = CGROUPS if number == "0" else CGROUPS / "memory"
            own = root / path.strip("/")
            folders += [folder for folder in (own, *own.parents) if folder == root or root in folder.parents]
    return list(dict.fromkeys(folders))


def _left_in(folder: Path) -> int | None:
    """Bytes below one control group's limit, counting what the page cache would give back; None without a limit."""
    for limit, usage, reclaimable in GROUP_FILES:
        try:
            most, now = int((folder / limit).read_text()), int((folder / usage).read_text())
            cache = re.search(rf"^{reclaimable} (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
        except (OSError, ValueError):  # no such file, or "max"
            continue
        return max(0, most - now + (int(cache[1]) if cache else 0))
    return None
