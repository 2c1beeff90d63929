"""A run's folder among a reader's files: what is taken, changed and removed, and what a resume goes on from."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import joblib
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from soak import sample
from soak.run_folders import CONFIG, TEXTS, attempt, stopped_copy
from soak.run_folders import whole as made

from workbook.__main__ import main
from workbook.policies.load import BUNDLED, load_policy
from workbook.studies.keep import keep_sweep
from workbook.training import RunConfig, background, load_run, runs, start_run, worker
from workbook.training.background import identity, is_alive, launch
from workbook.training.config import sampling_settings, trainer_args
from workbook.training.export import export_config, export_run
from workbook.training.folders import checkpoints
from workbook.training.runs import Run, compare_runs, create_run, set_status, training_lock
from workbook.training.sweep_run import SweepRun
from workbook.training.sweeps import sweep
from workbook.training.worker import execute, train

OWN = "prompt,answer\n" + "".join(f"{i} + {j} =,{(i + j) % 10}\n" for i in range(4) for j in range(4))
REWARD = "def score(completion, answer):\n    return float(answer in completion)\n"


def contents(folder: Path) -> dict:
    """Every file and link below a folder, with what it holds or where it leads."""
    paths = sorted(folder.rglob("*"))
    return {p: os.readlink(p) if p.is_symlink() else p.read_bytes() for p in paths if p.is_symlink() or p.is_file()}


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after its fourth step of six, with checkpoints 2 and 4."""
    shutil.copytree(made() / "stopped", tmp_path / "run")
    return Run(tmp_path / "run")


def assert_resumes(run):
    assert execute(run.folder).status()["state"] == "finished"
    model = "final/model.safetensors"
    assert (run.folder / model).read_bytes() == (made() / "whole" / model).read_bytes()


# ---------------------------------------------------------------- a reader's files


@pytest.mark.parametrize("folder", ["", " ", "full", "file", "lost", "a\0b", "x" * 300])
def test_a_folder_that_is_not_empty_is_not_taken(tmp_path, monkeypatch, folder, capsys):
    (tmp_path / "full" / "checkpoint-500").mkdir(parents=True)
    (tmp_path / "full" / "checkpoint-500" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"folder") as refusal:
        create_run(CONFIG, folder)
    assert "\n" not in str(refusal.value)
    if folder == "full":
        assert main(["train", "config.yaml", "--folder", folder]) == 2
        assert len(capsys.readouterr().err.strip().split("\n")) == 1
    assert contents(tmp_path) == before


def test_what_a_run_did_not_write_stays(stopped):
    foreign = [
        "checkpoint-1/own",
        "checkpoint-007/x",
        "checkpoint-²/x",
        "final/mine",
        ".draft.7.tmp",
        "a/.final.7.tmp/x",
    ]
    foreign += ["checkpoint-2/mine", "samples/mine", "tokens/mine"]
    for i, name in enumerate(foreign):
        (stopped.folder / name).parent.mkdir(exist_ok=True, parents=True)
        (stopped.folder / name).write_text(f"mine {i}")
    (stopped.folder / ".final.17.tmp").mkdir()  # these two are a killed trainer's
    (stopped.folder / ".metrics.parquet.17.tmp").touch()
    (stopped.folder / ".stop.17.tmp").symlink_to(stopped.folder / "a")
    assert_resumes(stopped)
    moved = {"final/mine": "final.kept/mine"}
    for i, name in enumerate(foreign):
        assert (stopped.folder / moved.get(name, name)).read_text() == f"mine {i}"
    assert [path.name for path in stopped.folder.glob(".*.17.tmp")] == [".stop.17.tmp"]
    assert [path.name for path in checkpoints(stopped.folder)][:2] == ["checkpoint-6", "checkpoint-4"]


