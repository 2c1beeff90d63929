"""Prefixes of rollouts, ready to be continued: their key-value cache is cut from one pass over the whole rollout.

A prefix is a prompt with the first n tokens of its completion. Key-value caches of causal attention depend on what came
before alone, so one forward pass over B rollouts holds the cache of each of their prefixes.

    branches, last = prefill(policy.model, rollouts).cut(rollout, length, room)   n prefixes, the last token not cached
    logits = branches.advance(last)                                               (n, V), of the next token
    branches.copy(rows)                                                           some rows, or some several times

Letters: n prefixes, W columns of the cache, V vocabulary, B rollouts, P prompt and T completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from workbook.policies.checks import padding_error
from workbook.rollouts.sample import Rollouts

CACHE_AT_ONCE = 2**26  # numbers held in one batch's cache (256 MiB in float32)


class RoomyLayer(DynamicLayer):
    """A cache layer with room for more tokens, so that a further token is written, not concatenated.

    Held as (n, columns, heads, d), columns before heads: what is in use is then one piece of memory for each row, which
    attention reads twice as fast on a CPU.
    """

    def __init__(self, keys: Float[Tensor, "n W heads d"], values: Float[Tensor, "n W heads d"], room: int):
        super().__init__()
        self.lazy_initialization(keys, values)
        self.width = keys.shape[1]
        self.keys, self.values = (nn.functional.pad(held, (0, 0, 0, 0, 0, room)) for held in (keys, values))

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write the keys and values (n, heads, 1, d) of a new token into the free room; returns all there are."""
        start, self.width = self.width, self.width + key_states.shape[2]
        self.keys[:, start : self.width] = key_states.transpose(1, 2)
        self.values[:, start : self.width] = value_states.transpose(1, 2)
        return tuple(held[:, : self.width].transpose(1, 2) for held in (self.keys, self.values))

    def get_seq_length(self) -> int:
        """How many columns are in use."""
        return self.width

    def copy(self, rows: Int[Tensor, " m"]) -> RoomyLayer:
        """Another layer that holds these rows, with the same columns left free."""
        room = self.keys.shape[1] - self.width
        return RoomyLayer(self.keys[rows, : self.width], self.values[rows, : self.width], room)


@dataclass
class Branches:
    """n sequences in one batch, right-aligned: their cache, which columns of it hold tokens, and how many."""

    model: nn.Module
    cache: DynamicCache
    mask: Int[Tensor, "n W"]
    lengths: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.lengths)

    def advance(self, tokens: Int[Tensor, " n"]) -> Float[Tensor, "n V"]:
        """Append one token to each sequence; returns the logits of what follows, float32 or wider."""
        self.mask = nn.functional.pad(self.mask, (0, 1), value=1)
        logits = self.model(
            input_ids=tokens[:, None],
            attention_mask=self.mask,
            position_ids=self.lengths[:, None],
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]
        self.lengths = self.lengths + 1
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def copy(self, rows: Int[Tensor, " m"]) -> Branches:
        """Another batch of these rows, in this order; a row may be named several times. This one stays as it is."""
        layers = [layer.copy(rows) for layer in self.cache.layers]
        return Branches(self.model, _cache_of(layers), self.mask[rows], self.lengths[rows])


@dataclass
class Prefilled:
    """The cache of B whole rollouts, left-aligned prompts followed by completions, of which prefixes are cut."""

    model: nn.Module
    ids: Int[Tensor, "B L"]
    starts: Int[Tensor, " B"]  # the first column that holds a token
    prompts: int  # columns of the prompt
    layers: list[tuple[Tensor, Tensor]]

    def cut(self, rollout: Int[Tensor, " n"], length: Int[Tensor, " n"], room: int) -> tuple[Branches, Tensor]:
        """The prefixes with `length` completion tokens of the rollouts, and the last token of each.

        That token is in no cache yet: `advance` by it gives the logits of the first token to be sampled. room: how many
        tokens will be appended, it included.
        """
        rollout, length = rollout.to(self.ids.device), length.to(self.ids.device)
        starts, ends = self.starts[rollout], self.prompts + length - 1  # columns kept: starts <= column < ends
        width = int((ends - starts).max())
        columns = ends[:, None] - width + torch.arange(width, device=ends.device)  # (n, W), right-aligned
        mask = columns >= starts[:, None]
        rows, columns = rollout[:, None], columns.clamp(min=0)
        layers = [RoomyLayer(*(held.transpose(1, 2)[rows, columns] for held in pair), room) for pair in self.layers]
        return Branches(self.model, _cache_of(layers), mask.long(), ends - starts), self.ids[rollout, ends]


def prefill(model: nn.Module, rollouts: Rollouts) -> Prefilled:
    """One pass over prompts and completions of the rollouts, on the model's device.

    Raises ValueError for a model whose cache is not plain keys and values of every token (recurrent states, sliding
    windows kept short): there, a prefix's state can't be cut from the whole's; and for one that ignores padding.
    """
    error = padding_error(model)
    if error > 1 or (error != error and not rollouts.prompt_mask.all()):
        raise ValueError(f"{type(model).__name__} ignores padding, so that prefixes can't be continued in one batch.")
    rollouts = rollouts.to(model.device)
    order = rollouts.prompt_mask.long().argsort(dim=1, stable=True)  # padding first: left-padded whatever it was
    ids = torch.cat([rollouts.prompt_ids.gather(1, order), rollouts.completion_ids], dim=1)
    mask = torch.cat([rollouts.prompt_mask.gather(1, order), rollouts.completion_mask], dim=1).long()
    cache = DynamicCache()
    try:
        model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        plain = bool(cache.layers) and all(
            type(layer) is DynamicLayer and layer.get_seq_length() == ids.shape[1] for layer in cache.layers
        )
    except (AttributeError, TypeError, ValueError, IndexError):
        plain = False
    if not plain:
        raise ValueError(
            f"{type(model).__name__} does not keep plain keys and values of every token, from which the caches of a "
            "rollout's prefixes could be cut; values need a causal transformer with a DynamicCache."
        )
    prompts = rollouts.prompt_ids.shape[1]
    starts = prompts - rollouts.prompt_mask.long().sum(1)
    return Prefilled(model, ids, starts, prompts, [(layer.keys, layer.values) for layer in cache.layers])


def batch_limit(model: nn.Module, tokens: int) -> int:
    """How many sequences of so many tokens fit into CACHE_AT_ONCE, from 1 to 1,024."""
    config = model.config.get_text_config()
    queries = getattr(config, "num_attention_heads", 1)
    heads = getattr(config, "num_key_value_heads", None) or queries
    width = getattr(config, "head_dim", None) or config.hidden_size // queries
    return max(1, min(1024, CACHE_AT_ONCE // (2 * config.num_hidden_layers * heads * width * tokens)))


def _cache_of(layers: list[RoomyLayer]) -> DynamicCache:
    cache = DynamicCache()
    cache.layers = layers
    return cache
