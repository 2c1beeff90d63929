"""Reads a reader's own prompts and answers from a CSV or JSON-lines file, or from a list of dicts.

Rows that can't be used are all named, by line, before any of them is; nothing is half-loaded, and no number is taken
for another: what a float can't keep has to be written as text.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any

from workbook.tasks.inputs import short

MAX_BYTES, MAX_ROWS, MAX_CHARACTERS = 32 * 2**20, 100_000, 20_000  # of a file, of its rows, of one text
MAX_COLUMNS, MAX_NAME = 1_000, 100  # of a file, of a column's name in characters
MAX_DIGITS, FLOAT_DIGITS, FLOAT_INTEGERS = 4_000, 17, 2**53  # of a number; that a float keeps; up to which it has all
NAMED = 10  # bad rows, or columns, that a message names one by one
LINE = "line"  # a column added to each row: where it stands in its file
KINDS = {str: "text", float: "a number", bool: "true or false"}  # of further columns
NO_TEXT = "{} holds characters that are no text"
TRAINERS = {"prompts", "completion", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
TAKEN = {LINE, "self", "image", "images"} | TRAINERS  # columns to which the trainer gives a meaning of its own
NEEDED = ("prompt", "answer")


class BadRows(ValueError):
    """Rows that can't be used; `rows` holds (line, what is wrong) of each, the message the first ten."""

    def __init__(self, source: str, rows: list[tuple[int, str]]):
        self.rows = rows
        named = [f"line {line}: {problem}." for line, problem in rows[:NAMED]]
        more = [f"And {len(rows) - NAMED} more."] if len(rows) > NAMED else []
        count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
        super().__init__("\n".join([f"{source} was not loaded: {count} can't be used.", *named, *more]))


def read_rows(data: str | Path | list[dict]) -> list[dict]:
    """Return rows {prompt, answer, line, ...} of a CSV or JSON-lines file, or of a list of dicts, all of them sound.

    Raises BadRows, which names every row that isn't, and ValueError for a file that can't be read at all.
    """
    return read_source(data)[0]


def read_source(data: str | Path | list[dict]) -> tuple[list[dict], str]:
    """Return `read_rows` and the SHA-256 of what was read: of a file's bytes, of a list's JSON."""
    if isinstance(data, list):
        rows = _sound_rows("rows", enumerate(map(_without_numpy, data), 1))
        return rows, hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    if not isinstance(data, str | Path):
        hint = "; a DataFrame's is .to_dict('records')" if hasattr(data, "to_dict") else ""
        raise ValueError(f"data is a {type(data).__name__}, but must be a file's path or a list of dicts{hint}.")
    path = _path(data)
    source, raw = path.name if path.name.isprintable() else repr(path.name), _bytes(path)
    records = (_csv if path.suffix.lower() == ".csv" else _json_lines)(source, _text(source, raw))
    return _sound_rows(source, records), hashlib.sha256(raw).hexdigest()


def _sound_rows(source: str, numbered: Iterable[tuple[int, Any]]) -> list[dict]:
    records = list(islice(numbered, MAX_ROWS + 1))
    if not records:
        raise ValueError(f"{source} has no rows.")
    if len(records) > MAX_ROWS:
        raise ValueError(f"{source} has more rows than {MAX_ROWS:,}; the most that is taken is {MAX_ROWS:,}.")
    columns = next((list(record) for _, record in records if isinstance(record, dict)), list(NEEDED))
    _check_columns(source, columns)
    first: dict[str, tuple[type, int]] = {}
    bad = [(line, problem) for line, record in records if (problem := _problem(record, set(columns), first, line))]
    if bad:
        raise BadRows(source, bad)
    return [{**record, "answer": _plain(record["answer"]), LINE: line} for line, record in records]


class Unreadable(Exception):
    """Reason for which a record could not be read; it stands in the record's place."""


# --- from bytes to records


def _path(data: str | Path) -> Path:
    try:
        path = Path(data).expanduser()
        if path.is_dir():
            raise ValueError(f"the data file {str(data)!r} is a folder; give the path of a .csv or .jsonl file in it.")
        if path.suffix.lower() not in (".csv", ".jsonl", ".json"):
            raise ValueError(f"the data file {path.name!r} must end in .csv or .jsonl.")
        if not path.is_file():
            raise ValueError(f"there is no data file {str(path)!r}.")
        return path
    except (OSError, RuntimeError) as error:  # a name too long for a file, a home folder that nobody has
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"there can be no data file {short(data, 200)}: {reason.rstrip('.')}.") from None


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the data file {str(path)!r} can't be read: {error.strerror}.") from None
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{path.name} is too large; the most that is taken is {MAX_BYTES / 2**20:g} MiB.")
    return raw


