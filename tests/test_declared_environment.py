"""The environment is declared once: pyproject's floors, constraints' pins, conda's wrapper, and
Colab agree.
"""

import ast
import os
import re
import subprocess
import sys
import tomllib
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
PINS = {
    canonicalize_name(Requirement(line).name): Requirement(line).specifier
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
}
IMPORTS = {"yaml": "pyyaml", "vl_convert": "vl-convert-python", "PIL": "pillow"}
BROUGHT = {
    **dict.fromkeys(("IPython", "traitlets"), "ipywidgets"),
    **dict.fromkeys(
        ("huggingface_hub", "packaging", "safetensors", "tokenizers", "tqdm"), "transformers"
    ),
    **dict.fromkeys(("docutils", "jinja2"), "sphinx"),
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
    # overridden in parts: `make pythons` tries both ends of its range
    if requirement.name == "trl":
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


def test_readme_counts_the_packages_of_the_core():
    assert f" brings the core, {len(DEPENDENCIES)} packages: " in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


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


def test_everything_imported_is_declared_and_what_the_core_lacks_has_its_extra():
    extra = {
        canonicalize_name(Requirement(line).name): name
        for name, group in OPTIONAL.items()
        for line in group
    }
    declared = {canonicalize_name(r.name) for r in DEPENDENCIES} | extra.keys()
    for path in (ROOT / "workbook").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            for top in {module.split(".")[0] for module in modules} - {"workbook", "google"}:
                if top not in sys.stdlib_module_names:
                    package = canonicalize_name(IMPORTS.get(top) or BROUGHT.get(top) or top)
                    assert package in declared, f"{path.name} imports {top}, which is not declared"
                    if top not in ("docutils", "jinja2"):
                        assert EXTRAS_OF.get(top) == extra.get(package), (
                            f"EXTRAS in places.py lacks {top}"
                        )


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
