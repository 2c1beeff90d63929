"""Rows of a batch: which are taken, what each rollout's advantage is, and which of its tokens the loss sees."""

from __future__ import annotations

import torch

from workbook.theory.advantages import group_advantages


def is_scalar(value) -> bool:
    """Whether a batch's column is one number for all rollouts."""
    return isinstance(value, torch.Tensor) and value.ndim == 0


def take(value, index: torch.Tensor):
    """Rows `index` of a column: a tensor, a list, or None."""
    if value is None:
        return None
    return value[index.to(value.device)] if isinstance(value, torch.Tensor) else [value[i] for i in index.tolist()]


def loss_mask(inputs: dict) -> torch.Tensor:
    """Which completion tokens (B, T) the loss takes: 0 for padding, truncated rollouts and what tools wrote."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def by_token(advantages: torch.Tensor) -> torch.Tensor:
    """Advantages as (B, 1) or (B, T)."""
    return advantages if advantages.dim() == 2 else advantages[:, None]


def of_rollouts(batch: dict) -> torch.Tensor:
    """One advantage per rollout (B,), also where each token has its own; 0 for a rollout that the loss masks wholly."""
    advantages = batch["advantages"]
    if advantages.dim() == 2:
        scored = ~batch["rewards"].isnan()
        advantages = torch.zeros_like(batch["rewards"])
        advantages[scored] = group_advantages(batch["rewards"][scored], batch["group_id"][scored], "dr_grpo")
    if "completion_mask" not in batch:
        return advantages
    return advantages.masked_fill(~loss_mask(batch).bool().any(dim=1), 0.0)
