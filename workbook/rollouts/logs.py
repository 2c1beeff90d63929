"""Logged rollouts as one token table: a run's own tables, TRL's completions, verl's dumps.

What a reader brings is what a trainer happened to log. `read_rollouts` makes of it a row per
token, in three steps:

    files     a run's own token tables are taken as they are; of other files, a row per rollout
    names     their columns get our names (`ALIASES`), and several rewards one weighted sum
    tokens    the file's ids, or its texts cut by a tokenizer, or into words

TRL writes completions with `log_completions=True`: step, prompt, completion, a column for each
reward function, and advantage; with `log_ids` among its reward functions also the ids of the
tokens. JSON lines, JSON arrays, tables of wandb and CSV with such columns are read the same way.
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbook.messages import InvalidValue
from workbook.rollouts.token_files import MAX_TOKENS, NEEDED, TEXTS, read_token_table

# names of a column elsewhere; the first that a file has is read
ALIASES = {
    "step": ("step", "global_step"),
    "group": ("group", "group_id", "uid", "problem_id"),
    "prompt": ("prompt", "input", "question"),
    "completion": ("completion", "output", "response"),
    "token_ids": ("completion_ids", "token_ids"),
    "reward": ("reward", "score"),
    "advantage": ("advantage", "advantages"),
}
# files of a folder; those of the first pattern that fits are read
PATTERNS = (
    "tokens/step-*.parquet",
    "completions/*.parquet",
    "completions_*.parquet",
    "step-*.parquet",
    "samples/step-*.parquet",
    "*.table.json",
    "*.jsonl",
    "*.csv",
    "*.json",
)
# what stands for tokens where neither ids nor a tokenizer are known
WORDS = re.compile(r"\s*\w+|\s*[^\w\s]|\s+\Z")


def log_ids(completion_ids, log_extra=None, **_) -> list[float]:
    """A reward function of zeros, by which TRL's trainer logs token ids for `read_rollouts`.

    GRPOConfig(log_completions=True, reward_weights=[1.0, 0.0], ...),
    GRPOTrainer(reward_funcs=[yours, log_ids], ...)
    """
    if log_extra is not None:
        log_extra("completion_ids", [[int(token) for token in ids] for ids in completion_ids])
    return [0.0] * len(completion_ids)


def read_rollouts(
    path: str | Path, tokenizer=None, weights: dict[str, float] | None = None
) -> pd.DataFrame:
    """The rollouts of a file or a folder as a table of their tokens, columns as in `token_files`.

    path: a run's folder, TRL's output folder or its completions/, a Parquet file, or a file or
    folder of JSON lines (as verl dumps), JSON or CSV. Their rows have prompt, completion, reward
    and, where known, step, group, advantage and completion_ids.
    tokenizer: cuts texts into tokens, and gives ids their texts; without one texts are cut into
    words.
    weights: of the columns of several reward functions; by default those by which the run's logged
    means add up. Rewards whose weights are not known are left out.

    Rollouts of one step and prompt are one group where the file has no groups. `attrs["source"]`
    tells what was read: format, tokens (file, ids, cut anew, or words), groups (file, prompt or
    none), notes.

    Raises ValueError for what can't be read, and where neither reward nor advantage are known.
    """
    path = Path(path).expanduser()
    files = [path] if path.is_file() else _rollout_files(path)
    if not files:
        wanted = ", ".join(PATTERNS)
        raise InvalidValue(
            "path", str(path), f"a file of rollouts, or a folder that holds one of {wanted}"
        )

    # a run's own token tables go before logs beside them
    token_tables, logs = [], []
    for file in files:
        is_tokens, rows = _read_file(file)
        if is_tokens:
            token_tables.append(rows)
        else:
            logs.append(_with_our_names(file, rows))
    if token_tables:
        table = _joined_tables(token_tables)
    else:
        table = _tokens_of_logs(logs, tokenizer, weights, path)

    if len(table) > MAX_TOKENS:
        raise ValueError(
            f"{path} holds more than {MAX_TOKENS:,} tokens; give the path of one file."
        )
    if not len(table):
        raise ValueError(f"{path} holds no tokens.")
    table.attrs["source"].update(path=str(path), files=len(files))
    return table


# -- files


def _rollout_files(folder: Path) -> list[Path]:
    """The files in a folder of the first pattern that fits, in order."""
    for pattern in PATTERNS:
        files = sorted(folder.glob(pattern))
        if pattern == "*.json":
            # rollouts are an array, a config beside them is not
            files = [file for file in files if file.read_text(encoding="utf-8").lstrip()[:1] == "["]
        if files:
            return files
    return []


def _read_file(file: Path) -> tuple[bool, pd.DataFrame]:
    """Whether a file is a token table, and its rows.

    Raises ValueError for a file that can't be read.
    """
    try:
        if file.suffix == ".parquet":
            with pq.ParquetFile(file) as parquet:
                if set(NEEDED) <= set(parquet.schema_arrow.names):
                    return True, read_token_table(file, parquet)
            return False, pd.read_parquet(file)
        if file.suffix == ".csv":
            return False, pd.read_csv(file)
        if file.suffix == ".jsonl":
            return False, pd.read_json(file, lines=True, dtype=False, convert_dates=False)
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and {"columns", "data"} <= set(content):
            # a table of wandb
            return False, pd.DataFrame(content["data"], columns=content["columns"])
        return False, pd.DataFrame(content)
    except (ValueError, OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ValueError(
            f"{file.name} can't be read as {file.suffix.lstrip('.') or 'JSON'}: {reason}."
        ) from None


def _joined_tables(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Token tables one below the other, with what the last one knows of its objective."""
    table = pd.concat(tables, ignore_index=True)
    table.attrs = tables[-1].attrs
    table.attrs["source"] = {**table.attrs["source"], "notes": []}
    # categories that differ from file to file come as objects
    return table.astype({name: "category" for name in TEXTS if name in table})


