"""A run folder's files, each whole or absent, and which of a launch's processes writes them.

Each is written beside its place under a temporary name, flushed to disk, then renamed. States hold
no pickle.

    accelerate launch --multi_gpu --num_processes 4 -m workbook train CONFIG

trains in several processes, each on its share of every batch (on CPUs put ACCELERATE_USE_CPU=true
before it). The main one decides and writes, and alone asks the disk: processes that see a file
differently wait for one another for ever.
"""

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from workbook.messages import InvalidValue
from workbook.places import PACKAGE, clone, file_hash

Value = TypeVar("Value")

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "bitsandbytes",
    "accelerate",
    "datasets",
    "numpy",
)
KEEP = 2  # checkpoints of a run, so that a damaged newest one leaves another
MEASURED = ":(top,exclude)data/results/*/*.parquet"  # tables that studies add to, as git's pathspec
SUMS = "checksums.json"  # sizes and SHA-256 of every file of a folder, written last


class StorageError(OSError):
    """A file could not be written or read; its message is one sentence for the reader."""


@contextmanager
def _readable_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, StorageError):
            raise
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        free = (
            shutil.disk_usage(next(p for p in [path, *path.absolute().parents] if p.exists())).free
            // 2**20
        )
        reason = f"{'the disk is full' if full else error} ({free} MiB free)"
        raise StorageError(
            f"Could not write {path}: {reason}; everything written before it is intact."
        ) from error


