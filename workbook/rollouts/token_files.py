"""Token tables on disk: their columns, and reading those that a run has of its optimizer steps.

A run can record what a step did to every token that it trained on. Each process writes its own rows
to `tokens/step-000010.0.parquet` (step, process); a step's files are read as one table, a row per
token, ordered by group, rollout and position. Its columns:

    step, group, rollout,       whole numbers; (step, rollout) names a rollout, (step, group) its
    position, token_id          group: both are numbered within the generation batch
    token, prompt, stopped      texts; stopped: what took the token's gradient away, "" for nothing
    reward, advantage,          push = weight * advantage = -d loss / d logp
    weight, push
    ratio, importance           pi / pi_old of the loss, and vLLM's correction for the sampler
    old_logp, logp,             nats; logp before the optimizer step and after it
    logp_after, entropy
    residual                    |sum of push| / sum of |push| of the token's place

A place is a group's rollouts that have the same token at the same position. Numbers of a truncated
rollout that the loss masks are NaN: nothing scored it. A file's metadata holds the objective, as
JSON under the key `workbook`.
"""

import json
import re
from numbers import Integral
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbook.messages import InvalidValue

WHOLE = ("step", "group", "rollout", "position", "token_id")
TEXTS = ("token", "prompt", "stopped")
NUMBERS = (
    *("reward", "advantage", "weight", "push", "ratio", "importance"),
    *("old_logp", "logp", "logp_after", "entropy", "residual"),
)
NEEDED = ("group", "rollout", "position", "token")
STOPS = (
    "",
    "clip low",
    "clip high",
    "truncated",
    "tool",
    "entropy",
    "off-policy",
    "no advantage",
    "group",
)
# rows of a table that is read: some 400 MiB
MAX_TOKENS = 4_000_000
# in a run's folder
FOLDER = "tokens"
_STEP_FILE = re.compile(r"step-(\d{6,9})\.(\d+)\.parquet")
_BIOGRAPHY = ("step", "places", "logp", "logp_after", "push", "advantage", "stopped")


def read_token_table(file: Path, parquet: pq.ParquetFile) -> pd.DataFrame:
    """The token table of an open Parquet file that has the columns NEEDED; texts are categories.

    `attrs["objective"]` is the loss, where the file names it.

    file: its path, whose name tells the step where the table does not.

    Raises ValueError for more than MAX_TOKENS rows.
    """
    if parquet.metadata.num_rows > MAX_TOKENS:
        raise ValueError(f"{file.name} has more than {MAX_TOKENS:,} rows, the most that is read.")
    names = [name for name in (*WHOLE, *TEXTS, *NUMBERS) if name in parquet.schema_arrow.names]
    table = parquet.read(names).to_pandas()
    for name in TEXTS:
        if name in table:
            # as objects first, since "" may be no category of the file
            texts = table[name].astype(object)
            table[name] = texts.where(texts.notna(), "").astype("category")
    table = table.astype({name: "float32" for name in NUMBERS if name in table})
    if "step" not in table:
        step = re.search(r"step-(\d{1,9})\.", file.name)
        table.insert(0, "step", int(step[1]) if step else 0)
    table.attrs = {"source": {"format": "token table", "tokens": "file", "groups": "file"}}
    objective = (parquet.schema_arrow.metadata or {}).get(b"workbook")
    if objective:
        table.attrs["objective"] = json.loads(objective)
    return table


def place_residuals(table: pd.DataFrame) -> np.ndarray:
    """The residual of each token's place: 0 where its pushes cancel, 1 where they add up.

        residual = |sum of push| / sum of |push|    over the place, 0 where nothing pushes

    table: columns group, position, token_id and push.
    """
    push = table["push"].astype(np.float64)
    place = [table[name] for name in ("group", "position", "token_id")]
    net = push.groupby(place).transform("sum").abs()
    total = push.abs().groupby(place).transform("sum")
    residual = net / total.where(total > 0, 1.0)

    # rounding may lift a place without cancellation above 1
    return residual.clip(upper=1.0).to_numpy(np.float32)


def step_files(folder: Path) -> dict[int, list[Path]]:
    """Recorded steps in order, and the files of each, one per process that had rows."""
    steps = {}
    for path in sorted(folder.glob("step-*.parquet")):
        match = _STEP_FILE.fullmatch(path.name)
        if match:
            steps.setdefault(int(match[1]), []).append(path)
    return dict(sorted(steps.items()))


def read_step(folder: Path, step: int) -> pd.DataFrame:
    """The token table of a step; its objective in `attrs["objective"]`.

    Raises ValueError if there is none, or it is damaged.
    """
    recorded = step_files(folder)
    if not isinstance(step, Integral) or int(step) not in recorded:
        steps = ", ".join(map(str, recorded)) or "none, since record_tokens was 0"
        raise InvalidValue("step", step, f"a step with a token table in {folder}: {steps}")
    parts = []
    for path in recorded[int(step)]:
        try:
            with pq.ParquetFile(path) as parquet:
                parts.append(read_token_table(path, parquet))
        except (pa.ArrowException, OSError):
            raise ValueError(f"{path} can't be read: it is damaged.") from None
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """The tables of a step's processes as one."""
    # categories differ from process to process
    table = pd.concat([part.astype(dict.fromkeys(TEXTS, object)) for part in parts])
    table = table.sort_values(["group", "rollout", "position"], ignore_index=True)

    # a group's rollouts, and with them a place, may lie in several processes
    table = table.assign(residual=place_residuals(table))
    table = table.astype(dict.fromkeys(TEXTS, "category"))

    # a normalizer is one number for all rollouts, or {rollout: number} of a process's own
    normalizers = [part.attrs["objective"]["normalizer"] for part in parts]
    by_name = {}
    for normalizer in normalizers:
        if isinstance(normalizer, dict):
            by_name.update(normalizer)
    table.attrs = parts[0].attrs
    objective = table.attrs["objective"]
    table.attrs["objective"] = {**objective, "normalizer": by_name or normalizers[0]}
    return table


def token_biography(run, token: int | str) -> pd.DataFrame:
    """One token over the recorded steps of a run: a row per step, whether it occurred or not.

    Columns: step, places (its rows), logp and logp_after (mean, nats), push and advantage (mean),
    stopped (share of its places whose gradient was taken away, by anything but a zero advantage).
    NaN where it has no place.

    run: anything with token_steps() and tokens(step).
    token: an id, or a text as the column `token` has it.
    """
    column = "token_id" if isinstance(token, Integral) else "token"
    rows = []
    for step in run.token_steps():
        table = run.tokens(step)
        places = table[table[column] == token]
        row = {"step": step, "places": len(places)}
        for name in ("logp", "logp_after", "push", "advantage"):
            row[name] = places[name].mean()
        # a token without advantage has no gradient to take away
        is_stopped = ~places["stopped"].isin(["", "no advantage"])
        row["stopped"] = is_stopped.mean() if len(places) else np.nan
        rows.append(row)
    return pd.DataFrame(rows, columns=list(_BIOGRAPHY))
