"""Rollouts that a run has logged, as one token table: a run's own token tables, TRL's completions, verl's dumps.

TRL writes completions with `log_completions=True`: step, prompt, completion, a column for each reward function, and
advantage. JSON lines, JSON arrays and CSV with such columns are read by the same lines; other names are in `ALIASES`.
"""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbook.rollouts.token_files import MAX_TOKENS, NEEDED, read_table

ALIASES = {  # names of the columns; the first that is there is read
    "step": ("step", "global_step"),
    "group": ("group", "group_id", "uid", "problem_id"),
    "prompt": ("prompt", "input", "question"),
    "completion": ("completion", "output", "response"),
    "token_ids": ("completion_ids", "token_ids"),
    "reward": ("reward", "score"),
    "advantage": ("advantage", "advantages"),
}
PATTERNS = ("tokens/step-*.parquet", "completions/*.parquet", "completions_*.parquet", "step-*.parquet", "*.jsonl")
WORDS = re.compile(r"\s*\w+|\s*[^\w\s]|\s+\Z")  # what stands for tokens where neither ids nor a tokenizer are known


def read_rollouts(path: str | Path, tokenizer=None) -> pd.DataFrame:
    """Read the rollouts of a file or a folder as a table of their tokens, columns as in `token_files`.

    path: a run's folder, TRL's output folder or its completions/, or a Parquet, JSON-lines, JSON or CSV file of rows
    with prompt, completion, reward and, each if there, step, group, advantage and completion_ids.
    tokenizer: cuts texts into tokens, and gives ids their texts; without one texts are cut into words.

    Rollouts of one step and prompt are one group where the file has no groups; a reward is the sum of the columns of
    TRL's reward functions. `attrs["source"]` tells what was read: format, tokens (file, tokenizer, ids or words),
    groups (file, prompt or none), notes. ValueError, in one sentence, for what can't be read.
    """
    path = Path(path).expanduser()
    files = [path] if path.is_file() else next((sorted(path.glob(p)) for p in PATTERNS if any(path.glob(p))), [])
    if not files:
        wanted = ", ".join(PATTERNS)
        raise ValueError(f"{path} holds none of {wanted}; give the path of a file or folder of rollouts.")
    tables, logs = [], []
    for file in files:
        try:
            if file.suffix == ".parquet":
                with pq.ParquetFile(file) as parquet:
                    if set(NEEDED) <= set(parquet.schema_arrow.names):
                        tables.append(read_table(file, parquet))
                        continue
                rows = pd.read_parquet(file)
            elif file.suffix == ".csv":
                rows = pd.read_csv(file)
            else:
                rows = pd.read_json(file, lines=file.suffix == ".jsonl", dtype=False, convert_dates=False)
        except (ValueError, OSError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise ValueError(f"{file.name} can't be read as {file.suffix.lstrip('.') or 'JSON'}: {reason}.") from None
        step = int((re.findall(r"[-_]?(\d{1,9})\.\w+$", file.name) or ["0"])[0])
        logs.append(_named(file, rows, step))
    if tables:
        table = pd.concat(tables, ignore_index=True)
        table.attrs = tables[-1].attrs | {"source": tables[-1].attrs["source"] | {"notes": []}}
        table = table.astype({name: "category" for name in ("token", "prompt", "stopped") if name in table})
    else:
        table = _cut(pd.concat(logs, ignore_index=True), tokenizer)
    if len(table) > MAX_TOKENS:
        raise ValueError(f"{path} holds more than {MAX_TOKENS:,} tokens; give the path of one file.")
    if not len(table):
        raise ValueError(f"{path} holds no tokens.")
    table.attrs["source"] |= {"path": str(path), "files": len(files)}
    return table


def _named(file: Path, rows: pd.DataFrame, step: int) -> pd.DataFrame:
    """Return the rows of one file with our columns' names and one reward."""
    names = {name: ours for ours, valid in ALIASES.items() if (name := next((n for n in valid if n in rows), None))}
    named = rows[[*names]].rename(columns=names)
    if not {"completion", "token_ids"} & set(named):
        raise ValueError(f"{file.name} has no column completion or completion_ids; it has {', '.join(map(str, rows))}.")
    numbers = [name for name in rows.select_dtypes("number") if name not in names]
    if "reward" not in named and numbers:
        named["reward"] = rows[numbers].sum(axis=1)
        named.attrs["notes"] = [f"The reward is the sum of the columns {', '.join(numbers)}, each with weight 1."]
    if not {"reward", "advantage"} & set(named):
        raise ValueError(f"{file.name} has neither a reward nor an advantage; it has {', '.join(map(str, rows))}.")
    for name in {"reward", "advantage"} & set(named):
        named[name] = pd.to_numeric(named[name], errors="coerce")
    for name in {"prompt", "completion"} & set(named):
        named[name] = named[name].map(_text)
    return named if "step" in named else named.assign(step=step)


def _text(value) -> str:
    """A prompt or completion as text: of chat messages the contents, one below the other."""
    if isinstance(value, list | np.ndarray):
        return "\n".join(str(message.get("content", "")) for message in value if isinstance(message, dict))
    return value if isinstance(value, str) else ""


def _cut(rows: pd.DataFrame, tokenizer) -> pd.DataFrame:
    """Return a row per token of a row per rollout; TRL logs a batch that is used several times once for each use."""
    notes = rows.attrs.get("notes", [])
    grouped = "group" in rows or ("prompt" in rows and rows["prompt"].astype(bool).any())
    texts = "completion" if "completion" in rows else "token_ids"
    kept, repeats, before = [], 0, None
    for _, batch in rows.groupby("step", sort=True):
        key = batch[texts].astype(str).tolist()
        repeats, kept, before = repeats + (key == before), kept + [batch] * (key != before), key
    if repeats:
        notes = [*notes, f"{repeats} steps repeat the rollouts of the step before and were left out."]
    tokens, columns = [], []
    for batch in kept:
        key = batch["group"] if "group" in batch else batch["prompt"] if grouped else pd.Series(range(len(batch)))
        groups = pd.factorize(key)[0]
        for rollout, group, row in zip(count(), groups, batch.to_dict("records")):
            ids = row.get("token_ids")
            if ids is None and tokenizer is not None:
                ids = tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
            strings = WORDS.findall(row["completion"]) if ids is None else [str(token) for token in ids]
            if ids is not None and tokenizer is not None:
                strings = tokenizer.batch_decode([[int(token)] for token in ids])
            tokens.append(strings)
            columns.append(
                {"step": row["step"], "group": group, "rollout": rollout, "prompt": row.get("prompt", ""), "ids": ids}
                | {name: row[name] for name in ("reward", "advantage") if name in row}
            )
    lengths = [len(strings) for strings in tokens]
    table = pd.DataFrame(columns).loc[lambda t: t.index.repeat(lengths)].reset_index(drop=True)
    table["position"] = np.concatenate([np.arange(length) for length in lengths]) if lengths else []
    if all(row["ids"] is not None for row in columns):
        table["token_id"] = [int(token) for row in columns for token in row["ids"]]
    table["token"] = pd.Categorical([token for strings in tokens for token in strings])
    known = "words" if "token_id" not in table else "ids" if tokenizer is None else "tokenizer"
    table = table.drop(columns="ids")
    table.attrs["source"] = {
        "format": "completions",
        "tokens": known,
        "groups": "file" if "group" in rows else "prompt" if grouped else "none",
        "notes": notes,
    }
    return table


def read_metrics(path: str | Path) -> pd.DataFrame:
    """The metrics that TRL logged beside a run's rollouts, a row per logged step; empty where there are none."""
    folder = Path(path).expanduser()
    folder = folder if folder.is_dir() else folder.parent
    if (own := folder / "metrics.parquet").is_file():
        return pd.read_parquet(own)
    states = sorted(folder.glob("**/trainer_state.json"), key=lambda file: file.stat().st_mtime)
    history = json.loads(states[-1].read_text(encoding="utf-8")).get("log_history", []) if states else []
    return pd.DataFrame(history)
