"""Damaged files of prompts and answers: random tables, written as CSV or JSON lines, changed in one way or in many.

A change that means the same (HARMLESS) must give the same rows; one that breaks a known line (FIELDS, LINES) must name
that line and what is wrong, one of the WHOLE file that file; bytes changed blindly must give what the standard library
reads, or a refusal.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

from workbook.tasks import own_task
from workbook.tasks.own import BadRows

PROMISE = (
    "A file of prompts is read as it was written, or refused in sentences that name the file, the line and the field."
)
TRIALS = 20_000
TEXTS = (
    "2 + 3 =",
    "a, b",
    'says "so"',
    "two\nlines",
    "naïve ☃ 𝒳",
    "  spaces  ",
    "1;2",
    "\u2028",
    "=SUM(A1)",
    "'",
    "\\n",
    "-",
)


def trials(seed: int) -> Iterator[tuple[str, tuple]]:
    """Every change once for each kind of file, then changes at random, every other time blind ones."""
    rng = random.Random(seed)
    changes = [(name, suffix) for table in TABLES for suffix, names in table.items() for name in names]
    for i, (change, suffix) in enumerate(changes):
        yield f"{i}: {change}, {suffix}", (change, suffix, rng.randrange(2**32))
    while True:
        i += 1
        change, suffix = rng.choice(changes) if i % 2 else ("blind", rng.choice([".csv", ".jsonl"]))
        yield f"{i}: {change}, {suffix}", (change, suffix, rng.randrange(2**32))


def attempt(folder: Path, change: str, suffix: str, seed: int) -> str | None:
    """Read one changed file."""
    rng = random.Random(seed)
    rows = [
        {"prompt": f"{rng.choice(TEXTS)} {i}", "answer": rng.choice(TEXTS).strip() or "x", "topic": rng.choice(TEXTS)}
        for i in range(rng.randrange(2, 8))
    ]
    at = rng.randrange(1, len(rows))  # the row that a change is about
    path = folder / f"rows{suffix}"
    if change == "blind":
        data = blind(written(rows, suffix).encode(), rng)
        path.write_bytes(data)
        return judge_blind(path, data)
    if change in HARMLESS[suffix]:
        path.write_bytes(HARMLESS[suffix][change](rows).encode())
        return judge_rows(path, rows)
    if change in WHOLE[suffix]:
        data, says = WHOLE[suffix][change]
        path.write_bytes(data)
        return judge_refusal(path, says)
    path.write_bytes(with_fault(rows, at, suffix, change).encode("utf-8", "surrogatepass"))
    return judge_refusal(path, f"line {line_of(rows, at, suffix)}: {(FIELDS | LINES)[suffix, change][1]}")


# --- files


def written(rows: list[dict], suffix: str, end: str = "\n", quoting: int = csv.QUOTE_MINIMAL) -> str:
    """The text of a table's file."""
    if suffix == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=end, quoting=quoting)
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return file.getvalue()


def line_of(rows: list[dict], at: int, suffix: str) -> int:
    """The line on which a row begins in the file as `written`."""
    return written(rows[:at], suffix).count("\n") + 1


def with_fault(rows: list[dict], at: int, suffix: str, change: str) -> str:
    """The text of the file with other fields in one row, or another line in its place."""
    if (suffix, change) in FIELDS:
        changed = rows[at] | FIELDS[suffix, change][0]
        return written([*rows[:at], changed, *rows[at + 1 :]], suffix)
    before, after = written(rows[:at], suffix), written(rows[: at + 1], suffix)
    return before + LINES[suffix, change][0] + "\n" + written(rows, suffix).removeprefix(after)


