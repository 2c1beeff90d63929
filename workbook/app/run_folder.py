"""What a run's folder holds, how it is written whole, and how it is read when it is not.

A run may be killed at any moment, by a reader or by a full disk, and is gone on with later. So what
it needs then is never half there: a file or a folder is written under a temporary name beside its
place, flushed to disk, then renamed. A folder also holds the checksums of its files, and a damaged
one is passed over for the one before. Nothing is pickled.

A run folder holds
    config.yaml            what was asked for; a resume refuses to go on if it was edited
    manifest.json          versions, device, seed, git state, checksums of what it is made from, and
                           the config again
    status.json            state, process, message; training.lock is locked by that process
    metrics.jsonl          a line per optimizer step while it trains; metrics.parquet once it ends
    checkpoint-N/          atomic, checked, safetensors and JSON only
    samples.json           some of the newest generation batch's rollouts
    tokens/                what each recorded step did to each token, as Parquet (see
                           `rollouts.token_files`)
    samples/               prompts, completions, rewards, advantages at each checkpoint, as Parquet
    evaluation-*.parquet   token tables of held-out rollouts before and after
    final/                 the trained model or adapter

Every file but metrics.jsonl and log.txt is written atomically.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from workbook.files import read_json, storage_errors, write_json, write_text
from workbook.messages import InvalidValue
from workbook.places import file_hash
from workbook.rollouts.token_files import FOLDER as TOKENS

# of a run, so that a damaged newest one leaves another
MAX_CHECKPOINTS = 2
# sizes and SHA-256 of every file of a folder, written last
SUMS = "checksums.json"

# What a run writes in its folder, besides checkpoints; config.yaml is removed last, since it makes
# a folder a run's.
FILES = (
    "stop",
    "metrics.jsonl",
    "metrics.parquet",
    "samples.json",
    "evaluation.json",
    "evaluation-before.parquet",
    "evaluation-after.parquet",
    "manifest.json",
    "status.json",
    "training.lock",
    "log.txt",
    "config.yaml",
)
FOLDERS = ("final", "samples", TOKENS)
# a regular expression of all these names
OURS = "|".join(["checkpoint-[1-9][0-9]*", *FOLDERS, *map(re.escape, FILES)])

# bytes at the end of metrics.jsonl in which its last line lies
_TAIL = 16_384


# -- which folder ----------------------------------------------------------------------------------


def as_folder(folder: str | Path) -> Path:
    """A folder's path, there or not.

    Raises InvalidValue for what is none, such as an unset variable's empty text.
    """
    is_path = isinstance(folder, str | Path)
    if not is_path or not str(folder).strip() or not str(folder).isprintable():
        raise InvalidValue("folder", folder, "the path of a folder")
    return Path(folder)


def check_vacant(folder: Path) -> None:
    """Raise InvalidValue unless `folder` can be taken: it is empty, or there is none yet."""
    try:
        content = next(folder.iterdir(), None)
    except FileNotFoundError:
        return
    except OSError as error:
        sentence = f"{folder} can't be used ({error.strerror}); give an empty or a new folder."
        raise InvalidValue("folder", folder, "an empty or a new one", sentence) from None
    if content is not None:
        raise InvalidValue(
            "folder",
            folder,
            "an empty or a new one",
            f"{folder} holds files that are not a run's, e.g. {content.name}; give an empty or new"
            " folder.",
        )


# -- folders that are whole or absent --------------------------------------------------------------


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path`, with checksums, if the block succeeds, and
    vanishes if it fails.

    A `path` that was written so before is replaced; a reader's folder of that name is renamed to
    `path`.kept.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            _seal(temporary)
            if (path / SUMS).is_file():
                shutil.rmtree(path)
            elif path.exists() and any(path.iterdir()):
                path.rename(path.with_name(f"{path.name}.kept"))
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _seal(folder: Path) -> None:
    """Write the checksums of a folder's files."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sums = {file.relative_to(folder).as_posix(): _fingerprint(file) for file in files}
    write_json(folder / SUMS, sums)
    # safetensors makes its own files readable for their owner alone
    mode = (folder / SUMS).stat().st_mode
    for file in files:
        with suppress(OSError):
            file.chmod(mode)


