"""YAML as configs, grids and `--set key=value` are written in it: one reader for all three.

Numbers are YAML 1.2's: 5e-4 is one, where YAML 1.1 wants 5.0e-4; 1:30 and 2024-01-01 are text. A key that is given
twice is refused, and so is a text that is no plain data, or holds more of it than any config does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from workbook.places import find_file
from workbook.training.messages import explain_error, one_line

MAX_BYTES = 2**20  # of a file
MAX_VALUES = 100_000  # that a text stands for once its aliases are followed


class _Loader(yaml.SafeLoader):
    """Plain data only, numbers as in YAML 1.2's core schema, each key once."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in getattr(node, "value", []) if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(keys):
            if key in keys[:i] and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_REPLACED = {f"tag:yaml.org,2002:{name}" for name in ("float", "int", "timestamp")}
_Loader.yaml_implicit_resolvers = {
    start: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_INTEGER = "tag:yaml.org,2002:int", re.compile(r"[-+]?(?=[0-9_]{1,400}\Z)[0-9]+(_[0-9]+)*\Z"), list("-+0123456789")
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(*_INTEGER)
_Loader.add_implicit_resolver(*_FLOAT)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would take for a number."""


_Dumper.add_implicit_resolver(*_INTEGER)
_Dumper.add_implicit_resolver(*_FLOAT)


def dump_yaml(value: Any) -> str:
    """Plain data as a YAML text that `parse_yaml` reads back as the same.

    >>> print(dump_yaml({"name": "1e3", "learning_rate": 1e-5}), end="")
    name: '1e3'
    learning_rate: 1.0e-05
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def parse_yaml(text: str) -> Any:
    """The plain data that a YAML text stands for; ValueError, part of a sentence, where it is no YAML or too large.

    >>> parse_yaml("{learning_rate: 5e-4, max_steps: 10, save_strategy: 'no'}")
    {'learning_rate': 0.0005, 'max_steps': 10, 'save_strategy': 'no'}
    """
    try:
        value = yaml.load(text, _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"is not valid YAML: {one_line(error.problem, 150)}{where}") from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:  # the last: of a key that is a list
        raise ValueError(f"is not valid YAML: {one_line(error, 150)}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    _check_size(value)
    return value


def read_yaml(path: str | Path, kind: str) -> Any:
    """The plain data of a YAML file, data/... also from other folders; kind: what the file is, for messages.

    Raises ValueError, naming the file.
    """
    advice = "give the path of a YAML file"
    try:
        with open(find_file(path), "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"The {kind} {path} is not UTF-8 (byte 0x{raw[error.start]:02x}); {advice}.") from None
    except (OSError, ValueError) as error:  # the latter: of a path with a NUL
        reason = getattr(error, "strerror", None) or explain_error(error)
        raise ValueError(f"The {kind} {one_line(path, 120)} can't be read ({reason}); {advice}.") from None
    if len(raw) > MAX_BYTES:
        raise ValueError(f"The {kind} {path} has more than {MAX_BYTES // 2**10} KiB; {advice}.")
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"The {kind} {path} {error}.") from None


def _check_size(value: Any) -> None:
    """Refuse what aliases blow up, or what holds itself."""
    count, todo = 0, [value]
    while todo:
        item = todo.pop()
        count += 1
        if count > MAX_VALUES:
            raise ValueError(f"stands for more than {MAX_VALUES:,} values")
        todo.extend(item.values() if isinstance(item, dict) else item if isinstance(item, list | set) else ())
