"""Sampling: completions of padded prompts by a model's own `generate`, under a config as TRL's trainer makes it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping

import torch
from jaxtyping import Int
from torch import Tensor

from workbook.policies.copies import seeded
from workbook.policies.devices import padding_error
from workbook.rollouts.scoring import padded_batches, unpadded

# Fields of a GenerationConfig that would give anything but one row of tokens for each row, and their only value
ONE_ROW = {"num_return_sequences": 1, "num_beams": 1, "return_dict_in_generate": False, "is_assistant": False}


def end_tokens(policy) -> list[int]:
    """Every token id that ends a completion: the tokenizer's and those of the model's generation config, as in TRL."""
    declared = policy.model.generation_config.eos_token_id
    declared = [] if declared is None else declared if isinstance(declared, (list, tuple)) else [declared]
    if not all(isinstance(token, int) for token in declared):
        raise ValueError(f"eos_token_id={declared!r} of the model's generation config must be token ids.")
    return list(dict.fromkeys([policy.tokenizer.eos_token_id, *declared]))


def sampling_config(policy, sampling: dict, generation_kwargs: Mapping):
    """The GenerationConfig that TRL's trainer makes of these settings; ValueError for one that is out of range."""
    from transformers import GenerationConfig

    valid = {
        "temperature": ("a finite number above 0", lambda value: 0 < value < float("inf")),
        "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
        "top_k": ("a whole number of 0 (no limit) or more", lambda value: value >= 0 and value % 1 == 0),
        "min_p": ("None or between 0 and 1", lambda value: value is None or 0 <= value <= 1),
        "repetition_penalty": ("a finite number above 0", lambda value: 0 < value < float("inf")),
    }
    for name, (words, holds) in valid.items():
        value = sampling[name]
        given = isinstance(value, int | float) and not isinstance(value, bool)
        if not (given or (name == "min_p" and value is None)) or not holds(value):
            raise ValueError(f"{name}={value!r} must be {words}.")
    known = GenerationConfig().to_dict()
    if not isinstance(generation_kwargs, Mapping):
        raise ValueError(f"generation_kwargs={generation_kwargs!r} must be a mapping of GenerationConfig's fields.")
    for name, value in generation_kwargs.items():
        if name not in known:
            raise ValueError(f"generation_kwargs holds {name!r}, which is no field of transformers' GenerationConfig.")
        if name in ONE_ROW and value not in (None, ONE_ROW[name]):
            raise ValueError(
                f"generation_kwargs holds {name}={value!r}; groups are sampled as one row of tokens for each rollout, "
                f"so it must be {ONE_ROW[name]}."
            )
    ends = {"pad_token_id": policy.tokenizer.pad_token_id, "eos_token_id": end_tokens(policy)}
    settings = {"do_sample": True} | ends | sampling | dict(generation_kwargs) | {"disable_compile": True}
    try:
        return GenerationConfig(**settings)
    except TypeError as problem:
        raise ValueError(f"generation_kwargs={generation_kwargs!r} makes no GenerationConfig: {problem}.") from None


def generate(
    policy, prompt_ids: Int[Tensor, "B P"], prompt_mask: Int[Tensor, "B P"], seed: int, config, batch_size: int
) -> list[list[int]]:
    """Sampled completions as ragged rows, each up to and including its first end token."""
    model, ends = policy.model, end_tokens(policy)
    if padding_error(model) > 1:  # nor is RWKV's state, carried from token to token, that of a whole pass
        config.use_cache = False
    # An object of its own around the same layers, which may hold our config: generate() fills in from the model's own
    # (a top_k, say) otherwise. Adapters are in the base model's layers.
    base = copy.copy(model.get_base_model() if hasattr(model, "get_base_model") else model)
    base.generation_config = config
    positions = "position_ids" in inspect.signature(base.forward).parameters  # to others generate() names none
    rows = [[]] * len(prompt_ids)
    with seeded(seed, model.device):
        for part, start in padded_batches(model, prompt_mask, batch_size, positions):
            ids, mask = prompt_ids[part, start:], prompt_mask[part, start:]
            out = base.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, ids.shape[1] :]
            is_end = torch.isin(out, torch.tensor(ends, device=out.device)).long()
            for row, completion in zip(part.tolist(), unpadded(out, is_end.cumsum(dim=1) - is_end == 0), strict=True):
                rows[row] = completion
    return rows
