"""What the commands' arguments share: paths, counts, settings and files to write."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from workbook.training.messages import one_line
from workbook.training.run_config import parse_yaml

MAIN = os.environ.get("RANK", "0") == "0"  # under `accelerate launch` one process speaks for all


def settings_option(command) -> None:
    """The option --set of a command."""
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a field; may be repeated"
    )


def read_settings(texts: list[str]) -> dict[str, object]:
    """`key=value` texts, their values read as a config's are; ValueError for one that is none, or comes twice."""
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {text!r} must be key=value, e.g. --set learning_rate=5e-4.")
        if key in settings:
            raise ValueError(f"--set {key}={one_line(value, 60)} is the second value of {key}; give it once.")
        try:
            settings[key] = parse_yaml(value)
        except ValueError as error:
            raise ValueError(f"--set {one_line(text, 100)} {error}.") from None
    return settings


def as_path(text: str) -> str:
    """An argument that is a path. Raises ArgumentTypeError for one that is empty or not printable."""
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} must be a path")
    return text


def as_count(least: int, most: int):
    """The type of an argument that is an integer in a range."""

    def integer(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:10]) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least {least} and at most {most}")
        return int(text)

    return integer


def write_page(path: str, text: str) -> None:
    """Write a text to a file, atomically; into a device, a pipe, or a file in a folder that is closed, straight."""
    from workbook.training.files import write_text

    file = Path(path).resolve()
    if (file.exists() and not file.is_file()) or not os.access(file.parent, os.W_OK):
        file.write_text(text, encoding="utf-8")
    else:
        write_text(file, text)


def check_writable(path: str, option: str) -> None:
    """Raise a ValueError unless a file can be written at `path`, before the work that it is to hold."""
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{option} {path} is a folder; give the path of a file in it.")
    if not file.parent.is_dir():
        raise ValueError(f"{option} {path} can't be written: there is no folder {file.parent}.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(f"{option} {path} can't be written: permission denied.")
