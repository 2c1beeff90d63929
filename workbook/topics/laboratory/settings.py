"""Run settings from a handful of choices: pure functions, over which the laboratory's widgets are shells.

experiment(**choices) -> RunConfig          one setting
overrides(**choices) -> dict                the trainer's fields of it that a few controls set
plan(**choices, vary=, values=, seeds=)     that setting, a grid around it, and what is wrong with them
forecast_chart(memory)                      what it will need
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import altair as alt
import pandas as pd

from workbook.theory.choices import CLIPPINGS, ESTIMATORS, LEVELS, OWN, STRATEGIES, TRANSFORMS
from workbook.theory.credit_rules import RULES
from workbook.training.checks import Problem, validate
from workbook.training.run_config import RunConfig, parse_yaml
from workbook.views.memory import memory_bars

OPTIMIZERS = {
    "AdamW": {"optim": "adamw_torch", "adam_beta1": 0.9},
    "AdamW, beta1 = 0": {"optim": "adamw_torch", "adam_beta1": 0.0},
    "SGD": {"optim": "sgd"},
}
CLIP_RANGE = {"token": 0.2, "sequence": 0.03}  # a sequence ratio is a mean over some 40 tokens: its spread is smaller
UNBOUNDED = 1e9  # a clip range that no ratio leaves
NEAR = 0.25  # of what is free: a smaller forecast is drawn without that limit, beside which it would be a dot
MAX_RUNS = 12  # of a sweep that is started from a page
OVERRIDDEN = (  # fields of the trainer that `overrides` sets
    "learning_rate", "num_generations", "max_steps", "loss_type", "advantage_estimator", "batching",
    "per_device_train_batch_size", "steps_per_generation",
)  # fmt: skip
LOSSES = ("dr_grpo", "grpo", "dapo")


def _named(values: Iterable, **labelled) -> dict:
    """Options of a menu as {shown: meant}: each value under its own name, after those with another label."""
    return labelled | {str(value): value for value in values}


# every choice that is a menu: its label and its options, as shown -> as meant
MENUS = {
    "advantage_estimator": ("advantage estimator", _named((*ESTIMATORS, *RULES))),
    "ratio": ("importance ratio", _named(LEVELS)),
    "clipping": ("clipping", _named((*CLIPPINGS, "none"))),
    "group_transform": ("group transform", _named(TRANSFORMS, none=None)),
    "loss_type": ("loss type", _named(LOSSES)),
    "batching": ("batching", _named(STRATEGIES)),
    "mini_batches": ("mini-batches a batch", _named((1, 2, 4, 8))),
    "reuse": ("uses of each batch", _named((1, 2, 4, 8))),
    "optimizer": ("optimizer", _named(OPTIMIZERS)),
    "max_grad_norm": ("gradient clipping", {"none": 0.0, "at norm 1": 1.0}),
    "group_size": ("group size G", _named((2, 4, 8, 16))),
    "prompts": ("prompts a batch", _named((2, 4, 8, 16, 32))),
    "accumulation": ("micro-batches a step", _named((1, 2, 4, 8))),
    "quantization": ("weights", {"as they are": None, "NF4 (4 bits)": "nf4"}),
    "lora": ("LoRA rank", {"none: train all": None} | _named((4, 8, 16, 32))),
}
LABELS = {key: label for key, (label, _) in MENUS.items()} | {"learning_rate": "learning rate"}
VARIABLE = [key for key in LABELS if key not in ("quantization", "lora")]  # what a sweep may vary


class Plan(NamedTuple):
    """Settings that choices make; `grid` is None for a single run, `config` where `problems` hold an error."""

    config: RunConfig | None
    grid: list[dict] | None
    problems: list[Problem]
    runs: int = 1


def experiment(
    model: str = "bundled",
    quantization: str | None = None,
    lora: int | None = None,
    task: str = "chain",
    task_options: dict | None = None,
    advantage_estimator: str = "grpo",
    ratio: str = "token",
    clipping: str = "asymmetric",
    group_transform: str | None = None,
    loss_type: str = "dr_grpo",
    batching: str = "shuffled",
    mini_batches: int = 1,
    reuse: int = 1,
    accumulation: int = 1,
    optimizer: str = "AdamW",
    learning_rate: float = 1e-3,
    max_grad_norm: float = 0.0,
    group_size: int = 8,
    prompts: int = 8,
    steps: int = 20,
    max_tokens: int = 48,
    num_prompts: int = 512,
    eval_prompts: int = 0,
    seed: int = 0,
    name: str = "mine",
) -> RunConfig:
    """The run that these choices describe.

    ratio, clipping: of the importance weights; "none" is a range that nothing leaves.  mini_batches: optimizer steps
    that a batch of prompts x group_size rollouts is cut into, reuse: how often, accumulation: micro-batches of each.
    steps: optimizer steps.  num_prompts: rows drawn from the task.

    Raises ValueError, in one sentence, where the rollouts can't be cut, or a field is unknown or invalid.

    >>> experiment(prompts=8, group_size=8, mini_batches=4).trainer["per_device_train_batch_size"]
    16
    """
    parts = mini_batches * accumulation
    if prompts * group_size % parts:
        raise ValueError(
            f"prompts={prompts} x group_size={group_size} rollouts can't be cut into {parts} equal parts "
            f"(mini_batches={mini_batches} x accumulation={accumulation}); choose powers of 2."
        )
    trainer = {
        "max_steps": steps,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        **OPTIMIZERS[optimizer],
        "max_grad_norm": max_grad_norm,
        "loss_type": loss_type,
        "advantage_estimator": advantage_estimator,
        "importance_sampling_level": ratio,
        "clipping": "symmetric" if clipping == "symmetric" else "asymmetric",
        "epsilon": UNBOUNDED if clipping == "none" else CLIP_RANGE[ratio],
        "group_transform": group_transform,
        "batching": batching,
        "num_generations": group_size,
        "per_device_train_batch_size": prompts * group_size // parts,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": parts,
        "num_iterations": reuse,
        "max_completion_length": max_tokens,
        "trim_padding": True,
    }
    return RunConfig(
        name=name,
        policy=model,
        quantization=quantization,
        lora=lora,
        task=task,
        task_options=task_options or {},
        num_prompts=num_prompts,
        eval_prompts=eval_prompts,
        seed=seed,
        threads=1 if model == "bundled" else None,
        trainer=trainer,
    )


def overrides(
    rollouts: int = 256,
    group_size: int = 8,
    mini_batches: int = 1,
    batching: str = "shuffled",
    steps: int = 60,
    optim: str | None = None,
    **choices,
) -> dict:
    """The trainer's fields in which an `experiment` of so many rollouts a batch differs from a config, for `start_run`.

    optim: TRL's name of the optimizer; None leaves it to the config.

    Raises ValueError where the choice can't have the effect it names, or doesn't divide.

    >>> overrides(mini_batches=4, batching="query_preserved")["per_device_train_batch_size"]
    64
    """
    if rollouts % (mini_batches * group_size):
        raise ValueError(
            f"{rollouts} rollouts can't be cut into mini_batches={mini_batches} of whole groups of {group_size}; "
            "choose powers of 2."
        )
    if batching != "shuffled" and mini_batches == 1:
        raise ValueError(
            f"batching={batching!r} decides what goes into which mini-batch, so it needs mini_batches of 2 or more."
        )
    sizes = {"prompts": rollouts // group_size, "group_size": group_size, "mini_batches": mini_batches, "steps": steps}
    trainer = experiment(batching=batching, **sizes, **choices).trainer
    return {key: trainer[key] for key in OVERRIDDEN} | ({"optim": optim} if optim else {})


def plan(vary: str | None = None, values: Sequence = (), seeds: Sequence[int] = (0,), **choices) -> Plan:
    """The choices as a run, or as a grid over seeds and the values of one choice, with every problem that they have.

    >>> plan(vary="optimizer", values=["AdamW", "SGD"], seeds=[0, 1]).grid[1]
    {'seed': [0, 1], 'optim': ['sgd']}
    >>> plan(batching="sign_partitioned").problems[0].sentence[:59]
    "batching='sign_partitioned' can't have an effect with steps"
    """
    try:
        if vary is not None and len(set(values)) < 2:
            raise ValueError(f"vary={vary!r} needs two or more different values to compare.")
        runs = len(seeds) * max(1, len(values))
        if runs > MAX_RUNS:
            raise ValueError(
                f"{len(values)} values x {len(seeds)} seeds are more than {MAX_RUNS} runs; "
                "python -m workbook sweep takes any number."
            )
        variants = [{}] if vary is None else [{vary: value} for value in dict.fromkeys(values)]
        configs = [experiment(**choices | variant | {"seed": seeds[0]}) for variant in variants]
        problems = []
        for variant, config in zip(variants, configs, strict=True):
            where = "".join(f"{MENUS[key][0] if key in MENUS else key} {value}: " for key, value in variant.items())
            problems += [Problem(severity, where + sentence) for severity, sentence in validate(config)]
    except ValueError as error:
        return Plan(None, None, [Problem("error", str(error))])
    grid = [{"seed": list(seeds)} | _varied(config, configs) for config in configs]
    failed = any(problem.severity == "error" for problem in problems)
    return Plan(None if failed else configs[0], None if vary is None and len(seeds) == 1 else grid, problems, runs)


def _varied(config: RunConfig, others) -> dict[str, list]:
    """The trainer's fields in which a config differs from any of the others, as a grid's lists of one."""
    fields = {key for other in others for key in config.trainer if other.trainer.get(key, None) != config.trainer[key]}
    return {key: [config.trainer[key]] for key in config.trainer if key in fields}


def parse_options(text: str) -> dict:
    """Task options as they are typed: "operands: 4, false_negative_rate: 0.1".

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


