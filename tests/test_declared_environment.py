"""The environment is declared once: pyproject's floors, constraints' pins, conda's wrapper, and
Colab agree.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from workbook.places import EXTRAS as EXTRAS_OF

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]
OPTIONAL = PROJECT["optional-dependencies"]
EXTRAS = [Requirement(line) for name, group in OPTIONAL.items() if name != "all" for line in group]
LOCK = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
# a package has several where its marker says for which Pythons each is
PINS = [Requirement(line) for line in LOCK if line.strip() and not line.startswith("#")]
# declared, and used by a name in a file of ours, not imported
NAMED = {
    "gguf": ("workbook/policies/packaged.py", 'require_package("gguf")'),
    "import-linter": ("Makefile", "lint-imports"),
    "myst-nb": ("workbook/book/pages.py", '"myst_nb"'),
    "pip": ("Makefile", "-m pip install"),
    "ruff": ("Makefile", "/ruff check"),
    "sphinx-book-theme": ("workbook/book/pages.py", '"sphinx_book_theme"'),
    "sphinx-design": ("workbook/book/pages.py", '"sphinx_design"'),
    "vllm": ("workbook/training/trainer.py", "self.use_vllm"),
}


def version(pin: Requirement) -> str:
    (only,) = pin.specifier
    assert only.operator == "==", f"{pin} is not an exact pin"
    assert "*" not in only.version
    return only.version


@pytest.mark.parametrize("requirement", [*DEPENDENCIES, *EXTRAS], ids=lambda r: r.name)
def test_each_dependency_has_an_exact_pin_that_meets_its_floor(requirement):
    name = canonicalize_name(requirement.name)
    if name == "vllm":  # bound to the pinned torch, and not in the lock
        assert version(requirement)
        return
    pins = [version(pin) for pin in PINS if canonicalize_name(pin.name) == name]
    assert pins
    assert all(Version(pin) in requirement.specifier for pin in pins)
    # overridden in parts: `make pythons` tries both ends of its range
    if name == "trl":
        trls = re.search(r"^TRLS.*:= '(.*)' '(.*)'$", (ROOT / "Makefile").read_text(), re.M)
        oldest = next(bound.version for bound in requirement.specifier if bound.operator == ">=")
        assert trls[1] == f"trl=={oldest}.*"
        assert Requirement(trls[2]) == requirement
        return
    (bound,) = requirement.specifier
    assert bound.operator == ">=", "floors, so that a machine keeps its own stack"


def test_every_pin_is_exact_and_torch_is_the_one_that_local_builds_satisfy():
    assert all(version(pin) for pin in PINS)
    (torch,) = (pin for pin in PINS if pin.name == "torch")
    assert version(torch) == "2.13.0"


def test_the_lock_is_what_make_lock_writes_and_names_no_index():
    command = next(line.strip("# ") for line in LOCK if "uv pip compile" in line)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    target = next(line for line in makefile.splitlines() if "uv pip compile" in line)
    assert set(command.split()) == set(target.split()[1:]) - {"-q", "$(ARGS)"} | {"uv"}
    assert not any("://" in line or line.startswith("-") for line in LOCK)


def test_the_page_on_use_counts_the_packages_of_the_core():
    page = (ROOT / "data" / "book" / "using.md").read_text(encoding="utf-8")
    assert f" brings the core, {len(DEPENDENCIES)} packages: " in page


def test_conda_only_wraps():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    names = [entry.split("=")[0] for entry in environment["dependencies"] if isinstance(entry, str)]
    assert set(names) == {"python", "pip"}
    assert [line.split()[0] for line in pip] == ["-c", "-e"]
    assert pip[0] == "-c constraints.txt"
    (python,) = [entry for entry in environment["dependencies"] if str(entry).startswith("python=")]
    assert Requirement(f"python=={python.split('=')[1]}.*").specifier
    assert (
        Version(python.split("=")[1])
        in Requirement(f"python{PROJECT['requires-python']}").specifier
    )


def test_this_environment_is_the_declared_one():
    from importlib.metadata import version as running

    for requirement in DEPENDENCIES:
        assert Version(running(requirement.name)) in requirement.specifier, requirement


@cache
def distributions() -> dict[str, set[str]]:
    """Return {top module: the distributions that hold it, by canonical name}."""
    return {
        module: {canonicalize_name(name) for name in names}
        for module, names in packages_distributions().items()
    }


def imported_modules(source: str) -> set[str]:
    """Return the top names of what a Python text imports from elsewhere, wherever it does."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names


