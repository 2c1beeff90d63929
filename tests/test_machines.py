"""What to change for a machine: every row is a valid run that is forecast to fit, and every launcher's file loads."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from workbook.book.pages import render_book
from workbook.training.checks import problems
from workbook.training.config import trainer_args
from workbook.training.machines import MACHINES, machine_table

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


def test_forecasts_fit_and_the_page_shows_them(tmp_path):
    table = machine_table()
    assert (table["forecast GiB"] > 1).all()
    assert (table["forecast GiB"] < 0.8 * table["left GiB"]).all(), "the libraries want room, too"
    render_book({}, {}, "smoke", tmp_path)
    page, index = ((tmp_path / name).read_text() for name in ("scale.html", "index.html"))
    assert '<a href="scale.html">What to change for your machine</a>' in index
    assert all(f"<td>{value}</td>" in page for value in table["forecast GiB"])
    assert "{machines}" not in page
