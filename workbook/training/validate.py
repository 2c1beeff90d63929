"""Validation of a run's config as a whole, before anything of the run is written.

A `RunConfig` is sound field by field once it exists (`workbook.training.schema`). What is left to ask is how fields go
together, whether packages, optimizer and schedule are there, and whether policy and task are; no model is loaded.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from transformers import Trainer, get_scheduler

from workbook.policies.family import FAMILY, member_of
from workbook.policies.load import HUB_ID, PACKAGED
from workbook.tasks import get_task
from workbook.training.checks import Problem, error, problems
from workbook.training.config import CancellationConfig, trainer_args
from workbook.training.credit import credit_call
from workbook.training.messages import explain_error, one_line, show_value
from workbook.training.processes import process_count
from workbook.training.run_config import RunConfig
from workbook.training.trainer_fields import TRACKERS

LAUNCHED = ("ACCELERATE_", "FSDP_", "LOCAL_", "MASTER_", "RANK", "WORLD_SIZE")  # variables of a launcher
QUICKLY_DRAWN = 10_000  # prompts; with more of them, or of a gym task, the run itself says whether there are enough


def check_run(config: RunConfig) -> None:
    """Check a `RunConfig` wholly, with its policy's and task's names, and write nothing.

    A model or data set of a hub is not asked for: `load_policy` and `get_task` say whether that is there.
    Raises ValueError, one sentence that names the field, its value and what would be valid.
    """
    for problem in validate(config):
        if problem.severity == "error":
            raise ValueError(problem.sentence)
    _check_policy(config.policy)
    _check_task(config)


def validate(config: RunConfig) -> list[Problem]:
    """List what `checks.problems`, TRL's own config, the optimizer and the schedule find wrong with a run's settings.

    Nothing is loaded but a credit rule of one's own. The model and the task are not looked at: `check_run` asks for
    those, too.
    """
    trainer = config.trainer
    if "max_steps" not in trainer:
        return [error("trainer.max_steps is missing; set it to a positive number of optimizer steps.")]
    if config.quantization and not config.lora:  # transformers says so only once the trainer is built
        frozen = f"quantization={config.quantization!r} freezes all weights"
        return [error(f"{frozen}, so lora={config.lora} leaves nothing to train; set lora to a rank, e.g. 8.")]
    if config.dtype not in ("auto", "float32") and not config.lora:
        trained = f"dtype={config.dtype!r} is for frozen weights, and without adapters all are trained"
        return [error(f"{trained}; set lora to a rank or dtype to auto, as trained weights lose small updates.")]
    if missing := list(missing_packages(trainer)):
        return [error(sentence) for sentence in missing]
    try:
        args = _trainer_args(config)
    except Exception as refusal:  # of TRL, transformers or accelerate
        return [error(_with_values(explain_error(refusal), trainer))]
    try:
        rule = credit_call(args.advantage_estimator)
    except ValueError as refusal:
        return [error(f"trainer.advantage_estimator={show_value(args.advantage_estimator)}: {refusal}")]
    sentences = [sentence] if (sentence := _optimizer_problem(args)) else []
    prompts = args.generation_batch_size // args.num_generations
    if config.num_prompts < prompts:
        sentences.append(
            f"num_prompts={config.num_prompts} must be at least {prompts}, the prompts of a generation batch."
        )
    quantized = bool(config.quantization)
    return [*map(error, sentences), *problems(args, world_size=process_count(), quantized=quantized, rule=rule)]


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


def missing_packages(trainer: dict) -> Iterator[str]:
    """A sentence for each of the trainer's fields that needs a package which is not installed."""
    flags = {"use_vllm": "vllm", "use_liger_kernel": "liger_kernel"}
    needs = {f"{field}=True": package for field, package in flags.items() if trainer.get(field)}
    trackers = trainer.get("report_to") or []
    for name in [trackers] if isinstance(trackers, str) else trackers:
        needs[f"report_to={name!r}"] = TRACKERS.get(name)
    for setting, package in needs.items():
        if package and find_spec(package) is None:
            yield f"{setting} needs the package {package}, which is not installed: pip install {package}"