def blind(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with one to five of them changed, cut, doubled, moved or replaced by awkward ones."""
    awkward = (
        b"\0",
        b"\xff",
        b'"',
        b"\n",
        b"\r",
        b",",
        b"{",
        b"}",
        b"[",
        b"\\",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"1e999",
        b"NaN",
    )
    for _ in range(rng.randrange(1, 6)):
        i, j = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        data = rng.choice(
            [
                data[:i] + bytes([rng.randrange(256)]) + data[i + 1 :],
                data[:i] + rng.choice(awkward) + data[i:],
                data[:i] + data[min(j, i + 10) :],
                data[:j] + data[i:],
                data[:i],
                data[i:j] + data[:i] + data[j:],
            ]
        )
    return data


HARMLESS = {
    ".csv": {
        "as it is": lambda rows: written(rows, ".csv"),
        "byte order mark": lambda rows: "\ufeff" + written(rows, ".csv"),
        "CRLF": lambda rows: written(rows, ".csv", "\r\n"),
        "no last line end": lambda rows: written(rows, ".csv").removesuffix("\n"),
        "blank lines": lambda rows: written(rows, ".csv", "\n\n"),
        "all quoted": lambda rows: written(rows, ".csv", quoting=csv.QUOTE_ALL),
        "blanks after names": lambda rows: (
            "prompt , answer ,topic " + written(rows, ".csv").removeprefix(",".join(rows[0]))
        ),
    },
    ".jsonl": {
        "as it is": lambda rows: written(rows, ".jsonl"),
        "byte order mark": lambda rows: "\ufeff" + written(rows, ".jsonl"),
        "CRLF": lambda rows: written(rows, ".jsonl", "\r\n"),
        "no last line end": lambda rows: written(rows, ".jsonl").removesuffix("\n"),
        "blank lines": lambda rows: written(rows, ".jsonl", "\n \t\n"),
        "other order of keys": lambda rows: written(
            [rows[0], *(dict(reversed(row.items())) for row in rows[1:])], ".jsonl"
        ),
        "escapes": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
        "indented": lambda rows: "".join(f" \t{json.dumps(row)} \n" for row in rows),
    },
}
NEED = "but must be text"
FIELDS = {  # (kind of file, change): what a row has instead, what is said of it
    (suffix, change): fault
    for suffix in (".csv", ".jsonl")
    for change, fault in {
        "empty prompt": ({"prompt": ""}, "prompt is empty"),
        "blank answer": ({"answer": " \t"}, "answer is empty"),
        "NUL in prompt": ({"prompt": "a\0"}, "prompt holds characters that are no text"),
        "NUL in topic": ({"topic": "a\0"}, "topic holds characters that are no text"),
        "huge prompt": ({"prompt": "a" * 30_000}, "prompt has 30,000 characters"),
        "not UTF-8": ({"prompt": "a\udc00"}, "is not UTF-8 (byte 0xed)"),
    }.items()
} | {
    (".csv", "huge field"): ({"topic": "a" * 200_000}, "is not valid CSV (field larger"),
    (".jsonl", "number as prompt"): ({"prompt": 5}, f"prompt is 5, {NEED}"),
    (".jsonl", "null as answer"): ({"answer": None}, f"answer is None, {NEED}"),
    (".jsonl", "true as answer"): ({"answer": True}, f"answer is True, {NEED}"),
    (".jsonl", "NaN as answer"): ({"answer": math.nan}, f"answer is nan, {NEED}"),
    (".jsonl", "nested"): ({"topic": {"a": 1}}, f"topic is {{'a': 1}}, {NEED}"),
    (".jsonl", "another kind"): ({"topic": 1.5}, "topic is a number, but text in line 1"),
    (".jsonl", "key more"): ({"x\x1b[31m": 1}, r"has 'x\x1b[31m', which the first row lacks"),
}
LINES = (
    {  # (kind of file, change): what stands in the place of a row, what is said of it
        (".csv", "field less"): ("a,b", "has 2 fields, but the first line names 3"),
        (".csv", "field more"): ("a,b,c,d", "has 4 fields, but the first line names 3; quote texts"),
        (".csv", "quote too many"): ('a,"b"c,d', "is not valid CSV"),
        (".csv", "quote left open"): ('a,b,"c', "is not valid CSV"),
        (".jsonl", "scalar"): ("5", "is a int, but must be an object"),
        (".jsonl", "null"): ("null", "is a NoneType, but must be an object"),
        (".jsonl", "text"): ('"x"', "is a str, but must be an object"),
        (".jsonl", "list"): ("[1]", "is a list, but must be an object"),
        (".jsonl", "cut"): ('{"prompt": "a", "answer": ', "is not valid JSON"),
        (".jsonl", "two in a line"): ('{"prompt": "a"} {}', "is not valid JSON"),
        (".jsonl", "deep"): ('{"prompt": ' + "[" * 100_000, "is not valid JSON"),
        (".jsonl", "key less"): ('{"prompt": "a", "answer": 1}', "lacks topic"),
        (".jsonl", "key twice"): ('{"prompt": "a", "prompt": "b", "answer": 1, "topic": ""}', "has 'prompt' twice"),
        (".jsonl", "surrogate"): (r'{"prompt": "\ud800", "answer": 1, "topic": ""}', "prompt holds characters"),
    }
    | {
        (".jsonl", f"answer {number[:20]}"): (f'{{"prompt": "a", "topic": "b", "answer": {number}}}', says)
        for number, says in {
            "1e999": "answer is inf, but must be text",
            "-Infinity": "answer is -inf, but must be text",
            "9" * 5000: "holds a number of 5,000 digits; put it in quotes",
            "0.1000000000000000055": "holds the number 0.1000000000000000055, of more digits than a float keeps",
            "0." + "1" * 5000: "holds the number 0.111",
            "0.00000000000000000000e999999999999999999999": "holds the number 0.0000",
        }.items()
    }
)
WHOLE = {
    ".csv": {
        "UTF-16": ("prompt,answer\na,b\n".encode("utf-16"), "line 1: is not UTF-8 (byte 0xff)"),
        "gzip": (b"\x1f\x8b\x08\0\0\0\0\0", "line 1: is not UTF-8 (byte 0x8b)"),
        "semicolons": (b"prompt;answer\na;b\n", "separate columns by commas"),
        "tabs": (b"prompt\tanswer\na\tb\n", "separate columns by commas"),
        "no header": (b"a,b\nc,d\n", "has no column answer or prompt; its columns are a, b"),
        "name twice": (b"prompt,answer,answer\na,b,c\n", "must name each column once"),
        "taken name": (b"prompt,answer,line\na,b,c\n", "has a column line, a name that is taken"),
        "NUL in header": (b"prompt,answer,a\0\na,b,c\n", r"has a column 'a\x00'"),
        "thousands of names": (",".join(["prompt"] * 5000).encode(), "4990 more"),
        "header only": (b"prompt,answer\n", "has no rows"),
        "empty": (b"", "has no rows"),
        "blank": (b"\n\r\n\n", "has no rows"),
    },
    ".jsonl": {
        "UTF-16": ('{"prompt": "a", "answer": "b"}\n'.encode("utf-16"), "line 1: is not UTF-8 (byte 0xff)"),
        "one list": (b'[{"prompt": "a", "answer": "b"}]', "is one JSON list"),
        "key with a line end": (b'{"prompt": "a", "answer": "b", "x\\n": 1}\n', r"has a column 'x\n'"),
        "no answer": (b'{"prompt": "a"}\n', "has no column answer; its columns are prompt"),
        "taken name": (b'{"prompt": "a", "answer": "b", "line": 1}\n', "has a column line, a name that is taken"),
        "empty": (b"", "has no rows"),
        "blank": (b"\n \r\n\n", "has no rows"),
    },
}
FAULTS = {kind: [name for suffix, name in FIELDS | LINES if suffix == kind] for kind in (".csv", ".jsonl")}
TABLES = (HARMLESS, FAULTS, WHOLE)


# --- what came of them


def read(path: Path) -> tuple[list[dict] | None, Exception | None]:
    """The rows of a file, with their checks by the data set that training is given; or what was raised."""
    try:
        task = own_task(path, lambda completion, answer: 1.0)
        assert len(task.dataset(len(task.rows))) == len(task.rows)
    except Exception as error:
        return None, error
    return task.rows, None


def judge_rows(path: Path, rows: list[dict]) -> str | None:
    """What is wrong with how a sound file was read."""
    got, error = read(path)
    if error is not None:
        return f"{type(error).__name__}: {error}"[:300]
    plain = [{name: row[name] for name in ("prompt", "answer", "topic")} for row in got]
    return None if plain == rows else f"read as {plain}"[:300]


def judge_refusal(path: Path, says: str) -> str | None:
    """What is wrong with how a broken file was refused."""
    got, error = read(path)
    if error is None:
        return f"taken: {got}"[:300]
    return form(path, error) or (None if says in str(error) else f"{says!r} is not in {str(error)[:300]!r}")


def judge_blind(path: Path, data: bytes) -> str | None:
    """What is wrong with how a blindly changed file was read or refused."""
    got, error = read(path)
    if error is not None:
        return form(path, error)
    text = data.decode("utf-8-sig")
    if path.suffix == ".csv":
        reader = csv.reader(io.StringIO(text, newline=""))
        names = [name.strip() for name in next(filter(None, reader))]
        truth = [dict(zip(names, fields, strict=True)) for fields in reader if fields]
    else:
        truth = [json.loads(line) for line in text.split("\n") if line.strip()]
    truth = [row | {"answer": str(row["answer"])} for row in truth]
    lines = [row["line"] for row in got]
    plain = [{name: value for name, value in row.items() if name != "line"} for row in got]
    if lines != sorted(set(lines)) or not all(row["prompt"].strip() and row["answer"].strip() for row in got):
        return f"unsound rows: {got}"[:300]
    return None if plain == truth else f"read as {plain}, not {truth}"[:400]


def form(path: Path, error: Exception) -> str | None:
    """What is wrong with a refusal as such: its type, its size, its lines."""
    text = str(error)
    first, *others = text.split("\n")
    sound = type(error) in (ValueError, BadRows) and len(text) < 3000 and path.name in first and first.endswith(".")
    sound = sound and text.replace("\n", "").isprintable() and bool(others) == isinstance(error, BadRows)
    named = all(re.match(r"(line \d+: .+|And \d+ more)\.$", line) for line in others)
    return None if sound and named else f"no clear refusal: {type(error).__name__}: {text[:300]!r}"
