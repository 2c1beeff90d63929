"""A run's config, or a sweep's, as choices of the laboratory: `experiment` backwards."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from workbook.places import runs_folder
from workbook.topics.laboratory.settings import OPTIMIZERS, UNBOUNDED, VARIABLE, experiment
from workbook.training.config import REASONS, trainer_args, trainer_fields
from workbook.training.messages import show_value
from workbook.training.run_config import RunConfig
from workbook.training.runs import load_run
from workbook.training.sweeps import check_grid, load_sweep

SAME = {  # choices that are a field of the trainer by another name
    "advantage_estimator": "advantage_estimator",
    "ratio": "importance_sampling_level",
    "group_transform": "group_transform",
    "loss_type": "loss_type",
    "batching": "batching",
    "reuse": "num_iterations",
    "learning_rate": "learning_rate",
    "max_grad_norm": "max_grad_norm",
    "group_size": "num_generations",
    "steps": "max_steps",
    "max_tokens": "max_completion_length",
}

MAX_LISTED = 50  # runs to choose from, the newest


class Loaded(NamedTuple):
    """Choices for `plan`, and the settings of the config that no choice can say, as "name=value"."""

    choices: dict[str, Any]
    dropped: list[str]


def choices_of(config: RunConfig) -> Loaded:
    """The choices whose `experiment` comes nearest to a config; what they leave out is named.

    Raises ValueError where they make no run.

    >>> choices_of(experiment(prompts=4, mini_batches=2, learning_rate=5e-4)).choices["mini_batches"]
    2
    """
    asked = _arguments(config)
    accumulation = max(1, asked["gradient_accumulation_steps"])
    optimizers = {name: {"adam_beta1": 0.9} | fields for name, fields in OPTIMIZERS.items()}
    used = {"optim": asked["optim"], "adam_beta1": asked["adam_beta1"]}
    rollouts = asked["per_device_train_batch_size"] * asked["steps_per_generation"]
    choices = {
        "model": config.policy,
        "quantization": config.quantization,
        "lora": config.lora,
        "task": config.task,
        "task_options": config.task_options,
        **{choice: asked[field] for choice, field in SAME.items()},
        "clipping": "none" if asked["epsilon"] >= UNBOUNDED else asked["clipping"],
        "mini_batches": max(1, asked["steps_per_generation"] // accumulation),
        "accumulation": accumulation,
        "optimizer": next((name for name, fields in optimizers.items() if fields == used), "AdamW"),
        "prompts": max(1, rollouts // asked["num_generations"]),
        "num_prompts": config.num_prompts,
        "eval_prompts": config.eval_prompts,
        "seed": config.seed,
        "name": config.name,
    }
    kept = experiment(**choices)
    have = _arguments(kept)
    dropped = [f"{key}={show_value(asked[key])}" for key in asked if str(asked[key]) != str(have[key])]
    whole, run = asdict(config), asdict(kept)
    others = [key for key in whole if key not in ("trainer", "threads") and whole[key] != run[key]]
    return Loaded(choices, [f"{key}={show_value(whole[key])}" for key in others] + dropped)


def _arguments(config: RunConfig) -> dict[str, Any]:
    """All fields of a run's trainer, with the defaults of those that its config leaves out."""
    args = trainer_args(config, torch.device("cpu"), "unused")
    values = {name: getattr(args, name) for name in trainer_fields() if name not in REASONS}
    return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def load_choices(folder: str | Path) -> Loaded:
    """Choices of the run or the sweep that lies in a folder, a sweep's with seeds, vary and values.

    Raises ValueError if there is none, its config is damaged, or its grid is none that the form can make.
    """
    folder = Path(folder)
    if not (folder / "sweep.yaml").is_file():
        return choices_of(load_run(folder).config)
    config, grid = load_sweep(folder / "sweep.yaml")
    grids = check_grid(grid)
    variants = [choices_of(config.override({key: values[0] for key, values in one.items()})) for one in grids]
    first = variants[0].choices
    varied = [key for key in VARIABLE if len({str(variant.choices[key]) for variant in variants}) > 1]
    seeds = grids[0].get("seed", [config.seed])
    named = {key for one in grids for key, values in one.items() if len(values) > 1}
    if len(varied) > 1 or named - {"seed"} or seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        raise ValueError(f"the sweep {folder.name} varies more than one setting, which this form can't show.")
    sweep = {"vary": varied[0] if varied else None, "seeds": len(seeds)}
    sweep["values"] = [variant.choices[varied[0]] for variant in variants] if varied else []
    return Loaded(first | sweep, list(dict.fromkeys(chain.from_iterable(variant.dropped for variant in variants))))


def recent_runs(folder: str | Path | None = None) -> list[Path]:
    """Folders of runs and sweeps, the newest MAX_LISTED of them; by default in $WORKBOOK_RUNS or ./runs."""
    root = runs_folder() if folder is None else Path(folder)
    paths = [path for name in ("config.yaml", "sweep.yaml") for path in root.glob(f"*/{name}") if path.is_file()]
    return [path.parent for path in sorted(paths, key=lambda path: -path.stat().st_mtime_ns)[:MAX_LISTED]]
