"""Output states: hidden states and logits where each token was drawn, and the coupling of tokens through that layer.

Every head is taken as one linear layer under a softmax: of a bias 1 is appended to the hidden state; a scale s (Cohere,
Granite) makes the input s h; a soft-cap (Gemma 2), z = cap tanh(W h / cap), stays, and theory applies the chain rule.

Letters: N completion tokens of some rollouts, in the order of their token table; D width; V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbook.policies.models import reading
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import completion_logits, padded_batches, rows_at_once
from workbook.theory.coupling import coupling_factors, coupling_kernel, predicted_delta_logp


@dataclass(frozen=True)
class OutputStates:
    """hidden (N, D) goes into the output layer, logits (N, V) come out, tokens (N,) were drawn from them.

    logits are those the softmax gets. A scale and a bias of the layer are part of hidden, as the module's docstring
    says; cap is the soft-cap on the logits, None without one.
    """

    hidden: Float[Tensor, "N D"]
    logits: Float[Tensor, "N V"]
    tokens: Int[Tensor, " N"]
    cap: float | None = None

    def coupled(self, index: int, weights: Float[Tensor, " N"], lr: float = 1.0) -> pd.DataFrame:
        """Movement of token `index` by a step on every token through the output layer: one row per token j.

        delta log pi(i) = sum of contribution over j, to first order, with contribution_j = lr w_j <h_i, h_j>
        <e_i - p_i, e_j - p_j> (arXiv 2605.08666, figure 2; H2 in the claims).

        weights: (N,) update weight x advantage of each token.  Columns: hidden and residual (the two inner products),
        coupling (their product K_ij), weight, contribution (nats).
        """
        hidden, residual = coupling_factors(self.hidden, self.logits, self.tokens, index, self.cap)
        coupling = hidden * residual
        weights = weights.to(coupling)
        columns = {"hidden": hidden, "residual": residual, "coupling": coupling, "weight": weights}
        columns["contribution"] = lr * weights * coupling
        return pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})

    def select(self, index: Int[Tensor, " M"]) -> OutputStates:
        return OutputStates(self.hidden[index], self.logits[index], self.tokens[index], self.cap)

    def kernel(self) -> Float[Tensor, "N N"]:
        """K_ij of all pairs, by `coupling_kernel`: take the states of one group, as it is N x N."""
        return coupling_kernel(self.hidden, self.logits, self.tokens, self.cap)

    def predicted(self, weights: Float[Tensor, " N"], lr: float, order: str = "exact") -> Float[Tensor, " N"]:
        """Change of every token's log-probability by one SGD step on the output layer, by `predicted_delta_logp`."""
        return predicted_delta_logp(self.hidden, self.logits, self.tokens, weights, lr, order, self.cap)


def output_states(policy, rollouts: Rollouts) -> OutputStates:
    """The output layer's inputs and outputs at every completion token of the rollouts, by teacher forcing.

    Memory: N x (D + V) numbers in the model's dtype, so take few rollouts of a model with a large vocabulary.
    Raises ValueError for a model without an output layer, and for one that changes the logits after it by anything but
    a factor or its config's soft-cap: the coupling formula holds for a linear layer under a softmax.
    """
    model = reading(policy).model
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(f"{type(model).__name__} names no output layer; token coupling goes through one.")
    length = rollouts.completion_ids.shape[1]
    hidden, logits, taken = [], [], []
    batch_size = rows_at_once(model, rollouts.prompt_ids.shape[1] + length)
    seen = {}  # inputs and outputs of the head's latest pass
    handle = head.register_forward_hook(lambda _, inputs, output: seen.update(hidden=inputs[0], logits=output))
    with torch.no_grad(), handle:
        for rows, start in padded_batches(model, rollouts.prompt_mask, batch_size):
            part, taken = rollouts.select(rows).to(model.device), [*taken, rows]
            columns = (part.prompt_ids, part.prompt_mask, part.completion_ids, part.completion_mask)
            output, alive = completion_logits(model, *columns, start), part.completion_mask.bool()
            raw = seen["logits"][:, -length - 1 : -1][alive]
            hidden.append(seen["hidden"][:, -length - 1 : -1][alive])
            logits.append(output[alive].to(raw.dtype))
            scale, cap = _after_the_head(model, raw, logits[-1])
    tokens = rollouts.completion_ids[rollouts.completion_mask.bool()].to(model.device)
    hidden, logits, order = torch.cat(hidden), torch.cat(logits), torch.cat(taken)
    if order.diff().lt(0).any():  # rows went by their prompts' lengths
        index = order.repeat_interleave(rollouts.completion_mask.to(order.device).sum(1)[order]).argsort(stable=True)
        hidden, logits = hidden[index], logits[index]
    if getattr(head, "bias", None) is not None:
        hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], dim=1)
    return OutputStates(hidden * scale if scale != 1 else hidden, logits, tokens, cap)


def _after_the_head(model: nn.Module, raw: Float[Tensor, "N V"], logits: Float[Tensor, "N V"]):
    """(scale, cap) with logits = scale * raw, or cap * tanh(raw / cap); ValueError if neither is so."""
    if torch.equal(raw, logits):
        return 1.0, None
    close = {"rtol": 1e-5, "atol": 1e-5} if raw.dtype in (torch.float32, torch.float64) else {"rtol": 2e-2, "atol": 0.1}
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    if cap is not None and torch.allclose(cap * torch.tanh(raw / cap), logits, **close):
        return 1.0, float(cap)
    most = raw.abs().argmax()  # where a factor shows best
    scale = float(logits.flatten()[most].double() / raw.flatten()[most].double())
    if torch.allclose(scale * raw, logits, **close):
        return scale, None
    raise ValueError(
        f"{type(model).__name__} changes the logits after its output layer by more than a factor or the soft-cap of "
        "its config; token coupling through that layer needs to know how."
    )
