"""Cancellation inside an optimizer step, for any way of cutting a batch into mini-batches, from one pass over it.

The gradient of a mini-batch is the sum of its rollouts' own gradients g_i (advantage included). So the inner products
<g_i, g_j> of all pairs tell, for every partition, how long the push of the positives, of the negatives and of both
together is: |sum_i g_i|^2 = sum_ij <g_i, g_j>.
"""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.policies.copies import evaluating
from workbook.probes.step import FIELDS, progress
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import rollout_logps

SKETCHED = 2**22  # numbers kept of a longer gradient; an inner product is then off by about |g||h| / 2048


def gradient_gram(
    policy, rollouts: Rollouts, chosen: Bool[Tensor, "B T"] | None = None, seed: int = 0
) -> Float[Tensor, "B B"]:
    """Inner products of the rollouts' own policy gradients, g_i = A_i sum_t grad log pi(y_it), over trainable weights.

    chosen: (B, T), the tokens that push; None: all.  Gradients of more than 2**22 weights are sketched: multiplied by
    random signs and added up in as many buckets, which keeps inner products up to |g||h|/2048 (standard deviation).

    Cost: a forward and a backward pass per rollout that pushes, and 16 MiB per rollout at most.
    """
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    size = sum(p.numel() for p in weights)
    kept, generator = min(size, SKETCHED), torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8) * 2 - 1 if size > kept else None
    pushing = rollouts.completion_mask.bool() if chosen is None else rollouts.completion_mask.bool() & chosen
    advantages = rollouts.advantages if rollouts.advantages.dim() == 2 else rollouts.advantages[:, None]
    pushes = (pushing * advantages).to(policy.model.device)
    own = torch.zeros(len(rollouts), kept)  # (B, kept): a row per rollout, its own gradient
    with torch.enable_grad(), evaluating(policy.model):
        for row in progress(pushes.any(1).nonzero().squeeze(1).tolist(), "gradients"):
            one = rollouts.select([row]).to(policy.model.device)
            logps = rollout_logps(policy.model, *(getattr(one, name) for name in FIELDS))
            grads = torch.autograd.grad((pushes[row] * logps[0]).sum(), weights, materialize_grads=True)
            own[row] = _sketched(torch.cat([g.flatten().float().cpu() for g in grads]), signs, kept)
    return own @ own.T


def cancelled_in_steps(
    gram: Float[Tensor, "B B"], advantages: Float[Tensor, " B"], order: Int[Tensor, " B"], parts: int
) -> pd.DataFrame:
    """Cancellation between signs in each of `parts` equal mini-batches of an order, one row each.

    Columns: part, in_step (1 - |g+ + g-| / (|g+| + |g-|), 0 with one sign only; NaN where nothing pushes), sign_cosine
    (of g+ and g-; NaN with one sign only).

    Raises ValueError if `parts` does not divide the rollouts.
    """
    if parts < 1 or len(order) % parts:
        raise ValueError(f"parts={parts} does not divide {len(order)} rollouts.")
    rows = []
    for part, members in enumerate(order.reshape(parts, -1)):
        positive, negative = members[advantages[members] > 0], members[advantages[members] < 0]
        plus, minus, both = (
            float(gram[a][:, b].double().sum())
            for a, b in ((positive, positive), (negative, negative), (positive, negative))
        )
        net, plus, minus = (max(squared, 0.0) ** 0.5 for squared in (plus + minus + 2 * both, plus, minus))
        one_sign = plus == 0 or minus == 0
        rows.append(
            {
                "part": part,
                "in_step": 1 - net / (plus + minus) if plus + minus > 0 else float("nan"),
                "sign_cosine": float("nan") if one_sign else both / (plus * minus),
            }
        )
    return pd.DataFrame(rows)


def _sketched(gradient: Tensor, signs: Tensor | None, kept: int) -> Tensor:
    if signs is None:
        return gradient
    signed = gradient * signs
    return torch.nn.functional.pad(signed, (0, -len(signed) % kept)).reshape(-1, kept).sum(0)
