"""Token tables of a run: what an optimizer step did to each token that it trained on, in `tokens/step-000010.parquet`.

Columns, one row per token of a rollout, ordered by group, rollout and position:
    step, group, rollout, position, token_id    group and rollout: numbers within the generation batch
    token, prompt, stopped                      stopped: what took the token's gradient away, "" where nothing did
    reward, advantage, weight, push             push = -d loss / d logp as trained, weight = push / advantage
    ratio, old_logp, logp, logp_after           the loss's ratio; nats when sampled, before the step and after it
    entropy, importance, residual               nats; vLLM's correction; |sum of push| / sum of |push| of its place
A place is a group's rollouts that have the same token at the same position. Numbers of a truncated rollout that the
loss masks are NaN: nothing scored it. The file's metadata holds the objective, as JSON under the key `workbook`.

A folder of tables is held below a budget: what would grow past it keeps every second table, evenly over the run.
Files that are damaged, or that no run wrote, are left out with a warning.
"""

from __future__ import annotations

import json
import re
import warnings
from contextlib import suppress
from numbers import Integral
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbook.rollouts.token_files import MAX_TOKENS, NUMBERS, TEXTS, WHOLE, read_table
from workbook.training.files import read_json, replacement, write_json

FOLDER, THINNED = "tokens", "thinned.json"  # in a run's folder; in that, how far it was thinned
TABLE = r"step-(\d{6,9})\.parquet"
FORMAT = 1  # of a table's columns and metadata
BUDGET_MIB = 64  # of all tables of a run


def place_residuals(columns: dict[str, np.ndarray]) -> np.ndarray:
    """|sum of push| / sum of |push| over a token's place, for each row: 0 cancels, 1 adds up; 0 where nothing pushes.

    columns: group, position, token_id and push, each (rows,).

    >>> same = np.zeros(2, int)
    >>> rows = {"group": same, "position": same, "token_id": same, "push": np.array([1.0, -3.0])}
    >>> place_residuals(rows).tolist()
    [0.5, 0.5]
    """
    places = np.stack([columns[name] for name in ("group", "position", "token_id")])
    _, place = np.unique(places, axis=1, return_inverse=True)
    push, place = columns["push"].astype(np.float64), place.reshape(-1)
    net, total = np.bincount(place, push), np.bincount(place, np.abs(push))
    residuals = np.divide(np.abs(net), total, out=np.zeros_like(net), where=total > 0)
    return residuals.clip(max=1.0)[place].astype(np.float32)


def write_table(folder: Path, step: int, columns: dict, texts: dict[str, list[str]], objective: dict) -> None:
    """Write a step's table, atomically: zstd Parquet, texts as dictionaries.

    columns: arrays (rows,); of a text, indices into `texts[name]`.
    """

    def encoded(name: str) -> pa.Array:
        if name in TEXTS:
            return pa.DictionaryArray.from_arrays(
                pa.array(columns[name], pa.int32()), pa.array(texts[name], pa.string())
            )
        return pa.array(columns[name], pa.int32() if name in WHOLE else pa.float32())

    columns = {"step": np.full(len(columns["group"]), step)} | columns
    metadata = {b"workbook": json.dumps(objective | {"format": FORMAT, "step": step}).encode()}
    table = pa.table({name: encoded(name) for name in (*WHOLE, *TEXTS, *NUMBERS)}).replace_schema_metadata(metadata)
    with replacement(folder / f"step-{step:06d}.parquet") as temporary:
        pq.write_table(table, temporary, compression="zstd")


def tables(folder: Path) -> dict[int, Path]:
    """Step and file of each table in `folder`, by name, in the order of steps; links are none."""
    if folder.is_symlink() or not folder.is_dir():
        return {}
    named = {path: re.fullmatch(TABLE, path.name, re.ASCII) for path in folder.iterdir()}
    steps = {int(match[1]): path for path, match in named.items() if match and path.is_file() and not path.is_symlink()}
    return dict(sorted(steps.items()))


def recorded_steps(folder: Path) -> list[int]:
    """The steps of which `folder` has a table that a run wrote; a warning names what is damaged or somebody else's."""
    steps = []
    for step, path in tables(folder).items():
        if defect := _defect(path, step):
            warnings.warn(f"{path} is left out: {defect}.", stacklevel=3)
        else:
            steps.append(step)
    return steps


