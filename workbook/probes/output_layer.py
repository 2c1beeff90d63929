"""The output layer as a proxy of the whole network: its step in closed form, and how often its sign is the full step's.

Claim (arXiv 2605.08666, figure 10, H4): the signs agree on about 0.7 of tokens, steadily over training.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.probes.dose import MOVED
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.states import output_states
from workbook.theory.weights import update_weights


def output_layer_step(
    policy, rollouts: Rollouts, lr: float, chosen: Bool[Tensor, "B T"] | None = None, aggregate: str = "dr_grpo"
) -> Float[Tensor, " N"]:
    """Change of each token's log-probability (nats) if SGD takes `update`'s first step on the output layer alone.

    In closed form (see `predicted_delta_logp`), which is also the step of a head that is tied to the embeddings if the
    embeddings could stay where they are.  N tokens in the order of the token table.
    """
    alive = rollouts.completion_mask.bool()
    weights = update_weights(rollouts.old_logps, rollouts.old_logps, alive, rollouts.advantages, aggregate=aggregate)
    pushes = weights * rollouts.advantages.view(len(rollouts), -1)
    if chosen is not None:
        pushes = pushes.masked_fill(~chosen.to(pushes.device), 0.0)
    states = output_states(policy, rollouts)
    pushes = pushes[alive].to(states.hidden.device)
    return states.predicted(pushes, lr)


def sign_agreement(dlogp, predicted) -> dict[str, float]:
    """Share of tokens whose change has the sign that the output layer alone predicts: of all, and of those that moved.

    moved: beyond `MOVED` of the root mean square change.

    >>> sign_agreement([1.0, -1.0, 0.01], [0.5, 0.5, -0.5])
    {'agreement, all': 0.3333333333333333, 'agreement, moved': 0.5}
    """
    change = np.asarray(dlogp, dtype=float)
    agree = np.sign(change) == np.sign(np.asarray(predicted, dtype=float))
    moved = np.abs(change) > MOVED * np.sqrt(np.mean(change**2))
    return {"agreement, all": float(agree.mean()), "agreement, moved": float(agree[moved].mean())}
