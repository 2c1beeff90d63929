"""Files that are either whole or absent: atomic writes of files and folders, and state trees without pickle.

A reader that finds a file may trust it: each is written beside its place under a temporary name, flushed to disk,
then renamed.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from workbook.places import PACKAGE, clone

Value = TypeVar("Value")

PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "datasets", "numpy")
SUMS = "checksums.json"  # sizes and SHA-256 of every file of a folder, written last


class StorageError(OSError):
    """A file could not be written or read; its message is one sentence for the reader."""


@contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn a failed write below `path` into a StorageError that says why and what is safe."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, StorageError):
            raise
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        reason = "the disk is full" if full else str(error)
        free = shutil.disk_usage(next(p for p in [path, *path.parents] if p.exists())).free // 2**20
        failed = f"Could not write {path}: {reason} ({free} MiB free)"
        raise StorageError(f"{failed}; everything written before it is intact.") from error


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically: after a crash the file is the old one or the new one."""
    with replacement(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """`write_text` of `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_parquet(path: Path, frame) -> None:
    """Write a DataFrame as Parquet, atomically."""
    with replacement(path) as temporary:
        frame.to_parquet(temporary, index=False)


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield an empty file of a name that nobody uses, which replaces `path` if the block succeeds."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):  # /dev/null, say, which would be one no more
        raise ValueError(f"{path} is a device or pipe and can't be replaced by a file; give another path.")
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path, lambda new: open(new, "x").close())
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _temporary(path: Path, make: Callable[[Path], None]) -> Path:
    """Make `.NAME.PID.tmp` beside `path`, or the next such name that is free: what lies there may be a reader's."""
    for i in itertools.count():
        new = path.with_name(f".{path.name}.{os.getpid()}{f'-{i}' if i else ''}.tmp")
        try:
            make(new)
            return new
        except FileExistsError:
            continue


def is_leftover(name: str, of: str) -> bool:
    """Whether a file's name is one under which a killed writer may have left `of`, a regular expression, half-written.

    >>> is_leftover(".final.17.tmp", "final|stop"), is_leftover(".notes.17.tmp", "final|stop")
    (True, False)
    """
    return re.fullmatch(rf"\.({of})\.\d+(-\d+)?\.tmp", name, re.ASCII) is not None


def read_json(path: Path, kind: type[Value]) -> Value:
    """Read a JSON file that holds a `kind`, a dict or a list. Raises ValueError, in one sentence, if it does not."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which is not followed; put the file itself there.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing.") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is damaged: it is not valid JSON.") from None
    if not isinstance(value, kind):
        raise ValueError(f"{path} is damaged: it holds a {type(value).__name__} instead of a {kind.__name__}.")
    return value


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path`, with checksums, if the block succeeds, and vanishes if it fails.

    A `path` that was written so before is replaced. What else lies there is a reader's: it is renamed, to `path`.kept.
    All files get the permissions of the checksums', since safetensors makes its own readable for their owner alone.
    """
    path = Path(path)
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path, Path.mkdir)
        try:
            yield temporary
            write_json(temporary / SUMS, {name: _fingerprint(file) for name, file in sorted(_files(temporary))})
            for _, file in _files(temporary):
                with suppress(OSError):  # some mounted disks have no permissions
                    file.chmod((temporary / SUMS).stat().st_mode)
            remove_folder(path)
            with suppress(OSError):  # an empty folder
                path.rmdir()
            if path.is_symlink() or path.exists():
                path.rename(_unused(path))
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _unused(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.kept{f'-{i}' if i else ''}") for i in itertools.count())
    return next(name for name in names if not (name.is_symlink() or name.exists()))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(path below `folder`, file) of each file in it, links included and not followed."""
    for parent, folders, names in os.walk(folder):
        for file in (Path(parent) / name for name in [*names, *folders]):
            if file.is_symlink() or not file.is_dir():
                yield file.relative_to(folder).as_posix(), file


def checksums(folder: Path) -> dict[str, dict] | None:
    """Size and SHA-256 of each file as `atomic_folder` wrote it; None for a folder that it did not write, or a link."""
    try:
        sums = None if folder.is_symlink() else read_json(folder / SUMS, dict)
    except ValueError:
        return None
    whole = sums and all(isinstance(entry, dict) and {"bytes", "sha256"} <= set(entry) for entry in sums.values())
    return sums if whole else None


def remove_folder(folder: Path) -> None:
    """Remove a folder that `atomic_folder` wrote; a file in it that its checksums don't name stays, and so does it."""
    if (sums := checksums(folder)) is None:
        return
    for _, file in sorted(pair for pair in _files(folder) if pair[0] in sums):
        file.unlink(missing_ok=True)
    if [name for name, _ in _files(folder)] == [SUMS]:
        shutil.rmtree(folder)


def damage(path: Path, needed: Iterable[str] = ()) -> str | None:
    """Name the first defect of a folder that `atomic_folder` wrote; None if every file is as it was written.

    needed: names of files that it must have.
    """
    if (sums := checksums(path)) is None:
        return f"{path.name} has no readable {SUMS}"
    for name, expected in (dict.fromkeys(needed) | sums).items():
        file = path / name
        if expected is None or file.is_symlink() or not file.is_file():
            return f"{path.name}/{name} is missing"
        if file.stat().st_size != expected["bytes"]:
            return f"{path.name}/{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
        if _fingerprint(file) != expected:
            return f"{path.name}/{name} differs from its checksum"
    return None


def _fingerprint(path: Path) -> dict:
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def save_state(folder: Path, name: str, state: Any) -> None:
    """Write a tree of dicts, lists, tuples, scalars and tensors as `name.json` and `name.safetensors` (the tensors)."""
    tensors: dict[str, torch.Tensor] = {}

    def encode(value, path):
        if isinstance(value, torch.Tensor):
            tensors[path] = value.detach().cpu().contiguous().clone()
            return {"tensor": path}
        if isinstance(value, dict):  # keys may be integers, as in an optimizer's state
            return {"dict": [[key, encode(item, f"{path}/{key}")] for key, item in value.items()]}
        if isinstance(value, tuple | list):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [encode(item, f"{path}/{i}") for i, item in enumerate(value)]}
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        kind = type(value).__name__
        raise TypeError(f"{path} is a {kind}, which a checkpoint can't hold; valid: dicts, lists, tensors, scalars.")

    tree = encode(state, name)
    save_file(tensors, folder / f"{name}.safetensors")
    write_text(folder / f"{name}.json", json.dumps(tree))


