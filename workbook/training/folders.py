"""Run folders among a reader's own files: which are taken, what in them is ours, and what of it may be removed.

A folder that holds anything else is not taken, links are not followed, and what is removed goes by its name, place and
kind, so that no file which a run did not write is ever changed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from workbook.training.files import SUMS, checksums, damage, is_leftover, read_json, remove_folder
from workbook.training.messages import one_line, show_value

FILES = (  # in the order in which they are removed: while there is a config.yaml the folder is known for a run's
    *("stop", "metrics.jsonl", "metrics.parquet", "samples.json"),
    *("evaluation.json", "evaluation-before.parquet", "evaluation-after.parquet"),
    *("manifest.json", "status.json", "training.lock", "log.txt", "config.yaml"),
)
FOLDERS = ("final", "samples", "tokens")
OURS = "|".join(["checkpoint-[1-9][0-9]*", *FOLDERS, *(name.replace(".", r"\.") for name in FILES)])
STATE = "training_state"  # stem of the state files in a checkpoint
NEEDED = (f"{STATE}.json", f"{STATE}.safetensors", "trainer_state.json")  # in a checkpoint, besides the weights
TABLES = r"step-\d{6,}\.parquet|thinned\.json"  # in samples/ and tokens/


def as_folder(folder: str | Path) -> Path:
    """A folder's path, there or not. Raises ValueError for a value that is no path, or one that no system can have."""
    if not isinstance(folder, str | Path) or not str(folder).strip():
        raise ValueError(f"folder={show_value(folder)} names no folder; give the path of one.")
    try:
        os.path.lexists(os.fsencode(folder)) or os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long a name; one with a NUL or half a character
        reason = getattr(error, "strerror", None) or one_line(error, 60)
        raise ValueError(f"folder={show_value(str(folder))} can't be used ({reason}); give another path.") from None
    return Path(folder)


def check_vacant(folder: str | Path) -> None:
    """Raise a ValueError unless `folder` can be taken: it is empty, or there is none yet."""
    folder = as_folder(folder)
    try:
        taken = next(folder.iterdir(), None)
    except FileNotFoundError:
        if folder.is_symlink():
            raise ValueError(f"{folder} is a link that leads nowhere; give an empty or a new folder.") from None
        return
    except (OSError, ValueError) as error:  # the latter: of a name with a NUL
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{str(folder)!r} can't be used ({reason}); give an empty or a new folder.") from None
    if taken is not None:
        others = f"{folder} holds files that are not a run's, e.g. {taken.name}"
        raise ValueError(f"{others}; give an empty or a new folder.")


def check_links(folder: Path) -> None:
    """Raise a ValueError if what a run writes in its folder is a link, or a folder in a file's place, or a file in a
    folder's; what a link leads to is not ours."""
    for path in sorted(folder.iterdir()):
        if path.name not in (*FILES, *FOLDERS):
            continue
        if path.is_symlink():
            raise ValueError(f"{path} is a link, which a run does not follow; put the {path.name} itself there.")
        if path.is_dir() == (path.name in FILES):
            ours, there = ("file", "folder") if path.is_dir() else ("folder", "file")
            raise ValueError(f"{path} is a {there}, where a run has a {ours}; move it elsewhere.")


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed trainer left half-written; only for a run that nobody trains now."""
    parts = [part for name in ("samples", "tokens") if not (part := folder / name).is_symlink()]
    places = [(folder, OURS), *((part, TABLES) for part in parts)]
    for place, names in places:
        for path in list(place.iterdir()) if place.is_dir() else ():
            if path.is_symlink() or not is_leftover(path.name, of=names):
                continue
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif path.name.startswith((".checkpoint-", ".final.")):
                shutil.rmtree(path, ignore_errors=True)


def missing_folders(folder: Path) -> list[Path]:
    """A folder and those above it that are not there yet, the deepest first."""
    return list(itertools.takewhile(lambda path: not os.path.lexists(path), [folder, *folder.parents]))


def discard(folder: Path, made: Iterable[Path] = ()) -> None:
    """Remove what a run that never trained a step has written, and its folder if nothing else is in it.

    made: folders above it that were made for it, removed as well if they are empty.
    """
    remove_leftovers(folder)
    for path in (folder / name for name in FILES):
        if path.is_file() and not path.is_symlink():
            with suppress(OSError):
                path.unlink()
    remove_folder(folder / "final")
    tokens = folder / "tokens"
    for path in [] if tokens.is_symlink() or not tokens.is_dir() else tokens.iterdir():
        if re.fullmatch(TABLES, path.name, re.ASCII) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)
    with suppress(OSError):
        tokens.rmdir()
    with suppress(OSError):
        for path in dict.fromkeys([folder, *made]):
            os.rmdir(path)


def is_own_name(name: str) -> bool:
    """Whether a run gives this name to a file or folder in its own, half-written ones included.

    >>> [is_own_name(name) for name in ("checkpoint-12", ".final.17.tmp", "notes.txt")]
    [True, True, False]
    """
    return re.fullmatch(OURS, name, re.ASCII) is not None or is_leftover(name, of=OURS)


def own_paths(folder: Path) -> list[Path]:
    """The files and folders right in a run's folder that the run wrote, its config.yaml last; links are none."""

    def is_own(path: Path) -> bool:
        if path.is_symlink() or not is_own_name(path.name):
            return False
        if is_leftover(path.name, of=OURS):
            return path.is_file() or path.name.startswith((".checkpoint-", ".final."))
        if path.name in ("samples", "tokens"):
            return path.is_dir()
        return path.is_file() if path.name in FILES else checksums(path) is not None

    order = {name: i for i, name in enumerate(FILES)}
    return sorted(filter(is_own, folder.iterdir()), key=lambda path: (order.get(path.name, -1), path.name))


