"""What the trainer's fields that are mappings may hold: options of sampling, templates, schedules, checkpointing.

Of transformers' GenerationConfig a run takes what changes the choice among next tokens, and no more: what has a field
of its own stands there, since the trainer's log-probabilities read it; the rest makes no independent rollouts, needs
code of a hub, or changes what `generate` returns.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from workbook.training.messages import show_value
from workbook.training.schema import (
    ABOVE_0_TO_1,
    DECAY,
    FLAG,
    NOT_NEGATIVE,
    NOT_NEGATIVE_OR_NULL,
    POSITIVE,
    SHARE,
    SHARE_OR_NULL,
    check_fields,
    integer,
    make_model,
    nearest,
    show_name,
)

TOKEN = Annotated[int, Field(ge=0, le=10_000_000)]
TOKENS_OR_NULL = Annotated[list[TOKEN] | None, Field(min_length=1, description="a list of token ids, or null")]
SAMPLING = {
    "min_new_tokens": integer(0, 1_000_000, null=True),
    "no_repeat_ngram_size": integer(0, 1_000_000),
    "typical_p": ABOVE_0_TO_1,
    "top_h": ABOVE_0_TO_1,
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), DECAY),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), TOKENS_OR_NULL),
    "bad_words_ids": Annotated[
        list[Annotated[list[TOKEN], Field(min_length=1)]] | None,
        Field(min_length=1, description="a list of lists of token ids, or null"),
    ],
    **dict.fromkeys(("renormalize_logits", "remove_invalid_values"), FLAG),
}
OWN_FIELD = {  # of the trainer, which is to be set instead
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")},
    **{"max_new_tokens": "max_completion_length", "max_length": "max_completion_length"},
}
TOKENIZING = (  # what the trainer itself asks of a chat template
    *("conversation", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"),
    *("tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
    "return_assistant_tokens_mask",
)
SCHEDULES = {  # the numbers of all schedules; whether one takes them is asked of it
    **dict.fromkeys(("lr_end", "num_cycles"), NOT_NEGATIVE),
    "min_lr": NOT_NEGATIVE_OR_NULL,
    "min_lr_ratio": SHARE,
    **dict.fromkeys(("min_lr_rate", "warmup_lr_rate"), SHARE_OR_NULL),
    "power": POSITIVE,
    "timescale": integer(1, 10_000_000, null=True),
    "num_decay_steps": integer(1, 10_000_000),
    "num_stable_steps": integer(0, 10_000_000, null=True),
}
ORDERED = (
    ("entropy_coef_min", "entropy_coef_max"),
    ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max"),
)
CHECKPOINTING = {"use_reentrant": FLAG, "preserve_rng_state": FLAG}
MODELS = {
    "generation_kwargs": make_model("Sampling", SAMPLING),
    "gradient_checkpointing_kwargs": make_model("Checkpointing", CHECKPOINTING),
}


SCHEDULE = make_model("Schedule", SCHEDULES)


def check_options(trainer: dict[str, Any]) -> None:
    """Raise a ValueError for the first option, in a field of the trainer that is a mapping, which no run can have."""
    for field, model in MODELS.items():
        for name, value in (trainer.get(field) or {}).items():
            if field == "generation_kwargs" and name in OWN_FIELD:
                raise ValueError(
                    f"trainer.{field} has {name}={show_value(value)}, which is a field of its own; "
                    f"set trainer.{OWN_FIELD[name]} instead."
                )
            if name not in model.model_fields:
                raise ValueError(
                    f"trainer.{field} has {show_name(name)}={show_value(value)}, which a run does not take; "
                    f"{nearest(name, model.model_fields)}"
                )
        check_fields(model, trainer.get(field) or {}, f"trainer.{field}.")
    for name, value in (trainer.get("chat_template_kwargs") or {}).items():
        if name in TOKENIZING:
            raise ValueError(
                f"trainer.chat_template_kwargs has {name}={show_value(value)}, which is set by the run itself; "
                "give variables of the template, e.g. enable_thinking."
            )
    schedule = trainer.get("lr_scheduler_kwargs") or {}
    known = {name: value for name, value in schedule.items() if name in SCHEDULES}
    check_fields(SCHEDULE, known, "trainer.lr_scheduler_kwargs.")
    _check_order(trainer, schedule)


def _check_order(trainer: dict[str, Any], schedule: dict[str, Any]) -> None:
    """Raise a ValueError for the first value that is above the one which it must not exceed."""
    for low, high in ORDERED:
        least, most = trainer.get(low), trainer.get(high)
        if least is not None and most is not None and least > most:
            raise ValueError(f"trainer.{low}={least} must be at most {high}={most}.")
    rate = trainer.get("learning_rate")
    for name in ("min_lr", "lr_end"):
        least = schedule.get(name)
        if least is not None and rate is not None and least > rate:
            raise ValueError(f"trainer.lr_scheduler_kwargs.{name}={least} must be at most learning_rate={rate}.")
    if trainer.get("transformers_continuous_batching_config") and not trainer.get(
        "use_transformers_continuous_batching"
    ):
        raise ValueError(
            f"trainer.transformers_continuous_batching_config="
            f"{show_value(trainer['transformers_continuous_batching_config'])} has no effect without "
            "use_transformers_continuous_batching; set that to true, or remove it."
        )
    least, most = ((trainer.get("generation_kwargs") or {}).get("min_new_tokens"), trainer.get("max_completion_length"))
    if least and most and least > most:
        raise ValueError(
            f"trainer.generation_kwargs.min_new_tokens={least} must be at most max_completion_length={most}."
        )