@contextmanager
def replacement(path: str | Path) -> Iterator[Path]:
    """Yield the path of an empty file beside `path`, which replaces `path` if the block succeeds."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _readable_errors(path):
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
    """Read a JSON file that holds a `kind`, a dict or a list; ValueError, in one sentence, if it
    does not.
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


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path`, with checksums, if the block succeeds, and
    vanishes if it fails.

    A `path` that was written so before is replaced; a reader's folder of that name is renamed to
    `path`.kept.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _readable_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            files = sorted(file for file in temporary.rglob("*") if file.is_file())
            sums = {file.relative_to(temporary).as_posix(): _fingerprint(file) for file in files}
            write_json(temporary / SUMS, sums)
            for file in files:  # safetensors makes its own readable for their owner alone
                with suppress(OSError):
                    file.chmod((temporary / SUMS).stat().st_mode)
            if (path / SUMS).is_file():
                shutil.rmtree(path)
            elif path.exists() and any(path.iterdir()):
                path.rename(path.with_name(f"{path.name}.kept"))
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def damage(path: Path, needed: Iterable[str] = ()) -> str | None:
    """Name the first defect of a folder that `atomic_folder` wrote and that has the `needed` files;
    None if intact.
    """
    try:
        sums = read_json(path / SUMS, dict)
    except ValueError:
        return f"{path.name} has no readable {SUMS}"
    for name, expected in (dict.fromkeys(needed) | sums).items():
        if expected is None or not (path / name).is_file():
            return f"{path.name}/{name} is missing"
        if _fingerprint(path / name) != expected:
            return f"{path.name}/{name} differs from its checksum"
    return None


def _fingerprint(path: Path) -> dict:
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def as_folder(folder: str | Path) -> Path:
    """A folder's path, there or not; ValueError for what is none, such as an unset variable's empty
    text.
    """
    if (
        not isinstance(folder, str | Path)
        or not str(folder).strip()
        or not str(folder).isprintable()
    ):
        raise InvalidValue("folder", folder, "the path of a folder")
    return Path(folder)


def check_vacant(folder: Path) -> None:
    """Raise a ValueError unless `folder` can be taken: it is empty, or there is none yet."""
    try:
        taken = next(folder.iterdir(), None)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ValueError(
            f"{folder} can't be used ({error.strerror}); give an empty or a new folder."
        ) from None
    if taken is not None:
        raise ValueError(
            f"{folder} holds files that are not a run's, e.g. {taken.name}; give an empty or new"
            " folder."
        )


def checkpoints(folder: Path) -> list[Path]:
    """The `checkpoint-N` folders that a run wrote in `folder`, newest first."""
    written = [path.parent for path in Path(folder).glob(f"checkpoint-*/{SUMS}")]
    return sorted(filter(checkpoint_step, written), key=checkpoint_step, reverse=True)


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint's folder; 0 for a name that a run does not give."""
    step = re.fullmatch(r"checkpoint-([1-9]\d*)", path.name, re.ASCII)
    return int(step[1]) if step else 0


def read_metrics(path: Path, last_only: bool = False) -> list[dict]:
    """The rows of metrics.jsonl, of each what is a number; a torn line, as a killed writer leaves
    it, is skipped.
    """
    if not path.is_file():
        return []
    with open(path, "rb") as file:
        if last_only:
            file.seek(max(0, path.stat().st_size - 16_384))
        lines = file.read().split(b"\n")[:-1]
    rows = []
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            row = json.loads(line)
            if type(row["step"]) is int:
                rows.append(
                    {key: value for key, value in row.items() if type(value) in (int, float)}
                )
    return rows


def read_records(path: Path, columns: list[str]) -> pd.DataFrame:
    """A JSON list of records as a table of these columns; without rows for a file that is damaged,
    or not there.
    """
    rows = []
    with suppress(ValueError):
        rows = [
            row
            for row in read_json(path, list)
            if isinstance(row, dict) and set(columns) <= set(row)
        ]
    return pd.DataFrame(rows, columns=columns)


def remove_leftovers(folder: Path, names: str) -> None:
    """Delete what a killed writer left half-written of files and folders whose names match a
    regular expression.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if re.fullmatch(rf"\.({names})\.\d+\.tmp", path.name, re.ASCII):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def save_state(folder: Path, name: str, state: Any) -> None:
    """Write a tree of dicts, lists, tuples, scalars and tensors as `name.json` and
    `name.safetensors` (the tensors).
    """
    leaves, tree = tree_flatten(state)
    tensors = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    whole = {str(i): leaf.detach().cpu().contiguous().clone() for i, leaf in tensors.items()}
    save_file(whole, folder / f"{name}.safetensors")
    scalars = {i: leaf for i, leaf in enumerate(leaves) if i not in tensors}
    write_text(
        folder / f"{name}.json", json.dumps({"tree": treespec_dumps(tree), "scalars": scalars})
    )


def load_state(folder: Path, name: str) -> Any:
    """Read back what `save_state` wrote, with tensors on the CPU."""
    stored = read_json(folder / f"{name}.json", dict)
    leaves, tree = (
        load_file(folder / f"{name}.safetensors") | stored["scalars"],
        treespec_loads(stored["tree"]),
    )
    return tree_unflatten([leaves[str(i)] for i in range(tree.num_leaves)], tree)


def made_with(policy) -> dict:
    """What `made_on` says of the policy's device, and with which policy something is made."""
    return made_on(policy.provenance["device"]) | {"policy": policy.provenance}


def made_on(device: str) -> dict:
    """When, with which versions, on which device and from which commit something is made."""
    cuda = device.startswith("cuda")
    there = {dist.metadata["Name"]: dist.version for dist in distributions()}
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": (
            {"python": platform.python_version()} | {name: there.get(name) for name in PACKAGES}
        ),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": (
            torch.cuda.get_device_name(device)
            if cuda
            else f"{device}, {torch.get_num_threads()} threads"
        ),
        "git": _git_state(),
    }


def _git_state() -> dict | None:
    """Commit and whether tracked files differ from it; None outside a clone, though it be another
    repository.

    Measured tables do not count: a study adds units to them, one after another, before they are
    committed.
    """

    def git(*args):
        return subprocess.check_output(
            ["git", *args], cwd=PACKAGE, text=True, stderr=subprocess.DEVNULL
        ).strip()

    try:
        clone("A commit")
        modified = bool(
            git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", MEASURED)
        )
        return {"commit": git("rev-parse", "HEAD"), "modified": modified}
    except (ValueError, OSError, subprocess.CalledProcessError):
        return None


# --- the processes of a launch


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
    """The main process's `value`, on every process; each must call it, at the same place. Any
    picklable value.
    """
    return all_gather(value if is_main() else None)[0]


def all_gather(value: Value) -> list[Value]:
    """Every process's `value`, in the processes' order, on every process; each must call it, at the
    same place.
    """
    if process_count() == 1:
        return [value]
    from accelerate import PartialState
    from accelerate.utils import gather_object

    from workbook.policies.models import choose_device

    if not PartialState._shared_state:  # meet the others; on a GPU each takes the one of its number
        PartialState(cpu=choose_device().type == "cpu")
    return gather_object([value])
