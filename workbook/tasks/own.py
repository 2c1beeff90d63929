"""A reader's own prompts and reward: a CSV or JSON-lines file, and a Python function.

    prompt,answer,topic                          def score(completion, answer, topic):
    What is 2 + 3?,5,sums                            return float(answer in completion)

Rows that can't be used are all named, by line, before any of them is; nothing is half-loaded.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset

from workbook.tasks.own_reward import InProcess, InThread
from workbook.tasks.task import Task, as_prompt, positive_int, split_rows
from workbook.tasks.verify import completion_text

MOST_BYTES, MOST_ROWS, MOST_CHARACTERS = 32 * 2**20, 100_000, 20_000  # of a file, of its rows, of one text
NAMED = 10  # bad rows that a message names one by one
LINE = "line"  # a column added to each row: where it stands in its file
KINDS = {str: "text", float: "a number", bool: "true or false"}  # of further columns
NO_TEXT = "{} holds characters that are no text"
TAKEN = {LINE, "prompts", "completion", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}


class BadRows(ValueError):
    """Rows that can't be used; `rows` holds (line, what is wrong) of each, the message the first ten."""

    def __init__(self, source: str, rows: list[tuple[int, str]]):
        self.rows = rows
        named = [f"line {line}: {problem}." for line, problem in rows[:NAMED]]
        more = [f"And {len(rows) - NAMED} more."] if len(rows) > NAMED else []
        count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        super().__init__("\n".join([f"{source} was not loaded: {count} can't be used.", *named, *more]))


