"""Two CPU processes take one process's optimizer steps; under `accelerate launch`, one writes the
run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from accelerate import Accelerator, DistributedType
from safetensors.torch import load_file
from small_run import SMALL
from test_runs import CONFIG, weights

from workbook.app import load_run
from workbook.app.resumable import ResumableTrainer
from workbook.app.runs import FINAL_STATES, Run
from workbook.training import CancellationConfig
from workbook.training.checks import problems

TESTS = Path(__file__).resolve().parents[1]
GROUP = 4
SEVERAL = {"steps_per_generation": 4, "max_steps": 4}  # optimizer steps per generation batch
CASES = {  # microbatch: rollouts of one forward and backward pass, of all processes together
    "on-policy": {
        "microbatch": 16,
        "settings": {"steps_per_generation": 1, "max_steps": 2, "loss_type": "dr_grpo"},
    },
    "sign-partitioned": {
        "microbatch": 8,
        "settings": SEVERAL | {"batching": "sign_partitioned", "loss_type": "dr_grpo"},
    },
    "groups span processes": {  # each has two rollouts of a group of four in a micro-batch
        "microbatch": 4,
        "settings": SEVERAL | {"batching": "query_preserved", "loss_type": "dr_grpo"},
    },
    "drift fix": {  # needs a group whole in one process
        "microbatch": 16,
        "settings": (
            SEVERAL
            | {
                "batching": "query_preserved",
                "group_transform": "min_replace",
                "importance_sampling_level": "sequence",
                "loss_type": "grpo",
                "trim_padding": True,
            }
        ),
    },
}


def run_quietly(*command: str, **environment: str) -> str:
    # Processes that spin while they wait for one another would slow one another on few cores.
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TRL_EXPERIMENTAL_SILENCE": "1"}
    here = os.environ | quiet | environment
    done = subprocess.run(
        [sys.executable, *command], env=here, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    run_quietly(str(TESTS / "distributed_script.py"), str(folder), json.dumps(CASES))
    recorded = {processes: load_file(folder / f"{processes}.safetensors") for processes in (1, 2)}
    assert all(recorded[processes]["processes"] == processes for processes in recorded)
    return recorded


@pytest.mark.parametrize("case", CASES)
def test_two_processes_take_the_steps_of_one(launches, case):
    steps = range(CASES[case]["settings"]["max_steps"])
    one, two = ([launches[n][f"{case}/gradient/{i}"] for i in steps] for n in (1, 2))
    for gradient, theirs in zip(one, two, strict=True):
        assert gradient.norm() > 1e-4
        torch.testing.assert_close(
            theirs, gradient, rtol=0, atol=1e-6 * max(1.0, gradient.norm().item())
        )


@pytest.mark.parametrize("processes", [1, 2])
def test_query_preservation_holds_whole_groups_over_all_processes(launches, processes):
    for case, whole in [
        ("groups span processes", True),
        ("drift fix", True),
        ("sign-partitioned", False),
    ]:
        minibatches = [
            launches[processes][f"{case}/groups/{i}"] for i in range(SEVERAL["max_steps"])
        ]
        counts = [groups.unique(return_counts=True)[1].tolist() for groups in minibatches]
        assert all(set(count) == {GROUP} for count in counts) == whole, (case, counts)
        assert sorted(torch.cat(minibatches).bincount().tolist()) == [GROUP] * (
            CASES[case]["microbatch"] * SEVERAL["steps_per_generation"] // GROUP
        )
    share = launches[processes]["groups span processes/groups/0"].view(processes, -1)
    spans = {(group, rank) for rank, groups in enumerate(share.tolist()) for group in groups}
    assert len(spans) == processes, (
        "the group of a micro-batch, by the processes that have some of it"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"per_device_train_batch_size": 2, "steps_per_generation": 1},
            "straddle two of the 4 processes",
        ),
        (
            {"per_device_train_batch_size": 2, "group_transform": "min_replace", **SEVERAL},
            "per_device_train_batch_size=2",
        ),
    ],
)
def test_a_group_that_would_straddle_processes_is_refused(tmp_path, settings, words):
    args = CancellationConfig(str(tmp_path), **SMALL | {"steps_per_generation": 1})
    # as on four processes: here TRL would refuse a batch of less than a group
    for name, value in settings.items():
        setattr(args, name, value)
    errors = [p.sentence for p in problems(args, world_size=4) if p.severity == "error"]
    assert any(words in error for error in errors), errors


def launch(*command: str) -> str:
    """What a script prints that `accelerate launch` runs in two processes."""
    options = {
        "num_processes": 2,
        "num_machines": 1,
        "mixed_precision": "no",
        "dynamo_backend": "no",
    }
    # With --cpu accelerate starts a single process, whatever num_processes says; so ranks are asked
    # for as on GPUs.
    launcher = ["-m", "accelerate.commands.launch", "--main_process_port", "0", "--multi_gpu"]
    launcher += [f"--{name}={value}" for name, value in options.items()]
    return run_quietly(*launcher, *command, ACCELERATE_USE_CPU="true")


def test_the_command_line_trains_one_run_in_two_processes_and_resumes_it_bit_for_bit(tmp_path):
    trainer = CONFIG["trainer"] | {
        "per_device_train_batch_size": 2,
        "max_steps": 12,
        "batching": "query_preserved",
    }
    trainer["record_tokens"] = 5
    config, *folders = (tmp_path / name for name in ("config.yaml", "whole", "stopped"))
    config.write_text(yaml.safe_dump(CONFIG | {"eval_prompts": 2, "trainer": trainer}))
    output = launch(str(TESTS / "distributed_runs.py"), str(config), *map(str, folders))
    assert output.count("It lies in") == 3, output
    whole, stopped = map(load_run, folders)
    for run in (whole, stopped):
        assert run.status()["state"] == "finished"
        assert run.manifest()["processes"] == 2
        assert run.metrics()["step"].tolist() == list(range(1, 13))
        assert run.evaluation()["label"].tolist() == ["before", "after"]
        assert not list(run.folder.rglob("*.tmp"))
    assert weights(whole) == weights(stopped)
    assert whole.metrics()["reward"].equals(stopped.metrics()["reward"])
    assert whole.token_steps() == stopped.token_steps() == [1, 5, 10]
    for step in whole.token_steps():
        table = whole.tokens(step)
        assert table.equals(stopped.tokens(step))
        # of which each process trains half
        assert table["rollout"].nunique() == trainer["num_generations"]
        assert table["group"].nunique() == table["prompt"].nunique() == 1
    with pytest.raises(
        ValueError, match="started by 2 processes and this launch has 1; go on with "
    ) as refusal:
        stopped.resume()
    command = (
        "ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 -m workbook resume"
    )
    assert f"{command} {stopped.folder}" in str(refusal.value)
    assert stopped.status()["state"] in FINAL_STATES


def test_a_callback_records_what_all_processes_sampled_and_trains_nothing(tmp_path):
    launch(str(TESTS / "distributed_record.py"), str(tmp_path))
    ours, theirs = (Run(tmp_path / name) for name in ("ours", "every 2"))
    assert ours.token_steps() == theirs.token_steps() == [1, 2, 4]
    for step in ours.token_steps():
        pd.testing.assert_frame_equal(theirs.tokens(step), ours.tokens(step))
        assert theirs.tokens(step)["rollout"].nunique() == 32  # of both, two micro-batches each


def test_sharded_weights_are_refused_in_a_sentence(make_trainer, monkeypatch):
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.FSDP)
    with pytest.raises(ValueError, match="which FSDP shards; launch it with"):
        make_trainer(ResumableTrainer, CancellationConfig)
