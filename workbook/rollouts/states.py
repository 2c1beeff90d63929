"""Output states: inputs and outputs of a policy's output layer where tokens were drawn.

Output states are the hidden states h and logits z where each token was drawn. Coupling theory
takes every head as one linear layer under a softmax, p = softmax(W h). Heads that are not so simple
are brought to this form:

    a bias b (Phi)                    h becomes [h, 1], W becomes [W, b]
    a scale s (Cohere, Granite)       h becomes s h
    a soft-cap c (Gemma 2)            z = c tanh(W h / c) stays; theory applies the chain rule

Letters: B rollouts, T completion tokens, N tokens of all rollouts, in the order of their token
table; D width; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbook.policies.models import reading
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import completion_logits, in_batches, padded_batches, rows_at_once
from workbook.theory.coupling import (
    coupling_factors,
    coupling_kernel,
    kernel_strips,
    predicted_delta_logp,
)


@dataclass(frozen=True)
class OutputStates:
    """Inputs and outputs of the output layer where each token was drawn.

    hidden (N, D) goes into the layer, logits (N, V) come out as the softmax gets them, tokens (N,)
    were drawn from them. A scale and a bias of the layer are part of hidden, as the module's
    docstring says; cap is the soft-cap on the logits, None without one.
    """

    hidden: Float[Tensor, "N D"]
    logits: Float[Tensor, "N V"]
    tokens: Int[Tensor, " N"]
    cap: float | None = None

    def coupled(self, index: int, weights: Float[Tensor, " N"], lr: float = 1.0) -> pd.DataFrame:
        """What each token j adds to token `index` by a step through the output layer: a row per j.

            delta log pi(i) = sum over j of contribution_j, to first order
            contribution_j  = lr w_j <h_i, h_j> <e_i - p_i, e_j - p_j>

        weights: (N,) update weight times advantage of each token.

        Columns: hidden and residual (the two inner products), coupling (their product K_ij),
        weight, contribution (nats). Source: arXiv 2605.08666, figure 2; H2 in the claims.
        """
        hidden, residual = coupling_factors(self.hidden, self.logits, self.tokens, index, self.cap)
        coupling = hidden * residual  # (N,)
        weights = weights.to(coupling)
        columns = {
            "hidden": hidden,
            "residual": residual,
            "coupling": coupling,
            "weight": weights,
            "contribution": lr * weights * coupling,
        }
        return pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})

    def select(self, index: Int[Tensor, " M"]) -> OutputStates:
        """The states of the tokens at `index`."""
        return OutputStates(self.hidden[index], self.logits[index], self.tokens[index], self.cap)

    def kernel(self) -> Float[Tensor, "N N"]:
        """K_ij of all pairs, by `coupling_kernel`: N x N numbers, so take the states of a group."""
        return coupling_kernel(self.hidden, self.logits, self.tokens, self.cap)

    def strips(self) -> Iterator[tuple[int, Float[Tensor, "m M"]]]:
        """The kernel in strips, (i, K[i : i + m, i:]) from the diagonal on, by `kernel_strips`."""
        return kernel_strips(self.hidden, self.logits, self.tokens, self.cap)

    def predicted(
        self, weights: Float[Tensor, " N"], lr: float, order: str = "exact"
    ) -> Float[Tensor, " N"]:
        """Change of every token's log-probability by one SGD step on the output layer, in nats.

        weights, lr, order: as `predicted_delta_logp` takes them.
        """
        return predicted_delta_logp(
            self.hidden, self.logits, self.tokens, weights, lr, order, self.cap
        )


@in_batches
def output_states(policy, rollouts: Rollouts) -> OutputStates:
    """The output layer's inputs and outputs at every completion token, by teacher forcing.

    Memory: N x (D + V) numbers in the model's dtype, held once, beside a pass: take a group at a
    time.

    Raises ValueError for a model without an output layer, and for one that changes the logits after
    it by anything but a factor or its config's soft-cap: the coupling formula holds for a linear
    layer under a softmax.
    """
    model = reading(policy).model
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(
            f"{type(model).__name__} names no output layer; token coupling goes through one."
        )
    length = rollouts.completion_ids.shape[1]
    mask = rollouts.completion_mask.bool()

    # tokens of rollout b stand at [first[b], first[b] + counts[b]) of the N
    counts = mask.sum(1)
    first = (counts.cumsum(0) - counts).tolist()
    total = int(counts.sum())

    # a hook on the head catches what goes in and what comes out in the latest pass
    seen = {}

    def catch(_, inputs, output):
        seen.update(hidden=inputs[0], logits=output)

    batch_size = rows_at_once(model, rollouts.prompt_ids.shape[1] + length, length, "states")
    hidden = logits = cap = None
    scale = 1.0
    with torch.no_grad(), head.register_forward_hook(catch):
        for rows, start in padded_batches(model, rollouts.prompt_mask, batch_size):
            part = rollouts.select(rows).to(model.device)
            output = completion_logits(
                model,
                part.prompt_ids,
                part.prompt_mask,
                part.completion_ids,
                part.completion_mask,
                start,
            )  # (b, T, V), as the model returns them

            # the position before a token is where it was drawn
            before = seen.pop("hidden")[:, -length - 1 : -1]  # (b, T, D)
            raw = seen.pop("logits")[:, -length - 1 : -1]  # (b, T, V), as the head returns them
            if logits is None:
                hidden = before.new_empty(total, before.shape[2])
                logits = raw.new_empty(total, raw.shape[2])

            # a rollout at a time, since the logits are large
            for k, row in enumerate(rows.tolist()):
                place = slice(first[row], first[row] + int(counts[row]))
                alive = part.completion_mask[k].bool()
                hidden[place] = before[k, alive]
                logits[place] = output[k, alive]
                if raw.data_ptr() != output.data_ptr() and alive.any():
                    scale, cap = _after_the_head(model, raw[k, alive], logits[place])
            # the next pass must not find them beside its own
            del before, raw, output

    # a bias and a scale of the layer become part of its input
    if getattr(head, "bias", None) is not None:
        hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
    if scale != 1:
        hidden = hidden * scale
    tokens = rollouts.completion_ids[mask].to(model.device)
    return OutputStates(hidden, logits, tokens, cap)


def _after_the_head(
    model: nn.Module, raw: Float[Tensor, "N V"], logits: Float[Tensor, "N V"]
) -> tuple[float, float | None]:
    """(scale, cap) with logits = scale * raw, or cap * tanh(raw / cap).

    Raises ValueError if the model does something else to the logits that its head returns.
    """
    if torch.equal(raw, logits):
        return 1.0, None
    if raw.dtype in (torch.float32, torch.float64):
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
    else:
        # half precision rounds to two or three digits
        tolerance = {"rtol": 2e-2, "atol": 0.1}

    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if cap is not None and torch.allclose(cap * torch.tanh(raw / cap), logits, **tolerance):
        return 1.0, float(cap)

    # the largest logit shows a factor best
    largest = raw.abs().argmax()
    scale = float(logits.flatten()[largest].double() / raw.flatten()[largest].double())
    if torch.allclose(scale * raw, logits, **tolerance):
        return scale, None
    raise ValueError(
        f"{type(model).__name__} changes the logits after its output layer by more than a factor or"
        " the soft-cap of its config; token coupling through that layer needs to know how."
    )
