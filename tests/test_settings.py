"""Settings of a run: what TRL's annotations and our ranges refuse in one sentence, and that what is
right passes.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from small_run import BASE

from workbook.app import load_sweep, sweep
from workbook.app.sweeps import combinations
from workbook.places import data_path
from workbook.training import RunConfig
from workbook.training import config as settings
from workbook.training.checks import check_run, validate
from workbook.training.config import dump_yaml, parse_yaml

CONFIGS = sorted(
    path for path in data_path("configs").rglob("*.yaml") if path.parent.name != "accelerate"
)
WRONG = Path(__file__).parent / "data" / "wrong_settings.csv"


def errors(config) -> list[str]:
    return [problem.sentence for problem in validate(config) if problem.severity == "error"]


def refusal(changes: dict) -> str | None:
    """The sentence that refuses a setting; None where nothing does."""
    try:
        check_run(RunConfig.load(BASE).override(changes))
    except ValueError as error:
        return str(error)
    return None


def test_of_486_wrong_settings_at_least_480_are_refused_in_a_sentence():
    with open(WRONG, newline="", encoding="utf-8") as file:
        rows = [(row["field"], json.loads(row["value"])) for row in csv.DictReader(file)]
    sentences = [refusal({field: value}) for field, value in rows]
    assert len(rows) == 486
    assert sum(sentence is not None for sentence in sentences) >= 480
    assert all("\n" not in sentence for sentence in sentences if sentence)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": -1}, "trainer.epsilon=-1: it should be greater than 0."),
        ({"loss_type": "ppo"}, "trainer.loss_type='ppo': it should be 'grpo', 'dr_grpo'"),
        ({"hub_token": "hf_x"}, "trainer.hub_token would upload, and nothing of a run is uploaded; remove it."),
        ({"num_train_epochs": 2}, "trainer.num_train_epochs has no effect on a run, whose length is max_steps"),
        ({"max_steps": 1, "trainer.max_steps": 2}, "trainer.max_steps is set twice"),
        ({"learning_rat": 1.0}, "did you mean learning_rate"),
        ({"generation_kwargs": {"top_p": 0.5}}, "top_p, which is a field of its own; set trainer.top_p"),
        ({"warmup_steps": 5}, "warmup_steps=5 must be at most max_steps=1"),
        ({"lr_scheduler_kwargs": {"min_lr": 1}}, "has no effect on lr_scheduler_type='constant'"),
        ({"use_vllm": True}, "use_vllm=True needs the package vllm, which is not installed"),
        ({"num_generations": 3}, "num_generations=3"),
        ({"name": "a/b"}, "name='a/b' must be a folder's name"),
        ({"policy": "a/b/c"}, "policy='a/b/c' must be 'bundled'"),
        ({"quantization": "nf4"}, "lora=None leaves nothing to train"),
        ({"dtype": "bfloat16"}, "is for frozen weights"),
        ({"task_options": {"operands": 99}}, "task='chain' with task_options={'operands': 99}: operands is 99"),
    ],
)  # fmt: skip
def test_the_sentence_names_field_and_value(changes, words):
    assert words in (refusal(changes) or "")


def test_trls_own_defaults_pass_and_every_number_of_it_has_a_range(recwarn):
    known = {
        name: default
        for name, default in vars(settings.CancellationConfig).items()
        if name in settings.trainer_fields()
    }
    # of which a run has its own
    own = {"max_steps", "logging_steps", *settings.REASONS, *settings.CHOICES}
    own |= set(settings.NEW_NAMES.values())
    settings.check_trainer(
        {name: value for name, value in known.items() if name not in own and not callable(value)}
    )
    assert not recwarn.list


def test_a_field_that_is_new_in_trl_passes_with_a_warning(monkeypatch):
    monkeypatch.setattr(settings, "_TAKEN", settings._TAKEN.replace("entropy_coef_delta", ""))
    settings.new_fields.cache_clear()
    try:
        with pytest.warns(
            UserWarning, match="trainer.entropy_coef_delta is newer than this workbook"
        ):
            settings.check_trainer({"entropy_coef_delta": 0.1, "entropy_coef": 0.1})
    finally:
        settings.new_fields.cache_clear()


@pytest.mark.parametrize("old", [True, False])
def test_checkpointing_is_taken_by_its_old_name_and_its_new_one(old):
    names = settings.NEW_NAMES if old else {new: new for new in settings.NEW_NAMES.values()}
    given = dict(zip(names, (True, {"use_reentrant": False}), strict=True))
    for trainer, expected in ((given, (True, {"use_reentrant": False})), ({}, (False, None))):
        config = RunConfig.load(BASE).override(
            {f"trainer.{name}": value for name, value in trainer.items()}
        )
        args = settings.trainer_args(config, torch.device("cpu"), "out")
        assert (args.gradient_checkpointing, args.gradient_checkpointing_kwargs) == expected
    with pytest.raises(
        ValueError,
        match=r"gradient_checkpointing is the old name of trainer\.activation_checkpointing",
    ):
        RunConfig(
            trainer=dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), True)
        )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_runs(path):
    if "grid" not in yaml.safe_load(path.read_text()):
        # which is not installed here
        assert errors(RunConfig.load(path).override({"use_vllm": False})) == []
        return
    config, grid = load_sweep(path)
    first = {
        key: values[0] for key, values in (grid[0] if isinstance(grid, list) else grid).items()
    }
    assert errors(config.override(first)) == []


@pytest.mark.parametrize("text", ["5e-4", "5E-4", "+5e-4", "0.0005", ".5e-3", "5.e-4"])
def test_a_number_is_one_in_a_file_and_on_the_command_line(text, tmp_path):
    (tmp_path / "c.yaml").write_text(f"trainer:\n  learning_rate: {text}\n")
    assert (
        RunConfig.load(tmp_path / "c.yaml").trainer["learning_rate"] == parse_yaml(text) == 0.0005
    )


def test_yaml_that_is_written_is_read_again():
    config = RunConfig(
        name="1e3", task="own:no", trainer={"learning_rate": 1e-5, "max_steps": 1000, "delta": None}
    )
    texts = ("5e-4", "1:30", "yes", "010", "1_0", "", "2024-01-01")
    config = config.override({"task_options": {text: text for text in texts}})
    assert RunConfig.load(parse_yaml(dump_yaml(vars(config)))) == config


def test_what_python_has_beside_yaml_is_taken_as_yaml_would_have_it(tmp_path):
    rate = {"learning_rate": torch.tensor(0.5), "reward_weights": (1.0,)}
    config = RunConfig(policy=tmp_path, seed=np.int64(3), trainer=rate)
    assert (config.policy, config.seed) == (str(tmp_path), 3)
    assert RunConfig.load(parse_yaml(dump_yaml(vars(config)))) == config
    assert [type(value) for value in (config.seed, config.trainer["learning_rate"])] == [int, float]
    (name, config), _ = combinations(
        RunConfig.load(BASE), {"learning_rate": np.array([0.5, 0.25])}
    ).items()
    assert (name, config.trainer["learning_rate"]) == ("learning_rate=0.5", 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "mapping"),
        ("name: [", "line 1"),
        ("name: a\nseed: 1\nseed: 2\n", "seed is given twice"),
        ("name: !!python/object/apply:os.system [id]\n", "not valid YAML"),
        ("name: café\n".encode("latin-1"), "UTF-8"),
        ("trainer: [max_steps, 1]\n", "trainer=['max_steps', 1]"),
        ("name: a\ntrainer: {learning_rate: 1e-3}\n", "max_steps is missing"),
    ],
)
def test_a_file_that_is_no_config_is_named(text, words, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"c\.yaml|max_steps") as caught:
        check_run(RunConfig.load(path))
    assert words in str(caught.value)
    with pytest.raises(ValueError, match=r"none\.yaml can't be read"):
        RunConfig.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "must be a mapping"),
        ({"seed": [0, 0]}, "same combination twice"),
        (
            {"learning_rate": [1e-3, -1]},
            "The combination learning_rate=-1 makes no run: trainer.learning_rate=-1",
        ),
        ({"batching": ["shuffled", "sign_partitioned"]}, "batching=sign_partitioned makes no run"),
    ],
)
def test_a_sweep_with_a_mistake_writes_nothing(grid, words, tmp_path):
    with pytest.raises(ValueError, match=" ") as caught:
        sweep(RunConfig.load(BASE), grid, tmp_path / "out")
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()
