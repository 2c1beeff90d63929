"""A reader's own prompts and reward: a file of rows (or a list of dicts) and a Python function.

    prompt,answer,topic                          def score(completion, answer, topic):
    What is 2 + 3?,5,sums                            return float(answer in completion)

A run is only as good as its rows, so they are read as they are written ("007", "None" and "N/A"
stay texts; no cell is guessed at), rows that can't be used are named by line, all at once, and
nothing is half-loaded. The standard library reads CSV and JSON lines: pandas tells of a bad file
only its first bad line, moves a surplus cell into an index, and knows no line numbers.

The function runs as it is, in the process that trains: a run is a process of its own, and Stop ends
it.
"""

import csv
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from datasets import Dataset

from workbook.messages import InvalidValue, one_line, show_value
from workbook.places import file_hash
from workbook.tasks.task import (
    RowsTask,
    as_prompt,
    completion_text,
    error_line,
    graded_rows,
    load_function,
)

# the square of a reward, of which a group's spread is made, is finite in float32
MAX_REWARD = 1e18
MAX_WEIGHT = 1e9  # of a reward function, exclusive
_NEEDED_COLUMNS = ("prompt", "answer")
_LINE = "line"  # a column added to each row: where it stands in its file
# columns to which the trainer gives a meaning of its own
_TRAINER_COLUMNS = {
    "image",
    "images",
    "prompts",
    "completion",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
}
_TAKEN_COLUMNS = {_LINE, "self"} | _TRAINER_COLUMNS


class BadRows(ValueError):
    """Rows that can't be used.

    rows: (line, what is wrong) of each; the message has the first ten.
    """

    def __init__(self, source: str, rows: list[tuple[int, str]]):
        self.rows = rows
        summary = f"{source} was not loaded: {len(rows)} row(s) can't be used."
        named = [f"line {line}: {problem}." for line, problem in rows[:10]]
        super().__init__("\n".join([summary, *named]))