def own_files(path: Path) -> list[Path]:
    """Of one of `own_paths` the files that go with it; what else lies in such a folder is a reader's, and stays."""
    if not path.is_dir():
        return [path]
    if is_leftover(path.name, of=OURS):
        return [file for file in path.rglob("*") if file.is_symlink() or not file.is_dir()]
    if path.name in ("samples", "tokens"):
        names = [file for file in path.iterdir() if re.fullmatch(TABLES, file.name, re.ASCII)]
        return [file for file in names if file.is_file() and not file.is_symlink()]
    named = [path / name for name in [*(checksums(path) or {}), SUMS]]
    return [file for file in named if os.path.lexists(file)]


def remove_own(path: Path) -> None:
    """Delete one of `own_paths` with its `own_files`; a folder that holds other files stays."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
    elif is_leftover(path.name, of=OURS):
        shutil.rmtree(path)
    elif path.name in ("samples", "tokens"):
        for file in own_files(path):
            file.unlink(missing_ok=True)
        with suppress(OSError):
            path.rmdir()
    else:
        remove_folder(path)


def checkpoints(folder: Path) -> list[Path]:
    """The `checkpoint-N` folders in `folder`, newest first; links and half-written ones are none."""
    paths = [p for p in Path(folder).glob("checkpoint-*") if checkpoint_step(p) and p.is_dir() and not p.is_symlink()]
    return sorted(paths, key=checkpoint_step, reverse=True)


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint's folder; 0 for a name that we don't give.

    >>> [checkpoint_step(Path(name)) for name in ("checkpoint-12", "checkpoint-012", "checkpoint-²", "final")]
    [12, 0, 0, 0]
    """
    step = re.fullmatch(r"checkpoint-([1-9]\d*)", path.name, re.ASCII)
    return int(step[1]) if step else 0


def newest_intact(folder: Path, max_steps: int | None = None) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose checksums hold, and what is wrong with each newer one.

    max_steps: of the run; a checkpoint of a longer or shorter one is none of its own.
    """
    defects = []
    for checkpoint in checkpoints(folder):
        defect = damage(checkpoint, NEEDED) or _is_foreign(checkpoint, max_steps)
        if defect is None:
            return checkpoint, defects
        defects.append(defect)
    return None, defects


def _is_foreign(checkpoint: Path, max_steps: int | None) -> str | None:
    try:
        state = read_json(checkpoint / "trainer_state.json", dict)
    except ValueError as error:
        return str(error).rstrip(".")
    if state.get("global_step") != checkpoint_step(checkpoint):
        return f"{checkpoint.name} was written at step {state.get('global_step')!r}"
    if max_steps is not None and state.get("max_steps") != max_steps:
        return f"{checkpoint.name} is of a run of {state.get('max_steps')!r} steps, not {max_steps}"
    return None


def read_metrics(path: Path, last_only: bool = False) -> list[dict]:
    """The rows of metrics.jsonl whose step is a number of steps; of each row, what is a number."""
    rows = [row for row in read_json_lines(path, last_only) if type(row.get("step")) is int and 0 < row["step"] < 2**53]
    return [{key: value for key, value in row.items() if _is_number(value)} for row in rows]


def _is_number(value) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def read_records(path: Path, columns: list[str], texts: tuple[str, ...]) -> list[dict]:
    """Rows of a JSON list of flat records; none of a file that is damaged, or not there."""
    try:
        rows = read_json(path, list)
    except ValueError:
        return []

    def is_sound(row) -> bool:
        return all(isinstance(row[key], str) if key in texts else _is_number(row[key]) for key in columns)

    return [row for row in rows if isinstance(row, dict) and set(columns) <= set(row) and is_sound(row)]


def read_json_lines(path: Path, last_only: bool = False) -> list[dict]:
    """The whole lines of a JSON-lines file; a torn last line, as a killed writer leaves it, is skipped."""
    if path.is_symlink() or not path.is_file():
        return []
    with open(path, "rb") as file:
        if last_only:
            file.seek(max(0, path.stat().st_size - 16_384))
        lines = file.read().split(b"\n")[:-1]
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return [row for row in rows if isinstance(row, dict)]
