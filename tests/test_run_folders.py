"""A run's folder among a reader's files: what is taken, changed and removed, and what a resume goes
on from.
"""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file
from small_run import SMALL, bundled_trainer
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback

from workbook import files
from workbook.__main__ import main
from workbook.app import compare_runs, load_run, start_run, worker
from workbook.app import runs as run_module
from workbook.app.resumable import ResumableTrainer
from workbook.app.run_folder import atomic_folder, checkpoints, damage
from workbook.app.runs import Run, create_run, set_status, training_lock
from workbook.app.worker import execute, train_run
from workbook.files import StorageError, write_text
from workbook.policies.load import BUNDLED, load_policy
from workbook.training import CancellationConfig, RunConfig
from workbook.training.config import sampling_settings, trainer_args

CONFIG = {
    **{"name": "folders", "num_prompts": 8, "threads": 1, "eval_prompts": 2, "eval_group_size": 2},
    "trainer": {
        **{
            "num_generations": 2,
            "per_device_train_batch_size": 4,
            "steps_per_generation": 2,
            "max_steps": 6,
        },
        **{
            "max_completion_length": 6,
            "save_steps": 2,
            "learning_rate": 1e-3,
            "loss_type": "dr_grpo",
        },
    },
}
OWN = "prompt,answer\n" + "".join(
    f"{i} + {j} =,{(i + j) % 10}\n" for i in range(4) for j in range(4)
)
OLD_RUN = Path(__file__).parent / "data" / "old_run"
REWARD = "def score(completion, answer):\n    return float(answer in completion)\n"


def contents(folder: Path) -> dict:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def stopped_copy(whole: Path, copy: Path) -> Run:
    """Copy a finished run of six steps as it was after its fourth."""
    shutil.copytree(whole, copy)
    for name in ("final", "checkpoint-6"):
        shutil.rmtree(copy / name)
    set_status(Run(copy), "stopped", "Stopped.")
    return Run(copy)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return execute(create_run(CONFIG, tmp_path_factory.mktemp("made") / "whole").folder).folder


@pytest.fixture
def stopped(whole, tmp_path):
    return stopped_copy(whole, tmp_path / "run")


def assert_resumes(run, whole):
    assert execute(run.folder).status()["state"] == "finished"
    model = "final/model.safetensors"
    assert (run.folder / model).read_bytes() == (whole / model).read_bytes()


# --- resume, whatever has a state
MOVING = {"beta": 0.5, "sync_ref_model": True, "ref_model_sync_steps": 1, "learning_rate": 1e-2}
ENTROPY = {"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_target": 5.0}
STATES = {
    **{
        name: {"lr_scheduler_type": name}
        for name in ("constant", "linear", "cosine", "polynomial", "inverse_sqrt")
    },
    "cosine to a least rate": {
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr": 1e-5},
    },
    "decay": {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": 2},
    },
    "moving reference": MOVING,
    "adaptive entropy": ENTROPY | {"entropy_coef_delta": 0.05, "entropy_coef_max": 1.0},
    "adafactor": {"optim": "adafactor"},
}
TINY = SMALL | {
    **{
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "steps_per_generation": 2,
        "max_completion_length": 6,
    },
    **{"max_steps": 4, "save_strategy": "steps", "save_steps": 2},
}


def lengths(completions, **_):
    return [len(completion) % 7 for completion in completions]


@pytest.mark.parametrize("state", STATES)
def test_a_resumed_run_ends_in_the_same_bits(tmp_path, state):
    """Weights after four steps, and after two more from the checkpoint after two, in a trainer of
    its own.
    """
    torch.set_num_threads(1)

    def end(checkpoint=None) -> dict:
        policy = load_policy("bundled")
        set_seed(3)
        args = CancellationConfig(output_dir=str(tmp_path), **TINY | STATES[state])
        trainer = bundled_trainer(ResumableTrainer, args, policy, lengths, prompts=8)
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=checkpoint)
        return {name: weight.detach() for name, weight in trainer.model.named_parameters()}

    whole, resumed = end(), end(str(tmp_path / "checkpoint-2"))
    assert [name for name, tensor in whole.items() if not torch.equal(tensor, resumed[name])] == []