@cache
def imports_below(*folders: str) -> dict[str, Path]:
    """Return {module: a file that imports it} of the Python files of folders, our own apart."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    # pytest puts the folders of tests/ on the path
    own = {"workbook", *(path.stem for path in (ROOT / "tests").rglob("*"))}
    return {
        module: path
        for path in files
        for module in imported_modules(path.read_text(encoding="utf-8")) - own
    }


def declared(*groups: str) -> set[str]:
    """Return the canonical names that the core and these extras declare."""
    lines = PROJECT["dependencies"] + [line for group in groups for line in OPTIONAL[group]]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def undeclared(imports: dict[str, Path], names: set[str]) -> list[str]:
    """Return a phrase for each module that none of the declared distributions holds."""
    holds = distributions()
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for module, path in imports.items()
        if not holds.get(module, {canonicalize_name(module)}) & names
    ]


def test_what_the_package_imports_is_declared_and_what_the_core_lacks_has_its_extra():
    imports = imports_below("workbook")
    extras = [name for name in OPTIONAL if name not in ("all", "dev")]
    assert undeclared(imports, declared(*extras)) == []
    holds = distributions()
    extra_of = {
        canonicalize_name(Requirement(line).name): name
        for name in extras
        for line in OPTIONAL[name]
    }
    for module in imports:
        packages = holds.get(module, {canonicalize_name(module)})
        extra = next((extra_of[name] for name in packages if name in extra_of), None)
        assert EXTRAS_OF.get(module) == extra, f"EXTRAS in places.py is wrong for {module}"


def test_what_tests_and_scripts_import_is_declared():
    imports = imports_below("tests", "examples", "data")
    setup = ROOT / "setup.py"
    imports = imports | dict.fromkeys(imported_modules(setup.read_text(encoding="utf-8")), setup)
    assert undeclared(imports, declared(*OPTIONAL)) == []


@pytest.mark.parametrize("group", ["core", *(name for name in OPTIONAL if name != "all")])
def test_what_is_declared_is_imported_or_named(group):
    lines = PROJECT["dependencies"] if group == "core" else OPTIONAL[group]
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    modules = set(imports_below("tests" if group == "dev" else "workbook"))
    if group == "dev":
        modules |= imported_modules((ROOT / "setup.py").read_text(encoding="utf-8"))
    holds = distributions()
    imported = {name for module in modules for name in holds.get(module, ())}
    for name in names - imported:
        assert name in NAMED, f"{name} of {group} is declared and never imported"
        file, use = NAMED[name]
        assert use in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not use {name}"


CORE = """
import sys
from workbook.places import EXTRAS
# none of them can be imported
sys.modules |= {name: None for name, extra in EXTRAS.items() if extra != "lab"}
import workbook
from workbook.__main__ import main
from workbook import get_task, load_policy, probes, sample_rollouts, theory, training
from workbook.tasks.verify import equal_expressions

for room in (probes, theory, training):
    assert all(getattr(room, name) is not None for name in room.__all__)
policy, task = load_policy("bundled"), get_task("chain")
rollouts = sample_rollouts(policy, task, 2, group_size=2, max_new_tokens=8)
assert len(probes.cancellation_index(policy, rollouts)) == rollouts.completion_mask.sum()
small = ["max_steps=1", "per_device_train_batch_size=16", "max_completion_length=8"]
small += ["eval_prompts=0"]
assert main(["train", "data/configs/chain.yaml", "--folder", "run", "--set", *small]) == 0
assert main(["report", "run"]) == 0
asked = {"traitlets": lambda: workbook.TokenHeatmap, "altair": workbook.setup}
asked |= {"reasoning_gym": lambda: get_task("gym:chain_sum")}
asked |= {"math_verify": lambda: equal_expressions("x^2", "x^3")}
asked |= {"bitsandbytes": lambda: load_policy("bundled", quantization="nf4")}
for package, ask in asked.items():
    try:
        raise AssertionError(ask())
    except ImportError as error:
        advice = f"pip install 'cancellation-workbook[{EXTRAS[package]}]'"
        assert str(error) == f"the package {package} is needed and not installed: {advice}"
"""


def test_the_core_trains_probes_and_reports_and_names_the_extra_of_what_it_lacks(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", CORE], cwd=tmp_path, env=environment, check=True)