@pytest.mark.parametrize(
    "name", ["status.json", "metrics.jsonl", "training.lock", "log.txt", "samples", "tokens", "final"]
)
def test_a_link_in_a_run_folder_is_not_followed(stopped, tmp_path, name):
    target = tmp_path / "elsewhere"
    if name in ("samples", "tokens", "final"):
        target.mkdir()
        shutil.rmtree(stopped.folder / name, ignore_errors=True)
    else:
        target.write_text("mine")
        (stopped.folder / name).unlink(missing_ok=True)
    (stopped.folder / name).symlink_to(target)
    with pytest.raises((ValueError, OSError)) as refusal:
        execute(stopped.folder)
    assert name in str(refusal.value)
    if name == "log.txt":
        with pytest.raises(OSError, match=r"log\.txt"):
            launch(stopped.folder, "workbook.training")
    assert target.is_dir() or target.read_text() == "mine"
    assert target.is_file() or not list(target.iterdir())


@pytest.mark.parametrize("name", ["metrics.jsonl", "stop", "samples"])
def test_what_is_of_another_kind_than_a_runs_is_refused(tmp_path, name):
    run = create_run(CONFIG, tmp_path / "run")
    path = run.folder / name
    if name == "samples":
        path.write_text("mine")
    else:
        path.mkdir()
    with pytest.raises(ValueError, match=rf"{name} is a (file|folder), where a run has a (file|folder)"):
        execute(run.folder)
    assert path.exists()
    assert not (run.folder / "manifest.json").exists()


def test_a_linked_checkpoint_is_none(stopped, tmp_path):
    (stopped.folder / "checkpoint-4").rename(tmp_path / "elsewhere")
    (stopped.folder / "checkpoint-4").symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path / "elsewhere")
    assert_resumes(stopped)
    assert contents(tmp_path / "elsewhere") == before


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("text", [*TEXTS, None], ids=lambda text: repr(text)[:30])
@pytest.mark.parametrize("name", ["status.json", "samples.json", "evaluation.json", "checkpoint-4/checksums.json"])
def test_damaged_json_is_left_out_or_a_note(tmp_path, name, text):
    run = Run(tmp_path / "run")
    shutil.copytree(made() / "stopped", run.folder)
    (run.folder / name).unlink()
    if text is not None:
        (run.folder / name).write_bytes(text.encode(errors="surrogatepass"))
    assert run.status()["state"] in ("stopped", "interrupted", "finished")
    assert name != "status.json" or run.status()["notes"] or text not in (None, "", "null", "[]")
    assert len(run.samples()) == (0 if name == "samples.json" else 8)
    assert len(run.evaluation()) == (0 if name == "evaluation.json" else 2)
    complaint = worker.newest_intact(run.folder)[1]
    assert complaint == (["checkpoint-4 has no readable checksums.json"] if "checkpoint" in name else [])


def test_damaged_metrics_rows_are_left_out(stopped):
    rows = stopped.metrics()
    with open(stopped.folder / "metrics.jsonl", "a") as file:
        for step in ('"x"', "NaN", "-1", "0", "3.5", "true", "null", "{}", "1e999", "9" * 400):
            file.write(f'{{"step": {step}, "reward": 1.0}}\n')
        file.write("[" * 100_000 + "\n")
    assert stopped.metrics().equals(rows)
    assert stopped.status()["step"] == rows["step"].iloc[-1]