def _optimizer_problem(args) -> str | None:
    """Name the fault of a trainer's optimizer or schedule, which are made and stepped here for one weight."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optim, schedule = (getattr(value, "value", value) for value in (args.optim, args.lr_scheduler_type))
    field = f"optim={optim!r} with optim_args={show_value(args.optim_args)}" if args.optim_args else f"optim={optim!r}"
    try:
        make, options = Trainer.get_optimizer_cls_and_kwargs(args)
        plain = copy(args)
        plain.optim_args = None
        if args.optim_args and options == Trainer.get_optimizer_cls_and_kwargs(plain)[1]:
            return f"{field} takes none of those; remove optim_args."
        optimizer = make([weight], **options)
        kwargs = args.lr_scheduler_kwargs or {}
        field = f"lr_scheduler_type={schedule!r} with lr_scheduler_kwargs={show_value(kwargs)}"
        if kwargs and schedule.startswith("constant"):
            return f"{field} takes none of those; remove lr_scheduler_kwargs."
        warmup, steps = args.get_warmup_steps(args.max_steps), args.max_steps
        if warmup > steps:
            return f"warmup_steps={args.warmup_steps} must be at most max_steps={steps}."
        scheduler = get_scheduler(schedule, optimizer, warmup, steps, scheduler_specific_kwargs=kwargs)
        with warnings.catch_warnings(action="ignore"):
            optimizer.step()
            scheduler.step()
    except Exception as error:  # of torch, bitsandbytes or transformers
        return f"{field} can't be used here: {explain_error(error, 150).rstrip('.')}."
    return None


def _check_policy(name: str) -> None:
    if name in ("bundled", *PACKAGED):
        return
    if name.startswith(FAMILY):
        member_of(name)
        return
    try:
        folder = Path(name).expanduser()
        there = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long; a user's home that is not there
        raise ValueError(f"policy={show_value(name)} can't be looked up ({explain_error(error)})") from None
    named = f"policy={show_value(name)} must be"
    if not there and not re.fullmatch(HUB_ID, name):
        names = ", ".join(map(repr, ("bundled", *PACKAGED)))
        raise ValueError(f"{named} {names}, an existing folder of a model or a hub id.")
    if there and not (folder / "config.json").is_file():
        raise ValueError(f"{named} a folder that holds a model, but it has no config.json.")


def _check_task(config) -> None:
    """Make the task, unless a hub would have to be asked."""
    family, _, rest = config.task.partition(":")
    if family == "hub" and not Path(rest).expanduser().exists():
        return
    options = f" with task_options={show_value(config.task_options)}" if config.task_options else ""
    where = f"task={show_value(config.task)}{options}"
    try:
        if family == "own":  # whose files may change from one call to the next
            get_task(config.task, **config.task_options).split(config.num_prompts, config.eval_prompts, config.seed)
        else:
            _draw(config.task, json.dumps(config.task_options), config.num_prompts, config.eval_prompts, config.seed)
    except ValueError as error:
        if type(error) is not ValueError or str(error).startswith("task"):
            raise  # of several lines, one a row, or with the task's name
        raise ValueError(f"{where}: {error}") from None
    except (TypeError, OSError, OverflowError, ArithmeticError, LookupError, AttributeError) as error:
        raise ValueError(f"{where} can't be made: {one_line(error)}.") from None


@lru_cache(maxsize=256)
def _draw(task: str, options: str, num_prompts: int, eval_prompts: int, seed: int) -> None:
    """Make a task and, where that is quick, draw its prompts; remembered, since a sweep asks often."""
    made = get_task(task, **json.loads(options))
    if not task.startswith("gym:") and num_prompts + eval_prompts <= QUICKLY_DRAWN:
        made.split(num_prompts, eval_prompts, seed)
