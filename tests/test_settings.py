"""Settings of a run: what TRL's annotations and our own switches refuse in one sentence, and that
what is right passes.
"""

import re

import numpy as np
import pytest
import torch
import yaml
from refusals import refused
from small_run import BASE

from workbook.app import load_sweep, sweep
from workbook.app.sweeps import combinations
from workbook.places import data_path
from workbook.training import RunConfig
from workbook.training import config as settings
from workbook.training.checks import check_run, validate
from workbook.training.config import dump_settings, parse_settings

CONFIGS = sorted(
    path for path in data_path("configs").rglob("*.yaml") if path.parent.name != "accelerate"
)


def errors(config) -> list[str]:
    return [problem.sentence for problem in validate(config) if problem.severity == "error"]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_prompts": 1.5},
        {"seed": True},
        {"batching": 5},
        {"fp32_adapters": 1},
        {"record_tokens": -1},
        {"beta": "x"},
        {"epsilon": float("nan")},
        {"learning_rate": float("inf")},
        {"max_steps": 0},
        {"lr_scheduler_kwargs": "a"},
        {"generation_kwargs": [1]},
    ],
    ids=str,
)
def test_a_wrong_type_or_size_is_refused_in_one_sentence(changes):
    ((name, value),) = changes.items()
    field = name if name in settings.FIELDS else f"trainer.{name}"
    with refused(field, value):
        check_run(RunConfig.load(BASE).override(changes))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"epsilon": -1}, "trainer.epsilon"),
        ({"batching": "sorted"}, "trainer.batching"),
        ({"hub_token": "hf_x"}, "trainer.hub_token"),
        ({"num_train_epochs": 2}, "trainer.num_train_epochs"),
        ({"max_steps": 1, "trainer.max_steps": 2}, "trainer.max_steps"),
        ({"eval_steps": 5}, "trainer.eval_steps"),
        ({"name": "a/b"}, "name"),
        ({"policy": "a/b/c"}, "policy"),
        ({"policy": "family:seed=1,alphabets=3"}, "policy"),
        ({"task_options": {"operands": 99}}, "operands"),
    ],
)
def test_a_refusal_knows_its_field_and_value(changes, field):
    value = changes.get(field, next(reversed(changes.values())))
    with refused(field, value["operands"] if field == "operands" else value):
        check_run(RunConfig.load(BASE).override(changes))


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"learning_rat": 1.0}, "learning_rat", 1.0),
        ({"num_generations": 3}, "num_generations", 3),
        ({"batching": "sign_partitioned"}, "steps_per_generation", 1),
        ({"quantization": "nf4"}, "lora", None),
        ({"dtype": "bfloat16"}, "dtype", "bfloat16"),
        ({"num_prompts": 1}, "num_prompts", 1),
    ],
    ids=str,
)
def test_what_contradicts_the_rest_names_the_field_that_should_change(changes, field, value):
    with refused(field, value):
        check_run(RunConfig.load(BASE).override(changes))


def test_trls_refusal_that_names_no_field_is_the_trainers():
    with refused("trainer"):
        check_run(RunConfig.load(BASE).override({"num_generations": 1}))


def test_trls_own_defaults_pass():
    defaults = {
        name: getattr(settings.CancellationConfig, name, None)
        for name in settings.trainer_fields()
        if not settings.why_not_of_a_run(name) and name not in settings.NEW_NAMES.values()
    }
    # a run has its own length, and TRL makes its empty list per config
    for name in ("max_steps", "debug", "include_for_metrics"):
        del defaults[name]
    settings.check_trainer(defaults)


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
    with refused("trainer.gradient_checkpointing", True):
        RunConfig(
            trainer=dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), True)
        )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_runs(path):
    if "grid" not in yaml.safe_load(path.read_text()):
        assert errors(RunConfig.load(path)) == []
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
        RunConfig.load(tmp_path / "c.yaml").trainer["learning_rate"]
        == parse_settings(text)
        == 0.0005
    )


def test_yaml_that_is_written_is_read_again():
    config = RunConfig(
        name="1e3", task="own:no", trainer={"learning_rate": 1e-5, "max_steps": 1000, "delta": None}
    )
    texts = ("5e-4", "1:30", "yes", "010", "1_0", "", "2024-01-01")
    config = config.override({"task_options": {text: text for text in texts}})
    assert RunConfig.load(parse_settings(dump_settings(vars(config)))) == config


def test_what_python_has_beside_yaml_is_taken_as_yaml_would_have_it(tmp_path):
    rate = {"learning_rate": torch.tensor(0.5), "reward_weights": (1.0,)}
    config = RunConfig(policy=tmp_path, seed=np.int64(3), trainer=rate)
    assert (config.policy, config.seed) == (str(tmp_path), 3)
    assert RunConfig.load(parse_settings(dump_settings(vars(config)))) == config
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
    with pytest.raises(ValueError, match=re.escape(words)):
        check_run(RunConfig.load(path))
    with pytest.raises(ValueError, match=r"none\.yaml"):
        RunConfig.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "must be a mapping"),
        ({"seed": [0, 0]}, "same combination twice"),
        (
            {"learning_rate": [1e-3, -1]},
            "learning_rate=-1 makes no run",
        ),
        ({"batching": ["shuffled", "sign_partitioned"]}, "batching=sign_partitioned makes no run"),
    ],
)
def test_a_sweep_with_a_mistake_writes_nothing(grid, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        sweep(RunConfig.load(BASE), grid, tmp_path / "out")
    assert not (tmp_path / "out").exists()