def load_state(folder: Path, name: str) -> Any:
    """Read back what `save_state` wrote, with tensors on the CPU."""
    tensors = load_file(folder / f"{name}.safetensors")

    def decode(node):
        [(kind, value)] = node.items()
        if kind == "tensor":
            return tensors[value]
        if kind == "dict":
            return {key: decode(item) for key, item in value}
        if kind in ("list", "tuple"):
            return (list if kind == "list" else tuple)(decode(item) for item in value)
        return value

    return decode(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))


def made_with(policy) -> dict:
    """When, with which versions, where and from which commit something is made, and with which policy."""
    return {**made_on(policy.provenance["device"]), "policy": policy.provenance}


def made_on(device: str) -> dict:
    """When, with which versions, on which device and from which commit something is made."""
    cuda = device.startswith("cuda")
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if cuda else f"{device}, {torch.get_num_threads()} threads",
        "git": git_state(),
    }


def git_state() -> dict | None:
    """Commit and whether tracked files differ from it; None outside a clone, though it be another repository."""

    def git(*args):
        return subprocess.check_output(["git", *args], cwd=PACKAGE, text=True, stderr=subprocess.DEVNULL).strip()

    try:
        clone("A commit")
        modified = bool(git("status", "--porcelain", "--untracked-files=no"))
        return {"commit": git("rev-parse", "HEAD"), "modified": modified}
    except (ValueError, OSError, subprocess.CalledProcessError):
        return None


@cache
def sources_sha256(*folders: str) -> str:
    """SHA-256 of the Python files in some of this package's folders: what they compute may change with it."""
    files = [file for folder in folders for file in sorted((PACKAGE / folder).rglob("*.py"))]
    rows = [f"{file.relative_to(PACKAGE).as_posix()} {_fingerprint(file)['sha256']}" for file in files]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
