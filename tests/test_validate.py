"""What a config may hold: every field has a kind and its sentence, and what goes together is asked in advance."""

import json
import math
from dataclasses import MISSING, fields

import numpy as np
import pytest
import torch
import yaml
from mistakes import BASE

from workbook.studies.record import RESULTS
from workbook.theory.choices import CLIPPINGS, ESTIMATORS, RULES, STRATEGIES, TRANSFORM_INPUTS, TRANSFORMS
from workbook.training import RunConfig, load_sweep, sweep
from workbook.training.config import CancellationConfig
from workbook.training.config_text import dump_yaml, parse_yaml
from workbook.training.messages import explain_error
from workbook.training.schema import check_fields
from workbook.training.sweep_run import start_sweep
from workbook.training.sweeps import checked_runs
from workbook.training.trainer_fields import OPTIMIZER_BYTES, REASONS, SCHEDULES, TRAINER, TRAINER_FIELDS
from workbook.training.validate import check_run, validate

CONFIGS = sorted(path for path in (RESULTS.parent / "configs").rglob("*.yaml") if path.parent.name != "accelerate")
NEEDS = {
    **{name: {"min_lr": 1e-5} for name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr")},
    "warmup_stable_decay": {"num_decay_steps": 1},
}


def errors(config) -> list[str]:
    return [problem.sentence for problem in validate(config) if problem.severity == "error"]


def test_every_field_of_trls_config_is_taken_or_refused_with_a_reason():
    known = {f.name: f for f in fields(CancellationConfig)}
    assert set(known) == set(TRAINER_FIELDS) | set(REASONS)
    assert not set(TRAINER_FIELDS) & set(REASONS)
    own = {"max_steps", "logging_steps"}  # of which a run has defaults of its own
    for name in set(TRAINER_FIELDS) - own:
        if known[name].default is not MISSING:
            check_fields(TRAINER, {name: known[name].default})


def test_choices_are_those_of_the_trainers_checks():
    choices = {"group_transform": (None, *TRANSFORMS), "transform_on": TRANSFORM_INPUTS, "clipping": CLIPPINGS}
    choices |= {"batching": STRATEGIES, "advantage_estimator": (*ESTIMATORS, *RULES)}
    for name, values in choices.items():
        for value in values:
            check_fields(TRAINER, {name: value})
        with pytest.raises(ValueError, match=name):
            check_fields(TRAINER, {name: "another"})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_runs(path):
    if "grid" not in yaml.safe_load(path.read_text()):
        assert errors(RunConfig.load(path).override({"use_vllm": False})) == []  # which is not installed here
        return
    config, grid = load_sweep(path)
    first = {key: values[0] for key, values in (grid[0] if isinstance(grid, list) else grid).items()}
    assert errors(config.override(first)) == []


def test_every_optimizer_and_schedule_that_is_offered_is_a_run():
    config = RunConfig.load(BASE)
    for optimizer in OPTIMIZER_BYTES:
        assert errors(config.override({"optim": optimizer})) == [], optimizer
    for schedule in SCHEDULES:
        settings = {"lr_scheduler_type": schedule, "lr_scheduler_kwargs": NEEDS.get(schedule)}
        assert errors(config.override(settings)) == [], schedule


@pytest.mark.parametrize("text", ["5e-4", "5E-4", "+5e-4", "0.0005", ".5e-3", "5.e-4"])
def test_a_number_is_one_in_a_file_and_on_the_command_line(text, tmp_path):
    (tmp_path / "c.yaml").write_text(f"trainer:\n  learning_rate: {text}\n")
    assert RunConfig.load(tmp_path / "c.yaml").trainer["learning_rate"] == parse_yaml(text) == 0.0005


def test_yaml_that_is_written_is_read_again():
    config = RunConfig(name="1e3", task="own:no", trainer={"learning_rate": 1e-5, "max_steps": 1000, "delta": None})
    config = config.override(
        {"task_options": {text: text for text in ("5e-4", "1:30", "yes", "010", "1_0", "", "2024-01-01")}}
    )
    assert RunConfig.load(parse_yaml(dump_yaml(vars(config)))) == config


def test_what_python_has_beside_yaml_is_taken_as_yaml_would_have_it(tmp_path):
    config = RunConfig(
        policy=tmp_path, seed=np.int64(3), trainer={"learning_rate": np.float64(0.5), "reward_weights": (1.0,)}
    )
    assert (config.policy, config.seed) == (str(tmp_path), 3)
    assert RunConfig.load(parse_yaml(dump_yaml(vars(config)))) == config
    assert [type(value) for value in (config.seed, config.trainer["learning_rate"])] == [int, float]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epsilon": -1}, "trainer.epsilon=-1 must be a finite number above 0."),
        ({"max_grad_norm": math.nan}, "trainer.max_grad_norm=nan must be a finite number of at least 0."),
        ({"learning_rate": math.inf}, "trainer.learning_rate=inf must be a finite number above 0."),
        ({"threads": 10**9}, "threads=1000000000 must be an integer of at least 1 and at most 256, or null."),
        ({"lora": 10**7}, "lora=10000000 must be an integer of at least 1 and at most 1,024, or null."),
        ({"trainer": [1]}, "trainer=[1] must be a mapping of fields of CancellationConfig to values."),
        ({"scale_rewards": 1}, "trainer.scale_rewards=1 must be 'group', 'batch', 'none', true or false."),
        ({"hub_token": "hf_x"}, "trainer.hub_token would upload, and nothing of a run is uploaded; remove it."),
        ({"bf16": True}, "trainer.bf16 is set by the run itself; remove it."),
        (
            {"max_steps": 1, "trainer.max_steps": 2},
            "trainer.max_steps is set twice, the second time to 2; set it once.",
        ),
        (
            {"generation_kwargs": {"typical_p": 9}},
            "trainer.generation_kwargs.typical_p=9 must be a number above 0 and at most 1.",
        ),
        (
            {"generation_kwargs": {"top_p": 0.5}},
            "trainer.generation_kwargs has top_p=0.5, which is a field of its own; set trainer.top_p instead.",
        ),
        (
            {"generation_kwargs": {"min_new_tokens": 99}, "max_completion_length": 9},
            "trainer.generation_kwargs.min_new_tokens=99 must be at most max_completion_length=9.",
        ),
        (
            {"chat_template_kwargs": {"tokenize": False}},
            "trainer.chat_template_kwargs has tokenize=False, which is set by the run itself; give variables of the "
            "template, e.g. enable_thinking.",
        ),
        (
            {"temperature": 1e-300},
            "trainer.temperature=1e-300 must be a number from 0.0001 to 1,000,000.",
        ),
        (
            {"task_options": {"a": float}},
            "task_options={'a': <class 'float'>} must be a mapping of names to plain values.",
        ),
    ],
)
def test_the_sentence_names_field_value_and_what_would_be_valid(settings, sentence):
    with pytest.raises(ValueError) as caught:
        RunConfig.load(BASE).override(settings)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "name", ["do_sample", "num_beams", "return_dict_in_generate", "eos_token_id", "guidance_scale"]
)
def test_what_makes_no_independent_rollouts_is_no_option_of_sampling(name):
    with pytest.raises(ValueError, match=f"trainer.generation_kwargs has {name}=1, which a run does not take"):
        RunConfig.load(BASE).override({"generation_kwargs": {name: 1}})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_decay_steps": -5}, "num_decay_steps=-5 must be an integer of at least 1 and at most"),
        ({"min_lr": math.nan}, "min_lr=nan must be a finite number of at least 0"),
        ({"min_lr": 10}, "min_lr=10 must be at most learning_rate="),
        ({"min_lr_rate": 5}, "min_lr_rate=5 must be a number from 0 to 1"),
    ],
)
def test_options_of_a_schedule_that_would_stop_it_unsaid_are_refused(options, words):
    with pytest.raises(ValueError, match=f"trainer.lr_scheduler_kwargs.{words}"):
        RunConfig.load(BASE).override({"learning_rate": 0.5, "lr_scheduler_kwargs": options})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"entropy_coef_min": 0.5, "entropy_coef_max": 0.1},
            "entropy_coef_min=0.5 must be at most entropy_coef_max=0.1",
        ),
        ({"transformers_continuous_batching_config": {"x": 1}}, "has no effect without"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        RunConfig.load(BASE).override(settings)


def test_what_holds_itself_is_refused():
    options: dict = {}
    options["itself"] = options
    with pytest.raises(ValueError, match="task_options is nested more than 20 deep"):
        RunConfig(task_options=options)


def test_a_launch_of_several_processes_is_checked_by_one_that_joins_no_other(monkeypatch):
    """Two processes with half a group each make whole groups; the check waits for nobody."""
    half = RunConfig.load(BASE).override({"per_device_train_batch_size": 2})
    assert "num_generations" in errors(half)[0]
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    assert "straddle two of the 2 processes" in errors(half)[0]
    assert errors(half.override({"per_device_train_batch_size": 4})) == []
    assert not torch.distributed.is_initialized()


def test_policy_and_task_are_asked_for(tmp_path):
    config = RunConfig.load(BASE)
    check_run(config)
    (tmp_path / "empty").mkdir()
    (tmp_path / "p.csv").write_text("prompt,answer\n" + "".join(f"{i} + 1 =,{i + 1}\n" for i in range(9)))
    (tmp_path / "r.py").write_text("def f(completion, answer):\n    return float(answer in completion)\n")
    own = {"task": f"own:{tmp_path}/p.csv", "task_options": {"reward": f"{tmp_path}/r.py:f"}}
    check_run(config.override(own))
    for settings, words in (
        ({"policy": str(tmp_path / "empty")}, "no config.json"),
        ({"policy": "a/b/c"}, "policy='a/b/c' must be 'bundled'"),
        (own | {"eval_prompts": 5}, "9 rows"),
        (own | {"task_options": {}}, "reward"),
        ({"task_options": {"operands": 99}}, "task='chain' with task_options={'operands': 99}: operands is 99"),
        ({"task_options": {"name": "x"}}, "'name'"),
    ):
        with pytest.raises(ValueError, match=" ") as caught:
            check_run(config.override(settings))
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "must be a mapping"),
        ({"seed": 0}, "grid: seed=0 must be a list"),
        ({"seed": [0, 0]}, "same combination twice"),
        ({"learning_rate": [1e-3, -1]}, "The combination learning_rate=-1 makes no run: trainer.learning_rate=-1"),
        ({"batching": ["shuffled", "sign_partitioned"]}, "batching=sign_partitioned makes no run"),
    ],
)
def test_a_sweep_with_a_mistake_writes_nothing(grid, words, tmp_path):
    for begin in (sweep, start_sweep):
        with pytest.raises(ValueError, match=" ") as caught:
            begin(RunConfig.load(BASE), grid, tmp_path / "out")
        assert words in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_a_grid_of_numpys_numbers_is_one_of_plain_numbers():
    (name, config), _ = checked_runs(RunConfig.load(BASE), {"learning_rate": np.array([0.5, 0.25])})
    assert (name, config.trainer["learning_rate"]) == ("learning_rate=0.5", 0.5)
    json.dumps(vars(config))
    rate = RunConfig.load(BASE).override({"learning_rate": torch.tensor(0.5)}).trainer["learning_rate"]
    assert (type(rate), rate) == (float, 0.5)


def test_a_librarys_message_is_one_line_of_bounded_length():
    assert explain_error(ValueError("first\n  second " + "x" * 5000)).startswith("first second xxx")
    assert len(explain_error(ValueError("x" * 5000))) == 300
    assert explain_error(RuntimeError()) == "RuntimeError, without a message."
