"""Rollouts to and from other programs: prime-rl's token export, TRL's completions, JSON lines, our own token tables.

`read_rollouts` makes one table of all of them, a row per trained token, with as many of these columns as the file has:

    step, group, rollout, position, token_id     whole numbers; (step, rollout) names a rollout, (step, group) its group
    token, prompt, stopped                       texts; stopped: what took the token's gradient away, "" for nothing
    reward, advantage, weight, push              push = weight * advantage = -d loss / d logp
    ratio, importance                            pi / pi_old of the loss, and the correction for the sampler
    old_logp, logp, logp_after, entropy          nats; logp before the optimizer step and after it
    residual                                     |sum of push| / sum of |push| of the token's place

`attrs["source"]` says what was read: format, tokens ("file" or "tokenizer"; "words" of a text; "ids" without texts),
groups ("file", "prompt" or "none") and notes; `attrs["objective"]` is the loss, where the file names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pandas as pd

from workbook.rollouts.foreign import Malformed, Record, plain_record, short
from workbook.rollouts.prime_rl import prime_rl_record, write_prime_rl
from workbook.rollouts.record_table import record_table
from workbook.rollouts.token_files import MAX_TOKENS, NEEDED, TEXTS, check_size, read_table

__all__ = ["read_rollouts", "write_prime_rl"]

MAX_BYTES = 512 * 2**20  # read at once; of a folder with more, evenly spaced files
ROWS_AT_ONCE = 256  # of a Parquet file with texts
FOLDERS = (  # what a folder may hold, its files' names, and how they are read
    ("tokens", r"step-\d+\.parquet", "token tables"),
    ("completions", r"completions_\d+\.parquet", "TRL completions"),
    ("token_exports", r"step_\d+/rank_\d+\.jsonl", "prime-rl"),
    ("samples", r"step-\d+\.parquet", "samples of a run without token tables"),
)


def read_rollouts(path: str | Path, tokenizer=None) -> pd.DataFrame:
    """Read the rollouts of a file or a folder as a table of their tokens; its columns are in the module's docstring.

    path: one of
        a run's folder, or its tokens/ (`record_tokens`): our own token tables, Parquet
        a TRL output folder, its completions/, or a completions_00010.parquet (`log_completions=True`)
        a prime-rl output folder, its token_exports/ or step_N/, or a rank_0.jsonl: a line per sequence with token_ids,
            loss_mask and, each if there, rewards, advantages, inference_logprobs, trainer_logprobs, entropy,
            importance_ratio, is_masked, is_masked_high, is_masked_low (all lists of equal length), step
        JSON lines, or Parquet: prompt (or input), completion (or output, response) or tokens or token_ids, reward (or
            score), and, each if there, group (uid, problem_id), step, advantage, logp, old_logp, entropy, ratio as one
            number or one per token. These are verl's rollout dumps, too.
    tokenizer: cuts texts into tokens, and gives token ids their texts; texts are cut into words without one.

    Rollouts of one step and prompt are one group where the file has no groups. Of a folder with more than MAX_BYTES
    evenly spaced files are read, and a note says so. Raises ValueError, in one sentence that names the file and the
    line, for what can't be read; nothing in a file is ever executed.
    """
    path = Path(path).expanduser()
    notes: list[str] = []
    files, label = _files(path)
    files = _thinned(files, notes)
    try:
        table = _read(files, tokenizer, notes)
    except OSError as error:
        reason = " ".join(str(error.strerror or error).split()).rstrip(".")
        raise ValueError(f"{path} can't be read: {reason[:200]}.") from None
    if len(table) == 0:
        raise ValueError(f"{path} holds no tokens.")
    source = table.attrs["source"] | {"path": str(path), "files": len(files), "notes": notes}
    table.attrs["source"] = source | ({} if label is None else {"format": label})
    return table


# --- files


def _files(path: Path) -> tuple[list[Path], str | None]:
    """The files to read, in the order of their steps, and what they are called; ValueError if there are none."""
    try:
        if path.is_file():
            return [path], None
        if not path.is_dir():
            raise ValueError(f"there is no file or folder {str(path)!r}.")
    except OSError as error:
        raise ValueError(f"{short(str(path))} can't be read: {error.strerror}.") from None
    for name, pattern, label in FOLDERS:
        for place in (path / name, path):
            if files := _matching(place, pattern):
                return files, label
    if files := [*_matching(path, r"rank_\d+\.jsonl")]:
        return files, "prime-rl"
    wanted = ", ".join(f"{name}/{pattern.replace(chr(92), '').replace('d+', 'N')}" for name, pattern, _ in FOLDERS)
    raise ValueError(f"{path} holds none of {wanted}; give the path of a file of rollouts.")


def _matching(folder: Path, pattern: str) -> list[Path]:
    depth = "*/*" if "/" in pattern else "*"
    files = [f for f in folder.glob(depth) if re.fullmatch(pattern, f.relative_to(folder).as_posix()) and f.is_file()]
    return sorted(files, key=lambda file: [int(number) for number in re.findall(r"\d+", str(file.relative_to(folder)))])


def _thinned(files: list[Path], notes: list[str]) -> list[Path]:
    sizes = [file.stat().st_size for file in files]
    if len(files) == 1 and sizes[0] > MAX_BYTES:
        raise ValueError(f"{files[0].name} has {sizes[0] / 2**20:,.0f} MiB; at most {MAX_BYTES / 2**20:,.0f} are read.")
    every = 1
    while sum(sizes[::-1][::every]) > MAX_BYTES and every < len(files):  # the newest is always read
        every *= 2
    kept = files[::-1][::every][::-1]
    if every > 1:
        limit = f"more than {MAX_BYTES / 2**20:,.0f} MiB are not"
        notes.append(f"Of {len(files)} files {len(kept)} were read, evenly spaced: {limit}.")
    return kept


def _read(files: list[Path], tokenizer, notes: list[str]) -> pd.DataFrame:
    """The files' token tables one below the other; or one table of the rollouts of all of them."""
    tables, records = [], []
    for file in files:
        with file.open("rb") as opened:
            parquet = opened.read(4) == b"PAR1" or file.suffix == ".parquet"
        part = _parquet(file, notes) if parquet else _json_lines(file, tokenizer, notes)
        (tables if isinstance(part, pd.DataFrame) else records).append(part)
    if tables and records:
        raise ValueError(f"{files[0].parent} holds token tables beside other files; give the path of one file.")
    if records:
        return record_table(chain.from_iterable(records), tokenizer, notes)
    return tables[0] if len(tables) == 1 else _joined(tables)


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Token tables of several files as one; where two are of the same step, groups and rollouts are numbered on."""
    if sum(map(len, tables)) > MAX_TOKENS:
        raise ValueError(f"These files hold more than {MAX_TOKENS:,} tokens; give the path of one of them.")
    taken: dict[int, pd.Series] = {}
    for table in tables:
        for step, rows in table.groupby("step").groups.items():
            if step in taken:
                table.loc[rows, ["group", "rollout"]] += taken[step]
            taken[step] = table.loc[rows, ["group", "rollout"]].max() + 1
    for name in TEXTS:
        if any(name in table for table in tables):
            texts = {"", *chain.from_iterable(table[name].cat.categories for table in tables if name in table)}
            kind = pd.CategoricalDtype(sorted(texts))
            for table in tables:
                table[name] = (table[name] if name in table else pd.Series("", table.index)).astype(kind)
    joined = pd.concat(tables, ignore_index=True)
    joined.attrs = {"source": tables[-1].attrs["source"]}
    if objective := next((t.attrs["objective"] for t in reversed(tables) if "objective" in t.attrs), None):
        joined.attrs["objective"] = objective
    return joined


# --- JSON lines


def _json_lines(file: Path, tokenizer, notes: list[str]) -> Iterator[Record]:
    decode = None if tokenizer is None else tokenizer.decode
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = _object(line)
            except Malformed as problem:
                if number > 1 and not line.endswith(b"\n"):
                    notes.append(f"The last line of {file.name} is incomplete and was left out: is it being written?")
                    return
                raise ValueError(f"{file.name}, line {number}: {problem}.") from None
            read = (prime_rl_record, row, decode) if "loss_mask" in row else (plain_record, row)
            yield _named(file, "line", number, *read)


def _object(line: bytes) -> dict:
    try:
        row = json.loads(line)
    except UnicodeDecodeError:
        raise Malformed("is no JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        raise Malformed(f"is no JSON ({error.msg})") from None
    except (ValueError, RecursionError):  # a number of thousands of digits; a list in a list in a list ...
        raise Malformed("is no JSON that is read here") from None
    if not isinstance(row, dict):
        raise Malformed(f"is {short(row)}, but must be an object, one rollout per line")
    return row


# --- Parquet


def _parquet(file: Path, notes: list[str]) -> pd.DataFrame | Iterator[Record]:
    """A token table as it is, or the rollouts of a file with a row for each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        texts = check_size(file, pq.read_metadata(file))
        with pq.ParquetFile(file, read_dictionary=texts) as parquet:
            if set(NEEDED) <= set(parquet.schema_arrow.names):
                return read_table(file, parquet)
        return _completions(file, notes)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} is no Parquet file that can be read: {short(str(error))}.") from None


