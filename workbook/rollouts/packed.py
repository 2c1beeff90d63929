"""Rollouts of one prompt scored in one row: the prompt is computed once, its completions stand side by side behind it.

    prompt | completion 1 | completion 2 | ...      each completion sees the prompt and itself, and counts on from it

With chat prompts of 46 tokens and completions of 16, eight rollouts are 174 positions instead of 496. The numbers are
those of `sequence_logps` up to rounding, gradients included. It takes a model whose layers all attend to everything
before, with positions that are given: `PACKABLE`, each of which is tested.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbook.rollouts.scoring import sequence_logps

PACKABLE = ("llama", "qwen2", "qwen3")
MAX_POSITION_SHARE = 0.75  # rows are packed if that leaves at most this share of the positions


def rollout_logps(
    model: nn.Module,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Int[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Log-probability of each completion token, zero outside the mask; packed where that saves work."""
    longest = max(1, int(completion_mask.sum(1).max()))  # what is padding for all of these rows is not computed
    width = completion_ids.shape[1]
    completion_ids, completion_mask = completion_ids[:, :longest], completion_mask[:, :longest]
    rows, slots, prompts = _places(prompt_ids, prompt_mask)
    positions = len(prompts) * (prompt_ids.shape[1] + (int(slots.max()) + 1) * longest)
    if _packable(model) and positions <= MAX_POSITION_SHARE * len(rows) * (prompt_ids.shape[1] + longest):
        logps = _packed_logps(model, prompt_ids, prompt_mask, completion_ids, completion_mask, rows, slots, prompts)
    else:
        logps, _ = sequence_logps(model, prompt_ids, prompt_mask, completion_ids, completion_mask)
    return torch.nn.functional.pad(logps, (0, width - longest))


def _packable(model: nn.Module) -> bool:
    config = model.config.get_text_config()
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    masked = config._attn_implementation in ("sdpa", "eager")  # those that take a mask of numbers
    return masked and config.model_type in PACKABLE and set(layers) == {"full_attention"}


def _places(prompt_ids: Tensor, prompt_mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each rollout its prompt's row and its slot behind it, and one rollout of each prompt."""
    _, rows = torch.unique(prompt_ids.masked_fill(prompt_mask == 0, -1), dim=0, return_inverse=True)
    order = rows.argsort(stable=True)
    counts = rows.bincount()
    first = counts.cumsum(0) - counts
    slots = torch.empty_like(rows)
    slots[order] = torch.arange(len(rows), device=rows.device) - first.repeat_interleave(counts)
    return rows, slots, order[first]


def _packed_logps(model, prompt_ids, prompt_mask, completion_ids, completion_mask, rows, slots, prompts):
    length, count = completion_ids.shape[1], int(slots.max()) + 1
    order = prompt_mask[prompts].long().argsort(dim=1, stable=True)  # padding first: left-padded whatever it was
    ids, alive = prompt_ids[prompts].gather(1, order), prompt_mask[prompts].gather(1, order).bool()
    blocks = completion_ids.new_zeros(len(prompts), count, length)
    blocks[rows, slots] = completion_ids
    inside = torch.zeros_like(blocks, dtype=torch.bool)
    inside[rows, slots] = completion_mask.bool()
    positions = (alive.long().cumsum(1) - 1).clamp(min=0)
    behind = positions[:, -1:, None] + 1 + torch.arange(length, device=ids.device).expand(1, count, length)
    output = model(
        input_ids=torch.cat([ids, blocks.flatten(1)], dim=1),
        attention_mask=_attention(alive, inside, next(model.parameters()).dtype),
        position_ids=torch.cat([positions, behind.flatten(1)], dim=1),
        logits_to_keep=count * length + 1,
        use_cache=False,
    )
    logits = output.logits.to(torch.promote_types(output.logits.dtype, torch.float32))
    first, rest = logits[:, :1], logits[:, 1:].unflatten(1, (count, length))
    # each completion's first token is predicted by the prompt's last position, the others by the one before them
    before = torch.cat([first[:, None].expand(-1, count, -1, -1), rest[:, :, :-1]], dim=2)
    logps = before.log_softmax(-1).gather(-1, blocks.unsqueeze(-1)).squeeze(-1)[rows, slots]
    return logps.masked_fill(completion_mask == 0, 0.0)


def _attention(alive: Tensor, inside: Tensor, dtype: torch.dtype) -> Float[Tensor, "n 1 L L"]:
    """Additive attention mask, 0 or the dtype's lowest; alive (n, P) masks prompts, inside (n, S, T) completions."""
    _, count, length = inside.shape
    width = alive.shape[1]
    block = torch.arange(count, device=alive.device).repeat_interleave(length)
    owner = torch.cat([torch.full((width,), -1, device=alive.device), block])
    causal = torch.ones(len(owner), len(owner), dtype=torch.bool, device=alive.device).tril()
    related = (owner[None, :] == -1) | (owner[:, None] == owner[None, :])
    keys = torch.cat([alive, inside.flatten(1)], dim=1)
    seen = (causal & related)[None] & keys[:, None, :]
    seen |= torch.eye(len(owner), dtype=torch.bool, device=alive.device)  # padding sees itself: a softmax needs someone
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)[:, None]
