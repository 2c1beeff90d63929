"""Rollouts that a run has logged, as one token table: a run's own token tables, TRL's completions,
verl's dumps.

TRL writes completions with `log_completions=True`: step, prompt, completion, a column for each
reward function, and advantage; with `log_ids` among its reward functions also the ids of the
tokens. JSON lines, JSON arrays, tables of wandb and CSV with such columns are read by the same
lines; other names are in `ALIASES`.
"""

import json
import re
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbook.messages import InvalidValue
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
PATTERNS = (
    "tokens/step-*.parquet",
    "completions/*.parquet",
    "completions_*.parquet",
    "step-*.parquet",
)
PATTERNS += ("samples/step-*.parquet", "*.table.json", "*.jsonl", "*.csv", "*.json")
# what stands for tokens where neither ids nor a tokenizer are known
WORDS = re.compile(r"\s*\w+|\s*[^\w\s]|\s+\Z")


def log_ids(completion_ids, log_extra=None, **_) -> list[float]:
    """A reward function of zeros, by which TRL's own trainer logs each completion's token ids for
    `read_rollouts`.

    GRPOConfig(log_completions=True, reward_weights=[1.0, 0.0], ...),
    GRPOTrainer(reward_funcs=[yours, log_ids], ...)
    """
    if log_extra is not None:
        log_extra("completion_ids", [[int(token) for token in ids] for ids in completion_ids])
    return [0.0] * len(completion_ids)


