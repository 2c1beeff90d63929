"""A wheel is a library: built from the sdist and installed apart from the clone, it works from any
folder.

Its environment sees this one's packages, but not the clone: a .pth file names their folder, whose
own .pth files, the editable install's among them, Python does not read.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = ["pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt"]
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""
# setuptools' warnings are UserWarnings, and a reader of `make lab` would see each
WITHOUT_WARNINGS = [sys.executable, "-W", "error::UserWarning"]
USE = """
import contextlib, io, json
import workbook
from workbook import get_task, load_policy, sample_rollouts
from workbook.__main__ import main
from workbook.places import data_path
from workbook.studies import load_measured
from workbook.app import load_run
from workbook.training import RunConfig
from workbook.views import measured_table

def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(arguments))
    return [status, out.getvalue() if status == 0 else err.getvalue()]

policy = load_policy("bundled")
rollouts = sample_rollouts(policy, get_task("chain"), 2, group_size=2, max_new_tokens=8)
small = {"max_steps": 2, "per_device_train_batch_size": 16}
small |= {"max_completion_length": 8, "eval_prompts": 2}
settings = [text for key, value in small.items() for text in ("--set", f"{key}={value}")]
result = {
    "package": workbook.__file__,
    "sha256": policy.provenance["sha256"],
    "rollouts": len(rollouts.rewards),
    "train": run("train", "data/configs/chain.yaml", "--folder", "run", *settings),
    "claims": run("claims", "--claim", "H11"),
    "estimators": run("estimators"),
    "measure": run("measure", "flip_backbones", "--scale", "tiny"),
    "chapters": run("chapters", "00"),
    "studies": len(load_measured("flip_backbones", "family", "shares")),
    "figure": measured_table("flips/follows").to_json(),
    "member": load_policy("family:seed=1").provenance["sha256"],
    "sweep": RunConfig.load("data/configs/chain.yaml").task,
}
run = load_run("run")
print(json.dumps(result | {"steps": len(run.metrics()), "git": run.manifest()["git"]}))
"""


def sh(*command, **options):
    answer = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=120, **options
    )
    assert answer.returncode == 0, answer.stdout[-2000:] + answer.stderr[-3000:]
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that the sdist of this tree makes, without the net."""
    home = tmp_path_factory.mktemp("build")
    source, built = home / "source", home / "built"
    for name in ("workbook", "data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copyfile(ROOT / name, source / name)
    sh(*WITHOUT_WARNINGS, "-c", BUILD, "build_sdist", built, cwd=source)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(home / "unpacked", filter="data")
    (unpacked,) = (home / "unpacked").iterdir()
    sh(*WITHOUT_WARNINGS, "-c", BUILD, "build_wheel", built, cwd=unpacked)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment with the wheel, in somebody's own repository; its folder."""
    home = tmp_path_factory.mktemp("elsewhere")
    sh("git", "init", "-q", home)
    sh(
        "git",
        "-C",
        home,
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "theirs",
    )
    sh(sys.executable, "-m", "venv", "--without-pip", home / "venv")
    python = home / "venv" / "bin" / "python"
    sh(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        wheel,
    )
    (packages,) = (home / "venv").glob("lib/python*/site-packages")
    (packages / "environment.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def environment(home):
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "WORKBOOK"))
    }
    kept |= {"WORKBOOK_CACHE": str(home / "cache"), "HF_HUB_OFFLINE": "1"}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def contents(folder):
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_the_wheel_holds_the_library_and_its_data(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("dist-info/METADATA"))
        text = archive.read(metadata).decode()
    data = {
        str(path.relative_to(ROOT)) for path in (ROOT / "data").rglob("[!.]*") if path.is_file()
    }
    data = {f"workbook/{name}" for name in data if "__pycache__" not in name}
    apart = ("workbook/data/worlds/", "workbook/data/smollm2/")
    left_out = {name for name in data if name.startswith(apart) and name.endswith(".safetensors")}
    assert data & set(names) == data - left_out
    assert {"workbook/py.typed", "workbook/views/heatmap.js"} <= set(names)
    assert "workbook/book/static/book.css" in names
    packages = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "workbook").rglob("*.py")}
    assert packages <= {str(Path(name).parent) for name in names if name.endswith(".py")}
    assert {Path(name).parts[0] for name in names} == {"workbook", Path(metadata).parts[0]}
    assert "Classifier: Typing :: Typed" in text
    assert wheel.stat().st_size < 20 * 2**20


def test_the_wheel_works_from_another_folder_and_writes_nothing_into_the_package(installed, capsys):
    from workbook.__main__ import main
    from workbook.policies.load import load_policy
    from workbook.views import measured_table

    (package,) = (installed / "venv").glob("lib/python*/site-packages/workbook")
    place, before = installed / "place", contents(package)
    place.mkdir()
    out = sh(
        installed / "venv" / "bin" / "python", "-c", USE, cwd=place, env=environment(installed)
    )
    result = json.loads(out.splitlines()[-1])
    assert contents(package) == before
    assert sorted(path.name for path in place.iterdir()) == ["run"]
    assert Path(result["package"]).parent == package
    assert result["sha256"] == load_policy("bundled").provenance["sha256"]
    assert (result["rollouts"], result["steps"], result["sweep"]) == (4, 2, "chain")
    assert result["studies"] > 0
    assert result["figure"] == measured_table("flips/follows").to_json()
    assert result["member"] == load_policy("family:seed=1").provenance["sha256"]
    assert result["git"] is None, "the repository around it is not the workbook's"
    assert [result[name][0] for name in ("train", "claims", "estimators")] == [0, 0, 0], result
    assert "prefix_credit" in result["estimators"][1]
    writing = "Writing to data/results"
    for name, what in {"measure": writing, "chapters": "The command chapters"}.items():
        status, sentence = result[name]
        assert status == 2
        assert re.fullmatch(f"{what}.* needs a clone of the repository, and .*\n", sentence), (
            sentence
        )
    assert main(["claims", "--claim", "H11"]) == 0
    assert result["claims"][1] == capsys.readouterr().out


def test_the_command_is_installed(installed):
    command = installed / "venv" / "bin" / "workbook"
    assert sh(
        command, "claims", "--claim", "H1", cwd=installed, env=environment(installed)
    ).startswith("H1")
