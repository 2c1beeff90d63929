"""Stops and kills under every schedule and optimizer: the resumed run must end in the bits of one left alone."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from small_run import SMALL
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback

from workbook.training.trainer_fields import OPTIMIZER_BYTES, SCHEDULES

PROMISE = "A run that is stopped or killed and resumed ends in the weights of one that was left alone, bit for bit."
TRIALS = 260

MIN_LR = {"lr_scheduler_kwargs": {"min_lr": 1e-5}}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
NEEDS = {  # what a schedule asks for
    "cosine_with_min_lr": MIN_LR,
    "cosine_warmup_with_min_lr": MIN_LR,
    "warmup_stable_decay": {"lr_scheduler_kwargs": {"num_decay_steps": 2}},
    "constant_with_warmup": {"warmup_steps": 3},
    "reduce_lr_on_plateau": EVALUATED,  # these two are not for runs, but the trainer takes them with such a data set
    "greedy": EVALUATED,
}
EXTRAS = {
    "beta": {"beta": 0.1},
    "moving reference": {"beta": 0.5, "sync_ref_model": True, "ref_model_sync_steps": 1, "learning_rate": 1e-2},
    "adaptive entropy": {
        **{"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_target": 5.0},
        **{"entropy_coef_delta": 0.05, "entropy_coef_max": 1.0},
    },
    "LoRA": {"lora": 4, "beta": 0.1},
    "NF4": {"lora": 4, "quantization": "nf4", "fp32_adapters": True},
}
TINY = SMALL | {
    **{"num_generations": 2, "per_device_train_batch_size": 4, "steps_per_generation": 2, "max_completion_length": 6},
    **{"max_steps": 4, "save_strategy": "steps", "save_steps": 2},
}
KILLED = {key: TINY[key] for key in ("num_generations", "per_device_train_batch_size", "steps_per_generation")} | {
    **{"max_completion_length": 24, "learning_rate": 1e-3, "loss_type": "dr_grpo", "max_steps": 24, "save_steps": 2},
}


def trials(seed: int):
    """Each schedule and each optimizer in the first dozen and score, then extras, kills, and all pairs, shuffled."""
    chance = random.Random(seed)
    schedules, optimizers = [*SCHEDULES, "reduce_lr_on_plateau", "greedy"], list(OPTIMIZER_BYTES)
    chance.shuffle(optimizers)
    first = list(zip(itertools.cycle(schedules), optimizers, strict=False))
    pairs = [pair for pair in itertools.product(schedules, optimizers) if pair not in first]
    chance.shuffle(pairs)
    for schedule, optimizer in first:
        yield f"{schedule}, {optimizer}", ("stop", schedule, optimizer, "")
    for extra in EXTRAS:
        yield f"linear, adamw_torch, {extra}", ("stop", "linear", "adamw_torch", extra)
    for i, (schedule, optimizer) in enumerate(pairs):
        yield f"{schedule}, {optimizer}", ("stop", schedule, optimizer, "")
        if i % 12 == 0 and schedule in SCHEDULES:
            yield f"{schedule}, {optimizer}, killed", ("kill", schedule, optimizer, chance.randrange(2**31))


def attempt(folder: Path, kind: str, schedule: str, optimizer: str, more) -> str | None:
    settings = {"lr_scheduler_type": schedule, "optim": optimizer} | NEEDS.get(schedule, {})
    if kind == "kill":
        return _kill(folder, settings, random.Random(more))
    torch.set_num_threads(1)
    whole, resumed = stopped_and_whole(folder, **(settings | EXTRAS.get(more, {})))
    return _difference(whole, resumed)


def _difference(whole: dict, resumed: dict) -> str | None:
    other = [name for name, tensor in whole.items() if not torch.equal(tensor, resumed[name])]
    return f"{len(other)} of {len(whole)} weights differ, e.g. {other[0]}" if other else None


def stopped_and_whole(folder: Path, lora=None, quantization=None, **settings) -> tuple[dict, dict]:
    """Weights after four steps, and after two more from the checkpoint after two, in a trainer of its own."""
    from workbook.policies.load import load_policy
    from workbook.tasks import get_task
    from workbook.training import CancellationConfig
    from workbook.training.resumable import ResumableTrainer

    rows = get_task("chain").dataset(8, seed=0)

    def end(checkpoint=None) -> dict:
        policy = load_policy("bundled", lora=lora, quantization=quantization)
        set_seed(3)
        trainer = ResumableTrainer(
            policy.model,
            _reward,
            args=CancellationConfig(output_dir=str(folder), **TINY | settings),
            train_dataset=rows,
            eval_dataset=rows.select(range(2)) if "eval_strategy" in settings else None,
            processing_class=policy.tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        trainer.train(resume_from_checkpoint=checkpoint)
        after = {name: weight.detach() for name, weight in trainer.model.named_parameters()}
        assert any(not torch.equal(before[name], after[name]) for name in after), "nothing was trained"
        return after

    return end(), end(str(folder / "checkpoint-2"))


def _reward(completions, **_) -> list[float]:
    return [float(sum(map(ord, text)) % 7) for text in completions]


def _kill(folder: Path, settings: dict, chance: random.Random) -> str | None:
    """Train one run whole, and one that is killed three times at moments drawn by chance."""
    from safetensors.torch import load_file

    from workbook.training.runs import create_run

    config = {"name": "killed", "num_prompts": 12, "threads": 1, "eval_prompts": 2, "trainer": KILLED | settings}
    whole, killed = (create_run(config, folder / name) for name in ("whole", "killed"))
    _train(whole).wait()
    for _ in range(3):
        process, until = _train(killed), chance.randrange(KILLED["max_steps"])
        while process.poll() is None and killed.status()["step"] < until:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.3))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _train(killed).wait()
    for run in (whole, killed):
        if run.status()["state"] != "finished":
            return f"{run.folder.name}: {run.status()['message']}"
    if list(killed.folder.rglob("*.tmp")):
        return "there are half-written files"
    columns = ["step", "reward", "grad_norm"]
    if not whole.metrics()[columns].equals(killed.metrics()[columns]):
        return "the metrics differ"
    return _difference(*(load_file(run.folder / "final" / "model.safetensors") for run in (whole, killed)))


def _train(run) -> subprocess.Popen:
    command = [sys.executable, "-m", "workbook.training", str(run.folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
