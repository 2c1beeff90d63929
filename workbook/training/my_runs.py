"""My runs: every run of a workspace in one table, what each takes on disk, and how two of them differ.

    list_runs() -> table             a row per run, the newest first; what is damaged is listed as such
    select_runs(table, "own:")       rows whose name, task, model or state has a text in it
    pair_settings(one, other)        the settings and results in which two runs differ

What may be deleted of them is said by `training.tidy`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from workbook.places import runs_folder
from workbook.training.background import FINAL_STATES
from workbook.training.folders import FILES, as_folder, is_own_name, read_metrics
from workbook.training.messages import explain_error, one_line, show_value
from workbook.training.runs import END_WINDOW, Run, compare_runs, load_run

MAX_DEPTH = 4  # folders below the workspace in which runs are looked for: a sweep's lie in the second
MARKS = ("status.json", "metrics.jsonl", "training.lock")  # one of them, and a folder is a run's; else its config alone
DAMAGED = "damaged"  # the state of a folder whose run can't be read
PARTS = ("checkpoints", "tokens", "models")  # on disk, told apart; all else is `others`
COLUMNS = [
    *("run", "name", "sweep", "task", "model", "state", "steps", "planned", "reward_first", "reward_last"),
    *("bytes", *PARTS, "others", "modified", "folder", "note"),
]
STATES = (*FINAL_STATES, "running", "starting", DAMAGED)


def list_runs(folder: str | Path | None = None) -> pd.DataFrame:
    """Every run below a folder, the newest first; by default below $WORKBOOK_RUNS or ./runs.

    Columns: run (its path below the folder), name, sweep (its folder, "" for a single run), task, model, state, steps,
    planned, reward_first and reward_last (mean sampled reward of the first batch and of the last 5), bytes, and of
    these checkpoints, tokens, models and others, modified (a time), folder, note (what is wrong with a damaged one).

    Raises ValueError if the folder is none.
    """
    root = workspace(folder)
    rows = [_row(path, root) for path in find_runs(root)]
    table = pd.DataFrame(rows, columns=COLUMNS).astype({"modified": "datetime64[s]"})
    return table.sort_values(["modified", "run"], ascending=[False, True], ignore_index=True)


def workspace(folder: str | Path | None = None) -> Path:
    """The folder in which runs lie, $WORKBOOK_RUNS or ./runs by default; ValueError for one that is a file."""
    root = as_folder(runs_folder() if folder is None else folder)
    if root.exists() and not root.is_dir():
        raise ValueError(f"folder={show_value(str(root))} is a file; give the folder in which runs lie.")
    return root


def open_run(folder: str | Path) -> Run:
    """The run in a folder of the table, to watch it or to resume it; ValueError if there is none any more."""
    return load_run(folder)


def find_runs(root: Path) -> Iterator[Path]:
    """The folders below `root`, itself included, that a run has written in; links are not followed."""
    for place, folders, files in os.walk(root):
        path = Path(place)
        if is_run(path, {*folders, *files}):
            folders.clear()
            yield path
        elif len(path.relative_to(root).parts) >= MAX_DEPTH:
            folders.clear()


def is_run(folder: Path, names: set[str]) -> bool:
    """Whether a folder with these names in it is a run's, half-written and damaged ones included."""
    if names & {"sweep.yaml", "process.json"}:
        return False
    whole = any(name in names and (folder / name).is_file() for name in MARKS)
    return whole or ("config.yaml" in names and all(is_own_name(name) for name in names))


def _row(folder: Path, root: Path) -> dict:
    name = folder.relative_to(root).as_posix()
    row = {"run": name if name != "." else folder.resolve().name, "folder": str(folder), "sweep": "", "note": ""}
    if (folder.parent / "sweep.yaml").is_file():
        row["sweep"] = folder.parent.relative_to(root).as_posix() if folder != root else folder.parent.name
    row |= {"name": "", "task": "", "model": "", "state": DAMAGED, "steps": 0, "planned": 0} | disk_usage(folder)
    row |= {"modified": pd.Timestamp(_modified(folder), unit="s"), "reward_first": None, "reward_last": None}
    try:
        return row | _described(Run(folder))
    except Exception as error:  # whatever lies there, the other runs are listed
        return row | {"note": one_line(explain_error(error))}


def _described(run: Run) -> dict:
    config, status = run.config, run.status()
    rewards = [row["reward"] for row in read_metrics(run.folder / "metrics.jsonl") if row.get("reward") is not None]
    ends = pd.Series(rewards, dtype=float).dropna()
    return {
        "name": config.name,
        "task": config.task,
        "model": config.policy,
        "state": status["state"],
        "steps": status["step"],
        "planned": status["total"] or config.trainer.get("max_steps", 0),
        "reward_first": ends.iloc[0] if len(ends) else None,
        "reward_last": ends.tail(END_WINDOW).mean() if len(ends) else None,
        "note": one_line(status["message"] if status["state"] == "failed" else " ".join(status["notes"])),
    }


