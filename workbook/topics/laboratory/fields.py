"""Controls of the form, one a line: what makes each of a value, and what its tooltip says; and which are shown where."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ipywidgets

from workbook.theory.choices import CLIPPINGS, ESTIMATORS, LEVELS, STRATEGIES, TRANSFORMS
from workbook.theory.credit_rules import RULES
from workbook.topics.laboratory.choices import OPTIMIZERS
from workbook.training.memory import SHAPES
from workbook.views.explorer import log_slider, menu, power_slider, slider, switch

MODELS, TASKS = ("bundled", "smollm2-135m", *SHAPES), ("chain", "gym:chain_sum", "hub:", "own:")
LOSSES = ("dr_grpo", "grpo", "dapo")


def _text(label: str, kind=ipywidgets.Text, options: tuple = ()) -> Callable:
    look = {"layout": {"width": "420px"}, "style": {"description_width": "170px"}, "continuous_update": False}
    more = {"options": list(options), "ensure_option": False} if options else {}
    return lambda value: kind(value=value, description=label, **look, **more)


def _menu(label: str, options) -> Callable:
    """Return a maker of a menu; a value that is none of its options becomes one."""
    pairs = [option if isinstance(option, tuple) else (str(option), option) for option in options]
    known = [value for _, value in pairs]
    return lambda value: menu(value, [*pairs, *([] if value in known else [(str(value), value)])], label)


def _number(label: str, least: int, most: int) -> Callable:
    return lambda value: slider(value, min(least, value), max(most, value), 1, label)


class Field(NamedTuple):
    """A control: what makes it of a value, and what its tooltip says."""

    make: Callable
    help: str


FIELDS = {
    "model": Field(_text("model", ipywidgets.Combobox, MODELS), "The policy: bundled (a toy of 33 words), smollm2-135m (English, fetched once, 98 MB), a folder of a model, or a hub id."),
    "task": Field(_text("task", ipywidgets.Combobox, TASKS), "Prompts and reward: chain, gym:<data set>, hub:<data set>, or own:<file> for a CSV or JSON-lines file with the columns prompt and answer."),
    "task_options": Field(_text("task options"), "name: value pairs. For own: reward: file.py:function, which scores a completion; chat: true puts prompts into the model's chat template."),
    "num_prompts": Field(_number("prompts of the task", 1, 2048), "Prompts to train on, drawn from the task; of your own file at most its rows minus those held out."),
    "eval_prompts": Field(_number("held-out prompts", 0, 128), "Prompts that are never trained on: their reward is measured before and after training. 0: none."),
    "max_tokens": Field(_number("tokens at most", 1, 512), "The longest completion; longer ones are cut off there."),
    "quantization": Field(_menu("weights", [("as they are", None), ("NF4 (4 bits)", "nf4")]), "NF4 keeps frozen weights in 4 bits: an eighth of the memory of 32-bit ones. It needs LoRA."),
    "lora": Field(lambda value: power_slider(value or 0, 64, "LoRA rank", zero="all weights"), "Rank of trained adapters beside frozen weights; 0 trains all weights instead."),
    "dtype": Field(_menu("frozen weights in", [("as the device likes", "auto"), "float32", "bfloat16", "float16"]), "Precision of frozen weights; trained ones are float32 always."),
    "prompts": Field(lambda value: power_slider(value, 64, "prompts a batch"), "Different prompts in one generation batch. Times the group size, that is the rollouts of a batch."),
    "group_size": Field(lambda value: power_slider(value, 64, "group size G", least=2), "Completions of each prompt. Their mean reward is the baseline: a group of equal rewards teaches nothing."),
    "mini_batches": Field(lambda value: power_slider(value, 8, "mini-batches a batch"), "Optimizer steps that a generation batch is cut into."),
    "batching": Field(_menu("batching", STRATEGIES), "Which rollouts share a mini-batch; it needs two or more of them."),
    "reuse": Field(lambda value: power_slider(value, 8, "epochs on a batch"), "How often each generation batch is used. More than once is off-policy, and needs clipping."),
    "accumulation": Field(lambda value: power_slider(value, 256, "micro-batches a step"), "Backward passes in which a step's rollouts go through: the same step in less memory."),
    "checkpointing": Field(lambda value: switch(value, "gradient checkpointing"), "Keep one hidden state per layer and recompute the rest: less memory, a third more time."),
    "learning_rate": Field(lambda value: log_slider(value, -6, 0, "learning rate"), "About 1e-3 for the bundled toy and for LoRA, 1e-5 where all weights of a language model are trained."),
    "steps": Field(_number("optimizer steps", 1, 200), "Optimizer steps of a run."),
    "optimizer": Field(_menu("optimizer", OPTIMIZERS), "AdamW; AdamW without momentum; or SGD, which needs a larger learning rate."),
    "max_grad_norm": Field(_menu("gradient clipping", [("none", 0.0), ("at norm 1", 1.0)]), "Scale a gradient down whose norm exceeds 1. It rescales unlike batches unlike amounts."),
    "advantage_estimator": Field(_text("advantage estimator", ipywidgets.Combobox, (*ESTIMATORS, *RULES)), "How rewards become advantages; own:<file.py>:<function> for a rule of yours."),
    "ratio": Field(_menu("importance ratio", LEVELS), "Ratio and clipping per token (GRPO) or per sequence (GSPO)."),
    "clipping": Field(_menu("clipping", (*CLIPPINGS, "none")), "Asymmetric (PPO's), symmetric (TV-style), or none."),
    "group_transform": Field(_menu("group transform", [("none", None), *TRANSFORMS]), "A change of the group's weights before the loss, e.g. min-replace."),
    "loss_type": Field(_menu("loss type", LOSSES), "The sum over tokens is divided by the longest length (dr_grpo), by each sequence's (grpo), or by the batch's tokens (dapo)."),
    "seed": Field(_number("seed", 0, 20), "Of prompts, sampling and adapters. A comparison needs six seeds or more."),
    "name": Field(_text("name"), "How the run's folder begins."),
}  # fmt: skip
BASIC = ("model", "lora", "task", "task_options", "num_prompts", "max_tokens", "prompts", "group_size", "learning_rate")
BASIC += ("steps", "seed")
QLORA = ("model", "task", "task_options", "quantization", "lora", "dtype", "learning_rate", "group_size", "prompts")
QLORA += ("accumulation", "checkpointing", "max_tokens", "steps")
