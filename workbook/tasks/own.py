"""A reader's own prompts and reward: a CSV or JSON-lines file (or a list of dicts), and a Python
function.

    prompt,answer,topic                          def score(completion, answer, topic):
    What is 2 + 3?,5,sums                            return float(answer in completion)

Rows that can't be used are named by line, all at once; nothing is half-loaded. The function runs as
it is, in the process that trains: a run is a process of its own, and Stop ends it.
"""

import csv
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset

from workbook.messages import InvalidValue
from workbook.places import file_hash
from workbook.tasks.task import (
    RowsTask,
    as_prompt,
    completion_text,
    error_line,
    graded_rows,
    load_function,
    short,
)

MAX_REWARD = 1e18  # its square, of which a group's spread is made, is finite in float32
# LINE: a column added to each row, where it stands in its file
NEEDED, LINE = ("prompt", "answer"), "line"
TRAINERS = {
    "prompts",
    "completion",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
}
# columns to which the trainer gives a meaning of its own
TAKEN = {LINE, "self", "image", "images"} | TRAINERS


class BadRows(ValueError):
    """Rows that can't be used; `rows` holds (line, what is wrong) of each, the message the first
    ten.
    """

    def __init__(self, source: str, rows: list[tuple[int, str]]):
        self.rows = rows
        named = [f"line {line}: {problem}." for line, problem in rows[:10]]
        super().__init__(
            "\n".join([f"{source} was not loaded: {len(rows)} row(s) can't be used.", *named])
        )