# --- a reader's files
@pytest.mark.parametrize("folder", ["", " ", "full", "file", "a\0b"])
def test_a_folder_that_is_not_empty_is_not_taken(tmp_path, monkeypatch, folder, capsys):
    (tmp_path / "full" / "checkpoint-500").mkdir(parents=True)
    (tmp_path / "full" / "checkpoint-500" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    assert main(["train", "config.yaml", "--folder", folder]) == 2
    assert "folder" in (error := capsys.readouterr().err.strip())
    assert "\n" not in error
    assert contents(tmp_path) == before


def test_what_a_run_did_not_write_stays(stopped, whole):
    foreign = [
        "checkpoint-500/x",
        "checkpoint-007/x",
        ".draft.7.tmp",
        "a/.final.7.tmp/x",
        "samples/mine",
        "final/mine",
    ]
    for name in foreign:
        (stopped.folder / name).parent.mkdir(exist_ok=True, parents=True)
        (stopped.folder / name).write_text("mine")
    (stopped.folder / ".final.17.tmp").mkdir()  # these two are a killed trainer's
    (stopped.folder / ".metrics.parquet.17.tmp").touch()
    assert_resumes(stopped, whole)
    for name in foreign:
        assert (
            stopped.folder / name.replace("final/mine", "final.kept/mine")
        ).read_text() == "mine"
    assert not list(stopped.folder.glob(".*.17.tmp"))
    assert [path.name for path in checkpoints(stopped.folder)] == ["checkpoint-6", "checkpoint-4"]


# --- damage
@pytest.mark.parametrize(
    "text", ["", "null", "[1]", '{"state": 7}', '{"state": "running", "pid": -1}', "[" * 9999]
)
def test_damaged_files_are_left_out_or_a_note_and_what_a_run_was_made_from_is_not_guessed(
    stopped, text
):
    for name in ("status.json", "samples.json", "evaluation.json", "checkpoint-4/checksums.json"):
        (stopped.folder / name).write_text(text)
    rows = stopped.metrics()
    with open(stopped.folder / "metrics.jsonl", "a") as file:
        file.write('{"step": "x"}\nnull\n[1]\n{"reward": 1}\n{"step": true}\n{"st\n{"step')
    assert stopped.metrics().equals(rows)
    assert stopped.status()["step"] == rows["step"].iloc[-1]
    assert stopped.status()["state"] == "interrupted"
    assert len(stopped.samples()) == len(stopped.evaluation()) == 0
    checkpoint, complaints = worker.newest_intact(stopped.folder, 6)
    assert (checkpoint, len(complaints)) == (None, 1)
    for name in ("manifest.json", "config.yaml"):
        (stopped.folder / name).write_text("{")
        with pytest.raises(ValueError, match=f"{name}[^\n]*$"):
            execute(stopped.folder)


def test_a_checkpoint_of_another_run_is_none_of_its_own(stopped):
    shutil.copytree(stopped.folder / "checkpoint-4", stopped.folder / "checkpoint-900")
    newest, complaints = worker.newest_intact(stopped.folder, 6)
    assert newest.name == "checkpoint-4"
    assert complaints == ["checkpoint-900 is of another run: global_step 4 instead of 900"]
    assert worker.newest_intact(stopped.folder, 8)[0] is None


def test_a_damaged_model_is_not_loaded_and_written_again(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    run = load_run(tmp_path / "run")
    (run.folder / "final" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.safetensors differs"):
        run.policy()
    assert main(["resume", str(run.folder)]) == 0
    assert_resumes(run, whole)


def test_a_failed_write_leaves_the_old_one(tmp_path, monkeypatch):
    def write_folder(text):
        with atomic_folder(tmp_path / "final") as folder:
            (folder / "a").write_text(text)
            if text == "2":
                raise RuntimeError("torn")

    write_folder("1")
    with pytest.raises(RuntimeError, match="torn"):
        write_folder("2")
    assert (tmp_path / "final" / "a").read_text() == "1"
    assert damage(tmp_path / "final") is None
    assert damage(tmp_path / "final", needed=("b",)) == "final/b is missing"
    write_text(tmp_path / "status.json", "old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StorageError, match="disk is full"):
        write_text(tmp_path / "status.json", "new")
    assert (tmp_path / "status.json").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["final", "status.json"]


# --- what a run is made from
@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of adapters on a model, prompts, reward and credit rule of the reader's own, and where
    these lie.
    """
    home = tmp_path_factory.mktemp("mine")
    shutil.copytree(BUNDLED, home / "base")
    (home / "rows.csv").write_text(OWN)
    (home / "reward.py").write_text(REWARD)
    (home / "rule.py").write_text(
        "def rule(batch):\n    return batch.rewards - batch.rewards.mean()\n"
    )
    config = CONFIG | {"policy": str(home / "base"), "lora": 2, "task": f"own:{home / 'rows.csv'}"}
    config |= {"task_options": {"reward": f"{home / 'reward.py'}:score"}}
    train_run(config, home / "whole", advantage_estimator=f"own:{home / 'rule.py'}:rule")
    return home


def other_weights(path: Path) -> None:
    save_file(
        {name: tensor + 1e-3 for name, tensor in load_file(path).items()},
        path,
        metadata={"format": "pt"},
    )


CHANGES = {
    "rows.csv": (lambda path: path.write_text(OWN.replace("1 + 1 =,2", "1 + 1 =,3")), r"rows\.csv"),
    "reward.py": (
        lambda path: path.write_text(REWARD.replace("float", "2 * float")),
        r"reward\.py",
    ),
    "rule.py": (lambda path: path.write_text(path.read_text() + "\n"), r"rule\.py"),
    "base/model.safetensors": (other_weights, r"the weights of the policy '.*base'"),
    "base/tokenizer.json": (
        lambda path: path.write_text(path.read_text().replace('"now"', '"nov"')),
        "the tokenizer",
    ),
    "base/generation_config.json": (
        lambda path: path.write_text('{"eos_token_id": 3}'),
        "the config of the policy",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_resume_from_other_files_is_refused(own, tmp_path, name):
    change, words = CHANGES[name]
    run = stopped_copy(own / "whole", tmp_path / "run")
    before = (own / name).read_bytes()
    change(own / name)
    try:
        with pytest.raises(ValueError, match=f"^Changed since the run started: .*{words}"):
            execute(run.folder)
        assert "Changed since the run started" in run.status()["message"]
    finally:
        (own / name).write_bytes(before)
    assert execute(run.folder).status()["state"] == "finished"
    resumed, whole = (
        load_file(folder / "final" / "adapter_model.safetensors")
        for folder in (run.folder, own / "whole")
    )
    assert all(torch.equal(resumed[key], whole[key]) for key in whole)


def test_held_out_prompts_are_none_that_are_trained_on(own):
    run = Run(own / "whole")
    trainer, _, _, held_out = worker.build_trainer(run.config, own / "unused")
    assert len(held_out) == CONFIG["eval_prompts"]
    assert not set(held_out["prompt"]) & set(trainer.train_dataset["prompt"])


def test_evaluation_samples_as_training_does(tmp_path, monkeypatch):
    same = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    same |= {
        "chat_template_kwargs": {"enable_thinking": False},
        "generation_kwargs": {"no_repeat_ngram_size": 3},
    }
    config = RunConfig.load(CONFIG | {"trainer": CONFIG["trainer"] | same})
    args = trainer_args(config, torch.device("cpu"), tmp_path)
    assert sampling_settings(args) == same | {"max_new_tokens": 6}
    asked = {}

    def record(*_, **settings):
        asked.update(settings)
        raise RuntimeError("enough")

    monkeypatch.setattr(worker, "sample_rollouts", record)
    with pytest.raises(RuntimeError, match="enough"):
        train_run(config, tmp_path / "run")
    assert asked == same | {"max_new_tokens": 6, "seed": worker.HELD_OUT_SEED}
    assert not (tmp_path / "run").exists()


def test_a_refused_run_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise KeyError("nope")

    monkeypatch.setattr(worker, "load_policy", fails)
    with refused("policy", "bundled"):
        train_run(CONFIG, tmp_path / "run")
    with refused("trainer.hub_token") as refusal:
        create_run(
            CONFIG | {"trainer": CONFIG["trainer"] | {"hub_token": "hf_secret"}}, tmp_path / "run"
        )
    assert "hf_secret" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_only_a_run_that_never_trained_can_be_started_anew(stopped, tmp_path, monkeypatch):
    run = create_run(CONFIG, tmp_path / "new")
    set_status(stopped, "failed", "RuntimeError: out of memory")
    before = contents(stopped.folder)
    for there in (run, stopped):
        with pytest.raises(ValueError, match="already holds a run"):
            start_run(CONFIG, there.folder)
    assert contents(stopped.folder) == before
    set_status(run, "failed", "ValueError: its policy is gone.")
    assert create_run(CONFIG, run.folder).status()["state"] == "starting"
    monkeypatch.setattr(
        run_module,
        "_launch",
        lambda run: set_status(run, "failed", "ValueError: its policy is gone."),
    )
    with pytest.raises(RuntimeError, match="its policy is gone"):
        start_run(CONFIG, tmp_path / "other", wait=True)
    assert not (tmp_path / "other").exists()


def test_a_lock_that_is_held_is_a_sign_of_life(stopped):
    """Of a process on another machine that shares the folder, or one whose start a changed clock
    moved.
    """
    set_status(stopped, "running", "Training.", pid=2**22 + 1)
    assert stopped.status()["state"] == "interrupted"
    with training_lock(stopped):
        assert stopped.running
    assert stopped.status()["state"] == "interrupted"


def test_a_run_of_an_older_version_is_read_and_goes_on(tmp_path):
    """A folder as it was written when the rule known_credit was named oracle, without its
    checkpoints.
    """
    folder = tmp_path / "old_run"
    shutil.copytree(OLD_RUN, folder)
    old = load_run(folder)
    assert old.config.trainer["advantage_estimator"] == "oracle"
    assert (old.status()["state"], old.status()["step"]) == ("stopped", 3)
    assert old.metrics()["step"].tolist() == [1, 2, 3]
    assert len(old.samples()) == 8
    assert compare_runs([old])["steps"].tolist() == [3]
    resumed = execute(folder)
    assert resumed.status()["state"] == "finished"
    assert resumed.metrics()["step"].tolist() == [1, 2, 3, 4]
    # what the run was made from, and what it was asked for, stay as they were recorded
    assert (folder / "manifest.json").read_bytes() == (OLD_RUN / "manifest.json").read_bytes()
    assert (folder / "config.yaml").read_bytes() == (OLD_RUN / "config.yaml").read_bytes()