@pytest.mark.parametrize(
    ("name", "words"), [("manifest.json", "restore it, or delete it"), ("config.yaml", "config.yaml")]
)
def test_what_a_run_was_made_from_is_not_guessed(stopped, name, words):
    (stopped.folder / name).write_text("{")
    with pytest.raises(ValueError, match=words) as refusal:
        execute(stopped.folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("part", ["config", "policy", "versions", "task_sha256"])
def test_no_part_of_a_damaged_manifest_is_passed_over(stopped, part):
    path = stopped.folder / "manifest.json"
    path.write_text(json.dumps(stopped.manifest() | {part: ["text"]}))
    with pytest.raises(ValueError, match=f"its {part} is no mapping. It says what the run started from: restore it"):
        execute(stopped.folder)


@pytest.mark.parametrize("arguments", [arguments for _, arguments in sample("run_folders", 8)])
def test_whatever_is_damaged_nothing_foreign_is_changed(tmp_path, arguments):
    assert attempt(tmp_path, *arguments) is None


def test_a_checkpoint_of_another_run_is_none_of_its_own(stopped):
    state = stopped.folder / "checkpoint-4" / "trainer_state.json"
    shutil.copytree(state.parent, stopped.folder / "checkpoint-900")
    newest, complaints = worker.newest_intact(stopped.folder, 6)
    assert newest.name == "checkpoint-4"
    assert complaints == ["checkpoint-900 was written at step 4"]
    assert worker.newest_intact(stopped.folder, 8)[0] is None


def test_a_damaged_model_is_not_loaded_and_written_again(tmp_path):
    shutil.copytree(made() / "whole", tmp_path / "run")
    run = load_run(tmp_path / "run")
    (run.folder / "final" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"model of .* is damaged \(final/model.safetensors has 0 bytes"):
        run.policy()
    assert main(["resume", str(run.folder)]) == 0
    assert_resumes(run)
    assert run.policy().model is not None


@pytest.mark.parametrize("text", ["", "[]", "null", '{"pid": 1}', '{"pid": "x", "jobs": 2}', '{"pid": 1, "jobs": 0}'])
def test_a_sweep_with_a_damaged_process_file_has_ended(tmp_path, text):
    (tmp_path / "sweep.yaml").write_text(json.dumps(CONFIG | {"grid": {"seed": [0]}}))
    (tmp_path / "process.json").write_text(text)
    damaged = SweepRun(tmp_path)
    assert damaged.status()["state"] == "interrupted"
    assert damaged._process()["jobs"] == 1


def test_a_sweep_writes_a_damaged_model_again(tmp_path):
    shutil.copytree(made() / "whole", tmp_path / "seed=0")
    model = tmp_path / "seed=0" / "final" / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(b"")
    config = load_run(tmp_path / "seed=0").config
    with joblib.parallel_config("sequential"):
        sweep(config, {"seed": [config.seed]}, tmp_path, quiet=True)
    assert model.read_bytes() == whole


def test_a_sweep_whose_finished_run_has_no_rewards_is_not_kept(tmp_path):
    shutil.copytree(made() / "whole", tmp_path / "sweep" / "seed=0")
    (tmp_path / "sweep" / "seed=0" / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no rewards"):
        keep_sweep(tmp_path / "sweep", results=tmp_path / "results")
    (tmp_path / "sweep" / "seed=0" / "manifest.json").write_text("{}")
    with pytest.raises(ValueError, match="is damaged: it has no created"):
        keep_sweep(tmp_path / "sweep", results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


# ---------------------------------------------------------------- what a run is made from


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A stopped run of adapters on a model, prompts and a reward of the reader's own, and where these lie."""
    home = tmp_path_factory.mktemp("jane-doe")
    shutil.copytree(BUNDLED, home / "base")
    (home / "rows.csv").write_text(OWN)
    (home / "reward.py").write_text(REWARD)
    config = CONFIG | {"policy": str(home / "base"), "lora": 2, "task": f"own:{home / 'rows.csv'}"}
    config |= {"task_options": {"reward": f"{home / 'reward.py'}:score"}}
    run = train(config, home / "runs" / "whole")
    stopped_copy(run.folder, home / "runs" / "stopped")
    return home


def other_weights(path: Path) -> None:
    tensors = load_file(path)
    save_file({name: tensor + 1e-3 for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


CHANGES = {
    "rows.csv": (lambda path: path.write_text(OWN.replace("1 + 1 =,2", "1 + 1 =,3")), r"rows\.csv"),
    "reward.py": (lambda path: path.write_text(REWARD.replace("float", "2 * float")), r"reward\.py"),
    "base/model.safetensors": (other_weights, r"the weights of the policy '.*base'"),
    "base/tokenizer.json": (lambda path: path.write_text(path.read_text().replace('"now"', '"nov"')), "the tokenizer"),
    "base/generation_config.json": (lambda path: path.write_text('{"eos_token_id": 3}'), "the model config"),
    "base": (lambda path: path.rename(path.with_name("moved")), r"base"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_resume_from_other_files_is_refused(own, tmp_path, name):
    change, words = CHANGES[name]
    shutil.copytree(own / "runs" / "stopped", tmp_path / "run")
    shutil.copytree(own / "base", tmp_path / "base")
    before = (own / name).read_bytes() if (own / name).is_file() else None
    change(own / name)
    try:
        with pytest.raises(ValueError, match=words) as refusal:
            execute(tmp_path / "run")
    finally:
        if before is None:
            (own / "moved").rename(own / name)
        else:
            (own / name).write_bytes(before)
    assert "\n" not in str(refusal.value)
    assert name == "base" or str(refusal.value).startswith("Changed since the run started: ")
    assert execute(tmp_path / "run").status()["state"] == "finished"
    adapters = [
        load_file(folder / "final" / "adapter_model.safetensors") for folder in (tmp_path / "run", own / "runs/whole")
    ]
    assert all(torch.equal(adapters[0][key], adapters[1][key]) for key in adapters[1])


def test_other_versions_are_a_note(stopped):
    manifest = stopped.manifest()
    manifest["versions"]["torch"] = "1.0"
    (stopped.folder / "manifest.json").write_text(json.dumps(manifest))
    assert_resumes(stopped)
    assert re.search(r"other surroundings: torch 1\.0 -> \d", stopped.status()["notes"][0])


def test_held_out_prompts_are_none_that_are_trained_on(own):
    run = Run(own / "runs" / "whole")
    trainer, _, _, held_out = worker._build(run.config, own / "unused")
    assert len(held_out) == CONFIG["eval_prompts"]
    assert not set(held_out["prompt"]) & set(trainer.train_dataset["prompt"])


def test_evaluation_samples_as_training_does(tmp_path, monkeypatch):
    same = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    same |= {"chat_template_kwargs": {"enable_thinking": False}, "generation_kwargs": {"no_repeat_ngram_size": 3}}
    config = sampling_with(same)
    args = trainer_args(config, torch.device("cpu"), tmp_path)
    assert sampling_settings(args) == same | {"max_new_tokens": args.max_completion_length}
    assert args.max_completion_length == 512, "TRL's own default"
    asked = {}

    def record(*_, **settings):
        asked.update(settings)
        raise RuntimeError("enough")

    monkeypatch.setattr(worker, "sample_rollouts", record)
    with pytest.raises(RuntimeError, match="enough"):
        train(config.override({"max_completion_length": 6}), tmp_path / "run")
    assert asked == same | {"max_new_tokens": 6, "seed": worker.HELD_OUT_SEED}
    assert not (tmp_path / "run").exists()


def sampling_with(settings: dict):
    trainer = {key: value for key, value in CONFIG["trainer"].items() if key != "max_completion_length"}
    return RunConfig.load(CONFIG | {"trainer": trainer | settings})


@pytest.mark.parametrize("prompts", [0, 2])
def test_rewards_beyond_float32_end_a_run(tmp_path, monkeypatch, prompts):
    from workbook.tasks import Chain

    monkeypatch.setattr(Chain, "reward", lambda self, completions, **_: [1e39] * len(completions))
    with pytest.raises(ValueError, match=r"reward .*(finite|float32)"):
        train(CONFIG | {"eval_prompts": prompts}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- refused runs


def test_a_refused_run_leaves_nothing(own, tmp_path, capsys):
    shutil.copytree(own / "base", tmp_path / "base")
    (tmp_path / "base" / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG | {"policy": str(tmp_path / "base")}))
    before = contents(tmp_path)
    assert main(["train", str(tmp_path / "config.yaml"), "--folder", str(tmp_path / "run")]) == 2
    assert "base" in capsys.readouterr().err
    assert contents(tmp_path) == before
    with pytest.raises(ValueError, match="hub_token") as refusal:
        create_run(CONFIG | {"trainer": CONFIG["trainer"] | {"hub_token": "hf_secret"}}, tmp_path / "run")
    assert "hf_secret" not in str(refusal.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_refused_run_leaves_no_folder_that_was_made_for_it(own, tmp_path, monkeypatch, file, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBOOK_RUNS", "mine/runs")
    shutil.copytree(own / "base", "base")
    Path("base", file).write_text('{"model_type": "llama", "hidden_size": "x"}')
    Path("mine").mkdir()
    Path("config.yaml").write_text(json.dumps(CONFIG | {"policy": "base"}))
    assert main(["train", "config.yaml"]) == 2
    assert "base" in capsys.readouterr().err
    assert list(Path("mine").iterdir()) == []


@pytest.mark.parametrize(
    ("file", "words"),
    [("generation_config.json", "eos_token_id='x' in generation_config"), ("tokenizer_config.json", "without an end")],
)
def test_a_policy_that_never_ends_is_refused(own, tmp_path, file, words):
    shutil.copytree(own / "base", tmp_path / "base")
    path = tmp_path / "base" / file
    changes = {"eos_token_id": "x"} if file.startswith("gen") else {"eos_token": None}
    path.write_text(json.dumps(json.loads(path.read_text() if path.exists() else "{}") | changes))
    with pytest.raises(ValueError, match=words):
        train(CONFIG | {"policy": str(tmp_path / "base")}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", [KeyError("nope"), TypeError("expected int"), AssertionError("padding_idx")])
def test_what_a_library_finds_wrong_with_a_policy_is_a_sentence(tmp_path, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(worker, "load_policy", fails)
    with pytest.raises(ValueError, match="policy='bundled' can't be loaded: "):
        train(CONFIG, tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", [None, 3, ["a"], b"run", True, {}, "", "a\0b", "x" * 300, "\ud800"])
def test_what_is_no_path_is_refused(folder):
    for take in (load_run, SweepRun, lambda folder: export_config(RunConfig.load(CONFIG), folder)):
        with pytest.raises(ValueError, match=r"^folder=") as refusal:
            take(folder)
        assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("runs", [None, 3, "run", Run("run")])
def test_runs_to_compare_are_a_list(runs):
    with pytest.raises(ValueError, match="must be a list of runs"):
        compare_runs(runs)


def test_a_run_that_never_trained_can_be_started_anew(tmp_path):
    run = create_run(CONFIG, tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run"):
        create_run(CONFIG, run.folder)
    set_status(run, "failed", "ValueError: its policy is gone.")
    (run.folder / "mine").write_text("mine")
    with pytest.raises(ValueError, match=r"e\.g\. mine"):
        create_run(CONFIG, run.folder)
    assert (run.folder / "mine").read_text() == "mine"
    (run.folder / "mine").unlink()
    assert create_run(CONFIG, run.folder).status()["state"] == "starting"


def test_a_run_that_fails_before_its_first_step_is_left_only_where_nobody_waited(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_launch", lambda run: set_status(run, "failed", "ValueError: its policy is gone."))
    with pytest.raises(RuntimeError, match="its policy is gone"):
        start_run(CONFIG, tmp_path / "run", wait=True)
    assert not list(tmp_path.iterdir())
    assert start_run(CONFIG, tmp_path / "run").status()["message"] == "ValueError: its policy is gone."
    assert start_run(CONFIG, tmp_path / "run").status()["state"] == "failed"


def test_a_run_that_trained_is_kept_though_it_failed(stopped):
    set_status(stopped, "failed", "RuntimeError: out of memory")
    before = contents(stopped.folder)
    with pytest.raises(ValueError, match="already holds a run"):
        start_run(CONFIG, stopped.folder)
    assert contents(stopped.folder) == before


# ---------------------------------------------------------------- signs of life


def test_setting_the_clock_ends_no_run(monkeypatch):
    process = identity(os.getpid())
    born = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: born(self) + 3600)
    if background._since(os.getpid()) is None:
        pytest.skip("this system says when a process began by the clock alone")
    assert is_alive(process)
    assert not is_alive(process | {"since": "another boot+1"})
    assert not is_alive({"pid": process["pid"], "born": process["born"]}), "an older status.json, judged by the clock"


def test_a_lock_that_is_held_is_a_sign_of_life(stopped):
    set_status(stopped, "running", "Training.", pid=2**22 + 1, since="another machine+1")
    assert stopped.status()["state"] == "interrupted"
    held = "import filelock, sys; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(1, flush=True); input()"
    command = [sys.executable, "-c", held, str(training_lock(stopped).lock_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert stopped.running
        process.communicate(b"\n")
    assert stopped.status()["state"] == "interrupted"


def test_a_run_of_its_own_process_hashes_as_every_other(tmp_path, monkeypatch):
    asked = {}

    class Process:
        pid = os.getpid()

        def __init__(self, *_, **options):
            asked.update(options)

    monkeypatch.setattr(background.subprocess, "Popen", Process)
    monkeypatch.setattr(background, "_children", {})
    launch(tmp_path, "any")
    assert asked["env"]["PYTHONHASHSEED"] == "0"


# ---------------------------------------------------------------- exports


def test_an_export_names_no_place_and_loads_elsewhere(own, tmp_path, monkeypatch):
    from peft import PeftModel

    run = Run(own / "runs" / "whole")
    zipped = export_run(run, tmp_path / "taken")
    texts = {path: path.read_bytes() for path in (tmp_path / "taken").rglob("*") if path.is_file()}
    assert {"README.md", "adapter_config.json", "manifest.json", "rows.csv"} <= {path.name for path in texts}
    assert not [path for path, text in texts.items() if b"jane-doe" in text or str(Path.home()).encode() + b"/" in text]
    shutil.copytree(own / "base", tmp_path / "taken" / "base")
    monkeypatch.chdir(tmp_path / "taken")
    base = load_policy(json.loads(Path("model/adapter_config.json").read_text())["base_model_name_or_path"])
    loaded = PeftModel.from_pretrained(base.model, "model").state_dict()
    trained = run.policy().model.state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in trained.items())
    shutil.rmtree(tmp_path / "taken")
    with pytest.raises(ValueError, match=r"taken\.zip is there already"):
        export_run(run, tmp_path / "taken")
    assert zipped.exists()


@pytest.mark.parametrize("name", ["status.json", "config.yaml", "rows.csv"])
def test_an_exported_config_replaces_no_file_of_a_readers(own, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=re.escape(name)):
        export_config(Run(own / "runs" / "whole").config, tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_an_export_has_what_the_reward_imports_from_beside_it(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sums.csv").write_text("prompt,answer\n1 + 1 =,2\n1 + 2 =,3\n")
    (mine / "scale.py").write_text("HALF = 0.5\n")
    (mine / "score.py").write_text("from scale import HALF\n\ndef score(completion, answer):\n    return HALF\n")
    options = {"reward": f"{mine / 'score.py'}:score"}
    config = RunConfig(task=f"own:{mine / 'sums.csv'}", task_options=options, num_prompts=1)
    export_config(config, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.yaml", "sums.csv", "score.py", "scale.py"}


def test_weights_are_as_readable_as_the_rest():
    folder = made() / "whole"
    modes = {path.stat().st_mode for path in folder.rglob("*") if path.is_file() and path.name != "training.lock"}
    assert len(modes) == 1
