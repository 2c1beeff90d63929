"""What a command says, kept in the user's cache for as long as nothing that it reads has changed."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from importlib.metadata import version

from workbook.places import PACKAGE, cache_folder, data_path

LIBRARIES = ("numpy", "pandas", "pyarrow", "scipy")  # that a number may depend on


def kept(command: Callable[..., str], *options: str) -> Callable[..., str]:
    """The command, which computes its text anew only where code, data or libraries have changed, by
    their content.

    options: those that may be given; with others it is always computed.
    """

    def run(args) -> str:
        given = {
            name: value for name, value in sorted(vars(args).items()) if value and name != "command"
        }
        if not given.keys() <= set(options):
            return command(args)
        asked = repr((str(PACKAGE), command.__name__, given)).encode()
        file = cache_folder() / "texts" / hashlib.sha256(asked).hexdigest()[:16]
        state, known, text = _checksum(), "", ""
        with suppress(OSError, UnicodeError):
            known, _, text = file.read_text(encoding="utf-8").partition("\n")
        if known != state:
            with redirect_stdout(io.StringIO()) as printed:  # such as a warning
                text = command(args)
            text = printed.getvalue() + text
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                (new := file.with_suffix(".new")).write_text(f"{state}\n{text}", encoding="utf-8")
                new.replace(file)
        return text

    return run


def _checksum() -> str:
    digest = hashlib.sha256(repr([sys.version, *map(version, LIBRARIES)]).encode())
    for path in sorted(
        [*PACKAGE.rglob("*.py"), *filter(lambda path: path.is_file(), data_path().rglob("*"))]
    ):
        digest.update(f"{path} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()
