"""Token tables: their columns, one read from a Parquet file, and those that a run has of its
optimizer steps.

step, group, rollout, position, token_id     whole numbers; (step, rollout) names a rollout, (step, group) its group
token, prompt, stopped                       texts; stopped: what took the token's gradient away, "" for nothing
reward, advantage, weight, push              push = weight * advantage = -d loss / d logp
ratio, importance                            pi / pi_old of the loss, and vLLM's correction for the sampler
old_logp, logp, logp_after, entropy          nats; logp before the optimizer step and after it
residual                                     |sum of push| / sum of |push| of the token's place

Of a run each process writes its own rows to `tokens/step-000010.0.parquet` (step, process); a
step's files are read as one table, a row per token, ordered by group, rollout and position. Groups
and rollouts are numbered within the generation batch. A place is a group's rollouts that have the
same token at the same position. Numbers of a truncated rollout that the loss masks are NaN: nothing
scored it. A file's metadata holds the objective, as JSON under the key `workbook`.
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
MAX_TOKENS = 4_000_000  # rows of a table: some 400 MiB
FOLDER = "tokens"  # in a run's folder
TABLE = re.compile(r"step-(\d{6,9})\.(\d+)\.parquet")


def read_table(file: Path, parquet) -> pd.DataFrame:
    """Return the token table of an open ParquetFile that has the columns NEEDED; texts come as
    categories.

    `attrs["objective"]` is the loss, where the file names it. Raises ValueError for more than
    MAX_TOKENS rows.
    """
    if parquet.metadata.num_rows > MAX_TOKENS:
        raise ValueError(f"{file.name} has more than {MAX_TOKENS:,} rows, the most that is read.")
    names = [name for name in (*WHOLE, *TEXTS, *NUMBERS) if name in parquet.schema_arrow.names]
    table = parquet.read(names).to_pandas()
    for name in TEXTS:
        if name in table:
            texts = table[name].astype(object)  # a table without a file's categories
            table[name] = texts.where(texts.notna(), "").astype("category")
    table = table.astype({name: "float32" for name in NUMBERS if name in table})
    if "step" not in table:
        table.insert(0, "step", int((re.findall(r"step-(\d{1,9})\.", file.name) or ["0"])[0]))
    table.attrs = {"source": {"format": "token table", "tokens": "file", "groups": "file"}}
    objective = (parquet.schema_arrow.metadata or {}).get(b"workbook")
    if objective:
        table.attrs["objective"] = json.loads(objective)
    return table


def place_residuals(table: pd.DataFrame) -> np.ndarray:
    """|sum of push| / sum of |push| over a token's place, for each row: 0 cancels, 1 adds up; 0 where nothing pushes.

    table: columns group, position, token_id and push.
    """
    push = table["push"].astype(np.float64)
    places = [table[name] for name in ("group", "position", "token_id")]
    net, total = (
        push.groupby(places).transform("sum").abs(),
        push.abs().groupby(places).transform("sum"),
    )
    return (net / total.where(total > 0, 1.0)).clip(upper=1.0).to_numpy(np.float32)


def tables(folder: Path) -> dict[int, list[Path]]:
    """Steps in order, and each one's files, one per process that had rows."""
    steps = {}
    for path in sorted(folder.glob("step-*.parquet")):
        if match := TABLE.fullmatch(path.name):
            steps.setdefault(int(match[1]), []).append(path)
    return dict(sorted(steps.items()))


def read_step(folder: Path, step: int) -> pd.DataFrame:
    """A step's table; its objective in `.attrs["objective"]`. ValueError if there is none, or it is
    damaged.
    """
    if not isinstance(step, Integral) or not (paths := tables(folder).get(int(step))):
        steps = ", ".join(map(str, tables(folder))) or "none, since record_tokens was 0"
        raise InvalidValue("step", step, f"a step with a token table in {folder}: {steps}")
    parts = []
    try:
        for path in paths:
            with pq.ParquetFile(path) as parquet:
                parts.append(read_table(path, parquet))
    except (pa.ArrowException, OSError):
        raise ValueError(f"{path} can't be read: it is damaged.") from None
    if len(parts) == 1:
        return parts[0]
    # a group's rollouts may lie in several processes
    table = pd.concat([part.astype(dict.fromkeys(TEXTS, object)) for part in parts])
    table = table.sort_values(["group", "rollout", "position"], ignore_index=True)
    table = table.assign(residual=place_residuals(table)).astype(dict.fromkeys(TEXTS, "category"))
    own = [part.attrs["objective"]["normalizer"] for part in parts]
    whole = {name: n for numbers in own if isinstance(numbers, dict) for name, n in numbers.items()}
    table.attrs = parts[0].attrs
    table.attrs["objective"] = table.attrs["objective"] | {"normalizer": whole or own[0]}
    return table


def token_biography(run, token: int | str) -> pd.DataFrame:
    """One token over the recorded steps of a run: a row per step, where it was trained on or not.

    Columns: step, places (its rows), logp and logp_after (mean, nats), push and advantage (mean),
    stopped (share of its places whose gradient was taken away, by anything but a zero advantage).
    NaN where it has no place.

    run: anything with token_steps() and tokens(step).  token: an id, or a text as the column
    `token` has it.
    """
    column, rows = "token_id" if isinstance(token, Integral) else "token", []
    for step in run.token_steps():
        table = run.tokens(step)
        places = table[table[column] == token]
        means = {name: places[name].mean() for name in ("logp", "logp_after", "push", "advantage")}
        stopped = (~places["stopped"].isin(["", "no advantage"])).mean() if len(places) else np.nan
        rows.append({"step": step, "places": len(places)} | means | {"stopped": stopped})
    return pd.DataFrame(
        rows, columns=["step", "places", "logp", "logp_after", "push", "advantage", "stopped"]
    )
