"""Runs survive being killed, stopped, torn, edited and starved of disk, and resume to the same
weights bit for bit.
"""

import gc
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from importlib.metadata import version
from pathlib import Path

import joblib
import pandas as pd
import psutil
import pytest
import torch
from safetensors.torch import load_file
from small_run import TRAINER

from workbook import runs
from workbook.__main__ import main
from workbook.app import compare_runs, latest_run, load_run, start_run, sweep
from workbook.app.run_folder import checkpoints
from workbook.app.runs import create_run
from workbook.app.sweeps import _train, combinations, load_sweep
from workbook.app.worker import execute

CHAIN = Path(__file__).parents[1] / "data" / "configs" / "chain.yaml"
KILLS, STEPS = 4, 40
CONFIG = {
    "name": "small",
    "num_prompts": 24,  # six generation batches an epoch: resumes fall into later epochs too
    "seed": 3,
    "threads": 1,
    "trainer": (
        TRAINER
        # which has a state
        | {"max_steps": STEPS, "save_steps": 4, "max_grad_norm": 1.0, "lr_scheduler_type": "linear"}
    ),
}

spawning = multiprocessing.get_context("forkserver")
spawning.set_forkserver_preload(["workbook.app.worker"])


def _execute(folder: str, pause_at: int | None = None) -> None:
    from workbook.app import worker

    gc.freeze()  # what it was forked with
    if pause_at:  # until somebody sends SIGCONT

        class Pausing(worker.Recorder):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == pause_at:
                    os.kill(os.getpid(), signal.SIGSTOP)

        worker.Recorder = Pausing

    worker.execute(folder)


def run_process(folder, **kwargs):
    process = spawning.Process(target=_execute, args=(str(folder),), kwargs=kwargs)
    process.start()
    return process


def kill_at(run, step: int, later: float = 0.0) -> None:
    """Train a run in a process of its own, and kill that some time after it has reached a step."""
    process = run_process(run.folder)
    while process.is_alive() and run.status()["step"] < step:
        time.sleep(0.005)
    process.join(later)
    assert process.is_alive(), run.status()
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def weights(run) -> bytes:
    return (run.folder / "final" / "model.safetensors").read_bytes()


def learning(run) -> list:
    return run.metrics()[["step", "reward", "grad_norm", "entropy"]].fillna(-1).values.tolist()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = create_run(CONFIG, tmp_path_factory.mktemp("runs") / "whole")
    run_process(run.folder).join()
    assert run.status()["state"] == "finished", run.status()
    assert run.metrics()["step"].tolist() == list(range(1, STEPS + 1))
    return run


def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(uninterrupted, tmp_path):
    run = create_run(CONFIG, tmp_path / "killed")
    chance = random.Random(0)
    for step in sorted(chance.sample(range(STEPS - 2), KILLS)):
        # in the next steps: sampling, updating, or writing a checkpoint
        kill_at(run, step, chance.uniform(0, 0.2))
        assert run.status()["state"] == "interrupted" or run.status()["step"] == 0
    run_process(run.folder).join()
    assert run.status()["state"] == "finished", run.status()
    assert weights(run) == weights(uninterrupted)
    assert learning(run) == learning(uninterrupted)
    assert not list(run.folder.rglob("*.tmp"))


def test_stop_and_resume_in_real_processes(uninterrupted, tmp_path):
    run = start_run(CONFIG, tmp_path / "stopped")
    with pytest.raises(ValueError, match="running"):
        run.resume()
    while run.running and run.status()["step"] < 6:
        time.sleep(0.05)
    assert main(["resume", str(run.folder)]) == 2  # one process at a time
    run.stop()
    seen = run.status()["step"]
    run.wait(timeout=60)
    status = run.status()
    assert status["state"] == "stopped"
    assert 6 <= status["step"] <= seen + 2, "it did not stop within a step"
    assert main(["resume", str(run.folder)]) == 0
    assert run.status()["state"] == "finished"
    assert weights(run) == weights(uninterrupted)


def test_a_run_stopped_while_it_starts_trains_nothing_until_it_is_resumed(tmp_path):
    config = CONFIG | {"eval_prompts": 4, "trainer": CONFIG["trainer"] | {"max_steps": 2}}
    run = create_run(config, tmp_path / "early")
    run.stop()
    run_process(run.folder).join()
    assert run.status()["state"] == "stopped"
    assert (
        run.status()["step"]
        == len(run.metrics())
        == len(run.evaluation())
        == len(run.samples())
        == 0
    )
    run_process(run.folder).join()
    assert run.status()["state"] == "finished", run.status()
    assert not run.stopping
    assert run.evaluation()["label"].tolist() == ["before", "after"]


