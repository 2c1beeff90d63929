"""Files that are either whole or absent: atomic writes of files and folders, and state trees without pickle.

A reader that finds a file may trust it: each is written beside its place under a temporary name, flushed to disk,
then renamed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

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
        raise StorageError(
            f"Could not write {path}: {reason} ({free} MiB free); everything written before it is intact."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically: after a crash the file is the old one or the new one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def write_parquet(path: Path, frame) -> None:
    """Write a DataFrame as Parquet, atomically."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            frame.to_parquet(temporary, index=False)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path`, with checksums, if the block succeeds, and vanishes if it fails."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with readable_errors(path):
            temporary.mkdir(parents=True)
            yield temporary
            write_json(temporary / SUMS, {f.name: _fingerprint(f) for f in sorted(temporary.iterdir()) if f.is_file()})
            shutil.rmtree(path, ignore_errors=True)
            os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what killed writers left half-written below `folder`; only for a folder nobody writes to now."""
    for path in list(folder.rglob(".*.tmp")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def damage(path: Path) -> str | None:
    """What is wrong with a folder that `atomic_folder` wrote, in words; None if every file is as it was written."""
    try:
        sums = json.loads((path / SUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{path.name} has no readable {SUMS}"
    for name, expected in sums.items():
        file = path / name
        if not file.is_file():
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
        if isinstance(value, tuple):
            return {"tuple": [encode(item, f"{path}/{i}") for i, item in enumerate(value)]}
        if isinstance(value, list):
            return {"list": [encode(item, f"{path}/{i}") for i, item in enumerate(value)]}
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        raise TypeError(
            f"{path} is a {type(value).__name__}, which a checkpoint can't hold; valid: dicts, lists, tensors, scalars."
        )

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