def parse_values(vary: str, text: str) -> list:
    """Values of a choice as they are typed, with semicolons or commas between them.

    Raises ValueError, in one sentence, for a value that the choice does not have.

    >>> parse_values("group_transform", "none; min_replace"), parse_values("learning_rate", "1e-3, 5e-4")
    ([None, 'min_replace'], [0.001, 0.0005])
    """
    parts = [part.strip() for part in text.split(";" if ";" in text else ",") if part.strip()]
    if vary in MENUS:
        label, options = MENUS[vary]
        own = OWN.fullmatch if vary == "advantage_estimator" else options.get  # a credit rule of one's own
        if unknown := [part for part in parts if part not in options and not own(part)]:
            raise ValueError(f"{label} has no value {unknown[0]!r}; it has {'; '.join(options)}.")
        return [options.get(part, part) for part in parts]
    try:
        return [float(part) for part in parts]
    except ValueError:
        raise ValueError(f"values {text!r} of {vary} must be numbers with commas between them.") from None


def forecast_chart(memory: pd.DataFrame, case: str = "this setting", free: float | None = None) -> alt.LayerChart:
    """Parts of a setting's memory at its peak: columns part, mib, as of `training.memory.at_peak`.

    free: MiB that are free here, drawn where the setting comes near them.
    """
    near = free is not None and memory["mib"].sum() > NEAR * free
    return memory_bars(memory.assign(case=case), limit=free if near else None)


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(48.2), duration(130), duration(9000)
    ('48 s', '2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
