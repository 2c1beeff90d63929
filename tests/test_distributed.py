"""Under `accelerate launch` two CPU processes take the one-process run's optimizer steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).with_name("distributed_script.py")
SEVERAL = {"steps_per_generation": 4, "max_steps": 4}  # optimizer steps per generation batch
CASES = {
    "on-policy": {"steps_per_generation": 1, "max_steps": 2, "loss_type": "dr_grpo"},
    "sign-partitioned": SEVERAL | {"batching": "sign_partitioned", "loss_type": "dr_grpo"},
    "drift fix": SEVERAL
    | {
        "batching": "query_preserved",
        "group_transform": "min_replace",
        "importance_sampling_level": "sequence",
        "loss_type": "grpo",
        "trim_padding": True,
    },
}


def launch(processes: int, out: Path) -> dict[str, torch.Tensor]:
    options = {"num_processes": processes, "num_machines": 1, "mixed_precision": "no", "dynamo_backend": "no"}
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--main_process_port", "0"]
    command += [f"--{name}={value}" for name, value in options.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [*command, str(SCRIPT), str(out), json.dumps(CASES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(out)


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    return [launch(processes, folder / f"{processes}.safetensors") for processes in (1, 2)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_take_the_steps_of_one(launches, case):
    one, two = ({k: v for k, v in launched.items() if k.startswith(f"{case}/")} for launched in launches)
    assert len(one) == len(two) == CASES[case]["max_steps"]
    for step, gradient in one.items():
        assert gradient.norm() > 1e-4
        torch.testing.assert_close(two[step], gradient, rtol=0, atol=1e-6)
