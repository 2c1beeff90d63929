"""What to change for a machine: every row is a valid run that is forecast to fit, and every launcher's file loads."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from workbook.__main__ import main
from workbook.environment import PROFILES
from workbook.places import data_path
from workbook.policies import load
from workbook.tasks import get_task
from workbook.training import memory
from workbook.training.checks import problems
from workbook.training.config import trainer_args
from workbook.training.machines import MACHINES, config_for, config_names, machine_table, ready_config, write_config
from workbook.training.memory import forecast_run, memory_forecast, peak_mib
from workbook.training.run_config import RunConfig
from workbook.training.shapes import QWEN_1_5B, SHAPES
from workbook.training.validate import check_run

CONFIGS = Path(__file__).parents[1] / "data" / "configs" / "accelerate"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("multi_gpu", "multi_gpu"), ("fsdp2", "use_fsdp"), *((f"deepspeed_zero{k}", "use_deepspeed") for k in (2, 3))],
)
def test_accelerates_own_parser_takes_each_launch_config(name, kind):
    path = CONFIGS / f"{name}.yaml"
    arguments = ["--config_file", str(path), "--num_processes", "4", "-m", "workbook", "train", "CONFIG"]
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    assert [key for key in ("multi_gpu", "use_fsdp", "use_deepspeed", "cpu", "tpu") if getattr(args, key)] == [kind]
    assert (args.num_processes, args.mixed_precision) == (4, "bf16")
    assert (args.training_script, args.training_script_args) == ("workbook", ["train", "CONFIG"])
    if kind == "use_fsdp":
        assert args.fsdp_version == 2
    if kind == "use_deepspeed":
        assert args.zero_stage == int(name[-1])
    comments = re.findall("^# .*", path.read_text(), re.MULTILINE)
    assert any("not measured" in line for line in comments)
    assert str(path.relative_to(CONFIGS.parents[2])) in " ".join(comments)


def test_every_launch_config_is_tested():
    assert sorted(path.stem for path in CONFIGS.iterdir()) == [
        "deepspeed_zero2",
        "deepspeed_zero3",
        "fsdp2",
        "multi_gpu",
    ]
    assert all(yaml.safe_load(path.read_text())["num_machines"] == 1 for path in CONFIGS.iterdir())


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_machines_settings_make_a_run_in_which_every_intervention_works(machine, tmp_path):
    fixed = {"group_transform": "min_replace", "batching": "query_preserved", "max_steps": 4, "use_vllm": False}
    args = trainer_args(machine.config.override(fixed), torch.device("cpu"), tmp_path)
    quantized = machine.config.quantization is not None
    faults = problems(args, world_size=machine.cards, quantized=quantized)
    assert [p.sentence for p in faults if p.severity == "error"] == []
    assert not (quantized and machine.config.trainer.get("use_vllm")), "vLLM would quantize the base anew"


def test_forecasts_fit():
    table = machine_table()
    assert (table["forecast GiB"] > 1).all()
    assert (table["forecast GiB"] < 0.8 * table["left GiB"]).all(), "the libraries want room, too"


def test_every_ready_config_has_a_machine_and_every_machine_a_ready_config():
    assert sorted(path.stem for path in data_path("configs", "machines").iterdir()) == sorted(config_names())
    for name in config_names():
        assert ready_config(name).name == name
        assert ready_config(name).policy in SHAPES
        check_run(ready_config(name).override({"use_vllm": False}))


@pytest.mark.parametrize("name", config_names())
def test_a_ready_config_is_forecast_where_it_is_written_without_asking_a_hub(name, tmp_path, monkeypatch):
    monkeypatch.setattr(load, "_from_hub", None)
    monkeypatch.setattr(memory, "run_device", lambda config: torch.device("cpu"))
    path, missing = write_config(name, tmp_path)
    config = RunConfig.load(path)
    assert missing == (
        ["use_vllm=True needs the package vllm, which is not installed: pip install vllm"]
        if config.trainer.get("use_vllm")
        else []
    )
    peak = peak_mib(forecast_run(config))
    longer = peak_mib(forecast_run(config.override({"max_completion_length": 4096})))
    assert 1024 < peak < longer


def test_prompts_without_a_tokenizer_are_taken_to_be_longer_than_they_are():
    rows = ("chain", "{}", 64, 0)
    assert memory._longest_prompt(load.BUNDLED, *rows) < memory._longest_prompt(None, *rows) < 200
    chat = ("gym:chain_sum", "{}", 64, 0)
    assert memory._longest_prompt(None, *chat) > memory.TEMPLATE_TOKENS


def test_what_vllm_samples_is_not_counted_in_the_trainers_memory():
    sizes = {"rollouts": 512, "microbatch": 1, "prompt_length": 64, "completion_length": 512}
    ours, vllms = (memory_forecast(QWEN_1_5B, lora=8, **sizes, vllm=vllm) for vllm in (False, True))
    assert vllms[vllms["phase"] == "generation"]["mib"].sum() == 0
    assert peak_mib(vllms) < peak_mib(ours)


def test_a_card_gets_the_config_of_its_size():
    assert [config_for(gib) and config_for(gib).name for gib in (8, 14.6, 22.5, 79.2)] == [
        None,
        "qwen2.5-1.5b_t4",
        "qwen2.5-7b_24gb",
        "qwen2.5-7b_24gb",
    ]


def test_the_command_writes_a_config_once_and_overwrites_none_of_ones_own(tmp_path, capsys):
    ask = ["machines", "--write", "qwen2.5-1.5b_t4", "--folder", str(tmp_path / "new")]
    path = tmp_path / "new" / "qwen2.5-1.5b_t4.yaml"
    assert main(ask) == 0
    assert f"python -m workbook train {path}" in capsys.readouterr().out
    assert main(ask) == 0, "the same again"
    path.write_text("mine: true\n")
    assert main(ask) == 2
    assert "is there already and differs" in capsys.readouterr().err
    assert path.read_text() == "mine: true\n"
    assert main(["machines", "--write", "qwen"]) == 2
    assert "'qwen' is no ready config: choose one of qwen2.5-1.5b_t4, " in capsys.readouterr().err
    assert main([*ask[:3], "--folder", str(path)]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_chapter_11_can_hold_out_as_many_prompts_as_each_profile_asks_for():
    config = RunConfig.load(data_path("configs", "smollm2_chain_sum.yaml"))
    task = get_task(config.task, **config.task_options)
    for profile in PROFILES.values():
        train, held_out = task.split(config.num_prompts, profile.llm_eval_prompts, config.seed)
        assert (len(train), len(held_out)) == (config.num_prompts, profile.llm_eval_prompts)
