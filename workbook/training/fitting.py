"""What a run needs on a card, whether that fits, and the first change that would make it fit; pure, from shapes alone.

memory = card_memory(config, shape, prompt_length, CARDS["T4, 16 GB"])     # memory_forecast's table
first_fit(config, lambda changed: peak_mib(card_memory(changed, ...)) <= CARDS["T4, 16 GB"].mib)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

from workbook.policies.devices import as_dtype, choose_dtype
from workbook.training.memory import DEFAULT_LENGTH, forecast_shape, run_device, steps_per_generation
from workbook.training.run_config import RunConfig

MIN_TOKENS, RANK = 8, 8


@dataclass(frozen=True)
class Card:
    """A GPU: the memory that it shows, less than it is sold with, and its compute capability."""

    gib: float
    capability: tuple[int, int]

    @property
    def mib(self) -> float:
        return self.gib * 1024


CARDS = {
    "T4, 16 GB": Card(14.7, (7, 5)),
    "L4, 24 GB": Card(22.0, (8, 9)),
    "RTX 4090, 24 GB": Card(23.5, (8, 9)),
    "A100, 40 GB": Card(39.4, (8, 0)),
    "A100, 80 GB": Card(79.1, (8, 0)),
    "H100, 80 GB": Card(79.1, (9, 0)),
    "H200, 141 GB": Card(139.7, (9, 0)),
}


def card_memory(config: RunConfig, shape, prompt_length: int, card: Card | None = None) -> pd.DataFrame:
    """`memory_forecast` of a run for a model's shape on a card, or with None on the device that runs train on here.

    Raises ValueError for a model without the shapes of a gated decoder.
    """
    frozen = bool(config.quantization or config.lora)
    if card is None:
        device = run_device(config)
        return forecast_shape(config, shape, prompt_length, as_dtype(config.dtype, device, frozen)[0], device.type)
    auto = choose_dtype("cuda", card.capability, frozen)[0]
    dtype = auto if config.dtype == "auto" else as_dtype(config.dtype, None, frozen)[0]
    return forecast_shape(config, shape, prompt_length, dtype, "cuda")


def first_fit(config: RunConfig, fits: Callable[[RunConfig], bool]) -> dict | None:
    """The first change, as settings for `override`, with which a run fits; {} if it does as it is, None if none does.

    Changes that leave what is trained as it is come first: smaller micro-batches, gradient checkpointing, both. Then
    adapters and 4 bits, then fewer prompts and shorter completions, and at last all of them together.
    """
    for changed in changes(config):
        try:
            if fits(config.override(changed)):
                return changed
        except ValueError:  # settings that do not go together
            continue
    return None


def changes(config: RunConfig) -> Iterator[dict]:
    """Changes to a run that need less memory, those that change least of what is trained first."""
    smaller, checkpointing = list(_smaller_pieces(config.trainer)), {"gradient_checkpointing": True}
    light = ({} if config.lora else {"lora": RANK}) | ({} if config.quantization else {"quantization": "nf4"})
    yield {}
    yield from smaller
    yield checkpointing
    yield from (checkpointing | pieces for pieces in smaller)
    if not config.lora:
        yield {"lora": RANK}
    if light:
        yield light
    least = checkpointing | light | (smaller[-1] if smaller else {})
    yield least
    for start in ({}, least):
        trainer = config.trainer | start
        yield from (start | change for change in (*_fewer_prompts(trainer), *_shorter(trainer)))


def _smaller_pieces(trainer: dict) -> Iterator[dict]:
    """The same rollouts and steps in micro-batches of a half, a quarter, ..."""
    size, accumulation = trainer.get("per_device_train_batch_size", 8), trainer.get("gradient_accumulation_steps", 1)
    part = 2
    while size % part == 0:
        yield {
            "per_device_train_batch_size": size // part,
            "gradient_accumulation_steps": accumulation * part,
            "steps_per_generation": steps_per_generation(trainer) * part,
        }
        part *= 2


def _fewer_prompts(trainer: dict) -> Iterator[dict]:
    """Half the prompts of a batch, a quarter, ..., in smaller micro-batches or, where those are of one, in fewer."""
    size, pieces = trainer.get("per_device_train_batch_size", 8), steps_per_generation(trainer)
    accumulation, least = trainer.get("gradient_accumulation_steps", 1), trainer.get("num_generations", 8)
    while size * pieces // 2 >= least and (size % 2 == 0 or (pieces % 2 == 0 and accumulation % 2 == 0)):
        if size % 2 == 0:
            size //= 2
        else:
            pieces, accumulation = pieces // 2, accumulation // 2
        yield {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": accumulation,
            "steps_per_generation": pieces,
        }


def _shorter(trainer: dict) -> Iterator[dict]:
    """Half the tokens of a completion at most, a quarter, ..."""
    tokens = trainer.get("max_completion_length", DEFAULT_LENGTH)
    while tokens // 2 >= MIN_TOKENS:
        tokens //= 2
        yield {"max_completion_length": tokens}
