"""Runs survive being killed, stopped, torn, edited and starved of disk, and resume to the same weights bit for bit."""

import gc
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from small_run import SMALL

from workbook.__main__ import main
from workbook.training import RunConfig, compare_runs, latest_run, load_run, start_run, sweep
from workbook.training.folders import checkpoints, read_json_lines
from workbook.training.runs import create_run
from workbook.training.sweeps import combinations, load_sweep

CHAIN = Path(__file__).parents[1] / "data" / "configs" / "chain.yaml"
RUN_SETS = {
    "use_cpu",
    "bf16",
    "seed",
    "save_strategy",
    "report_to",
    "logging_steps",
    "disable_tqdm",
    "gradient_checkpointing",
}
KILLS = 4  # `make soak ARGS=resume` kills far more often
CONFIG = {
    "name": "small",
    "num_prompts": 24,  # six generation batches an epoch: resumes fall into later epochs too
    "seed": 3,
    "threads": 1,
    "trainer": {key: value for key, value in SMALL.items() if key not in RUN_SETS}
    | {"max_steps": 60, "save_steps": 4, "max_grad_norm": 1.0, "lr_scheduler_type": "linear"},  # a schedule with state
}

spawning = multiprocessing.get_context("forkserver")
spawning.set_forkserver_preload(["workbook.training.worker"])


def _execute(folder: str, largest_file: int | None = None, pause_at: int | None = None) -> None:
    from workbook.training import worker

    gc.freeze()  # what it was forked with
    if pause_at:  # until somebody sends SIGCONT

        class Pausing(worker.Recorder):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == pause_at:
                    os.kill(os.getpid(), signal.SIGSTOP)

        worker.Recorder = Pausing

    if largest_file:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    worker.execute(folder)


def run_process(folder, **kwargs):
    process = spawning.Process(target=_execute, args=(str(folder),), kwargs=kwargs)
    process.start()
    return process


def weights(run) -> bytes:
    return (run.folder / "final" / "model.safetensors").read_bytes()


def learning(run) -> list:
    return run.metrics()[["step", "reward", "grad_norm", "entropy"]].fillna(-1).values.tolist()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = create_run(CONFIG, tmp_path_factory.mktemp("runs") / "whole")
    process = run_process(run.folder)
    process.join()
    assert run.status()["state"] == "finished", run.status()
    assert run.metrics()["step"].tolist() == list(range(1, 61))
    return run


def test_kills_change_nothing(uninterrupted, tmp_path):
    run = create_run(CONFIG, tmp_path / "killed")
    chance = random.Random(0)
    for step in sorted(chance.sample(range(58), KILLS)):
        process = run_process(run.folder)
        while process.is_alive() and run.status()["step"] < step:
            time.sleep(0.005)
        process.join(chance.uniform(0, 0.2))  # somewhere in the next steps: sampling, updating, or writing a checkpoint
        assert process.is_alive(), run.status()
        os.kill(process.pid, signal.SIGKILL)
        process.join()
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
    assert run.stopping
    run_process(run.folder).join()
    assert run.status()["state"] == "stopped"
    assert run.status()["step"] == len(run.metrics()) == len(run.evaluation()) == len(run.samples()) == 0
    run_process(run.folder).join()
    assert run.status()["state"] == "finished", run.status()
    assert not run.stopping
    assert run.evaluation()["label"].tolist() == ["before", "after"]


def test_four_bit_adapters_resume_bit_for_bit(tmp_path):
    config = CONFIG | {"lora": 4, "quantization": "nf4", "trainer": CONFIG["trainer"] | {"max_steps": 12}}
    runs = [create_run(config, tmp_path / name) for name in ("whole", "killed")]
    run_process(runs[0].folder).join()
    process = run_process(runs[1].folder)
    while process.is_alive() and runs[1].status()["step"] < 6:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    run_process(runs[1].folder).join()
    adapters = [load_file(run.folder / "final" / "adapter_model.safetensors") for run in runs]
    assert runs[1].status()["state"] == "finished"
    assert all(tensor.dtype == torch.float32 and tensor.any() for tensor in adapters[0].values())
    assert all(torch.equal(tensor, adapters[1][name]) for name, tensor in adapters[0].items())
    loaded = runs[0].policy().model.state_dict()
    assert all(torch.equal(loaded[f"{n[:-7]}.default.weight"], tensor) for n, tensor in adapters[0].items())


