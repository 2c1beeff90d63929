"""Run settings from a handful of choices: pure functions, and the controls (FIELDS) of the form
over them.

experiment(**choices) -> RunConfig          one setting, over a config or alone
plan(**choices, vary=, values=, seeds=)     that setting, a grid around it, and their problems
in_form_words(sentence, labels) -> str      a refusal of a config, in the words of the form
"""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import ipywidgets

from workbook.app.memory import SHAPES, steps_per_generation
from workbook.messages import InvalidValue, require_one_of
from workbook.theory.choices import CLIPPINGS, ESTIMATORS, LEVELS, STRATEGIES, TRANSFORMS
from workbook.theory.credit_rules import RULES
from workbook.training.checks import Problem, validate
from workbook.training.config import RunConfig, parse_settings
from workbook.views.explorer import log_slider, menu, power_slider, slider, switch

OPTIMIZERS = {
    "AdamW": {"optim": "adamw_torch", "adam_beta1": 0.9},
    "AdamW, beta1 = 0": {"optim": "adamw_torch", "adam_beta1": 0.0},
    "SGD": {"optim": "sgd"},
}
# a sequence ratio is a mean over some 40 tokens: its spread is smaller
CLIP_RANGE = {"token": 0.2, "sequence": 0.03}
UNBOUNDED = 1e9  # a clip range that no ratio leaves
# choice -> a config's field
OF_RUN = {"model": "policy", "eval_prompts": "eval_prompts", "num_prompts": "num_prompts"}
OF_RUN |= {
    name: name for name in ("quantization", "lora", "dtype", "task", "task_options", "seed", "name")
}
# task options with a control: the tasks that take them
OF_TASK = {"reward": ("own",), "chat": ("own", "gym", "hub")}
OF_TRAINER = {  # choice -> a trainer's field, and what it is where a config leaves it open
    "advantage_estimator": ("advantage_estimator", "grpo"),
    "ratio": ("importance_sampling_level", "token"),
    "group_transform": ("group_transform", None),
    "loss_type": ("loss_type", "dapo"),
    "batching": ("batching", "shuffled"),
    "reuse": ("num_iterations", 1),
    "checkpointing": ("activation_checkpointing", False),
    "learning_rate": ("learning_rate", 1e-6),
    "max_grad_norm": ("max_grad_norm", 1.0),
    "group_size": ("num_generations", 8),
    "steps": ("max_steps", 20),
    "max_tokens": ("max_completion_length", 256),
}


@cache
def first_config() -> RunConfig:
    """An experiment on the chain task, which any machine trains in seconds."""
    trainer = {
        "max_steps": 20,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        **OPTIMIZERS["AdamW"],
    }
    trainer |= {
        "max_grad_norm": 0.0,
        "loss_type": "dr_grpo",
        "num_generations": 8,
        "max_completion_length": 48,
    }
    trainer |= {"per_device_train_batch_size": 64, "steps_per_generation": 1, "trim_padding": True}
    return RunConfig(
        name="mine", policy="bundled", task="chain", num_prompts=512, threads=1, trainer=trainer
    )


class Plan(NamedTuple):
    """Settings that choices make; `grid` is None for a single run, `config` where `problems` hold
    an error.
    """

    config: RunConfig | None
    grid: list[dict] | None
    problems: list[Problem]
    runs: int = 1