class Own(RowsTask):
    """The task "own:<data file>": rows of one's own, scored by a function of one's own.

    data: a .csv, .jsonl, .json (lines) or .parquet file, or a list of dicts, with the columns
    prompt, answer and more.
    reward: (completion, answer, **row) -> a finite number, or "<file>.py:<function>"; row holds the
    columns, the prompt and the line that the function takes by name (all, if it takes **row). Of
    several their weighted sum, {one of both: weight}, each logged by its name, too.
    chat: prompts become a user's message.

    Raises BadRows for rows, ValueError for a file, column or function that can't be used.

    >>> rows = [{"prompt": "2 + 3 =", "answer": 5}, {"prompt": "2 + 2 =", "answer": 4}]
    >>> task = own_task(rows, lambda completion, answer: answer in completion)
    >>> task.reward(["2 + 3 ="], ["it is 5"], ["5"])
    [1.0]
    """

    def __init__(self, data: str | Path | list[dict], reward=None, chat: bool = False) -> None:
        self.rows = Dataset.from_list(read_rows(data))
        self.source = "rows" if isinstance(data, list) else Path(data).name
        self.name = "own:rows" if isinstance(data, list) else f"own:{data}"
        self.chat = chat
        # (function, weight) of each
        weighted = list(reward.items()) if isinstance(reward, dict) else [(reward, 1.0)]
        self._weights = [weight for _, weight in weighted]
        if not all(map(_is_weight, self._weights)) or not any(self._weights):
            raise InvalidValue(
                "reward", reward, "functions with a weight each, one of which is not 0"
            )
        # (function, its file or None) of each
        self._functions = [
            (function, None) if callable(function) else load_function(function, "reward")
            for function, _ in weighted
        ]

    @property
    def sources(self) -> dict[str, str]:
        """SHA-256 of the rows and of the rewards' files, by their names."""
        rows = json.dumps(self.rows.to_list(), sort_keys=True, default=str)
        sources = {f"prompts {self.source}": hashlib.sha256(rows.encode()).hexdigest()}
        for _, file in self._functions:
            if file is not None:
                sources[f"reward {file.name}"] = file_hash(file)
        return sources

    def posed(self, rows: Dataset) -> Dataset:
        """Return prompt, answer, line and the file's other columns."""
        if not self.chat:
            return rows
        columns = {name: rows[name] for name in rows.column_names if name != "prompt"}
        columns["prompt"] = [as_prompt(prompt, chat=True) for prompt in rows["prompt"]]
        return Dataset.from_dict(columns)

    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return the weighted sum of what the functions give.

        Raises ValueError, naming the row, if that of one is not one finite number.
        """
        total = 0.0
        for (function, file), weight in zip(self._functions, self._weights, strict=True):
            total += weight * self._call(function, file, completion, answer, row)
        return total

    def reward(
        self, prompts: list, completions: list, answer: list[str], log_metric=None, **columns
    ) -> list[float]:
        """As in `Task`, but neither clamped nor forgiving.

        A function that fails ends the run, in a sentence.
        """
        # TRL hands on columns of its own as well: rows are made of the file's
        row_columns = {
            name: column for name, column in columns.items() if name in self.rows.column_names
        }
        row_columns["prompt"] = [completion_text(prompt) for prompt in prompts]
        rows = list(graded_rows(completions, answer, row_columns))
        totals = [0.0] * len(rows)
        for (function, file), weight in zip(self._functions, self._weights, strict=True):
            values = [self._call(function, file, *row) for row in rows]
            totals = [total + weight * value for total, value in zip(totals, values, strict=True)]
            if log_metric and len(self._functions) > 1:
                log_metric(f"rewards/{_function_name(function)}", sum(values) / len(values))
        return totals

    def _call(
        self, function: Callable, file: Path | None, completion: str, answer: str, row: dict
    ) -> float:
        """Return what one function gives for one row, or raise ValueError, naming both."""
        parameters = inspect.signature(function).parameters
        takes_all = any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        # a function is handed what it names
        taken = {key: row[key] for key in row if takes_all or key in parameters}
        try:
            value = function(completion, answer, **taken)
            # a number of NumPy or torch
            if getattr(value, "ndim", None) == 0:
                value = value.item()
            # NaN is not below any limit
            if isinstance(value, int | float) and abs(value) <= MAX_REWARD:
                return float(value)
            hint = "; does it lack a return?" if value is None else ""
            problem = f"returned {show_value(value)}, not one finite number{hint}"
        except Exception as error:
            problem = f"raised {error_line(error, file)}"
        where = f"line {row[_LINE]} of {self.source}" if _LINE in row else f"the answer {answer!r}"
        raise ValueError(f"The reward function {_function_name(function)} {problem}, at {where}.")


own_task = Own  # as `get_task` and readers call it


def _is_weight(weight: Any) -> bool:
    return isinstance(weight, int | float) and abs(weight) < MAX_WEIGHT


def _function_name(function: Callable) -> str:
    """Return a function's name, or its class's."""
    return getattr(function, "__name__", type(function).__name__)


# -- rows


def read_rows(data: str | Path | list[dict]) -> list[dict]:
    """Return rows {prompt, answer, line, ...} of a file or of a list of dicts, all of them sound.

    Raises BadRows, which names every row that isn't, and ValueError for a file that can't be read
    at all.
    """
    if isinstance(data, list):
        source = "rows"
        records = list(enumerate(data, 1))
    else:
        path = Path(data).expanduser()
        source = path.name
        records = _read_records(path)
    if not records:
        raise ValueError(f"{source} has no rows.")

    # the first record says which columns there are
    dicts = [record for _, record in records if isinstance(record, dict)]
    columns = list(dicts[0]) if dicts else list(_NEEDED_COLUMNS)
    missing = sorted(set(_NEEDED_COLUMNS) - set(columns))
    if missing:
        listed = ", ".join(map(str, columns[:20]))
        raise ValueError(
            f"{source} has no column {' or '.join(missing)}; its columns are {listed}."
        )
    taken = sorted(_TAKEN_COLUMNS & set(columns))
    if taken:
        raise ValueError(
            f"{source} has a column {taken[0]}, a name that is taken; call it something else."
        )

    # all bad rows are named at once, and none is left out silently
    problems = [(line, _problem(record, columns)) for line, record in records]
    bad_rows = [(line, problem) for line, problem in problems if problem is not None]
    if bad_rows:
        raise BadRows(source, bad_rows)
    return [
        {**record, "answer": _answer_text(record["answer"]), _LINE: line}
        for line, record in records
    ]


def _read_records(path: Path) -> list[tuple[int, Any]]:
    """Return (line, record) of a file, or raise ValueError if it can't be read at all."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".jsonl", ".json", ".parquet"):
        raise InvalidValue("data file", path.name, "a .csv, .jsonl or .parquet")
    if not path.is_file():
        raise InvalidValue("data file", str(path), "a file that exists")
    try:
        if kind == ".parquet":
            return list(enumerate(pyarrow.parquet.read_table(path).to_pylist(), 1))
        # spreadsheets write a byte order mark
        text = path.read_bytes().decode("utf-8-sig")
        return list(_csv_records(text) if kind == ".csv" else _json_records(text))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path.name} is not UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from None
    except csv.Error as error:
        raise ValueError(f"{path.name} is no CSV: {error}.") from None
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path.name} is no Parquet file: {one_line(error, 200)}.") from None


def _csv_records(text: str) -> Iterator[tuple[int, dict]]:
    """Yield (line, record) of a CSV.

    Cells that are too few are None, those too many stand under the column None.
    """
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    line = 2
    for record in reader:
        yield line, record
        # a quoted cell may take several lines
        line = reader.line_num + 1


def _json_records(text: str) -> Iterator[tuple[int, Any]]:
    """Yield (line, record) of JSON lines; a line that is no JSON is None."""
    for line, record in enumerate(text.split("\n"), 1):
        if not record.strip():
            continue
        try:
            yield line, json.loads(record)
        except (ValueError, RecursionError):
            yield line, None


def _problem(record: Any, columns: list[str]) -> str | None:
    """Return what is wrong with a record, without a full stop, None where nothing is."""
    if not isinstance(record, dict) or set(record) != set(columns) or None in record.values():
        return f"must hold the columns of the first row, each once: {', '.join(map(str, columns))}"
    prompt = record["prompt"]
    answer = record["answer"]
    if not isinstance(prompt, str) or not prompt.strip():
        return f"prompt is {show_value(prompt)}, but must be text"
    is_text = isinstance(answer, str) and answer.strip()
    # True is an int to Python, and NaN a float
    is_number = (
        isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
    )
    if not is_text and not is_number:
        return f"answer is {show_value(answer)}, but must be text or a finite number"
    return None


def _answer_text(answer: Any) -> str:
    """Return an answer as text: 5.0 is 5."""
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    return str(answer)