def test_a_torn_checkpoint_is_skipped(uninterrupted, tmp_path):
    run = create_run(CONFIG, tmp_path / "torn")
    process = run_process(run.folder)
    while not (len(checkpoints(run.folder)) == 2 and run.status()["step"] > 10):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    newest, older = checkpoints(run.folder)
    torn = newest / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:1000])
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 99, "rew')
    run_process(run.folder).join()
    assert f"{newest.name}/model.safetensors has 1000 bytes" in run.status()["notes"][0]
    assert run.status()["state"] == "finished"
    assert older.name != newest.name
    assert weights(run) == weights(uninterrupted)


def test_no_room_left_is_said_and_loses_nothing(uninterrupted, tmp_path):
    run = create_run(CONFIG, tmp_path / "full")
    run_process(run.folder, largest_file=200_000).join()  # smaller than the model
    status = run.status()
    assert status["state"] == "failed"
    assert re.search(r"Could not write .*checkpoint-4.*MiB free.*is intact", status["message"]), status
    assert len(run.metrics()) == 4
    assert checkpoints(run.folder) == []
    run_process(run.folder).join()
    assert weights(run) == weights(uninterrupted)


def test_an_edited_config_is_refused(uninterrupted):
    path = uninterrupted.folder / "config.yaml"
    original = path.read_text()
    path.write_text(original.replace("num_prompts: 24", "num_prompts: 25"))
    try:
        with pytest.raises(ValueError, match=r"edited since the run started: num_prompts \(24 -> 25\)"):
            uninterrupted.resume()
    finally:
        path.write_text(original)
    assert uninterrupted.resume().status()["state"] == "finished"


def test_manifest_and_files(uninterrupted):
    manifest = uninterrupted.manifest()
    assert manifest["versions"]["trl"].startswith("1.16.")
    assert len(manifest["data_sha256"]) == len(manifest["policy"]["sha256"]) == 64
    assert manifest["seed"] == 3
    parquet = pd.read_parquet(uninterrupted.folder / "metrics.parquet")
    assert parquet.equals(uninterrupted.metrics())
    samples = pd.read_parquet(uninterrupted.folder / "samples" / "step-000060.parquet")
    assert {"prompt", "completion", "advantages"} < set(samples.columns)
    assert len(samples) == 16
    shown = uninterrupted.samples()
    assert len(shown) == 8
    assert (shown["step"] == parquet.dropna(subset="reward")["step"].max()).all()
    assert shown[["prompt", "completion"]].equals(samples[["prompt", "completion"]].head(8))
    assert shown["advantage"].tolist() == samples["advantages"].head(8).tolist()
    assert shown["reward"].isin([0, 1]).all()
    pickles = [p for p in uninterrupted.folder.rglob("*") if p.suffix in (".pt", ".pth", ".bin", ".pkl")]
    assert pickles == []
    policy = uninterrupted.policy()
    assert (policy.provenance["sha256"] or "") != manifest["policy"]["sha256"]


def test_the_latest_run_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_RUNS", str(tmp_path / "runs"))
    with pytest.raises(ValueError, match=r"runs holds no run\.$"):
        latest_run()
    for i, name in enumerate(("a-run", "other", "a-run")):
        config = create_run(CONFIG | {"name": name}).folder / "config.yaml"
        os.utime(config, (i, i))
    assert latest_run().folder == latest_run("a-").folder == config.parent
    assert latest_run("other").config.name == "other"
    assert latest_run(folder=tmp_path / "runs").folder == config.parent
    with pytest.raises(ValueError, match="whose name begins with 'b'"):
        latest_run("b")


