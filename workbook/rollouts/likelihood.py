"""Log-probabilities of rollouts under a policy, in passes that fit into memory.

`rollouts.scoring` computes them from tensors of token ids; here are the same for `Rollouts`. A
batch that one pass cannot hold is scored in several, as many rows each as there is room for.

Letters: B rollouts, T completion tokens.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbook.messages import progress
from workbook.policies.models import reading
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import (
    completion_logits,
    in_batches,
    padded_batches,
    rollout_logps,
    rows_at_once,
)
from workbook.rollouts.small import is_small, small_logits

# what a model needs to know of rollouts, in the order of `rollout_logps`
FIELDS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


@in_batches
def logps(policy, rollouts: Rollouts) -> Float[Tensor, "B T"]:
    """Log-probability of every completion token under the policy as it is now, in nats.

    Zero outside the mask.
    """
    rollouts = rollouts.to(policy.model.device)
    policy = reading(policy)
    with torch.no_grad():
        parts = in_passes(passes(policy, rollouts), "scoring")
        return torch.cat([scores(policy.model, rollouts.select(rows)) for rows in parts])


def scores(model: nn.Module, rollouts: Rollouts) -> Float[Tensor, "B T"]:
    """Log-probability of every completion token in one pass; gradients where they are enabled."""
    return rollout_logps(model, *(getattr(rollouts, name) for name in FIELDS))


def passes(
    policy, rollouts: Rollouts, rows: Tensor | None = None, kind: str | None = None
) -> list[Tensor]:
    """Rows of the rollouts (all, or some of them) in parts that one pass holds (`rows_at_once`)."""
    words = rollouts.completion_ids.shape[1]
    length = rollouts.prompt_ids.shape[1] + words
    rows = torch.arange(len(rollouts)) if rows is None else rows
    parts = rows.split(rows_at_once(policy.model, length, words, kind))
    return [part for part in parts if len(part)]


def in_passes(parts: Sequence[Tensor], what: str) -> Iterator[Tensor]:
    """The parts, with `progress` that says how many passes of how many rows there are."""
    several = f"{what}, in {len(parts)} passes of {len(parts[0])}" if len(parts) > 1 else what
    return progress(parts, several)


def context_logits(
    model: nn.Module,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
    completion_mask: Int[Tensor, "B T"],
    call: Callable | None = None,
) -> Float[Tensor, "B T V"]:
    """Logits of the context of every completion token. Gradients flow if enabled.

    call: how to call the model, e.g. with other weights; by default as it is.
    """
    padded_right = not prompt_mask[:, -1].all()
    if call is None and not torch.is_grad_enabled() and is_small(model) and not padded_right:
        return small_logits(model, prompt_ids, prompt_mask, completion_ids)

    columns = (prompt_ids, prompt_mask, completion_ids, completion_mask)
    most = rows_at_once(model, prompt_ids.shape[1] + completion_ids.shape[1])
    parts, order = [], []
    for rows, start in padded_batches(model, prompt_mask, most):
        inputs = (column[rows] for column in columns)
        parts.append(completion_logits(call or model, *inputs, start))
        order.append(rows)
    # batches are of one length each for some models: back into the rollouts' own order
    return torch.cat(parts)[torch.cat(order).argsort()]
