"""A micro-batch of a recorded step, read as its loss does: ratio, normalizer, and what took a token's gradient away.

Nothing here decides what is trained: pushes come from the loss's own graph, and a cause is named for those that are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workbook.rollouts.token_files import STOPS
from workbook.training.checks import CLIPPED_LOSSES
from workbook.training.trainer_inputs import loss_mask


@dataclass
class Part:
    """One micro-batch of a step: its columns, how it was scored, and what came of it; (B, T) where not said."""

    inputs: dict
    scored: tuple  # arguments and keywords of the call that gave logps and entropies
    logps: Tensor
    entropies: Tensor
    pushes: Tensor
    advantages: Tensor
    normalizer: float
    batch: int  # number of its generation batch


def loss_ratio(trainer, part: Part) -> Tensor:
    """The loss's ratio (B, T), of a whole rollout at sequence level; 1 without old log-probabilities."""
    old = part.inputs.get("old_per_token_logps")
    log_ratio = torch.zeros_like(part.logps) if old is None else part.logps - old
    if trainer.args.importance_sampling_level == "sequence":
        mask = loss_mask(part.inputs)
        log_ratio = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)
    return log_ratio.exp().expand_as(part.logps)


def normalizer(trainer, inputs: dict) -> float:
    """N of a micro-batch: a token's push is its weight in the surrogate times its advantage / N.

    grpo and sapo divide by a rollout's own tokens, too. The gradient of several processes is the mean of theirs.
    """
    mask, kind = loss_mask(inputs), trainer.loss_type
    if kind in ("grpo", "sapo", "luspo"):
        n = len(mask)
    elif kind == "bnpo":
        n = max(1.0, float(mask.sum()))
    elif kind == "dr_grpo":
        n = len(mask) * trainer.max_completion_length
    else:  # of the generation batch, so a share of it
        items = max(1.0, float(inputs["num_items_in_batch"])) / trainer.accelerator.num_processes
        n = items / trainer.args.steps_per_generation
    return float(n) * trainer.current_gradient_accumulation_steps


def stop_codes(trainer, part: Part, ratio: Tensor) -> Tensor:
    """What took each token's gradient away (B, T), as an index into STOPS; 0 where it has a push.

    Where several did, the first of: truncated, tool, no advantage, off-policy, clip, entropy, group (its transform).
    """
    codes = torch.zeros_like(ratio, dtype=torch.int8)
    for reason, where in reversed(_causes(trainer, part, ratio)):
        codes = torch.where((part.pushes == 0) & where, STOPS.index(reason), codes)
    return codes


def _causes(trainer, part: Part, ratio: Tensor) -> list[tuple[str, Tensor]]:
    """Each cause that a gradient can be lost to, with the tokens that meet its condition, the decisive ones first."""
    inputs, args, advantages = part.inputs, trainer.args, part.advantages
    everywhere = torch.ones_like(ratio, dtype=torch.bool)
    causes = [
        ("truncated", ~inputs["completion_mask"].bool()),
        ("tool", ~loss_mask(inputs).bool()),
        ("no advantage", advantages == 0),
    ]
    if "importance_sampling_ratio" in inputs:  # vLLM's masks set it to 0
        causes.append(("off-policy", inputs["importance_sampling_ratio"] == 0))
    if (threshold := args.off_policy_mask_threshold) is not None:
        old = inputs.get("old_per_token_logps", part.logps)
        sampled = inputs.get("sampling_per_token_logps", old)
        kept = trainer.get_off_policy_mask(advantages, part.logps, sampled, loss_mask(inputs), threshold)
        causes.append(("off-policy", kept == 0))
    clamped = args.group_transform and args.transform_on == "clamped_ratios"
    if trainer.loss_type in (*CLIPPED_LOSSES, "luspo") and not clamped:
        causes += _clips(trainer, ratio, advantages)
    if args.top_entropy_quantile < 1:
        causes.append(("entropy", everywhere))
    if args.group_transform:
        causes.append(("group", everywhere))
    return causes


def _clips(trainer, ratio: Tensor, advantages: Tensor) -> list[tuple[str, Tensor]]:
    """Tokens whose surrogate is clipped below and above the range."""
    args = trainer.args
    below, above = ratio < 1 - trainer.epsilon_low, ratio > 1 + trainer.epsilon_high
    if args.clipping == "asymmetric":
        below, above = below & (advantages < 0), above & (advantages > 0)
    if args.delta is not None:
        above = above | (ratio > args.delta)
    return [("clip low", below), ("clip high", above)]