def disk_usage(folder: Path) -> dict[str, int]:
    """Bytes of a run's folder: all of it, and of that its checkpoints, token tables, model and others."""
    usage = dict.fromkeys(PARTS, 0) | {"others": 0}
    for path in _files(folder):
        top = path.relative_to(folder).parts[0]
        part = {"tokens": "tokens", "final": "models"}.get(top, "others")
        usage["checkpoints" if top.startswith(("checkpoint-", ".checkpoint-")) else part] += _size(path)
    return {"bytes": sum(usage.values())} | usage


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # removed meanwhile, as a run does that trains
        return 0


def _modified(folder: Path) -> int:
    """When a run last wrote something, in seconds."""
    times = []
    for path in (folder, *(folder / name for name in FILES)):
        try:
            times.append(path.lstat().st_mtime)
        except OSError:
            continue
    return int(max(times, default=0))


def select_runs(table: pd.DataFrame, text: str = "", state: str | None = None) -> pd.DataFrame:
    """The rows of `list_runs` that have each word of a text in their run, name, task, model or state, in any case.

    Raises ValueError for a state that no run has.
    """
    if state is not None and state not in STATES:
        raise ValueError(f"state={show_value(state)} is unknown: choose one of {', '.join(STATES)}.")
    words = str(text).lower().split()
    columns = table[["run", "name", "task", "model", "state"]].itertuples(index=False)
    fits = [all(word in " ".join(map(str, values)).lower() for word in words) for values in columns]
    table = table[pd.Series(fits, index=table.index, dtype=bool)]
    return (table if state is None else table[table["state"] == state]).reset_index(drop=True)


def pair_settings(one: str | Path, other: str | Path) -> pd.DataFrame:
    """Settings and results in which two runs differ: a row each, a column for either run.

    Raises ValueError if they are the same run, or one can't be read.
    """
    if Path(one).resolve() == Path(other).resolve():
        raise ValueError(f"{one} would be compared with itself; name two runs.")
    table = compare_runs([one, other])
    names = [Path(one).name, Path(other).name]
    if names[0] == names[1]:
        names = [str(one), str(other)]
    pair = table.drop(columns="run").T.set_axis(names, axis=1)
    same = [pair.iloc[row, 0] == pair.iloc[row, 1] or pair.iloc[row].isna().all() for row in range(len(pair))]
    return pair[[not equal for equal in same]]


def runs_text(table: pd.DataFrame) -> str:
    """`list_runs` as text: a line per run, and what all of them take."""
    if table.empty:
        return "No runs."
    shown = pd.DataFrame(
        {
            "run": table["run"].map(lambda text: one_line(text, 60)),
            "task": table["task"].map(lambda text: one_line(text, 30)),
            "model": table["model"].map(lambda text: one_line(text, 24)),
            "steps": [f"{row.steps}/{row.planned}" for row in table.itertuples()],
            "state": table["state"],
            "reward": [describe_reward(row.reward_first, row.reward_last) for row in table.itertuples()],
            "size": table["bytes"].map(describe_bytes),
            "modified": table["modified"].dt.strftime("%Y-%m-%d %H:%M"),
        }
    )
    notes = [f"{row.run}: {row.note}" for row in table.itertuples() if row.note]
    return "\n".join([shown.to_string(index=False), describe_disk(table), *notes])


def describe_disk(table: pd.DataFrame) -> str:
    """What runs take on disk, in words.

    >>> sizes = {"bytes": 3_000_000, "checkpoints": 2_000_000, "tokens": 0, "models": 900_000, "others": 100_000}
    >>> describe_disk(pd.DataFrame([sizes]))
    '1 run, 3.0 MB: checkpoints 2.0 MB, models 0.9 MB, others 0.1 MB.'
    """
    parts = {part: table[part].sum() for part in (*PARTS, "others")}
    words = ", ".join(f"{part} {describe_bytes(size)}" for part, size in parts.items() if size)
    return f"{len(table)} {'run' if len(table) == 1 else 'runs'}, {describe_bytes(table['bytes'].sum())}: {words}."


def describe_bytes(size: float) -> str:
    """A size in GB, MB or kB.

    >>> describe_bytes(7_730_000_000), describe_bytes(77_300_000), describe_bytes(300)
    ('7.73 GB', '77.3 MB', '0.3 kB')
    """
    if size >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def describe_reward(first: float | None, last: float | None) -> str:
    """Where a run's reward began and where it is, in words."""
    return "" if pd.isna(first) or pd.isna(last) else f"{first:.3f} → {last:.3f}"