def read_step(folder: Path, step: int) -> pd.DataFrame:
    """A step's table; its objective in `.attrs["objective"]`. ValueError if there is none, or it is damaged."""
    if isinstance(step, bool) or not isinstance(step, Integral) or (path := tables(folder).get(int(step))) is None:
        steps = ", ".join(map(str, recorded_steps(folder))) or "none, since record_tokens was 0"
        raise ValueError(f"step={str(step)[:40]!s} has no token table in {folder}; recorded steps are {steps}.")
    if defect := _defect(path, step):
        raise ValueError(f"{path} can't be read: {defect}.")
    try:
        with pq.ParquetFile(path) as parquet:
            return read_table(path, parquet)
    except (pa.ArrowException, OSError):
        raise ValueError(f"{path} can't be read: it is damaged.") from None


def _defect(path: Path, step: int) -> str | None:
    """Why a file is no table of a run's step; None if it is one."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return "it is damaged, or no Parquet file"
    objective = None
    with suppress(ValueError, RecursionError):
        objective = json.loads((metadata.metadata or {}).get(b"workbook", b""))
    if not isinstance(objective, dict) or objective.get("format") != FORMAT or objective.get("step") != step:
        return f"no run has written it as its step {step}"
    if missing := sorted({*WHOLE, *TEXTS, *NUMBERS} - set(metadata.schema.to_arrow_schema().names)):
        return f"it has no column {missing[0]}"
    return f"it has more than {MAX_TOKENS:,} rows" if metadata.num_rows > MAX_TOKENS else None


# -- the budget, and a resume --------------------------------------------------------------------------------------


def is_recorded(step: int, every: int) -> bool:
    """Whether a table is kept of a step: of the first, and every `every`-th.

    >>> [step for step in range(1, 31) if is_recorded(step, 10)]
    [1, 10, 20, 30]
    """
    return step == 1 or step % every == 0


def current_interval(folder: Path, every: int) -> int:
    """Steps between tables: `every` of the config, times 2 for each time that the folder was thinned."""
    with suppress(ValueError):
        interval = read_json(folder / THINNED, dict).get("every")
        if type(interval) is int and interval > every and (interval % every, (interval // every).bit_count()) == (0, 1):
            return interval
    return every


def tidy(folder: Path, step: int, every: int) -> int:
    """Remove tables after `step`, and those that an interrupted thinning left; returns the interval from now on."""
    interval = current_interval(folder, every)
    for taken, path in tables(folder).items():
        if taken > step or not is_recorded(taken, interval):
            path.unlink(missing_ok=True)
    return interval


def thin(folder: Path, every: int, budget_mib: float | None = None) -> int:
    """Keep every second table until all are within the budget: the new interval, `every` if nothing is too large.

    The interval is written before a table is removed, so that a killed run goes on as it would have.
    """
    budget = (BUDGET_MIB if budget_mib is None else budget_mib) * 2**20
    while len(kept := tables(folder)) > 2 and sum(path.stat().st_size for path in kept.values()) > budget:
        every *= 2
        note = f"Token tables would take more than {budget / 2**20:g} MiB, so that one is kept every {every} steps."
        write_json(folder / THINNED, {"every": every, "note": note})
        tidy(folder, max(kept), every)
    return every


def thinning_note(folder: Path) -> str | None:
    """What was said when the folder was last thinned; None if it never was."""
    with suppress(ValueError):
        note = read_json(folder / THINNED, dict).get("note")
        return note if isinstance(note, str) else None
    return None


def token_biography(run, token: int | str) -> pd.DataFrame:
    """One token over the recorded steps of a run: a row per step, where it was trained on or not.

    Columns: step, places (its rows), logp and logp_after (mean, nats), push and advantage (mean), stopped (share of
    its places whose gradient was taken away, by anything but a zero advantage). NaN where it has no place.

    run: anything with token_steps() and tokens(step).  token: an id, or a text as the column `token` has it.
    Raises ValueError for a token that is neither.
    """
    if isinstance(token, bool) or not isinstance(token, Integral | str):
        raise ValueError(f"token={str(token)[:40]!r} must be a token's id or its text.")
    column, rows = "token_id" if isinstance(token, Integral) else "token", []
    for step in run.token_steps():
        table = run.tokens(step)
        places = table[table[column] == token]
        means = {name: places[name].mean() for name in ("logp", "logp_after", "push", "advantage")}
        stopped = (~places["stopped"].isin(["", "no advantage"])).mean() if len(places) else np.nan
        rows.append({"step": step, "places": len(places)} | means | {"stopped": stopped})
    return pd.DataFrame(rows, columns=["step", "places", "logp", "logp_after", "push", "advantage", "stopped"])
