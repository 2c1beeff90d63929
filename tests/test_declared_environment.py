"""The environment is declared once: pyproject's floors, constraints' pins, conda's wrapper, and Colab agree."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [Requirement(line) for group in PROJECT["optional-dependencies"].values() for line in group]
PINS = {
    canonicalize_name(Requirement(line).name): Requirement(line).specifier
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
}
IMPORTS = {"yaml": "pyyaml", "vl_convert": "vl-convert-python", "reasoning_gym": "reasoning-gym"}
# book/, from the extra of that name (docutils and jinja2 come with sphinx)
LAB_ONLY = {"jupyterlab", "nbclient", "nbformat", "latex2mathml", "sphinx", "docutils", "jinja2"}
BROUGHT = {
    "IPython": "ipywidgets",
    "traitlets": "ipywidgets",
    "huggingface_hub": "transformers",
    "filelock": "datasets",
    "PIL": "reasoning-gym",
    "sympy": "math-verify",
}


def version(pin) -> str:
    (only,) = pin
    assert only.operator == "==", f"{only} is not an exact pin"
    assert "*" not in only.version
    return only.version


@pytest.mark.parametrize("requirement", [*DEPENDENCIES, *EXTRAS], ids=lambda r: r.name)
def test_each_dependency_has_an_exact_pin_that_meets_its_floor(requirement):
    pin = version(PINS[canonicalize_name(requirement.name)])
    assert Version(pin) in requirement.specifier
    if requirement.name == "trl":  # overridden in parts: `make pythons` tries both ends of its range
        trls = re.search(r"^TRLS.*:= '(.*)' '(.*)'$", (ROOT / "Makefile").read_text(), re.M)
        oldest = next(bound.version for bound in requirement.specifier if bound.operator == ">=")
        assert trls[1] == f"trl=={oldest}.*"
        assert Requirement(trls[2]) == requirement
        return
    assert len(requirement.specifier) == 1, "one bound each"
    operator = next(iter(requirement.specifier)).operator
    tied = requirement.name == "vllm"  # bound to the pinned torch
    assert operator == ("==" if tied else ">="), "floors, so that a machine keeps its own stack"


def test_every_pin_is_exact_and_torch_is_the_one_that_local_builds_satisfy():
    assert all(version(pin) for pin in PINS.values())
    assert version(PINS["torch"]) == "2.13.0"


def test_conda_only_wraps():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    names = [entry.split("=")[0] for entry in environment["dependencies"] if isinstance(entry, str)]
    assert set(names) == {"python", "pip"}
    assert [line.split()[0] for line in pip] == ["-c", "-e"]
    assert pip[0] == "-c constraints.txt"
    (python,) = [entry for entry in environment["dependencies"] if str(entry).startswith("python=")]
    assert Requirement(f"python=={python.split('=')[1]}.*").specifier
    assert Version(python.split("=")[1]) in Requirement(f"python{PROJECT['requires-python']}").specifier


def test_this_environment_is_the_declared_one():
    from importlib.metadata import version as running

    for requirement in DEPENDENCIES:
        assert Version(running(requirement.name)) in requirement.specifier, requirement


def test_everything_imported_is_declared():
    declared = {canonicalize_name(r.name) for r in DEPENDENCIES}
    for path in (ROOT / "workbook").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            for top in {module.split(".")[0] for module in modules} - {"workbook", "google"} - LAB_ONLY:
                if top not in sys.stdlib_module_names:
                    package = IMPORTS.get(top) or BROUGHT.get(top) or top
                    assert canonicalize_name(package) in declared, f"{path.name} imports {top}, which is not declared"