def _text(source: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        byte = f"byte 0x{raw[error.start]:02x}"
        raise BadRows(source, [(line, f"is not UTF-8 ({byte}); save the file as UTF-8")]) from None


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
            yield begins, Unreadable(f"is not valid CSV ({error})")
            return
        line, begins = begins, reader.line_num + 1
        if not fields:
            continue
        if names is None:
            names = [name.strip() for name in fields]
            if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
                raise ValueError(f"{source}: the first line is {short(names[0])}; separate columns by commas.")
            if len(set(names)) < len(names) or "" in names:
                raise ValueError(f"{source}: the first line must name each column once; it has {_listed(names)}.")
        elif len(fields) != len(names):
            hint = "; quote texts with commas in them" if len(fields) > len(names) else ""
            yield line, Unreadable(f"has {len(fields)} fields, but the first line names {len(names)}{hint}")
        else:
            yield line, dict(zip(names, fields, strict=True))


def _json_lines(source: str, text: str) -> Iterator[tuple[int, Any]]:
    """Yield (line, record) of each row, a sentence in the place of a record that can't be read."""
    if text.lstrip().startswith("["):
        raise ValueError(f"{source} is one JSON list; write one object per line (JSON lines) instead.")
    for line, part in enumerate(text.split("\n"), 1):
        if part.strip():
            try:
                yield line, _DECODER.decode(part.strip())
            except json.JSONDecodeError as error:
                yield line, Unreadable(f"is not valid JSON ({error.msg})")
            except RecursionError:
                yield line, Unreadable("is not valid JSON (nested too deeply)")
            except Unreadable as error:  # a part that Python would read otherwise than it is written
                yield line, error


def _object(pairs: list[tuple[str, Any]]) -> dict:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Unreadable(f"has {short(twice)} twice")
    return dict(pairs)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Unreadable(f"holds a number of {len(digits):,} digits; put it in quotes")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isfinite(number) and sum(map(str.isdigit, digits)) > FLOAT_DIGITS:
        try:
            kept = len(digits) <= MAX_DIGITS and Decimal(repr(number)) == Decimal(digits)
        except ArithmeticError:  # an exponent that no number has
            kept = False
        if not kept:
            raise Unreadable(f"holds the number {digits[:40]}, of more digits than a float keeps; put it in quotes")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float)


# --- what is wrong with records


def _check_columns(source: str, columns: list) -> None:
    if (odd := next((name for name in columns if not _is_name(name)), None)) is not None:
        raise ValueError(f"{source} has a column {short(odd)}; a column's name must be one line of text.")
    if missing := sorted(set(NEEDED) - set(columns)):
        raise ValueError(f"{source} has no column {' or '.join(missing)}; its columns are {_listed(columns)}.")
    if taken := sorted(TAKEN & set(columns)):
        raise ValueError(f"{source} has a column {taken[0]}, a name that is taken; call it something else.")
    if len(columns) > MAX_COLUMNS:
        raise ValueError(f"{source} has {len(columns):,} columns; the most that is taken is {MAX_COLUMNS}.")


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_NAME


def _problem(record: Any, columns: set, first: dict[str, tuple[type, int]], line: int) -> str | None:
    """Name the fault of a record, without a full stop; `first` remembers each column's first type and its line."""
    if isinstance(record, Unreadable):
        return str(record)
    if not isinstance(record, dict):
        return f"is a {type(record).__name__}, but must be an object of columns"
    if set(record) != columns:
        lacks, more = columns - set(record), set(record) - columns
        parts = [f"lacks {_listed(lacks)}"] * bool(lacks)
        return " and ".join(parts + [f"has {_listed(more)}, which the first row lacks"] * bool(more))
    faults = (_text_problem(name, record[name]) for name in NEEDED)
    kind_faults = (_kind_problem(name, value, first, line) for name, value in record.items())
    return next(filter(None, chain(faults, kind_faults)), None)


def _kind_problem(name: str, value: Any, first: dict[str, tuple[type, int]], line: int) -> str | None:
    """Name the fault of a further column's value: a data set's column holds values of one kind."""
    if name in NEEDED or value is None:
        return None
    kind = float if type(value) is int and -(2**63) <= value < 2**63 else type(value)
    if kind not in KINDS:
        return f"{name} is {short(value)}, but must be text, a number of 64 bits, true, false or null"
    before, where = first.setdefault(name, (kind, line))
    if kind is not before:
        return f"{name} is {KINDS[kind]}, but {KINDS[before]} in line {where}"
    if kind is float and not math.isfinite(value):
        return f"{name} is {value}, but must be a finite number or null"
    if kind is float and (type(value) is float or abs(value) > FLOAT_INTEGERS):  # one column holds either
        first.setdefault((name, type(value)), (kind, line))
        if (other := first.get((name, float if type(value) is int else int))) is not None:
            return f"{name} is {value}, but a column with fractions holds no integer beyond 2**53 (see line {other[1]})"
    return NO_TEXT.format(name) if kind is str and not _is_text(value) else None


def _text_problem(name: str, value: Any) -> str | None:
    """Name the fault of a prompt or an answer."""
    if name == "answer" and type(value) is int:
        return f"answer is an integer of more than {MAX_DIGITS:,} digits" if abs(value) >= 10**MAX_DIGITS else None
    if not isinstance(value, str) and not (name == "answer" and type(value) is float and math.isfinite(value)):
        return f"{name} is {short(value)}, but must be text{' or a finite number' if name == 'answer' else ''}"
    text = str(value)
    if not text.strip():
        return f"{name} is empty"
    if len(text) > MAX_CHARACTERS:
        return f"{name} has {len(text):,} characters; the most that is taken is {MAX_CHARACTERS:,}"
    return None if _is_text(text) else NO_TEXT.format(name)


def _is_text(text: str) -> bool:
    return not any(0xD800 <= ord(c) < 0xE000 or c == "\0" for c in text)


def _plain(answer: Any) -> str:
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)


def _without_numpy(record: Any) -> Any:
    """A record with numbers of Python in the place of NumPy's."""
    if not isinstance(record, dict):
        return record
    return {name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in record.items()}


def _listed(names: Iterable) -> str:
    """The first names of columns, as a list."""
    names = sorted(names, key=str)
    shown = [name if _is_name(name) else short(name) for name in names[:NAMED]]
    return ", ".join([*shown, f"{len(names) - NAMED} more"] if len(names) > NAMED else shown)
