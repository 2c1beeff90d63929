"""Tidying up: what of some runs may be deleted, path by path, and then the deletion of just that.

    plan = plan_tidy(select_runs(list_runs(), state="finished"), "checkpoints")
    print(plan)        # every path with its size, what stays, and how much would be free
    tidy_up(plan)      # deletes what the plan lists, and nothing else

A run that trains, or is about to, is left alone, and so is every file that no run wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from filelock import Timeout

from workbook.training.background import is_alive
from workbook.training.files import damage, read_json
from workbook.training.folders import checkpoints, newest_intact, own_files, own_paths, remove_own
from workbook.training.messages import one_line, show_value
from workbook.training.my_runs import describe_bytes, find_runs
from workbook.training.runs import Run, training_lock

KINDS = {
    "checkpoints": "checkpoints that are no longer needed: all of a finished run, else all but the newest intact one",
    "tokens": "token tables of recorded steps, which heatmaps and reports read",
    "models": "trained models and adapters of finished runs; their curves and settings stay",
    "runs": "whole runs with all that they wrote",
}
SWEEP_FILES = ("sweep.yaml", "process.json", "log.txt", "stop")  # of a sweep, beside its runs' folders


@dataclass
class TidyPlan:
    """What would be deleted: `rows` (run, folder, path, files, bytes), and `kept`, sentences on what stays and why."""

    kind: str
    rows: pd.DataFrame
    kept: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return int(self.rows["bytes"].sum())

    @property
    def summary(self) -> str:
        """How much would be deleted of how many runs, in words."""
        if self.rows.empty:
            return f"Nothing to delete: no {KINDS[self.kind]}."
        files, runs = self.rows["files"].sum(), self.rows["run"].nunique()
        counted = f"{files:,} {'file' if files == 1 else 'files'} of {runs} {'run' if runs == 1 else 'runs'}"
        return f"{counted} would be deleted, which frees {describe_bytes(self.bytes)}."

    def __str__(self) -> str:
        lines = [f"{describe_bytes(row.bytes):>10}  {row.run}/{row.path}" for row in self.rows.itertuples()]
        return "\n".join([*lines, *self.kept, self.summary])


def plan_tidy(runs: pd.DataFrame, kind: str) -> TidyPlan:
    """What of the runs in a table of `list_runs` may be deleted; nothing is deleted yet.

    kind: one of KINDS.  Raises ValueError for another one.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={show_value(kind)} is unknown: choose one of {', '.join(KINDS)}.")
    rows, kept = [], []
    for row in runs.itertuples():
        folder = Path(row.folder)
        if is_busy(folder):
            kept.append(f"{row.run} is running, and stays as it is.")
            continue
        paths = _paths(folder, kind)
        rows += [_planned(row.run, folder, path) for path in paths]
        if kind == "runs" and (others := _others(folder, paths)):
            kept.append(f"{row.run} keeps what no run wrote: {one_line(', '.join(others), 100)}.")
    if kind == "runs":
        rows += _sweep_rows(rows)
    return TidyPlan(kind, pd.DataFrame(rows, columns=["run", "folder", "path", "files", "bytes"]), kept)


def tidy_up(plan: TidyPlan) -> str:
    """Delete what a plan lists, of the runs that are idle still; returns in words what was freed, and what was not."""
    freed, left_over = 0, []
    for (name, folder), rows in plan.rows.groupby(["run", "folder"], sort=False):
        try:
            with _idle(Path(folder)):
                freed += sum(_delete(Path(folder) / path) for path in rows["path"] if path != "training.lock")
            if plan.kind == "runs":
                freed += _delete(Path(folder) / "training.lock")  # which the line above may have made
                with suppress(OSError):  # a reader's files are in it
                    Path(folder).rmdir()
        except ValueError as error:
            left_over.append(str(error))
        except OSError as error:
            left_over.append(f"{name}: {error.strerror or error}: {error.filename}.")
    return " ".join([f"Freed {describe_bytes(freed)}.", *left_over])


def is_busy(folder: Path) -> bool:
    """Whether a run trains or is about to, on its own or as one of a sweep."""
    if Run(folder).running:
        return True
    try:
        return is_alive(read_json(folder.parent / "process.json", dict))
    except (ValueError, KeyError, TypeError):  # no sweep, or one whose process is not known
        return False


def _paths(folder: Path, kind: str) -> list[Path]:
    """What of a run's folder goes."""
    own = own_paths(folder)
    if kind == "runs":
        return own
    if kind == "tokens":
        return [path for path in own if path.name == "tokens" and own_files(path)]
    finished = Run(folder).status()["state"] == "finished"
    if kind == "models":
        return [path for path in own if path.name == "final" and finished]
    there = [path for path in checkpoints(folder) if path in own]
    if finished and damage(folder / "final") is None:
        return there
    newest, _ = newest_intact(folder)
    return [path for path in there if path != newest] if newest else []


def _others(folder: Path, own: list[Path]) -> list[str]:
    """Names, in a run's folder, of what does not go with the run."""
    known = set(own).union(*map(own_files, own))
    files = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    inside = [path for path in own if path.is_dir() and path.name.startswith(".")]
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(files)
        if path not in known and not any(part in path.parents for part in inside)
    ]


def _planned(run: str, folder: Path, path: Path) -> dict:
    sizes = [file.lstat().st_size for file in own_files(path)]
    return {"run": run, "folder": str(folder), "path": path.name, "files": len(sizes), "bytes": sum(sizes)}


def _sweep_rows(rows: list[dict]) -> list[dict]:
    """The files of each sweep all of whose runs go."""
    going, sweeps = {row["folder"] for row in rows}, []
    for sweep in dict.fromkeys(Path(folder).parent for folder in going):
        if (sweep / "sweep.yaml").is_file() and {str(path) for path in find_runs(sweep)} <= going:
            paths = [sweep / name for name in reversed(SWEEP_FILES)]
            sweeps += [_planned(sweep.name, sweep, path) for path in paths if path.is_file() and not path.is_symlink()]
    return sweeps


@contextmanager
def _idle(folder: Path) -> Iterator[None]:
    """Hold a run's lock, so that nobody trains it meanwhile. Raises ValueError if somebody does."""
    if (folder / "sweep.yaml").is_file():
        yield
        return
    if is_busy(folder):
        raise ValueError(f"{folder.name} is running since, and was left alone.")
    lock = training_lock(Run(folder))
    try:
        lock.acquire(timeout=1)
    except Timeout:
        raise ValueError(f"{folder.name} is running since, and was left alone.") from None
    try:
        yield
    finally:
        lock.release()


def _delete(path: Path) -> int:
    """Delete one of a run's own paths, or a file of a sweep; the bytes that this freed."""
    if path.is_symlink() or not path.exists():
        return 0
    before = {file: file.lstat().st_size for file in own_files(path)}
    remove_own(path)
    return sum(size for file, size in before.items() if not file.exists())
