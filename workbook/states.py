"""What the output layer saw and said where each token was drawn: hidden states, logits, and what couples to one token.

Letters: N completion tokens of some rollouts, in the order of their token table; D width; V vocabulary.
"""

from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.rollouts import Rollouts
from workbook.sequences import evaluating
from workbook.theory.coupling import coupling_factors


@dataclass(frozen=True)
class OutputStates:
    """hidden (N, D) goes into the output layer, logits (N, V) = W hidden come out, tokens (N,) were drawn from them."""

    hidden: Float[Tensor, "N D"]
    logits: Float[Tensor, "N V"]
    tokens: Int[Tensor, " N"]

    def coupled(self, index: int, weights: Float[Tensor, " N"], lr: float = 1.0) -> pd.DataFrame:
        """How a step on every token through the output layer moves token `index`: one row per token j.

        delta log pi(i) = sum of contribution over j, to first order, with contribution_j = lr w_j <h_i, h_j>
        <e_i - p_i, e_j - p_j> (arXiv 2605.08666, figure 2; H2 in the claims).

        weights: (N,) update weight x advantage of each token.  Columns: hidden and residual (the two inner products),
        coupling (their product K_ij), weight, contribution (nats).
        """
        hidden, residual = coupling_factors(self.hidden, self.logits, self.tokens, index)
        coupling = hidden * residual
        weights = weights.to(coupling)
        columns = {"hidden": hidden, "residual": residual, "coupling": coupling, "weight": weights}
        columns["contribution"] = lr * weights * coupling
        return pd.DataFrame({name: column.cpu().numpy() for name, column in columns.items()})


@torch.no_grad()
def output_states(policy, rollouts: Rollouts, batch_size: int = 32) -> OutputStates:
    """The output layer's inputs and outputs at every completion token of the rollouts, by teacher forcing.

    Memory: N x (D + V) numbers in the model's dtype, so take few rollouts of a model with a large vocabulary.
    Raises ValueError for a model that changes the logits after its output layer (scaling, soft-capping): the coupling
    formula holds for a plain linear layer under a softmax.
    """
    model, seen = policy.model, {}
    head = model.get_output_embeddings()
    handle = head.register_forward_hook(lambda _, inputs, output: seen.update(hidden=inputs[0], logits=output))
    length = rollouts.completion_ids.shape[1]
    hidden, logits = [], []
    try:
        with evaluating(model):
            for rows in torch.arange(len(rollouts)).split(batch_size):
                part = rollouts.select(rows).to(model.device)
                mask = torch.cat([part.prompt_mask, part.completion_mask], dim=1).long()
                output = model(
                    input_ids=torch.cat([part.prompt_ids, part.completion_ids], dim=1),
                    attention_mask=mask,
                    position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                    logits_to_keep=length + 1,
                    use_cache=False,
                )
                if not torch.equal(output.logits.to(seen["logits"].dtype), seen["logits"]):
                    raise ValueError(
                        f"{type(model).__name__} changes the logits after its output layer; token coupling through "
                        "that layer needs them as they come out of it."
                    )
                alive = part.completion_mask.bool()
                hidden.append(seen["hidden"][:, -length - 1 : -1][alive])
                logits.append(seen["logits"][:, -length - 1 : -1][alive])
    finally:
        handle.remove()
    tokens = rollouts.completion_ids[rollouts.completion_mask.bool()].to(model.device)
    return OutputStates(torch.cat(hidden), torch.cat(logits), tokens)
