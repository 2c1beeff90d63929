"""What the commands' arguments share: counts, settings, and files to write."""

import argparse
import os
from pathlib import Path

from workbook.messages import InvalidValue

MAIN = os.environ.get("RANK", "0") == "0"  # under `accelerate launch` one process speaks for all


def settings_option(command) -> None:
    """The option --set of a command."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override fields: --set a=1 b=2",
    )


def read_settings(texts: list[str], option: str = "--set") -> dict[str, object]:
    """`key=value` texts, their values read as a config's are; ValueError for one that is none, or
    comes twice.
    """
    from workbook.training.config import parse_settings

    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidValue(option, text, "key=value, e.g. --set learning_rate=5e-4")
        if key in settings:
            raise InvalidValue(option, text, f"given once for {key}")
        try:
            settings[key] = parse_settings(value)
        except ValueError as error:
            raise ValueError(f"{option} {text:.100} {error}.") from None
    return settings


def as_count(least: int, most: int = 2**31 - 1):
    """The type of an argument that is an integer in a range."""

    def integer(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:10]) <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} must be an integer of at least {least} and at most {most}"
            )
        return int(text)

    return integer


def check_writable(path: str | None, option: str) -> None:
    """Raise a ValueError unless a file can be written at `path`, before the work that it is to
    hold.
    """
    if path is None:
        return
    file = Path(path)
    if (
        file.is_dir()
        or not file.parent.is_dir()
        or not os.access(file if file.exists() else file.parent, os.W_OK)
    ):
        raise InvalidValue(option, str(path), "the path of a file in a folder that is there")