def _completions(file: Path, notes: list[str]) -> Iterator[Record]:
    """The rows of TRL's completions, or of any Parquet file with such columns; a step it lacks is in its name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as parquet:
            kinds = {field.name: field.type for field in parquet.schema_arrow}
            step = {} if "step" in kinds else {"step": int((re.findall(r"[-_](\d{1,9})\.", file.name) or ["0"])[0])}
            rewards = _rewards(kinds, notes)
            rows = chain.from_iterable(b.to_pylist() for b in parquet.iter_batches(batch_size=ROWS_AT_ONCE))
            for number, row in enumerate(rows, 1):
                yield _named(file, "row", number, plain_record, step | row, rewards)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} is no Parquet file that can be read: {short(str(error))}.") from None


def _rewards(kinds: dict, notes: list[str]) -> list[str]:
    """The columns of TRL's reward functions: those of numbers that have no other name."""
    import pyarrow as pa

    known = {"step", "advantage", "advantages", "group", "__index_level_0__"}
    names = [n for n, k in kinds.items() if n not in known and (pa.types.is_floating(k) or pa.types.is_integer(k))]
    note = f"The reward is the sum of the columns {', '.join(names)}, each with weight 1."
    if len(names) > 1 and not {"reward", "score"} & set(kinds) and note not in notes:
        notes.append(note)
    return names


def _named(file: Path, unit: str, number: int, read, *args):
    """What `read` makes of a record; a Malformed becomes a ValueError that names the file and the line or row."""
    try:
        return read(*args)
    except Malformed as problem:
        raise ValueError(f"{file.name}, {unit} {number}: {problem}.") from None
