"""Run settings from a handful of choices: pure functions, over which the form is a shell.

experiment(**choices) -> RunConfig          one setting, over a config or alone
plan(**choices, vary=, values=, seeds=)     that setting, a grid around it, and what is wrong with them
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from workbook.training.checks import Problem, validate
from workbook.training.memory import steps_per_generation
from workbook.training.run_config import RunConfig, parse_yaml

OPTIMIZERS = {
    "AdamW": {"optim": "adamw_torch", "adam_beta1": 0.9},
    "AdamW, beta1 = 0": {"optim": "adamw_torch", "adam_beta1": 0.0},
    "SGD": {"optim": "sgd"},
}
CLIP_RANGE = {"token": 0.2, "sequence": 0.03}  # a sequence ratio is a mean over some 40 tokens: its spread is smaller
UNBOUNDED = 1e9  # a clip range that no ratio leaves
OF_RUN = {"model": "policy", "eval_prompts": "eval_prompts", "num_prompts": "num_prompts"}  # choice -> a config's field
OF_RUN |= {name: name for name in ("quantization", "lora", "dtype", "task", "task_options", "seed", "name")}
OF_TRAINER = {  # choice -> a trainer's field
    "advantage_estimator": "advantage_estimator",
    "ratio": "importance_sampling_level",
    "group_transform": "group_transform",
    "loss_type": "loss_type",
    "batching": "batching",
    "reuse": "num_iterations",
    "checkpointing": "gradient_checkpointing",
    "learning_rate": "learning_rate",
    "max_grad_norm": "max_grad_norm",
    "group_size": "num_generations",
    "steps": "max_steps",
    "max_tokens": "max_completion_length",
}


@cache
def first_config() -> RunConfig:
    """Return an experiment on the chain task, which any machine trains in seconds."""
    trainer = {"max_steps": 20, "learning_rate": 1e-3, "lr_scheduler_type": "constant", **OPTIMIZERS["AdamW"]}
    trainer |= {"max_grad_norm": 0.0, "loss_type": "dr_grpo", "num_generations": 8, "max_completion_length": 48}
    trainer |= {"per_device_train_batch_size": 64, "steps_per_generation": 1, "trim_padding": True}
    return RunConfig(name="mine", policy="bundled", task="chain", num_prompts=512, threads=1, trainer=trainer)


class Plan(NamedTuple):
    """Settings that choices make; `grid` is None for a single run, `config` where `problems` hold an error."""

    config: RunConfig | None
    grid: list[dict] | None
    problems: list[Problem]
    runs: int = 1


def experiment(base: RunConfig | None = None, **choices) -> RunConfig:
    """Return the run of these choices; what they leave open is as in `base`, by default `first_config`.

    Choices are named as in OF_RUN and OF_TRAINER, and: prompts, different ones of a generation batch; mini_batches,
    optimizer steps that its prompts x group_size rollouts are cut into; accumulation, micro-batches of each; clipping,
    "asymmetric", "symmetric" or "none", a range that nothing leaves; optimizer, one of OPTIMIZERS.

    Raises ValueError, in one sentence, where the rollouts can't be cut, or a choice is unknown or invalid.

    >>> experiment(prompts=8, group_size=8, mini_batches=4).trainer["per_device_train_batch_size"]
    16
    """
    base = first_config() if base is None else base
    sizes = batch_sizes(base)
    known = {*OF_RUN, *OF_TRAINER, *sizes, "clipping", "optimizer"}
    if unknown := [name for name in choices if name not in known]:
        raise ValueError(f"{unknown[0]!r} is no choice of an experiment; its choices are {', '.join(sorted(known))}.")
    if choices.get("quantization") and "lora" in choices and not choices["lora"]:
        frozen = f'quantization="{choices["quantization"]}" freezes all weights'
        raise ValueError(f"{frozen}, so lora={choices['lora']} leaves nothing to train; set lora to a rank, e.g. 8.")
    settings = {field: choices[name] for name, field in (OF_RUN | OF_TRAINER).items() if name in choices}
    if "lora" in settings:
        settings["lora"] = settings["lora"] or None
    if settings.get("policy", base.policy) != base.policy:
        settings["threads"] = None  # one thread is right for the bundled policy alone
    settings |= OPTIMIZERS[choices["optimizer"]] if "optimizer" in choices else {}
    if {"clipping", "ratio"} & set(choices):
        level = choices.get("ratio", base.trainer.get("importance_sampling_level", "token"))
        clipping = choices.get("clipping", "asymmetric")
        settings["clipping"] = "symmetric" if clipping == "symmetric" else "asymmetric"
        settings["epsilon"] = UNBOUNDED if clipping == "none" else CLIP_RANGE[level]
    sizes |= {name: choices[name] for name in sizes if name in choices}
    parts = sizes["mini_batches"] * sizes["accumulation"]
    rollouts = sizes["prompts"] * sizes["group_size"]
    if rollouts % parts:
        raise ValueError(
            f"prompts={sizes['prompts']} x group_size={sizes['group_size']} rollouts can't be cut into {parts} equal "
            f"parts (mini_batches={sizes['mini_batches']} x accumulation={sizes['accumulation']}); choose powers of 2."
        )
    settings["per_device_train_batch_size"] = rollouts // parts
    settings["gradient_accumulation_steps"], settings["steps_per_generation"] = sizes["accumulation"], parts
    return base.override(settings)


def batch_sizes(config: RunConfig) -> dict[str, int]:
    """Return a config's prompts a batch, group size, mini-batches and micro-batches a step, as `experiment` takes them.

    >>> batch_sizes(first_config())
    {'prompts': 8, 'group_size': 8, 'mini_batches': 1, 'accumulation': 1}
    """
    trainer = config.trainer
    parts, accumulation = steps_per_generation(trainer), trainer.get("gradient_accumulation_steps", 1)
    group_size = trainer.get("num_generations", 8)
    prompts = trainer.get("per_device_train_batch_size", 8) * parts // group_size
    return {
        "prompts": max(1, prompts),
        "group_size": group_size,
        "mini_batches": max(1, parts // accumulation),
        "accumulation": accumulation,
    }


def plan(vary: str | None = None, values: Sequence = (), seeds: Sequence[int] = (0,), **choices) -> Plan:
    """Return the choices as a run, or as a grid over seeds and the values of one choice, with every problem they have.

    >>> plan(vary="optimizer", values=["AdamW", "SGD"], seeds=[0, 1]).grid[1]["optim"]
    ['sgd']
    >>> plan(batching="sign_partitioned").problems[0].sentence[:59]
    "batching='sign_partitioned' can't have an effect with steps"
    """
    try:
        if vary is not None and len(set(values)) < 2:
            raise ValueError(f"vary={vary!r} needs two or more different values to compare.")
        variants = [{}] if vary is None else [{vary: value} for value in dict.fromkeys(values)]
        configs = [experiment(**choices | variant | {"seed": seeds[0]}) for variant in variants]
        problems = []
        for variant, config in zip(variants, configs, strict=True):
            where = "".join(f"{key} {value}: " for key, value in variant.items())
            problems += [Problem(severity, where + sentence) for severity, sentence in validate(config)]
    except ValueError as error:
        return Plan(None, None, [Problem("error", str(error))])
    trainers = [config.trainer for config in configs]
    fields = {key for one in trainers for key in one if any(one[key] != other.get(key) for other in trainers)}
    grid = [{"seed": list(seeds)} | {key: [one[key]] for key in one if key in fields} for one in trainers]
    failed = any(problem.severity == "error" for problem in problems)
    grid = None if vary is None and len(seeds) == 1 else grid
    return Plan(None if failed else configs[0], grid, problems, len(seeds) * len(variants))


def parse_options(text: str) -> dict:
    """Return task options as they are typed: "operands: 4, false_negative_rate: 0.1".

    Raises ValueError, in one sentence, unless it is a list of `name: value`.

    >>> parse_options("chat: false, max_terms: 2")
    {'chat': False, 'max_terms': 2}
    """
    try:
        options = parse_yaml("{" + text + "}")
    except ValueError:
        options = None
    if not isinstance(options, dict) or any(value is None for value in options.values()):
        raise ValueError(f"task options {text!r} must be name: value pairs with commas between them, e.g. operands: 4.")
    return options
