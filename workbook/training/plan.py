"""How long a run will take, by a trial.

Time is measured, not computed: `start_trial` trains the very setting for a few generation batches in a process of its
own, and `measure_throughput` reads from it what a batch and the start take.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from workbook.training.memory import fits, steps_per_generation
from workbook.training.run_config import RunConfig
from workbook.training.runs import Run, start_run

TRIAL_BATCHES = 3  # generation batches of a trial; the first warms caches up and is not counted if others are there
TRIAL_SECONDS = 60.0  # seconds of training after which a trial ends early
TRIAL_HELD_OUT = 4  # held-out prompts of a trial: they are sampled at once, so that a few of them cost more each


class Throughput(NamedTuple):
    """Seconds of a trial until its first step, per generation batch over so many of them, and per held-out prompt.

    held_out: None where the trial has sampled no held-out prompts.
    """

    start: float
    per_batch: float
    batches: int
    held_out: float | None = None


def steps_per_batch(config: RunConfig) -> int:
    """Optimizer steps on each generation batch."""
    accumulation = config.trainer.get("gradient_accumulation_steps", 1)
    return max(1, steps_per_generation(config.trainer) * config.trainer.get("num_iterations", 1) // accumulation)


def batches(config: RunConfig) -> int:
    """Generation batches of a run."""
    return -(-config.trainer["max_steps"] // steps_per_batch(config))


def start_trial(config: RunConfig, folder: str | Path, anyway: bool = False) -> Run:
    """Start training the same setting for at most TRIAL_BATCHES generation batches, without checkpoints.

    Held-out prompts are sampled, too, where the setting has some, but no more than TRIAL_HELD_OUT.

    Raises ValueError, with `fits`'s sentence, if memory does not suffice for it; anyway: start it then, too.
    """
    if not anyway and (sentence := fits(config)):
        raise ValueError(sentence)
    steps = min(config.trainer["max_steps"], TRIAL_BATCHES * steps_per_batch(config))
    held_out = min(config.eval_prompts, TRIAL_HELD_OUT)
    return start_run(config, folder, max_steps=steps, eval_prompts=held_out, save_strategy="no")


def measure_throughput(trial: Run) -> Throughput:
    """Measure a trial's seconds so far.

    Raises ValueError if it has not finished a generation batch, with what its status says.
    """
    metrics, steps, status = trial.metrics(), steps_per_batch(trial.config), trial.status()
    whole = len(metrics) // steps
    if not whole:
        raise ValueError(f"the trial has finished no generation batch: {status['message']}")
    seconds = [float(metrics["step_time"].iloc[i * steps : (i + 1) * steps].sum()) for i in range(whole)]
    counted = seconds[1:] or seconds
    evaluated, prompts = status.get("evaluation_seconds"), trial.config.eval_prompts
    started = float(metrics["time"].iloc[0] - metrics["step_time"].iloc[0] - status["born"]) - (evaluated or 0.0)
    held_out = evaluated / prompts if evaluated is not None and prompts else None
    return Throughput(max(0.0, started), sum(counted) / len(counted), len(counted), held_out)


def forecast_seconds(config: RunConfig, measured: Throughput, runs: int = 1) -> float:
    """Seconds for so many runs one after the other; held-out prompts, sampled twice, count where they were measured."""
    held_out = 2 * config.eval_prompts * (measured.held_out or 0.0)
    return runs * (measured.start + batches(config) * measured.per_batch + held_out)