class Own(Task):
    """The task "own:<data file>": rows of one's own, scored by a function of one's own.

    data: the path of a .csv, .jsonl or .json (lines) file, or a list of dicts; each row has the columns prompt and
    answer, and whatever else the function wants to know.
    reward: "<file>.py:<function>", called in a process of its own, or a function at hand; see `own_task`.
    chat: prompts become the chat message of a user.  seconds: the most that one call may take.
    Raises BadRows for rows, ValueError for a file, column or function that can't be used.
    """

    def __init__(
        self, data: str | Path | list[dict], reward: str | Callable, chat: bool = False, seconds: float = 2.0
    ) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 600:
            raise ValueError(f"seconds is {seconds!r}, but must be a number above 0 and at most 600.")
        self.source = "rows" if isinstance(data, list) else Path(data).name
        self.name, self.chat = f"own:{'rows' if isinstance(data, list) else data}", chat
        self.rows = read_rows(data)
        self._call = _caller(reward, seconds)

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows drawn without replacement: prompt, answer, line and the file's other columns."""
        return self.split(positive_int("n", n), 0, seed)[0]

    def split(self, train: int, held_out: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Return rows to train on and rows held out, which share no prompt; ValueError if there are too few rows."""
        rows = Dataset.from_list(self.rows).shuffle(seed=positive_int("seed", seed, 0))
        trained, held = split_rows(rows, rows["prompt"], train, held_out, self.source)
        return self._posed(trained), self._posed(held)

    def _posed(self, rows: Dataset) -> Dataset:
        """Rows with their prompts as the policy gets them."""
        if not self.chat:
            return rows
        columns = {name: rows[name] for name in rows.column_names if name != "prompt"}
        return Dataset.from_dict(columns | {"prompt": [as_prompt(prompt, chat=True) for prompt in rows["prompt"]]})

    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return what the function gives; ValueError, naming the row, if that is not one finite number in time."""
        found = self._call(completion, answer, row)
        if "problem" in found:
            where = f"line {row[LINE]} of {self.source}" if LINE in row else f"the answer {answer!r}"
            raise ValueError(f"The reward function {self._call.name} {found['problem']}, at {where}.")
        return found["reward"]

    def reward(self, prompts: list, completions: list, answer: list[str], **columns: Any) -> list[float]:
        """As in `Task`, but neither clamped nor forgiving: a function that fails ends the run, in a sentence."""
        per_row = {
            key: value
            for key, value in columns.items()
            if isinstance(value, list) and len(value) == len(answer) and key not in TAKEN - {LINE}
        }
        per_row["prompt"] = [completion_text(prompt) for prompt in prompts]
        return [
            self.score(completion_text(completion), truth, **{key: value[i] for key, value in per_row.items()})
            for i, (completion, truth) in enumerate(zip(completions, answer, strict=True))
        ]


def own_task(
    path_or_rows: str | Path | list[dict], reward: str | Callable, chat: bool = False, seconds: float = 2.0
) -> Own:
    """Return a task of one's own rows and reward function; arguments as of `Own`.

    reward(completion, answer, **row) -> a finite number; row holds those further columns that the function takes by
    name (all, if it takes **row), the prompt, and the row's line. Named as "<file>.py:<function>" it can be written
    into a run's config (`task: own:<data file>`, `task_options: {reward: ...}`) and is ended when it hangs; a function
    at hand works in this process alone, where one that hangs is given up, but goes on.

    >>> rows = [{"prompt": "2 + 3 =", "answer": 5}, {"prompt": "2 + 2 =", "answer": 4}]
    >>> task = own_task(rows, lambda completion, answer: answer in completion)
    >>> task.reward(["2 + 3 ="], ["it is 5"], ["5"])
    [1.0]
    """
    return Own(path_or_rows, reward, chat, seconds)


def _caller(reward: str | Callable, seconds: float) -> InProcess | InThread:
    if callable(reward):
        return InThread(reward, seconds)
    file, colon, function = str(reward).rpartition(":")
    if not colon or not file.endswith(".py") or not function.isidentifier():
        raise ValueError(f"reward is {reward!r}, but must be '<file>.py:<function>', or a function.")
    return InProcess(file, function, seconds)


def read_rows(data: str | Path | list[dict]) -> list[dict]:
    """Return rows {prompt, answer, line, ...} of a CSV or JSON-lines file, or of a list of dicts, all of them sound.

    Raises BadRows, which names every row that isn't, and ValueError for a file that can't be read at all.
    """
    if isinstance(data, list):
        source, records = "rows", list(enumerate(data, 1))
    else:
        path = Path(data).expanduser()
        source, text = path.name, _text(path)
        records = list(_csv(source, text) if path.suffix == ".csv" else _json_lines(source, text))
    if not records:
        raise ValueError(f"{source} has no rows.")
    if len(records) > MOST_ROWS:
        raise ValueError(f"{source} has {len(records):,} rows; the most that is taken is {MOST_ROWS:,}.")
    columns = next((set(record) for _, record in records if isinstance(record, dict)), {"prompt", "answer"})
    _check_columns(source, columns)
    first: dict[str, tuple[type, int]] = {}
    bad = [(line, problem) for line, record in records if (problem := _problem(record, columns, first, line))]
    if bad:
        raise BadRows(source, bad)
    return [{**record, "answer": _plain(record["answer"]), LINE: line} for line, record in records]


def _text(path: Path) -> str:
    if path.suffix not in (".csv", ".jsonl", ".json"):
        raise ValueError(f"the data file {path.name!r} must end in .csv or .jsonl.")
    if not path.is_file():
        raise ValueError(f"there is no data file {str(path)!r}.")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{path.name} has {size / 2**20:,.0f} MiB; the most that is taken is {MOST_BYTES // 2**20}.")
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadRows(
            path.name, [(line, f"is not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8")]
        ) from None


def _csv(source: str, text: str) -> Iterator[tuple[int, Any]]:
    """Yield (line on which it begins, record) of each row, a sentence in the place of a record that can't be read."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names, begins = None, 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # nothing behind it can be trusted to begin where a row does
            yield begins, f"is not valid CSV ({error})"
            return
        line, begins = begins, reader.line_num + 1
        if not fields:
            continue
        if names is None:
            names = [name.strip() for name in fields]
            if len(set(names)) < len(names) or "" in names:
                raise ValueError(f"{source}: the first line must name each column once; it has {', '.join(names)}.")
        elif len(fields) != len(names):
            hint = "; quote texts with commas in them" if len(fields) > len(names) else ""
            yield line, f"has {len(fields)} fields, but the first line names {len(names)}{hint}"
        else:
            yield line, dict(zip(names, fields, strict=True))


def _json_lines(source: str, text: str) -> Iterator[tuple[int, Any]]:
    if text.lstrip().startswith("["):
        raise ValueError(f"{source} is one JSON list; write one object per line (JSON lines) instead.")
    for line, part in enumerate(text.split("\n"), 1):
        if part.strip():
            try:
                yield line, json.loads(part)
            except (ValueError, RecursionError) as error:
                yield line, f"is not valid JSON ({getattr(error, 'msg', 'nested too deeply')})"


def _check_columns(source: str, columns: set) -> None:
    if missing := {"prompt", "answer"} - columns:
        there = ", ".join(sorted(map(str, columns)))
        raise ValueError(f"{source} has no column {' or '.join(sorted(missing))}; its columns are {there}.")
    if taken := TAKEN & columns:
        raise ValueError(f"{source} has a column {sorted(taken)[0]}, a name that is taken; call it something else.")


def _problem(record: Any, columns: set, first: dict[str, tuple[type, int]], line: int) -> str | None:
    """What is wrong with a record, without a full stop; `first` remembers each column's first type and its line."""
    if isinstance(record, str):
        return record
    if not isinstance(record, dict):
        return f"is a {type(record).__name__}, but must be an object of columns"
    if set(record) != columns:
        lacks, more = sorted(columns - set(record)), sorted(set(record) - columns)
        said = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [
            f"has {', '.join(more)}, which the first row lacks"
        ] * bool(more)
        return " and ".join(said)
    for name in ("prompt", "answer"):
        if (problem := _text_problem(name, record[name])) is not None:
            return problem
    for name, value in record.items():
        if (problem := _kind_problem(name, value, first, line)) is not None:
            return problem
    return None


def _kind_problem(name: str, value: Any, first: dict[str, tuple[type, int]], line: int) -> str | None:
    """What is wrong with a further column's value: a data set's column holds values of one kind."""
    if name in ("prompt", "answer") or value is None:
        return None
    kind = float if type(value) is int and abs(value) < 2**63 else type(value)
    if kind not in KINDS:
        return f"{name} is {value!r}, but must be text, a number of 64 bits, true, false or null"[:200]
    before, where = first.setdefault(name, (kind, line))
    if kind is not before:
        return f"{name} is {KINDS[kind]}, but {KINDS[before]} in line {where}"
    return NO_TEXT.format(name) if kind is str and not _is_text(value) else None


def _text_problem(name: str, value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not isinstance(value, str) and not (number and name == "answer"):
        return f"{name} is {value!r}, but must be text{' or a number' if name == 'answer' else ''}"[:200]
    text = str(value)
    if not text.strip():
        return f"{name} is empty"
    if len(text) > MOST_CHARACTERS:
        return f"{name} has {len(text):,} characters; the most that is taken is {MOST_CHARACTERS:,}"
    return None if _is_text(text) else NO_TEXT.format(name)


def _is_text(text: str) -> bool:
    return not any(0xD800 <= ord(c) < 0xE000 or c == "\0" for c in text)


def _plain(answer: Any) -> str:
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)
