"""Readings of the trainer's batches and model: advantages, loss masks, padding, adapters and their base."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from workbook.policies.devices import padding_error
from workbook.rollouts.scoring import tokenize_prompts


def is_scalar(value) -> bool:
    """Whether a batch's column is one number for all rollouts."""
    return isinstance(value, torch.Tensor) and value.ndim == 0


def take(value, index: torch.Tensor):
    """Rows `index` of a column: a tensor, a list, or None."""
    if value is None:
        return None
    return value[index.to(value.device)] if isinstance(value, torch.Tensor) else [value[i] for i in index.tolist()]


def loss_mask(inputs: dict) -> torch.Tensor:
    """Completion tokens (B, T) that the loss takes: 0 for padding, truncated rollouts and what tools wrote."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def by_token(advantages: torch.Tensor) -> torch.Tensor:
    """Advantages as (B, 1) or (B, T)."""
    return advantages if advantages.dim() == 2 else advantages[:, None]


def by_rollout(batch: dict) -> torch.Tensor:
    """One advantage per rollout (B,), 0 where the loss masks all: their mean over the tokens that the loss takes."""
    advantages = batch["advantages"]
    if "completion_mask" not in batch:
        return advantages
    mask = loss_mask(batch).bool()
    if advantages.dim() == 2:
        advantages = (advantages * mask).sum(1) / mask.sum(1).clamp(min=1)
    return advantages.masked_fill(~mask.any(dim=1), 0.0)


def model_facts(trainer) -> dict:
    """Facts about a trainer's model and launch, as arguments of `checks.problems`."""
    model, adapters = trainer.model, getattr(trainer.model, "peft_config", {}).values()
    base = {p.dtype for name, p in model.named_parameters() if "lora_" not in name and p.is_floating_point()}
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    prompts = (trainer._tokenizer, trainer.train_dataset, trainer.args.chat_template_kwargs)
    return {
        "world_size": trainer.accelerator.num_processes,
        "kind": type(model).__name__,
        "padding_changes": not sharded and padding_changes(model, *prompts),
        "lora_dropout": max((c.lora_dropout for c in adapters), default=0.0),
        "quantized": bool(getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)),
        "base_dtype": min(base, key=lambda dtype: dtype.itemsize) if adapters else None,
        "aux_loss": trainer.aux_loss_enabled,
        "sharded": sharded,
    }


def padding_changes(model: torch.nn.Module, tokenizer, dataset, chat_template_kwargs: dict | None = None) -> bool:
    """Whether prompts differ in length, and padding on the left changes this model's logits without positions.

    RWKV and decoders of BART ignore padding, and GPT-2 counts it. Prompts are tokenized for such models only; what
    can't be tokenized here counts as unequal.
    """
    try:
        if padding_error(model, positions=False) <= 1:
            return False
    except Exception:  # a model that can't do with token ids and their mask is left to training
        return False
    try:
        prompts = list(dataset["prompt"])
        return len({len(row) for row in tokenize_prompts(tokenizer, prompts, chat_template_kwargs)}) > 1
    except Exception:
        return True


def keeping_base(model: torch.nn.Module, sync: Callable) -> Callable:
    """Wrap `sync`, which merges a PeftModel's adapters and unmerges them, so that the frozen base keeps its bits.

    W + BA - BA is W only up to rounding, which adds up over the syncs of a run: below float32 to more than the adapter
    itself. Checkpoints hold the adapter alone. Holds one copy of the weights of adapted layers in main memory.
    """
    layers = [module.get_base_layer() for module in model.modules() if isinstance(module, BaseTunerLayer)]
    frozen = [p for layer in layers for p in layer.parameters(recurse=False) if not p.requires_grad]
    kept = [p.detach().to("cpu", copy=True) for p in frozen]

    @wraps(sync)
    def synced(*args, **kwargs):
        result = sync(*args, **kwargs)
        with torch.no_grad():
            for parameter, value in zip(frozen, kept, strict=True):
                parameter.copy_(value)
        return result

    return synced