def test_four_bit_adapters_resume_bit_for_bit(tmp_path):
    config = CONFIG | {
        "lora": 4,
        "quantization": "nf4",
        "trainer": CONFIG["trainer"] | {"max_steps": 12},
    }
    whole, killed = (create_run(config, tmp_path / name) for name in ("whole", "killed"))
    run_process(whole.folder).join()
    kill_at(killed, 6)
    run_process(killed.folder).join()
    adapters = [
        load_file(run.folder / "final" / "adapter_model.safetensors") for run in (whole, killed)
    ]
    assert killed.status()["state"] == "finished"
    assert all(tensor.dtype == torch.float32 and tensor.any() for tensor in adapters[0].values())
    assert all(torch.equal(tensor, adapters[1][name]) for name, tensor in adapters[0].items())
    loaded = whole.policy().model.state_dict()
    assert all(
        torch.equal(loaded[f"{n[:-7]}.default.weight"], tensor) for n, tensor in adapters[0].items()
    )


def test_a_torn_checkpoint_is_skipped(uninterrupted, tmp_path):
    run = create_run(CONFIG, tmp_path / "torn")
    kill_at(run, 13)
    newest, older = checkpoints(run.folder)
    torn = newest / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:1000])
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 99, "rew')
    run_process(run.folder).join()
    assert f"{newest.name}/model.safetensors differs from its checksum" in run.status()["notes"][0]
    assert run.status()["state"] == "finished"
    assert older.name != newest.name
    assert weights(run) == weights(uninterrupted)


def test_an_edited_config_is_refused(uninterrupted):
    path = uninterrupted.folder / "config.yaml"
    original = path.read_text()
    path.write_text(original.replace("num_prompts: 24", "num_prompts: 25"))
    try:
        with pytest.raises(ValueError, match=r"num_prompts \(24 -> 25\)"):
            uninterrupted.resume()
    finally:
        path.write_text(original)
    assert uninterrupted.resume().status()["state"] == "finished"


def test_manifest_and_files(uninterrupted):
    manifest = uninterrupted.manifest()
    assert manifest["versions"]["trl"] == version("trl")
    assert len(manifest["policy"]["sha256"]) == 64
    assert {len(sha) for sha in manifest["inputs"].values()} == {64}
    parquet = pd.read_parquet(uninterrupted.folder / "metrics.parquet")
    assert parquet.equals(uninterrupted.metrics())
    samples = pd.read_parquet(uninterrupted.folder / "samples" / f"step-{STEPS:06d}.parquet")
    assert {"prompt", "completion", "advantages"} < set(samples.columns)
    assert len(samples) == 16
    shown = uninterrupted.samples()
    assert len(shown) == 8
    assert shown[["prompt", "completion"]].equals(samples[["prompt", "completion"]].head(8))
    assert shown["advantage"].tolist() == samples["advantages"].head(8).tolist()
    assert [
        p for p in uninterrupted.folder.rglob("*") if p.suffix in (".pt", ".pth", ".bin", ".pkl")
    ] == []
    files = [
        path
        for path in uninterrupted.folder.rglob("*")
        if path.is_file() and path.name != "training.lock"
    ]
    assert len({path.stat().st_mode for path in files}) == 1, "weights are as readable as the rest"


