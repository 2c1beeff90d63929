"""Before a run is started: what is wrong with its settings, and how long it will take.

Time is measured, not computed: `start_trial` trains the very setting for a few generation batches in a process of its
own, and `pace` reads from it what a batch and the start take.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate.state import AcceleratorState

from workbook.training.checks import Problem, problems
from workbook.training.config import CancellationConfig
from workbook.training.memory import forecast_run, free_mib, peak_mib, run_device, steps_per_generation
from workbook.training.messages import explain_error, show_value
from workbook.training.processes import process_count
from workbook.training.run_config import RunConfig
from workbook.training.runs import Run, start_run
from workbook.training.validate import missing_packages, optimizer_problem
from workbook.training.worker import trainer_args

TRIAL_BATCHES = 3  # generation batches of a trial; the first warms caches up and is not counted if others are there
LAUNCHED = ("ACCELERATE_", "FSDP_", "LOCAL_", "MASTER_", "RANK", "WORLD_SIZE")  # variables of a launcher
PATIENCE = 60.0  # seconds of training after which a trial ends early


class Pace(NamedTuple):
    """What a trial took, in seconds: until its first step, and per generation batch over so many of them."""

    start: float
    per_batch: float
    batches: int


def complaints(config: RunConfig) -> list[Problem]:
    """What is wrong with a run's settings, as `checks.problems`, TRL's own config, its optimizer and its schedule say.

    Nothing is loaded. The model and the task are not looked at: `validate.check_run` asks for those, too.
    """
    trainer = config.trainer
    if "max_steps" not in trainer:
        return [Problem("error", "trainer.max_steps is missing; set it to a positive number of optimizer steps.")]
    if config.quantization and not config.lora:  # transformers says so only once the trainer is built
        sentence = (
            f"quantization={config.quantization!r} freezes all weights, so lora={config.lora} leaves nothing to train"
        )
        return [Problem("error", f"{sentence}; set lora to a rank, e.g. 8.")]
    if missing := list(missing_packages(trainer)):
        return [Problem("error", sentence) for sentence in missing]
    try:
        args = _trainer_args(config)
    except Exception as error:  # of TRL, transformers or accelerate
        return [Problem("error", _with_values(explain_error(error), trainer))]
    found = problems(args, world_size=process_count(), quantized=bool(config.quantization))
    prompts = args.generation_batch_size // args.num_generations
    if config.num_prompts < prompts:
        sentence = f"num_prompts={config.num_prompts} must be at least {prompts}, the prompts of a generation batch."
        found = [Problem("error", sentence), *found]
    if sentence := optimizer_problem(args):
        found = [Problem("error", sentence), *found]
    return found


def _trainer_args(config: RunConfig) -> CancellationConfig:
    """A run's trainer settings as all processes of its launch have them, made by this process alone."""
    processes = process_count()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # of a field that runs always set
    if processes == 1:
        return trainer_args(config, torch.device("cpu"), "unused")
    local = config.trainer.get("per_device_train_batch_size", 8)
    launched = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(LAUNCHED)}
    try:  # else it would wait for the other processes, which are not asked
        whole = replace(config, trainer=config.trainer | {"per_device_train_batch_size": local * processes})
        args = trainer_args(whole, torch.device("cpu"), "unused")
    finally:
        os.environ.update(launched)
        AcceleratorState._reset_state(reset_partial_state=True)
    args.per_device_train_batch_size = local
    return args


def _with_values(sentence: str, trainer: dict) -> str:
    """A library's sentence with the values of those fields that it names."""
    named = [
        f"{key}={show_value(value)}"
        for key, value in trainer.items()
        if re.search(rf"\b{key}\b", sentence) and str(value) not in sentence
    ]
    return f"{sentence.rstrip('.')} ({', '.join(named)})." if named else sentence


def steps_per_batch(config: RunConfig) -> int:
    """Optimizer steps on each generation batch."""
    accumulation = config.trainer.get("gradient_accumulation_steps", 1)
    return max(1, steps_per_generation(config.trainer) * config.trainer.get("num_iterations", 1) // accumulation)


def batches(config: RunConfig) -> int:
    """Generation batches of a run."""
    return -(-config.trainer["max_steps"] // steps_per_batch(config))


def fits(config: RunConfig, at_once: int = 1) -> str | None:
    """One sentence if the forecast peak of a run, or of so many at once, exceeds what is free; None if it fits.

    The sentence has both numbers and, where one does, a change that would fit. None as well for a model that
    `forecast_run` knows too little of, or cannot reach.
    """
    try:
        needed = at_once * peak_mib(forecast_run(config))
    except Exception:  # a config.json in which transformers finds fault; loading the policy says so
        return None
    device = run_device(config)
    free = free_mib(device)
    if needed <= free:
        return None
    runs = "This run is" if at_once == 1 else f"{at_once} runs at a time are"
    fewer = int(at_once * free / needed)
    what = f"at most {fewer} at a time would fit" if fewer else _what_fits(config, free)
    return (
        f"{runs} forecast to need {needed:,.0f} MiB beside {'its' if at_once == 1 else 'their'} libraries, and "
        f"{free:,.0f} MiB are free on {device.type}; {what}."
    )


def _what_fits(config: RunConfig, free: float) -> str:
    """The least change to a run that its forecast says would fit, in words."""
    trainer = config.trainer
    size, parts = trainer.get("per_device_train_batch_size", 8), steps_per_generation(trainer)
    accumulation = trainer.get("gradient_accumulation_steps", 1)
    for part in (2**i for i in range(1, 17) if size % 2**i == 0):  # the same rollouts and steps, in smaller pieces
        smaller = {
            "per_device_train_batch_size": size // part,
            "gradient_accumulation_steps": accumulation * part,
            "steps_per_generation": parts * part,
        }
        changed = _changed(config, {"generation_batch_size": None} | smaller)
        if changed is not None and peak_mib(forecast_run(changed)) <= free:
            return f"it would fit with {_settings(smaller)}"
    for part in (2**i for i in range(1, 17) if size % 2**i == 0):  # fewer rollouts
        changed = _changed(config, {"per_device_train_batch_size": size // part})
        if changed is not None and peak_mib(forecast_run(changed)) <= free:
            return f"it would fit with {_settings({'per_device_train_batch_size': size // part})}"
    adapters = "" if config.lora else ", lora set to a rank"
    return f"it might fit with a smaller policy{adapters} or a lower max_completion_length"


def _changed(config: RunConfig, settings: dict) -> RunConfig | None:
    """The config with some settings, None if that makes no run."""
    try:
        changed = replace(config, trainer={k: v for k, v in (config.trainer | settings).items() if v is not None})
    except ValueError:
        return None
    return None if any(problem.severity == "error" for problem in complaints(changed)) else changed


def _settings(settings: dict) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def start_trial(config: RunConfig, folder: str | Path, anyway: bool = False) -> Run:
    """Start training the same setting for at most TRIAL_BATCHES generation batches, without evaluation, checkpoints.

    Raises ValueError, with `fits`'s sentence, if memory does not suffice for it; anyway: start it then, too.
    """
    if not anyway and (sentence := fits(config)):
        raise ValueError(sentence)
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
