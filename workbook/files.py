"""Files that are written whole or not at all, what they were made with, and which of a launch's
processes writes them.

Each file is written beside its place under a temporary name, flushed to disk, then renamed: after a
crash it is the old one or the new one.

    accelerate launch --multi_gpu --num_processes 4 -m workbook train CONFIG

trains in several processes, each on its share of every batch (on CPUs put ACCELERATE_USE_CPU=true
before it). The main one decides and writes, and alone asks the disk: processes that see a file
differently wait for one another for ever.
"""

import errno
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from workbook.places import PACKAGE, clone

Value = TypeVar("Value")

# packages whose versions are recorded
_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "bitsandbytes",
    "accelerate",
    "datasets",
    "numpy",
)
# tables that studies add to, as git's pathspec
_MEASURED = ":(top,exclude)data/results/*/*.parquet"


class StorageError(OSError):
    """A file could not be written or read; its message is one sentence for the reader."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what a disk or safetensors raises inside the block into a StorageError about `path`."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        cause = "the disk is full" if full else error
        existing = next(place for place in [path, *path.absolute().parents] if place.exists())
        free = shutil.disk_usage(existing).free // 2**20
        raise StorageError(
            f"Could not write {path}: {cause} ({free} MiB free); everything written before it is"
            " intact."
        ) from error


@contextmanager
def replacement(path: str | Path) -> Iterator[Path]:
    """Yield the path of an empty file beside `path`; it replaces `path` if the block succeeds."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically: after a crash the file is the old one or the new one."""
    with replacement(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: str | Path, value: Any) -> None:
    """`write_text` of `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_parquet(path: str | Path, frame) -> None:
    """Write a DataFrame as Parquet, atomically."""
    with replacement(path) as temporary:
        frame.to_parquet(temporary, index=False)


def read_json(path: str | Path, kind: type[Value]) -> Value:
    """Read a JSON file that holds a `kind`, a dict or a list.

    Raises ValueError, in one sentence, if it does not.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is damaged: it is not valid JSON.") from None
    if not isinstance(value, kind):
        raise ValueError(f"{path} is damaged: it holds no {kind.__name__}.")
    return value


# -- what something was made with ------------------------------------------------------------------


def made_with(policy) -> dict:
    """What `made_on` says of the policy's device, and with which policy something is made."""
    return made_on(policy.provenance["device"]) | {"policy": policy.provenance}


def made_on(device: str) -> dict:
    """When, with which versions, on which device and from which commit something is made."""
    installed = {dist.metadata["Name"]: dist.version for dist in distributions()}
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        versions[name] = installed.get(name)
    if device.startswith("cuda"):
        device = torch.cuda.get_device_name(device)
    else:
        device = f"{device}, {torch.get_num_threads()} threads"
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device,
        "git": _git_state(),
    }


def _git_state() -> dict | None:
    """Commit, and whether tracked files differ from it.

    None outside a clone, though it be another repository. Measured tables do not count: a study
    adds units to them, one after another, before they are committed.
    """
    status = ("status", "--porcelain", "--untracked-files=no", "--", ":(top)", _MEASURED)
    try:
        clone("A commit")
        modified = bool(_git(*status))
        return {"commit": _git("rev-parse", "HEAD"), "modified": modified}
    except (ValueError, OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    output = subprocess.check_output(
        ["git", *arguments], cwd=PACKAGE, text=True, stderr=subprocess.DEVNULL
    )
    return output.strip()


# -- the processes of a launch ---------------------------------------------------------------------


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
    """The main process's `value`, any picklable one, on every process.

    Each process must call it, at the same place.
    """
    return all_gather(value if is_main() else None)[0]


def all_gather(value: Value) -> list[Value]:
    """Every process's `value`, in the processes' order, on every process.

    Each process must call it, at the same place.
    """
    if process_count() == 1:
        return [value]
    from accelerate import PartialState
    from accelerate.utils import gather_object

    from workbook.policies.models import choose_device

    if not PartialState._shared_state:  # meet the others; on a GPU each takes the one of its number
        PartialState(cpu=choose_device().type == "cpu")
    return gather_object([value])