def damage(path: Path, needed: Iterable[str] = ()) -> str | None:
    """Name the first defect of a folder that `atomic_folder` wrote; None if it is intact.

    needed: files that it must have.
    """
    try:
        sums = read_json(path / SUMS, dict)
    except ValueError:
        return f"{path.name} has no readable {SUMS}"
    expected = dict.fromkeys(needed) | sums
    for name, fingerprint in expected.items():
        if fingerprint is None or not (path / name).is_file():
            return f"{path.name}/{name} is missing"
        if _fingerprint(path / name) != fingerprint:
            return f"{path.name}/{name} differs from its checksum"
    return None


def _fingerprint(path: Path) -> dict:
    return {"bytes": path.stat().st_size, "sha256": file_hash(path)}


def remove_leftovers(folder: Path, names: str) -> None:
    """Delete what a killed writer left half-written.

    names: a regular expression of the files and folders that it was to become.
    """
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        if not re.fullmatch(rf"\.({names})\.\d+\.tmp", path.name, re.ASCII):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


# -- checkpoints -----------------------------------------------------------------------------------


def checkpoints(folder: Path) -> list[Path]:
    """The `checkpoint-N` folders that a run wrote in `folder`, newest first."""
    sealed = [path.parent for path in Path(folder).glob(f"checkpoint-*/{SUMS}")]
    ours = [path for path in sealed if checkpoint_step(path)]
    return sorted(ours, key=checkpoint_step, reverse=True)


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint's folder; 0 for a name that a run does not give."""
    step = re.fullmatch(r"checkpoint-([1-9]\d*)", path.name, re.ASCII)
    return int(step[1]) if step else 0


def save_state(folder: Path, name: str, state: Any) -> None:
    """Write a tree of dicts, lists, tuples, scalars and tensors as `name.json` and
    `name.safetensors` (the tensors).
    """
    leaves, tree = tree_flatten(state)
    tensors = {}
    scalars = {}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            # a copy: tensors of one file share no memory
            tensors[str(i)] = leaf.detach().cpu().contiguous().clone()
        else:
            scalars[i] = leaf
    save_file(tensors, folder / f"{name}.safetensors")
    text = json.dumps({"tree": treespec_dumps(tree), "scalars": scalars})
    write_text(folder / f"{name}.json", text)


def load_state(folder: Path, name: str) -> Any:
    """Read back what `save_state` wrote, with tensors on the CPU."""
    stored = read_json(folder / f"{name}.json", dict)
    leaves = load_file(folder / f"{name}.safetensors") | stored["scalars"]
    tree = treespec_loads(stored["tree"])
    return tree_unflatten([leaves[str(i)] for i in range(tree.num_leaves)], tree)


# -- metrics and records ---------------------------------------------------------------------------


def read_metrics(path: Path, last_only: bool = False) -> list[dict]:
    """The rows of metrics.jsonl, of each what is a number.

    A torn line, as a killed writer leaves it, is skipped. last_only: the newest rows are enough.
    """
    if not path.is_file():
        return []
    with open(path, "rb") as file:
        if last_only:
            file.seek(max(0, path.stat().st_size - _TAIL))
        lines = file.read().split(b"\n")[:-1]
    rows = []
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            row = json.loads(line)
            if type(row["step"]) is int:
                numbers = {
                    name: value for name, value in row.items() if type(value) in (int, float)
                }
                rows.append(numbers)
    return rows


def cut_metrics(path: Path, step: int) -> None:
    """Keep the rows of metrics.jsonl up to a step, from which training goes on."""
    rows = [row for row in read_metrics(path) if row["step"] <= step]
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_records(path: Path, columns: list[str]) -> pd.DataFrame:
    """A JSON list of records as a table of these columns.

    It has no rows for a file that is damaged, or not there.
    """
    rows = []
    with suppress(ValueError):
        for row in read_json(path, list):
            if isinstance(row, dict) and set(columns) <= set(row):
                rows.append(row)
    return pd.DataFrame(rows, columns=columns)