class Own(RowsTask):
    """The task "own:<data file>": rows of one's own, scored by a function of one's own.

    data: of a .csv, .jsonl or .json (lines) file, or a list of dicts, with the columns prompt,
    answer and more.
    reward: (completion, answer, **row) -> a finite number, or "<file>.py:<function>"; row holds the
    columns, the prompt and the line that the function takes by name (all, if it takes **row). Of
    several their weighted sum, {one of both: weight}, each logged by its name, too.  chat: prompts
    become a user's message.

    Raises BadRows for rows, ValueError for a file, column or function that can't be used.

    >>> rows = [{"prompt": "2 + 3 =", "answer": 5}, {"prompt": "2 + 2 =", "answer": 4}]
    >>> task = own_task(rows, lambda completion, answer: answer in completion)
    >>> task.reward(["2 + 3 ="], ["it is 5"], ["5"])
    [1.0]
    """

    def __init__(self, data: str | Path | list[dict], reward=None, chat: bool = False) -> None:
        self.rows = Dataset.from_list(read_rows(data))
        self.source = "rows" if isinstance(data, list) else Path(data).name
        self.name, self.chat = f"own:{'rows' if isinstance(data, list) else data}", chat
        several = list(reward.items()) if isinstance(reward, dict) else [(reward, 1.0)]
        self._weights = [
            weight for _, weight in several if isinstance(weight, int | float) and abs(weight) < 1e9
        ]
        if len(self._weights) < len(several) or not any(self._weights):
            raise InvalidValue(
                "reward", reward, "functions with a weight each, one of which is not 0"
            )
        self._functions = [
            (name, None) if callable(name) else load_function(name, "reward") for name, _ in several
        ]

    @property
    def sources(self) -> dict[str, str]:
        """SHA-256 of the rows and of the reward's file, by their names."""
        rows = hashlib.sha256(json.dumps(self.rows.to_list(), sort_keys=True).encode()).hexdigest()
        files = {f"reward {file.name}": file_hash(file) for _, file in self._functions if file}
        return {f"prompts {self.source}": rows} | files

    def posed(self, rows: Dataset) -> Dataset:
        """Return prompt, answer, line and the file's other columns."""
        if not self.chat:
            return rows
        columns = {name: rows[name] for name in rows.column_names if name != "prompt"}
        return Dataset.from_dict(
            columns | {"prompt": [as_prompt(prompt, chat=True) for prompt in rows["prompt"]]}
        )

    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return what the functions give, weighted; ValueError, naming the row, if that is not one
        finite number.
        """
        values = (self._call(*function, completion, answer, row) for function in self._functions)
        return sum(weight * value for weight, value in zip(self._weights, values, strict=True))

    def _call(
        self, function: Callable, file: Path | None, completion: str, answer: str, row: dict
    ) -> float:
        taken, name = inspect.signature(function).parameters, name_of(function)
        takes_all = any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()
        )
        try:
            value = function(
                completion, answer, **{key: row[key] for key in row if takes_all or key in taken}
            )
            # a number of NumPy or torch
            value = value.item() if getattr(value, "ndim", None) == 0 else value
            if isinstance(value, int | float) and abs(value) <= MAX_REWARD:  # NaN is not
                return float(value)
            hint = "; does it lack a return?" if value is None else ""
            problem = f"returned {short(value)}, not one finite number{hint}"
        except Exception as error:
            problem = f"raised {error_line(error, file)}"
        where = f"line {row[LINE]} of {self.source}" if LINE in row else f"the answer {answer!r}"
        raise ValueError(f"The reward function {name} {problem}, at {where}.")

    def reward(
        self, prompts: list, completions: list, answer: list[str], log_metric=None, **columns
    ) -> list[float]:
        """As in `Task`, but neither clamped nor forgiving: a function that fails ends the run, in a
        sentence.
        """
        own = {key: value for key, value in columns.items() if key in self.rows.column_names}
        asked = own | {"prompt": [completion_text(prompt) for prompt in prompts]}
        rows = list(graded_rows(completions, answer, asked))
        totals = [0.0] * len(rows)
        for (function, file), weight in zip(self._functions, self._weights, strict=True):
            values = [self._call(function, file, *row) for row in rows]
            totals = [total + weight * value for total, value in zip(totals, values, strict=True)]
            if log_metric and len(self._functions) > 1:
                log_metric(f"rewards/{name_of(function)}", sum(values) / len(values))
        return totals


def name_of(function: Callable) -> str:
    """A function's name, or its class's."""
    return getattr(function, "__name__", type(function).__name__)


own_task = Own


def read_rows(data: str | Path | list[dict]) -> list[dict]:
    """Rows {prompt, answer, line, ...} of a CSV or JSON-lines file, or of a list of dicts, all of
    them sound.

    Raises BadRows, which names every row that isn't, and ValueError for a file that can't be read
    at all.
    """
    source, numbered = "rows", list(enumerate(data, 1)) if isinstance(data, list) else []
    if not isinstance(data, list):
        path = Path(data).expanduser()
        source, read = path.name, READERS.get(path.suffix.lower())
        if read is None:
            raise InvalidValue("data file", source, "a .csv or .jsonl")
        if not path.is_file():
            raise InvalidValue("data file", str(path), "a file that is there")
        try:
            numbered = list(read(path.read_bytes().decode("utf-8-sig")))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{source} is not UTF-8 text (byte {error.start}); save it as UTF-8."
            ) from None
        except csv.Error as error:
            raise ValueError(f"{source} is no CSV: {error}.") from None
    if not numbered:
        raise ValueError(f"{source} has no rows.")
    columns = next(
        (list(record) for _, record in numbered if isinstance(record, dict)), list(NEEDED)
    )
    if missing := sorted(set(NEEDED) - set(columns)):
        listed = ", ".join(map(str, columns[:20]))
        raise ValueError(
            f"{source} has no column {' or '.join(missing)}; its columns are {listed}."
        )
    if taken := sorted(TAKEN & set(columns)):
        raise ValueError(
            f"{source} has a column {taken[0]}, a name that is taken; call it something else."
        )
    if bad := [
        (line, problem) for line, record in numbered if (problem := _problem(record, columns))
    ]:
        raise BadRows(source, bad)
    return [{**record, "answer": _plain(record["answer"]), LINE: line} for line, record in numbered]


def _csv_records(text: str) -> Iterator[tuple[int, dict]]:
    """Yield (line, record) of a CSV; cells that are too few are None, those too many stand under
    None.
    """
    reader = csv.DictReader(text.splitlines(keepends=True), strict=True)
    line = 2
    for record in reader:
        yield line, record
        line = reader.line_num + 1


def _json_records(text: str) -> Iterator[tuple[int, Any]]:
    """Yield (line, record) of JSON lines; a line that is no JSON is None."""
    for line, record in enumerate(text.split("\n"), 1):
        if record.strip():
            try:
                yield line, json.loads(record)
            except (ValueError, RecursionError):
                yield line, None


READERS = {".csv": _csv_records, ".jsonl": _json_records, ".json": _json_records}


def _problem(record: Any, columns: list[str]) -> str | None:
    """Return what is wrong with a record, without a full stop, None where nothing is."""
    if not isinstance(record, dict) or set(record) != set(columns) or None in record.values():
        return f"must hold the columns of the first row, each once: {', '.join(map(str, columns))}"
    prompt, answer = record["prompt"], record["answer"]
    if not isinstance(prompt, str) or not prompt.strip():
        return f"prompt is {short(prompt)}, but must be text"
    is_number = (
        isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
    )
    if not is_number and (not isinstance(answer, str) or not answer.strip()):
        return f"answer is {short(answer)}, but must be text or a finite number"
    return None


def _plain(answer: Any) -> str:
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)