def experiment(base: RunConfig | None = None, **choices) -> RunConfig:
    """Return the run of these choices; what they leave open is as in `base`, by default
    `first_config`.

    Choices are named as in OF_RUN and OF_TRAINER, and: prompts, different ones of a generation
    batch; mini_batches, optimizer steps that its prompts x group_size rollouts are cut into;
    accumulation, micro-batches of each; clipping, "asymmetric", "symmetric" or "none", a range that
    nothing leaves; optimizer, one of OPTIMIZERS; reward and chat, the task options of those names,
    of a task that takes them.

    Raises ValueError, in one sentence, where the rollouts can't be cut, or a choice is unknown or
    invalid.

    >>> experiment(prompts=8, group_size=8, mini_batches=4).trainer["per_device_train_batch_size"]
    16
    """
    base = first_config() if base is None else base
    sizes = batch_sizes(base)
    known = {*OF_RUN, *OF_TRAINER, *OF_TASK, *sizes, "clipping", "optimizer"}
    for name in choices:
        require_one_of("choice", name, sorted(known))
    if choices.get("quantization") and "lora" in choices and not choices["lora"]:
        frozen = f'quantization="{choices["quantization"]}" freezes all weights'
        raise InvalidValue(
            "lora",
            choices["lora"],
            "a rank, e.g. 8",
            f"{frozen}, so lora={choices['lora']} leaves nothing to train; set lora to a rank,"
            " e.g. 8.",
        )
    fields = OF_RUN | {name: field for name, (field, _) in OF_TRAINER.items()}
    settings = {field: choices[name] for name, field in fields.items() if name in choices}
    family = settings.get("task", base.task).partition(":")[0]
    if own := {
        name: choices[name]
        for name in OF_TASK
        if choices.get(name, "") != "" and family in OF_TASK[name]
    }:
        settings["task_options"] = settings.get("task_options", base.task_options) | own
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
        raise InvalidValue(
            "mini_batches",
            sizes["mini_batches"],
            "such that micro-batches have one size",
            f"prompts={sizes['prompts']} x group_size={sizes['group_size']} rollouts can't be cut"
            f" into {parts} equal parts (mini_batches={sizes['mini_batches']} x"
            f" accumulation={sizes['accumulation']}); choose powers of 2.",
        )
    settings["per_device_train_batch_size"] = rollouts // parts
    settings["gradient_accumulation_steps"], settings["steps_per_generation"] = (
        sizes["accumulation"],
        parts,
    )
    return base.override(settings)