# -- a row per rollout


def _with_our_names(file: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one file with our columns' names.

    `attrs["rewards"]` lists the further columns of numbers, which may be rewards.
    """
    names = {}
    for ours, aliases in ALIASES.items():
        theirs = [name for name in aliases if name in rows]
        if theirs:
            names[theirs[0]] = ours
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
    if "token_ids" in named:
        # a CSV holds lists as text
        named["token_ids"] = [
            re.findall(r"\d+", ids) if isinstance(ids, str) else ids for ids in named["token_ids"]
        ]
    if "step" not in named:
        # the number at the end of the file's name, as TRL and verl write it
        step = re.search(r"[-_]?(\d{1,9})\.\w+$", file.name)
        named["step"] = int(step[1]) if step else 0
    named.attrs["rewards"] = numbers
    return named


def _text(value) -> str:
    """A prompt or completion as text: of chat messages the contents, one below the other."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | np.ndarray):
        messages = [message for message in value if isinstance(message, dict)]
        return "\n".join(str(message.get("content", "")) for message in messages)
    return ""


# -- one reward of several


def _with_reward(
    rows: pd.DataFrame, names: list[str], weights: dict | None, path: Path
) -> tuple[pd.DataFrame, list[str]]:
    """The rows with a reward, the weighted sum of their columns `names`, and notes on its weights.

    A column of zeros needs no weight; without weights, given or logged, no reward is added.

    Raises ValueError for weights that are no numbers or of no column, and for rows that have
    neither weights nor an advantage.
    """
    if weights:
        for name, weight in weights.items():
            if name not in names or type(weight) not in (int, float):
                raise InvalidValue(
                    "weights", weights, f"numbers, each for one of {', '.join(names)}"
                )
        origin = "given"
        names = list(weights)
    else:
        origin = "read from the logged means"
        names = [name for name in names if (rows[name].fillna(0) != 0).any()]
        weights = _logged_weights(path, names)

    if weights is None:
        unknown = (
            f"several rewards ({', '.join(names)}) and not their weights: give --weights"
            f" {names[0]}=1 {names[1]}=1"
        )
        if "advantage" not in rows:
            raise ValueError(f"{path.name} has no advantage, and {unknown}, say.")
        return rows, [f"The log has {unknown}, say, to read the rewards too."]

    notes = []
    if len(names) > 1:
        terms = " + ".join(f"{weight:.4g} {name}" for name, weight in weights.items())
        notes.append(f"The reward is {terms}; the weights are {origin}.")
    weighted = [weight * rows[name].fillna(0.0) for name, weight in weights.items()]
    return rows.assign(reward=sum(weighted, 0.0)), notes


def _logged_weights(path: Path, names: list[str]) -> dict[str, float] | None:
    """The weights by which the logged means of several rewards add up to the logged reward.

    None if they are not found exactly, from more steps than there are weights.
    """
    if len(names) < 2:
        return dict.fromkeys(names, 1.0)
    metrics = read_logged_metrics(path)
    columns = ["reward", *(f"rewards/{name}/mean" for name in names)]
    if not set(columns) <= set(metrics):
        return None
    logged = metrics[columns].dropna().to_numpy(float)  # (steps, 1 + rewards)
    total, means = logged[:, 0], logged[:, 1:]

    # least squares; the weights are right if nothing is left over
    weights, _, rank, _ = np.linalg.lstsq(means, total, rcond=1e-6)
    determined = rank == len(names) < len(logged)
    if not determined or not np.allclose(means @ weights, total, rtol=1e-4):
        return None
    return dict(zip(names, weights.tolist(), strict=True))


# -- a row per token


def _tokens_of_logs(
    logs: list[pd.DataFrame], tokenizer, weights: dict | None, path: Path
) -> pd.DataFrame:
    """A row per token of the rows of several files."""
    rows = pd.concat(logs, ignore_index=True)
    notes = []
    if "reward" not in rows or weights:
        candidates = {name for log in logs for name in log.attrs["rewards"]}
        names = [name for name in rows if name in candidates]
        rows, notes = _with_reward(rows, names, weights, path)
    steps, repeats = _distinct_steps(rows)
    if repeats:
        notes.append(f"{repeats} steps repeat the rollouts of the step before and were left out.")
    if "group" in rows:
        groups = "file"
    elif "prompt" in rows and rows["prompt"].astype(bool).any():
        groups = "prompt"
    else:
        groups = "none"

    # of each rollout: its columns, the ids of its tokens and their texts
    rollouts = []
    ids = []
    tokens = []
    for batch in steps:
        if groups == "file":
            key = batch["group"]
        elif groups == "prompt":
            key = batch["prompt"]
        else:
            key = pd.Series(range(len(batch)))
        group_numbers, _ = pd.factorize(key)
        for number, row in enumerate(batch.to_dict("records")):
            rollout = {
                "step": row["step"],
                "group": group_numbers[number],
                "rollout": number,
                "prompt": row.get("prompt", ""),
            }
            rollout.update({name: row[name] for name in ("reward", "advantage") if name in row})
            row_ids, row_tokens = _cut(row, tokenizer)
            rollouts.append(rollout)
            ids.append(row_ids)
            tokens.append(row_tokens)

    lengths = [len(strings) for strings in tokens]
    table = pd.DataFrame(rollouts)
    table = table.loc[table.index.repeat(lengths)].reset_index(drop=True)
    table["position"] = np.concatenate([np.arange(length) for length in lengths]) if lengths else []
    if all(row_ids is not None for row_ids in ids):
        table["token_id"] = [int(token) for row_ids in ids for token in row_ids]
    table["token"] = pd.Categorical([token for strings in tokens for token in strings])

    if "token_ids" in rows and rows["token_ids"].notna().all():
        origin = "ids"
    elif "token_id" in table:
        origin = "cut anew"
    else:
        origin = "words"
    table.attrs["source"] = {
        "format": "completions",
        "tokens": origin,
        "groups": groups,
        "notes": notes,
    }
    return table


def _distinct_steps(rows: pd.DataFrame) -> tuple[list[pd.DataFrame], int]:
    """The rows of each step, and the number of steps that were left out as repeats.

    TRL logs a batch that is used several times once for each use.
    """
    texts = "completion" if "completion" in rows else "token_ids"
    steps, repeats, before = [], 0, None
    for _, batch in rows.groupby("step", sort=True):
        written = batch[texts].astype(str).tolist()
        if written == before:
            repeats += 1
        else:
            steps.append(batch)
        before = written
    return steps, repeats


def _cut(row: dict, tokenizer) -> tuple[list | None, list[str]]:
    """The token ids of a rollout, None where they are unknown, and its tokens as texts."""
    ids = row.get("token_ids")
    if tokenizer is None:
        if ids is None:
            return None, WORDS.findall(row["completion"])
        return ids, [str(token) for token in ids]
    if ids is None:
        ids = tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
    # of an empty list batch_decode makes one text
    strings = tokenizer.batch_decode([[int(token)] for token in ids])[: len(ids)]
    return ids, strings


# -- metrics


def read_logged_metrics(path: str | Path) -> pd.DataFrame:
    """The metrics logged beside a run's rollouts, a row per logged step; empty without any.

    They are a run's own metrics.parquet or metrics.jsonl, or the history in the newest
    trainer_state.json that TRL wrote.

    path: as `read_rollouts` takes it.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        folder = folder.parent
    if folder.name in ("completions", "tokens"):
        folder = folder.parent

    table = folder / "metrics.parquet"
    if table.is_file():
        return pd.read_parquet(table)

    lines = folder / "metrics.jsonl"
    if lines.is_file():
        # behind the last line break stands what a killed writer left
        whole, _, _ = lines.read_text("utf-8").rpartition("\n")
        if whole:
            return pd.DataFrame([json.loads(line) for line in whole.splitlines()])

    states = sorted(folder.glob("**/trainer_state.json"), key=lambda file: file.stat().st_mtime)
    if not states:
        return pd.DataFrame()
    state = json.loads(states[-1].read_text(encoding="utf-8"))
    return pd.DataFrame(state.get("log_history", []))
