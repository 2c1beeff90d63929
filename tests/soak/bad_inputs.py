"""Mistakes at the command line: in configs, `--set` options, grids, files, folders and commands.

A trial is a folder's files and a command in it, all of them known to be wrong. The first hundred are one of each kind;
then come all values that no field can have, and, without end, shipped configs with a mistake put into them.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
from itertools import chain, zip_longest
from pathlib import Path

import yaml
from mistakes import (
    BASE,
    COMMANDS,
    CONFIG,
    GRIDS,
    NOT_FOR_RUNS,
    SETS,
    TEXTS,
    TOGETHER,
    TRAIN,
    UNKNOWN,
    WRONG_RUN,
    WRONG_TRAINER,
)

PROMISE = (
    "A mistake is answered by status 2 and one sentence that names it; nothing is written, nothing taken silently."
)
TRIALS = 900
CONFIGS = Path(__file__).parents[2] / "data" / "configs"
LONGEST = 400  # characters of the sentence
NOISE = re.compile(
    r"Traceback|\w+(Error|Exception)\b|Errno|object at 0x|NoneType|<class|unsupported operand|not subscriptable"
)


def trials(seed: int):
    """One of each kind in turn, until all are through; then shipped configs with a mistake put into them."""
    kinds = [
        _commands(),
        _texts(),
        _sets(),
        _grids(),
        _together(),
        _values("", WRONG_RUN),
        _values("trainer", WRONG_TRAINER),
        _fields(),
    ]
    for trial in chain.from_iterable(zip_longest(*kinds)):
        if trial is not None:
            yield trial
    yield from mutations(random.Random(seed))


def _commands():
    yield from COMMANDS.items()


def _texts():
    for name, (text, words) in TEXTS.items():
        yield f"config: {name}", ({"c.yaml": text}, TRAIN, words)


def _sets():
    for text, words in SETS.items():
        yield f"--set {text}", (CONFIG, [*TRAIN, "--set", text], words)


def _grids():
    for name, (grid, words) in GRIDS.items():
        files = {"s.yaml": yaml.safe_dump(BASE | {"grid": grid})}
        yield f"grid: {name}", (files, ["sweep", "s.yaml", "--folder", "out"], words)


def _together():
    for name, (settings, words) in TOGETHER.items():
        options = chain.from_iterable(
            ("--set", f"{key}={yaml.safe_dump(value).split(chr(10))[0]}")
            for key, value in settings.items()
            if not isinstance(value, dict | list)
        )
        config = BASE | {"trainer": BASE["trainer"] | {k: v for k, v in settings.items() if isinstance(v, dict | list)}}
        yield f"together: {name}", ({"c.yaml": yaml.safe_dump(config)}, [*TRAIN, *options], words)


def _values(section: str, wrong: dict):
    """Each field's wrong values in turn, in the config."""
    for values in zip_longest(*([(field, value) for value in values] for field, values in wrong.items())):
        for field, value in filter(None, values):
            yield f"{section}.{field}: {value!r:.60}", (_with(BASE, section, field, value), TRAIN, _words(field))


def _words(field: str) -> str:
    """What a sentence about a field's value must name; about a task's options it may name the task."""
    return "task" if field == "task_options" else field


def _fields():
    """Fields that a run does not take, in the config and as options."""
    for field, value in NOT_FOR_RUNS.items():
        yield (
            f"not for runs: {field}",
            (_with(BASE, "trainer", field.rpartition(".")[2], value), TRAIN, field.rpartition(".")[2]),
        )
    for field, value in NOT_FOR_RUNS.items():
        option = ["--set", f"{field}={yaml.safe_dump(value, default_flow_style=True).split(chr(10))[0]}"]
        yield f"not for runs: --set {field}", (CONFIG, [*TRAIN, *option], field.rpartition(".")[2])
    for field in UNKNOWN:
        yield f"unknown: {field}", (CONFIG, [*TRAIN, "--set", f"{field}=1"], field.rpartition(".")[2][:6])


def _with(config: dict, section: str, field: str, value) -> dict[str, str]:
    config = config | {section: config.get(section) or {}} if section else dict(config)
    if section:
        config[section] = config[section] | {field: value}
    else:
        config[field] = value
    return {"c.yaml": yaml.safe_dump(config)}


def mutations(chance: random.Random):
    """Shipped configs, each with one mistake: a value, a field, or a line of the text."""
    shipped = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "accelerate")
    number = 0
    while True:
        number += 1
        path = chance.choice(shipped)
        config = yaml.safe_load(path.read_text())
        command = ["sweep" if "grid" in config else "train", "c.yaml", "--folder", "run"]
        kind = chance.choice(["value", "trainer value", "field", "line"])
        if kind == "line":
            lines = path.read_text().split("\n")
            line, words = chance.choice(
                [
                    ("\tx: 1", "YAML"),
                    ("name: twice", "name"),
                    ("x: [", "YAML"),
                    ("}", "YAML"),
                    ("num_promt: 1", "num_promt"),
                    ("a: \0", "YAML"),
                ]
            )
            files = {"c.yaml": "\n".join([*lines[:-1], line, ""])}
        elif kind == "field":
            field, value = chance.choice([*NOT_FOR_RUNS.items(), *((name, 1) for name in UNKNOWN)])
            words = field = field.rpartition(".")[2] or field
            files = _with(config, "trainer", field, value)
        else:
            section, wrong = ("", WRONG_RUN) if kind == "value" else ("trainer", WRONG_TRAINER)
            field = chance.choice([name for name in wrong if name not in ("quantization", "trainer", "num_prompts")])
            sizes = ("operands", "modulus")  # which a data set of reasoning-gym would not know
            value = chance.choice([v for v in wrong[field] if not (isinstance(v, dict) and v.keys() & set(sizes))])
            words = _words(field)
            files = _with(config, section, field, value)
        yield f"{number}. {path.stem}: {kind} {words}", (files, command, words)


def attempt(folder: Path, files: dict, command: list[str], words: str) -> str | None:
    """Run the command among the files; None if it was refused as promised."""
    from workbook.__main__ import main

    for name, content in files.items():
        _make(folder / name, content)
    before, here, out, err = _tree(folder), Path.cwd(), io.StringIO(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main(command)
            except SystemExit as end:
                status = end.code
    finally:
        os.chdir(here)
    message = err.getvalue().rstrip("\n")
    if status != 2:
        return f"status {status}, and it said {message!r:.200} {out.getvalue()!r:.100}"
    if "\n" in message or "\r" in message or not message:
        return f"{len(message.splitlines())} lines: {message!r:.400}"
    if len(message) > LONGEST:
        return f"{len(message)} characters: {message:.400}"
    if NOISE.search(message.replace(words, "")) or "hf_secret" in message:
        return f"noise: {message}"
    if words not in message:
        return f"does not name {words!r}: {message}"
    return None if _tree(folder) == before else f"left or changed {sorted(set(_tree(folder)) ^ set(before))}"


def _make(path: Path, content: str | bytes | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content.startswith("->"):
        path.symlink_to(content[2:])
    else:
        path.write_text(content, encoding="utf-8")


def _tree(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder with its content."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}