def batch_sizes(config: RunConfig) -> dict[str, int]:
    """A config's prompts a batch, group size, mini-batches and micro-batches a step, as
    `experiment` takes them.
    """
    trainer = config.trainer
    parts, accumulation = (
        steps_per_generation(trainer),
        trainer.get("gradient_accumulation_steps", 1),
    )
    group_size = trainer.get("num_generations", 8)
    prompts = max(1, trainer.get("per_device_train_batch_size", 8) * parts // group_size)
    sizes = {
        "prompts": prompts,
        "group_size": group_size,
        "mini_batches": max(1, parts // accumulation),
    }
    return sizes | {"accumulation": accumulation}


def first_values(config: RunConfig, names: Sequence[str] = tuple(OF_TASK)) -> dict:
    """The values of all FIELDS that describe a config; names: those that are shown, for which task
    options leave room.

    A reward that is no text, several of them with weights say, stays among the task options.
    """
    trainer, own = config.trainer, {"reward": "", "chat": config.task.startswith(("gym:", "hub:"))}
    own |= {
        name: config.task_options[name]
        for name in OF_TASK
        if type(config.task_options.get(name)) is type(own[name])
    }
    values = {name: getattr(config, field) for name, field in OF_RUN.items()}
    values |= {
        name: trainer.get(field, default) for name, (field, default) in OF_TRAINER.items()
    } | batch_sizes(config)
    adam = "AdamW" if trainer.get("adam_beta1", 0.9) else "AdamW, beta1 = 0"
    options = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in config.task_options.items()
        if key not in names or value is not own.get(key)
    }
    return (
        values
        | own
        | {
            "task_options": ", ".join(f"{key}: {value}" for key, value in options.items()),
            "optimizer": "SGD" if trainer.get("optim") == "sgd" else adam,
            "clipping": (
                "none"
                if trainer.get("epsilon", 0.2) > 1e6
                else trainer.get("clipping", "asymmetric")
            ),
        }
    )


def plan(
    vary: str | None = None, values: Sequence = (), seeds: Sequence[int] = (0,), **choices
) -> Plan:
    """Return the choices as a run, or as a grid over seeds and the values of one choice, with every
    problem they have.

    >>> plan(vary="optimizer", values=["AdamW", "SGD"], seeds=[0, 1]).grid[1]["optim"]
    ['sgd']
    >>> plan(batching="sign_partitioned").problems[0].sentence[:59]
    "batching='sign_partitioned' can't have an effect with steps"
    """
    try:
        if vary is not None and len(set(values)) < 2:
            raise InvalidValue("vary", vary, "a setting of two or more different values to compare")
        variants = [{}] if vary is None else [{vary: value} for value in dict.fromkeys(values)]
        configs = [experiment(**choices | variant | {"seed": seeds[0]}) for variant in variants]
        problems = []
        for variant, config in zip(variants, configs, strict=True):
            where = "".join(f"{key} {value}: " for key, value in variant.items())
            problems += [
                replace(problem, sentence=where + problem.sentence) for problem in validate(config)
            ]
    except ValueError as error:
        return Plan(None, None, [Problem.of(error)])
    trainers = [config.trainer for config in configs]
    fields = {
        key
        for one in trainers
        for key in one
        if any(one[key] != other.get(key) for other in trainers)
    }
    grid = [
        {"seed": list(seeds)} | {key: [one[key]] for key in one if key in fields}
        for one in trainers
    ]
    failed = any(problem.severity == "error" for problem in problems)
    grid = None if vary is None and len(seeds) == 1 else grid
    return Plan(None if failed else configs[0], grid, problems, len(seeds) * len(variants))


def parse_options(text: str) -> dict:
    """Task options as they are typed: "operands: 4, false_negative_rate: 0.1"; ValueError unless
    they are name: value.

    >>> parse_options("chat: false, max_terms: 2")
    {'chat': False, 'max_terms': 2}
    """
    try:
        options = parse_settings("{" + text + "}")
    except ValueError:
        options = None
    if not isinstance(options, dict) or any(value is None for value in options.values()):
        raise InvalidValue(
            "task options", text, "name: value pairs with commas between them, e.g. operands: 4"
        )
    return options


def in_form_words(sentence: str, labels: dict[str, str]) -> str:
    """A refusal of a config with a form's labels in place of the fields of a config; labels: of
    `field_labels`.

    >>> labels = {"num_prompts": "prompts", "lora": "LoRA"}
    >>> in_form_words("num_prompts=4 must be at least 8; set lora to a rank.", labels)
    '“prompts” = 4 must be at least 8; set “LoRA” to a rank.'
    """
    for pattern, words in PHRASES.items():
        sentence = re.sub(pattern, words, sentence)

    def label(match) -> str:
        name, equals = match.groups()
        plain = name.isalpha() and name != "lora" and not equals  # a word such as task or model
        return match[0] if plain else f"“{labels[name]}”{' = ' if equals else ''}"

    return re.sub(rf"(?<![\w.'“])(?:trainer\.)?({'|'.join(labels)})\b(=)?", label, sentence)


def field_labels(controls: dict[str, ipywidgets.Widget]) -> dict[str, str]:
    """{a field of a config: the label of its control}, longer names first."""
    fields = OF_RUN | {name: field for name, (field, _) in OF_TRAINER.items()}
    fields |= {
        "accumulation": "gradient_accumulation_steps",
        "mini_batches": "steps_per_generation",
    }
    labels = {
        fields.get(choice, choice): control.description for choice, control in controls.items()
    }
    return dict(sorted(labels.items(), key=lambda pair: -len(pair[0])))


PHRASES = {  # of refusals that speak to a programmer: what to do about it in the form
    r"(?s).*\breward=None must be.*": (
        "Choose a “reward”: a function of a .py file beside this notebook, such as "
        "score.py:score, or upload one."
    ),
    r"^task='[^']*'(?: with task_options=\{.*?\})?: ": "",
    r"(?s).*this tokenizer has no chat template.*": (
        "Switch “prompts as chat” off: this model has no chat template."
    ),
}


def files_here(*endings: str) -> list[str]:
    """Names of the files beside the notebook that end so, the newest first."""
    found = [
        path
        for path in Path().iterdir()
        if path.suffix in endings and not path.name.startswith(".")
    ]
    return [path.name for path in sorted(found, key=lambda path: -path.stat().st_mtime)]


def rewards_here() -> list[str]:
    """The functions (completion, answer, ...) of Python files beside the notebook, as a reward is
    named.
    """
    found = []
    for name in files_here(".py"):
        try:
            tree = ast.parse(Path(name).read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        found += [
            f"{name}:{f.name}"
            for f in functions
            if [a.arg for a in f.args.args[:2]] == ["completion", "answer"]
        ]
    return found


# --- controls

MODELS, TASKS = (
    ("bundled", "smollm2-135m", *SHAPES),
    ("chain", "walk", "gym:chain_sum", "hub:", "own:"),
)
LOSSES = ("dr_grpo", "grpo", "dapo")


def _text(label: str, kind=ipywidgets.Text, options: tuple = ()) -> Callable:
    look = {
        "layout": {"width": "420px"},
        "style": {"description_width": "170px"},
        "continuous_update": False,
    }
    more = {"options": list(options), "ensure_option": False} if options else {}
    return lambda value: kind(value=value, description=label, **look, **more)


def _menu(label: str, options) -> Callable:
    """Return a maker of a menu; a value that is none of its options becomes one."""
    pairs = [option if isinstance(option, tuple) else (str(option), option) for option in options]
    known = [value for _, value in pairs]
    return lambda value: menu(
        value, [*pairs, *([] if value in known else [(str(value), value)])], label
    )


def _number(label: str, least: int, most: int) -> Callable:
    return lambda value: slider(value, min(least, value), max(most, value), 1, label)


class Field(NamedTuple):
    """A control: what makes it of a value, and what its tooltip says."""

    make: Callable
    help: str


FIELDS = {
    "model": Field(
        _text("model", ipywidgets.Combobox, MODELS),
        "The policy: bundled (a toy of 33 words), smollm2-135m (English, fetched once, 98 MB),"
        " a folder of a model, or a hub id.",
    ),
    "task": Field(
        _text("task", ipywidgets.Combobox, TASKS),
        "Prompts and reward: chain, walk, gym:<data set>, hub:<data set>,"
        " or own:<file> for a CSV, JSON-lines or Parquet file with the columns prompt and answer.",
    ),
    "reward": Field(
        _text("reward", ipywidgets.Combobox),
        "For own: <file.py>:<function>, which scores a completion:"
        " def score(completion, answer) returns a number.",
    ),
    "chat": Field(
        lambda value: switch(value, "prompts as chat"),
        "Put prompts into the model's chat template; for own:, gym: and hub: tasks,"
        " and a model that has one.",
    ),
    "task_options": Field(
        _text("task options"),
        "name: value pairs, such as operands: 4 of the chain task or"
        " max_terms: 2 of gym:chain_sum.",
    ),
    "num_prompts": Field(
        _number("prompts of the task", 1, 2048),
        "Prompts to train on, drawn from the task;"
        " of your own file at most its rows minus those held out.",
    ),
    "eval_prompts": Field(
        _number("held-out prompts", 0, 128),
        "Prompts that are never trained on: their reward is measured before and after training."
        " 0: none.",
    ),
    "max_tokens": Field(
        _number("tokens at most", 1, 512), "The longest completion; longer ones are cut off there."
    ),
    "quantization": Field(
        _menu("weights", [("as they are", None), ("NF4 (4 bits)", "nf4")]),
        "NF4 keeps frozen weights in 4 bits: an eighth of the memory of 32-bit ones."
        " It needs LoRA.",
    ),
    "lora": Field(
        lambda value: power_slider(value or 0, 64, "LoRA rank", zero="none"),
        "Rank of trained adapters beside frozen weights; none trains all weights instead.",
    ),
    "dtype": Field(
        _menu(
            "frozen weights in", [("as the device likes", "auto"), "float32", "bfloat16", "float16"]
        ),
        "Precision of frozen weights; trained ones are float32 always.",
    ),
    "prompts": Field(
        lambda value: power_slider(value, 64, "prompts a batch"),
        "Different prompts in one generation batch. Times the group size,"
        " that is the rollouts of a batch.",
    ),
    "group_size": Field(
        lambda value: power_slider(value, 64, "group size G", least=2),
        "Completions of each prompt. Their mean reward is the baseline:"
        " a group of equal rewards teaches nothing.",
    ),
    "mini_batches": Field(
        lambda value: power_slider(value, 8, "mini-batches a batch"),
        "Optimizer steps that a generation batch is cut into.",
    ),
    "batching": Field(
        _menu("batching", STRATEGIES),
        "Which rollouts share a mini-batch; it needs two or more of them.",
    ),
    "reuse": Field(
        lambda value: power_slider(value, 8, "epochs on a batch"),
        "How often each generation batch is used. More than once is off-policy,"
        " and needs clipping.",
    ),
    "accumulation": Field(
        lambda value: power_slider(value, 256, "micro-batches a step"),
        "Backward passes in which a step's rollouts go through: the same step in less memory.",
    ),
    "checkpointing": Field(
        lambda value: switch(value, "gradient checkpointing"),
        "Keep one hidden state per layer and recompute the rest: less memory, a third more time.",
    ),
    "learning_rate": Field(
        lambda value: log_slider(value, -6, 0, "learning rate"),
        "About 1e-3 for the bundled toy and for LoRA,"
        " 1e-5 where all weights of a language model are trained.",
    ),
    "steps": Field(_number("optimizer steps", 1, 200), "Optimizer steps of a run."),
    "optimizer": Field(
        _menu("optimizer", OPTIMIZERS),
        "AdamW; AdamW without momentum; or SGD, which needs a larger learning rate.",
    ),
    "max_grad_norm": Field(
        _menu("gradient clipping", [("none", 0.0), ("at norm 1", 1.0)]),
        "Scale a gradient down whose norm exceeds 1. It rescales unlike batches unlike amounts.",
    ),
    "advantage_estimator": Field(
        _text("advantage estimator", ipywidgets.Combobox, (*ESTIMATORS, *RULES)),
        "How rewards become advantages; own:<file.py>:<function> for a rule of yours.",
    ),
    "ratio": Field(
        _menu("importance ratio", LEVELS),
        "Ratio and clipping per token (GRPO) or per sequence (GSPO).",
    ),
    "clipping": Field(
        _menu("clipping", (*CLIPPINGS, "none")),
        "Asymmetric (PPO's), symmetric (TV-style), or none.",
    ),
    "group_transform": Field(
        _menu("group transform", [("none", None), *TRANSFORMS]),
        "A change of the group's weights before the loss, e.g. min-replace.",
    ),
    "loss_type": Field(
        _menu("loss type", LOSSES),
        "The sum over tokens is divided by the longest length (dr_grpo),"
        " by each sequence's (grpo), or by the batch's tokens (dapo).",
    ),
    "seed": Field(
        _number("seed", 0, 20),
        "Of prompts, sampling and adapters. A comparison needs six seeds or more.",
    ),
    "name": Field(_text("name"), "How the run's folder begins."),
}
BASIC = (
    "model",
    "lora",
    "task",
    "reward",
    "chat",
    "num_prompts",
    "max_tokens",
    "prompts",
    "group_size",
)
BASIC += ("learning_rate", "steps", "seed")
QLORA = (
    "model",
    "task",
    "reward",
    "chat",
    "task_options",
    "quantization",
    "lora",
    "dtype",
    "learning_rate",
    "group_size",
    "prompts",
)
QLORA += ("accumulation", "checkpointing", "max_tokens", "steps")