# --- tables of runs, and sweeps
def test_runs_are_listed_found_and_removed(uninterrupted, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORKBOOK_RUNS", str(tmp_path / "runs"))
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "No runs.\n"
    with pytest.raises(ValueError, match="holds no run"):
        latest_run()
    made = [create_run(CONFIG | {"name": name}) for name in ("a-run", "other", "a-run")]
    for i, run in enumerate(made):
        os.utime(run.folder / "config.yaml", (i, i))
    assert load_run().folder == latest_run("a-").folder == made[2].folder
    assert latest_run("other").config.name == "other"
    (made[1].folder / "config.yaml").write_text("[")
    os.utime(made[1].folder / "config.yaml", (1, 1))
    table = runs()
    assert table["run"].tolist() == [made[2].folder.name, made[1].folder.name, made[0].folder.name]
    assert table["state"].tolist() == ["starting", "damaged", "starting"]
    assert "config.yaml is not valid YAML" in table["message"][1]
    finished = runs(uninterrupted.folder.parent).iloc[0]
    assert (finished["state"], finished["step"], finished["total"]) == ("finished", STEPS, STEPS)
    assert finished["mb"] > 1
    assert 0 <= finished["reward"] <= 1
    assert main(["runs"]) == 0
    assert made[0].folder.name in capsys.readouterr().out
    with pytest.raises(ValueError, match="is running"):
        made[0].remove()
    (made[0].folder / "mine.txt").write_text("mine")
    (made[0].folder / "status.json").unlink()
    made[0].remove()
    assert [path.name for path in made[0].folder.iterdir()] == ["mine.txt"]


def test_grids_given_as_a_list_follow_one_another(tmp_path):
    grid = [
        {"seed": [0, 1], "learning_rate": [0.002]},
        {"seed": [0], "policy": ["build/policies/hard"]},
    ]
    (tmp_path / "sweep.yaml").write_text(json.dumps(CONFIG | {"grid": grid}))
    config, read = load_sweep(tmp_path / "sweep.yaml")
    assert read == grid
    made = combinations(config, [grid[0]])
    assert list(made) == ["seed=0,learning_rate=0.002", "seed=1,learning_rate=0.002"]
    assert [run.trainer["learning_rate"] for run in made.values()] == [0.002, 0.002]
    for wrong in ([], [{"seed": []}], [{"seed": 0}], [["seed"]], "seed"):
        (tmp_path / "sweep.yaml").write_text(json.dumps(CONFIG | {"grid": wrong}))
        with pytest.raises(ValueError, match="needs a grid"):
            load_sweep(tmp_path / "sweep.yaml")


def test_sweep_survives_a_crash_and_a_failing_run(tmp_path, capsys):
    settings = CONFIG | {"trainer": CONFIG["trainer"] | {"max_steps": 4}, "eval_prompts": 4}
    grid, folder = {"seed": [0, 1, 2]}, tmp_path / "out"
    for name, config in list(combinations(settings, grid).items())[:2]:
        create_run(config, folder / name)
    run_process(folder / "seed=0").join()
    kill_at(load_run(folder / "seed=1"), 2)
    made = (folder / "seed=0" / "final").stat().st_mtime_ns

    with joblib.parallel_config("threading"):
        table = sweep(settings, grid, folder, n_jobs=2, quiet=True)
    assert table["state"].tolist() == ["finished"] * 3
    assert (folder / "seed=0" / "final").stat().st_mtime_ns == made
    assert table["heldout_after"].between(0, 1).all()
    assert runs(tmp_path)["run"].str.startswith("out/seed=").all()
    (tmp_path / "sweep.yaml").write_text(json.dumps(settings | {"grid": grid}))
    assert (
        main(["sweep", str(tmp_path / "sweep.yaml"), "--folder", str(folder), "--jobs", "1"]) == 0
    )
    assert "3 of 3 runs finished." in capsys.readouterr().out

    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    policies = {"policy": ["bundled", str(tmp_path / "damaged")]}
    table = sweep(settings, policies, tmp_path / "mixed", n_jobs=1, quiet=True)
    assert table["state"].tolist() == ["finished", "failed"]
    assert "damaged" in table["message"].iloc[1]
    with pytest.raises(ValueError, match="another config"):
        sweep(settings | {"num_prompts": 32}, grid, folder, quiet=True)
    assert set(compare_runs([folder / "seed=0", folder / "seed=1"])["seed"]) == {0, 1}


def test_a_task_that_is_run_twice_at_once_trains_once(tmp_path):
    """As a cluster does that thinks a worker dead: the second waits for the first."""
    run = create_run(CONFIG | {"trainer": CONFIG["trainer"] | {"max_steps": 8}}, tmp_path / "twice")
    first = run_process(run.folder, pause_at=2)
    while psutil.Process(first.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    with pytest.raises(ValueError, match=str(first.pid)):
        execute(run.folder)
    threading.Timer(0.5, os.kill, (first.pid, signal.SIGCONT)).start()
    message = _train(str(run.folder), threads=1)
    first.join()
    status = run.status()
    assert status["pid"] == first.pid, "the second call wrote a status, so it trained"
    assert (status["state"], status["message"]) == ("finished", message)
    assert run.metrics()["step"].tolist() == list(range(1, 9))
