"""Before a run is started: what is wrong with its settings, and how long it will take.

Time is measured, not computed: `start_trial` trains the very setting for a few generation batches in a process of its
own, and `pace` reads from it what a batch and the start take.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import torch

from workbook.training.checks import Problem, problems
from workbook.training.run_config import RunConfig
from workbook.training.runs import Run, start_run
from workbook.training.worker import trainer_args

TRIAL_BATCHES = 3  # generation batches of a trial; the first warms caches up and is not counted if others are there
PATIENCE = 60.0  # seconds of training after which a trial ends early


class Pace(NamedTuple):
    """What a trial took, in seconds: until its first step, and per generation batch over so many of them."""

    start: float
    per_batch: float
    batches: int


def complaints(config: RunConfig) -> list[Problem]:
    """What `checks.problems`, or TRL's own config, says of a run's settings; nothing is loaded.

    The model and the task are not looked at: `load_policy` and `get_task` say what is wrong with those.
    """
    if config.quantization and not config.lora:  # transformers says so only once the trainer is built
        sentence = (
            f"quantization={config.quantization!r} freezes all weights, so lora={config.lora} leaves nothing to train"
        )
        return [Problem("error", f"{sentence}; set lora to a rank, e.g. 8.")]
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # of a field that runs always set
    try:
        args = trainer_args(config, torch.device("cpu"), "unused")
    except ValueError as error:
        return [Problem("error", str(error))]
    return problems(args, quantized=bool(config.quantization))


def steps_per_batch(config: RunConfig) -> int:
    """Optimizer steps on each generation batch."""
    accumulation = config.trainer.get("gradient_accumulation_steps", 1)
    parts = config.trainer.get("steps_per_generation") or accumulation
    return max(1, parts * config.trainer.get("num_iterations", 1) // accumulation)


def batches(config: RunConfig) -> int:
    """Generation batches of a run."""
    return -(-config.trainer["max_steps"] // steps_per_batch(config))


def start_trial(config: RunConfig, folder: str | Path) -> Run:
    """Start training the same setting for at most TRIAL_BATCHES generation batches, without evaluation, checkpoints."""
    steps = min(config.trainer["max_steps"], TRIAL_BATCHES * steps_per_batch(config))
    return start_run(config, folder, max_steps=steps, eval_prompts=0, save_strategy="no")


def long_enough(trial: Run) -> bool:
    """Whether a trial that still runs can be stopped: a whole batch is done, and PATIENCE over."""
    metrics = trial.metrics()
    return len(metrics) >= steps_per_batch(trial.config) and metrics["step_time"].sum() > PATIENCE


def pace(trial: Run) -> Pace:
    """What a trial took so far.

    Raises ValueError if it has not finished a generation batch, with what its status says.
    """
    metrics, steps, status = trial.metrics(), steps_per_batch(trial.config), trial.status()
    whole = len(metrics) // steps
    if not whole:
        raise ValueError(f"the trial has finished no generation batch: {status['message']}")
    seconds = [float(metrics["step_time"].iloc[i * steps : (i + 1) * steps].sum()) for i in range(whole)]
    counted = seconds[1:] or seconds
    started = float(metrics["time"].iloc[0] - metrics["step_time"].iloc[0] - status["born"])
    return Pace(max(0.0, started), sum(counted) / len(counted), len(counted))


def forecast_seconds(config: RunConfig, measured: Pace, runs: int = 1) -> float:
    """Seconds for so many runs one after the other, held-out evaluation not counted."""
    return runs * (measured.start + batches(config) * measured.per_batch)