def test_a_torn_line_is_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step"\n{"step": 2}\n{"st')
    assert read_json_lines(path) == [{"step": 1}, {"step": 2}]
    assert read_json_lines(path, last_only=True)[-1] == {"step": 2}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_promts": 3}, "did you mean num_prompts"),
        ({"learning_rat": 3}, "did you mean learning_rate"),
        ({"trainer.bf16": True}, "set by the run itself"),
        ({"num_prompts": 0}, "num_prompts=0 must be an integer of at least 1"),
        ({"name": "../up"}, "plain folder name"),
    ],
)
def test_wrong_fields_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        RunConfig.load(CHAIN).override(settings)


def test_command_line_refuses_in_a_sentence(tmp_path, capsys):
    assert main(["train", str(tmp_path / "none.yaml")]) == 2
    (tmp_path / "list.yaml").write_text("- 1\n")
    assert main(["train", str(tmp_path / "list.yaml")]) == 2
    assert main(["train", str(CHAIN), "--set", "max_steps"]) == 2
    assert main(["resume", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.strip().split("\n")
    assert len(errors) == 4
    assert "can't be read" in errors[0]
    assert "mapping" in errors[1]
    assert "key=value" in errors[2]
    assert "holds no run" in errors[3]


def test_grids_given_as_a_list_follow_one_another(tmp_path):
    grid = [{"seed": [0, 1], "learning_rate": [0.002]}, {"seed": [0], "policy": ["build/policies/hard"]}]
    (tmp_path / "sweep.yaml").write_text(json.dumps(CONFIG | {"grid": grid}))
    config, read = load_sweep(tmp_path / "sweep.yaml")
    assert read == grid
    runs = {name: shared.override(settings) for name, shared, settings in combinations(config, read)}
    assert list(runs) == [
        "seed=0,learning_rate=0.002",
        "seed=1,learning_rate=0.002",
        "seed=0,policy=build-policies-hard",
    ]
    assert [run.trainer["learning_rate"] for run in runs.values()] == [0.002, 0.002, SMALL["learning_rate"]]
    assert [(run.seed, run.policy) for run in runs.values()][2] == (0, "build/policies/hard")
    for wrong in ([], [{"seed": []}], [{"seed": 0}], [["seed"]], "seed"):
        (tmp_path / "sweep.yaml").write_text(json.dumps(CONFIG | {"grid": wrong}))
        with pytest.raises(ValueError, match=r"sweep\.yaml needs a grid"):
            load_sweep(tmp_path / "sweep.yaml")


def test_sweep_survives_a_crash_and_a_failing_run(tmp_path):
    settings = CONFIG | {"trainer": CONFIG["trainer"] | {"max_steps": 4}, "eval_prompts": 4}
    (tmp_path / "sweep.yaml").write_text(json.dumps(settings | {"grid": {"seed": [0, 1, 2]}}))
    folder = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "workbook",
        "sweep",
        str(tmp_path / "sweep.yaml"),
        "--folder",
        str(folder),
        "--jobs",
        "1",
    ]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    first = folder / "seed=0" / "final"
    while process.poll() is None and not first.exists():
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    made = first.stat().st_mtime_ns

    table = sweep(settings, {"seed": [0, 1, 2]}, folder, n_jobs=2, quiet=True)
    assert table["state"].tolist() == ["finished"] * 3
    assert first.stat().st_mtime_ns == made or load_run(folder / "seed=0").status()["state"] == "finished"
    assert table["heldout_after"].between(0, 1).all()

    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text("{")
    table = sweep(settings, {"policy": ["bundled", str(damaged)]}, tmp_path / "mixed", n_jobs=2, quiet=True)
    assert table["state"].tolist() == ["finished", "failed"]
    assert "damaged" in table["message"].iloc[1]
    with pytest.raises(ValueError, match="makes no run: loss_type='bnpo'"):
        sweep(settings, {"loss_type": ["bnpo"], "batching": ["query_preserved"]}, tmp_path / "none", quiet=True)
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="another config"):
        sweep(settings | {"num_prompts": 32}, {"seed": [0, 1, 2]}, folder, quiet=True)
    assert set(compare_runs([folder / "seed=0", folder / "seed=1"])["seed"]) == {0, 1}
