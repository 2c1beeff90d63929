"""Schema of a run's config: kinds of values, the run's own fields, and the sentence that refuses another value.

A kind is a type with its range or choices for pydantic, and in words. `check_fields` turns a violation into a sentence
of field, value and words. The trainer's fields stand in `workbook.training.trainer_fields`; what those of them that are
mappings may hold stands here. Of transformers' GenerationConfig a run takes what changes the choice among next tokens,
and no more: what has a field of its own stands there, since the trainer's log-probabilities read it; the rest makes no
independent rollouts, needs code of a hub, or changes what `generate` returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    create_model,
)

from workbook.training.messages import show_value

MAX_NAME = 100  # characters
MAX_PROMPTS, MAX_THREADS, MAX_RANK, MAX_SEED = 1_000_000, 256, 1024, 2**31 - 1
MAX_SIZE = 65_536  # of batches, and of what they are cut into


def integer(least: int, most: int, null: bool = False, words: str = "an integer of at least {} and at most {:,}"):
    """An integer in a range, or also null; words: with places for both ends."""
    words = words.format(least, most) + (", or null" if null else "")
    return Annotated[int | None if null else int, Field(ge=least, le=most, description=words)]


def number(words: str, null: bool = False, **bounds: float):
    """A finite number in a range that `words` describe, or also null; bounds: pydantic's gt, ge, lt, le."""
    words += ", or null" if null else ""
    return Annotated[float | None if null else float, Field(allow_inf_nan=False, description=words, **bounds)]


def choice(*values: Any):
    """One of some values, of the same type."""
    *others, last = map(_written, values)
    words = f"{', '.join(others)} or {last}" if len(values) < 13 else f"{', '.join(others[:12])}, ..."
    return Annotated[Literal[values], BeforeValidator(lambda value: _same(value, values)), Field(description=words)]


def text(most: int = 1000, null: bool = False):
    """Printable text, not empty."""
    words = f"text of 1 to {most:,} printable characters{', or null' if null else ''}"
    return Annotated[str | None if null else str, AfterValidator(_printable(most)), Field(description=words)]


def _written(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}.get(value, repr(value))


def _same(value: Any, values: tuple) -> Any:
    """The value, unless it equals a choice of another type, as 1 equals True."""
    if not any(value == valid and type(value) is type(valid) for valid in values):
        raise ValueError
    return value


def _printable(most: int):
    def check(value: str | None) -> str | None:
        if value is not None and not (value.isprintable() and value.strip() and len(value) <= most):
            raise ValueError
        return value

    return check


def _folder_name(value: str) -> str:
    plain = value.isprintable() and value == value.strip() and not value.startswith(".")
    if not plain or not 0 < len(value) <= MAX_NAME or any(c in value for c in "/\\"):
        raise ValueError
    return value


NAME = f"a plain folder name: 1 to {MAX_NAME} printable characters without / or \\, not beginning with a dot"
FLAG, FLAG_OR_NULL = (
    Annotated[type_, Field(description=words)]
    for type_, words in ((bool, "true or false"), (bool | None, "true, false or null"))
)
OPTIONS = Annotated[dict[str, JsonValue], Field(description="a mapping of names to plain values")]
OPTIONS_OR_NULL = Annotated[
    dict[str, JsonValue] | None, Field(description="a mapping of names to plain values, or null")
]
POSITIVE, POSITIVE_OR_NULL = (number("a finite number above 0", null, gt=0) for null in (False, True))
NOT_NEGATIVE, NOT_NEGATIVE_OR_NULL = (number("a finite number of at least 0", null, ge=0) for null in (False, True))
SHARE = number("a number from 0 to 1", ge=0, le=1)
SHARE_OR_NULL = number("a number from 0 to 1", null=True, ge=0, le=1)
DECAY = number("a number of at least 0 and below 1", ge=0, lt=1)
ABOVE_0_TO_1 = number("a number above 0 and at most 1", gt=0, le=1)
SIZE, SIZE_OR_NULL = integer(1, MAX_SIZE), integer(1, MAX_SIZE, null=True)
LENGTH_OR_NULL = integer(1, 1_000_000, null=True)  # tokens