def read_rollouts(
    path: str | Path, tokenizer=None, weights: dict[str, float] | None = None
) -> pd.DataFrame:
    """Read the rollouts of a file or a folder as a table of their tokens, columns as in
    `token_files`.

    path: a run's folder, TRL's output folder or its completions/, a Parquet file, or a file or
    folder of JSON lines (as verl dumps), JSON or CSV. Of rows with prompt, completion, reward and,
    each if there, step, group, advantage and completion_ids.
    tokenizer: cuts texts into tokens, and gives ids their texts; without one texts are cut into
    words.
    weights: of the columns of several reward functions; by default those by which the run's logged
    means add up.

    Rollouts of one step and prompt are one group where the file has no groups. `attrs["source"]`
    tells what was read: format, tokens (file, ids, cut anew, or words), groups (file, prompt or
    none), notes. Rewards whose weights are not known are left out. ValueError, in one sentence, for
    what can't be read, and where there is no advantage either.
    """
    path = Path(path).expanduser()
    files = (
        [path]
        if path.is_file()
        else next(filter(None, (_files(path, pattern) for pattern in PATTERNS)), [])
    )
    if not files:
        wanted = ", ".join(PATTERNS)
        raise InvalidValue(
            "path", str(path), f"that of rollouts, a file or a folder that holds one of {wanted}"
        )
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
            elif file.suffix == ".jsonl":
                rows = pd.read_json(file, lines=True, dtype=False, convert_dates=False)
            else:  # an array of rows, or wandb's table
                rows = json.loads(file.read_text(encoding="utf-8"))
                wandb = isinstance(rows, dict) and {"columns", "data"} <= {*rows}
                rows = pd.DataFrame(
                    rows["data"] if wandb else rows, columns=rows["columns"] if wandb else None
                )
        except (ValueError, OSError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise ValueError(
                f"{file.name} can't be read as {file.suffix.lstrip('.') or 'JSON'}: {reason}."
            ) from None
        step = int((re.findall(r"[-_]?(\d{1,9})\.\w+$", file.name) or ["0"])[0])
        logs.append(_named(file, rows, step))
    if tables:
        table = pd.concat(tables, ignore_index=True)
        table.attrs = tables[-1].attrs | {"source": tables[-1].attrs["source"] | {"notes": []}}
        table = table.astype(
            {name: "category" for name in ("token", "prompt", "stopped") if name in table}
        )
    else:
        names = {name for log in logs for name in log.attrs["rewards"]}
        rows, notes = pd.concat(logs, ignore_index=True), []
        if "reward" not in rows or weights:
            rows, notes = _summed(rows, [name for name in rows if name in names], weights, path)
        table = _cut(rows, tokenizer, notes)
    if len(table) > MAX_TOKENS:
        raise ValueError(
            f"{path} holds more than {MAX_TOKENS:,} tokens; give the path of one file."
        )
    if not len(table):
        raise ValueError(f"{path} holds no tokens.")
    table.attrs["source"] |= {"path": str(path), "files": len(files)}
    return table


def _files(folder: Path, pattern: str) -> list[Path]:
    """The files of a pattern in order; of all that are JSON those that hold an array, as no config
    beside them does.
    """
    found = sorted(folder.glob(pattern))
    return [
        file
        for file in found
        if pattern != "*.json" or file.read_text(encoding="utf-8").lstrip()[:1] == "["
    ]


def _named(file: Path, rows: pd.DataFrame, step: int) -> pd.DataFrame:
    """Return the rows of one file with our columns' names; the columns that may be rewards in
    `attrs["rewards"]`.
    """
    names = {
        name: ours
        for ours, valid in ALIASES.items()
        if (name := next((n for n in valid if n in rows), None))
    }
    numbers = [name for name in rows.select_dtypes("number") if name not in names]
    named = rows[[*names, *numbers]].rename(columns=names)
    if not {"completion", "token_ids"} & set(named):
        raise ValueError(
            f"{file.name} has no column completion or completion_ids; it has"
            f" {', '.join(map(str, rows))}."
        )
    if not {"reward", "advantage", *numbers} & set(named):
        raise ValueError(
            f"{file.name} has neither a reward nor an advantage; it has"
            f" {', '.join(map(str, rows))}."
        )
    for name in {"reward", "advantage"} & set(named):
        named[name] = pd.to_numeric(named[name], errors="coerce")
    for name in {"prompt", "completion"} & set(named):
        named[name] = named[name].map(_text)
    if "token_ids" in named:  # which a CSV holds as text
        ids = named["token_ids"]
        named["token_ids"] = [
            re.findall(r"\d+", row) if isinstance(row, str) else row for row in ids
        ]
    named.attrs["rewards"] = numbers
    return named if "step" in named else named.assign(step=step)


def _summed(
    rows: pd.DataFrame, names: list[str], weights: dict | None, path: Path
) -> tuple[pd.DataFrame, list[str]]:
    """The rows with a reward, the weighted sum of their columns `names`, and a sentence on where
    the weights are from.

    A column of zeros needs no weight; without weights, given or logged, there is no reward.
    """
    given = (weights or {}).items()
    if any(name not in names or type(weight) not in (int, float) for name, weight in given):
        raise InvalidValue("weights", weights, f"numbers, each for one of {', '.join(names)}")
    origin = "given" if weights else "read from the logged means"
    names = [*weights] if weights else [name for name in names if (rows[name].fillna(0) != 0).any()]
    if (weights := weights or _logged_weights(path, names)) is None:
        asked = (
            f"several rewards ({', '.join(names)}) and not their weights: give --weights"
            f" {names[0]}=1 {names[1]}=1"
        )
        if "advantage" not in rows:
            raise ValueError(f"{path.name} has no advantage, and {asked}, say.")
        return rows, [f"The log has {asked}, say, to read the rewards too."]
    terms = " + ".join(f"{weight:.4g} {name}" for name, weight in weights.items())
    notes = [f"The reward is {terms}; the weights are {origin}."] * (len(names) > 1)
    return (
        rows.assign(
            reward=sum((weight * rows[name].fillna(0.0) for name, weight in weights.items()), 0.0)
        ),
        notes,
    )


def _logged_weights(path: Path, names: list[str]) -> dict[str, float] | None:
    """The weights by which the rewards' means that TRL logs add up to the logged reward, in more
    steps than weights.
    """
    metrics, columns = read_metrics(path), ["reward", *(f"rewards/{name}/mean" for name in names)]
    if len(names) < 2 or not {*columns} <= {*metrics}:
        return dict.fromkeys(names, 1.0) if len(names) < 2 else None
    logged = metrics[columns].dropna().to_numpy(float)
    weights, _, rank, _ = np.linalg.lstsq(logged[:, 1:], logged[:, 0], rcond=1e-6)
    exact = rank == len(names) < len(logged) and np.allclose(
        logged[:, 1:] @ weights, logged[:, 0], rtol=1e-4
    )
    return dict(zip(names, weights.tolist(), strict=True)) if exact else None


def _text(value) -> str:
    """A prompt or completion as text: of chat messages the contents, one below the other."""
    if isinstance(value, list | np.ndarray):
        return "\n".join(
            str(message.get("content", "")) for message in value if isinstance(message, dict)
        )
    return value if isinstance(value, str) else ""


def _cut(rows: pd.DataFrame, tokenizer, notes: list[str]) -> pd.DataFrame:
    """Return a row per token of a row per rollout; TRL logs a batch that is used several times once
    for each use.
    """
    grouped = "group" in rows or ("prompt" in rows and rows["prompt"].astype(bool).any())
    texts = "completion" if "completion" in rows else "token_ids"
    kept, repeats, before = [], 0, None
    for _, batch in rows.groupby("step", sort=True):
        key = batch[texts].astype(str).tolist()
        repeats, kept, before = repeats + (key == before), kept + [batch] * (key != before), key
    if repeats:
        notes = [
            *notes,
            f"{repeats} steps repeat the rollouts of the step before and were left out.",
        ]
    tokens, columns = [], []
    for batch in kept:
        key = (
            batch["group"]
            if "group" in batch
            else batch["prompt"]
            if grouped
            else pd.Series(range(len(batch)))
        )
        groups = pd.factorize(key)[0]
        for rollout, group, row in zip(count(), groups, batch.to_dict("records")):
            ids = row.get("token_ids")
            if ids is None and tokenizer is not None:
                ids = tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
            strings = (
                WORDS.findall(row["completion"]) if ids is None else [str(token) for token in ids]
            )
            if ids is not None and tokenizer is not None:
                # of none it makes one
                strings = tokenizer.batch_decode([[int(token)] for token in ids])[: len(ids)]
            tokens.append(strings)
            columns.append(
                {
                    "step": row["step"],
                    "group": group,
                    "rollout": rollout,
                    "prompt": row.get("prompt", ""),
                    "ids": ids,
                }
                | {name: row[name] for name in ("reward", "advantage") if name in row}
            )
    lengths = [len(strings) for strings in tokens]
    table = pd.DataFrame(columns).loc[lambda t: t.index.repeat(lengths)].reset_index(drop=True)
    table["position"] = np.concatenate([np.arange(length) for length in lengths]) if lengths else []
    if all(row["ids"] is not None for row in columns):
        table["token_id"] = [int(token) for row in columns for token in row["ids"]]
    table["token"] = pd.Categorical([token for strings in tokens for token in strings])
    known = "ids" if "token_ids" in rows and rows["token_ids"].notna().all() else "words"
    if known == "words" and "token_id" in table:
        known = "cut anew"
    table = table.drop(columns="ids")
    table.attrs["source"] = {
        "format": "completions",
        "tokens": known,
        "groups": "file" if "group" in rows else "prompt" if grouped else "none",
        "notes": notes,
    }
    return table


def read_metrics(path: str | Path) -> pd.DataFrame:
    """The metrics that TRL logged beside a run's rollouts, a row per logged step; empty where there
    are none.
    """
    folder = Path(path).expanduser()
    folder = folder if folder.is_dir() else folder.parent
    folder = folder.parent if folder.name in ("completions", "tokens") else folder
    if (own := folder / "metrics.parquet").is_file():
        return pd.read_parquet(own)
    if (lines := folder / "metrics.jsonl").is_file() and (
        text := lines.read_text("utf-8").rpartition("\n")[0]
    ):
        return pd.DataFrame([json.loads(line) for line in text.splitlines()])
    states = sorted(folder.glob("**/trainer_state.json"), key=lambda file: file.stat().st_mtime)
    history = (
        json.loads(states[-1].read_text(encoding="utf-8")).get("log_history", []) if states else []
    )
    return pd.DataFrame(history)
