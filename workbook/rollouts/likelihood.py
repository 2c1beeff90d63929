"""Log-probabilities of rollouts under a policy, in passes that fit into memory.

`rollouts.scoring` computes them from tensors of token ids; here are the same for `Rollouts`. A
batch that one pass cannot hold is scored in several, as many rows each as there is room for.

Letters: B rollouts, T completion tokens.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbook.messages import progress
from workbook.policies.models import reading
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches, rollout_logps, rows_at_once

# what a model needs to know of rollouts, in the order of `rollout_logps`
FIELDS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


@in_batches
def logps(policy, rollouts: Rollouts) -> Float[Tensor, "B T"]:
    """Log-probability of every completion token under the policy as it is now, in nats, zero
    outside the mask.
    """
    policy, rollouts = reading(policy), rollouts.to(policy.model.device)
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