RUN_FIELDS = {
    "name": Annotated[str, AfterValidator(_folder_name), Field(description=NAME)],
    "policy": text(),
    "quantization": choice(None, "nf4"),
    "lora": integer(1, MAX_RANK, null=True),
    "dtype": choice("auto", "float32", "bfloat16", "float16"),
    "task": text(),
    "task_options": OPTIONS,
    "num_prompts": integer(1, MAX_PROMPTS),
    "eval_prompts": integer(0, MAX_PROMPTS),
    "eval_group_size": integer(2, 1024),
    "seed": integer(0, MAX_SEED),
    "threads": integer(1, MAX_THREADS, null=True),
    "trainer": Annotated[dict[str, Any], Field(description="a mapping of fields of CancellationConfig to values")],
}


def make_model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    """A model of optional fields: what is not there has its default elsewhere."""
    return create_model(
        name, __config__=ConfigDict(strict=True, extra="forbid"), **{key: (kind, None) for key, kind in fields.items()}
    )


RUN = make_model("Run", RUN_FIELDS)


def check_fields(model: type[BaseModel], values: dict[str, Any], prefix: str = "") -> None:
    """Raise a ValueError, in one sentence, for the first field whose value is not valid."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"][0])
        valid = model.model_fields[name].description
        raise ValueError(f"{prefix}{name}={show_value(values[name])} must be {valid}.") from None


def show_name(name: Any) -> str:
    """A field's name as it is given; in quotes, and cut off, where it is no name."""
    return name if isinstance(name, str) and name.isprintable() and 0 < len(name) <= 40 else show_value(name)


def nearest(name: Any, known: Iterable[str]) -> str:
    """Which of the known names was probably meant."""
    close = get_close_matches(str(name)[:100], known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"valid fields are {', '.join(sorted(known)[:12])}, ..."


TOKEN = Annotated[int, Field(ge=0, le=10_000_000)]
TOKEN_IDS_OR_NULL = Annotated[list[TOKEN] | None, Field(min_length=1, description="a list of token ids, or null")]
SAMPLING = {
    "min_new_tokens": integer(0, 1_000_000, null=True),
    "no_repeat_ngram_size": integer(0, 1_000_000),
    "typical_p": ABOVE_0_TO_1,
    "top_h": ABOVE_0_TO_1,
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), DECAY),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), TOKEN_IDS_OR_NULL),
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
SCHEDULE_OPTIONS = {  # the numbers of all schedules; whether one takes them is asked of it
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
SCHEDULE = make_model("Schedule", SCHEDULE_OPTIONS)


def check_options(trainer: dict[str, Any]) -> None:
    """Raise a ValueError for the first option, in a field of the trainer that is a mapping, which no run can have."""
    for field, model in MODELS.items():
        options = trainer.get(field) or {}
        for name, value in options.items():
            setting = f"trainer.{field} has {show_name(name)}={show_value(value)}"
            if field == "generation_kwargs" and name in OWN_FIELD:
                raise ValueError(f"{setting}, which is a field of its own; set trainer.{OWN_FIELD[name]} instead.")
            if name not in model.model_fields:
                raise ValueError(f"{setting}, which a run does not take; {nearest(name, model.model_fields)}")
        check_fields(model, options, f"trainer.{field}.")
    for name, value in (trainer.get("chat_template_kwargs") or {}).items():
        if name in TOKENIZING:
            raise ValueError(
                f"trainer.chat_template_kwargs has {name}={show_value(value)}, which is set by the run itself; "
                "give variables of the template, e.g. enable_thinking."
            )
    schedule = trainer.get("lr_scheduler_kwargs") or {}
    known = {name: value for name, value in schedule.items() if name in SCHEDULE_OPTIONS}
    check_fields(SCHEDULE, known, "trainer.lr_scheduler_kwargs.")
    for low, least, high in (
        *((low, trainer.get(low), high) for low, high in ORDERED),
        *((f"lr_scheduler_kwargs.{name}", schedule.get(name), "learning_rate") for name in ("min_lr", "lr_end")),
    ):
        most = trainer.get(high)
        if least is not None and most is not None and least > most:
            raise ValueError(f"trainer.{low}={least} must be at most {high}={most}.")
    batching = "transformers_continuous_batching"
    if (options := trainer.get(f"{batching}_config")) and not trainer.get(f"use_{batching}"):
        raise ValueError(
            f"trainer.{batching}_config={show_value(options)} has no effect without use_{batching}; "
            "set that to true, or remove it."
        )
    least, most = (trainer.get("generation_kwargs") or {}).get("min_new_tokens"), trainer.get("max_completion_length")
    if least and most and least > most:
        raise ValueError(
            f"trainer.generation_kwargs.min_new_tokens={least} must be at most max_completion_length={most}."
        )
