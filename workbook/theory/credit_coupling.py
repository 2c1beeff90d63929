"""Credit rules from token coupling: how much a token's update moves the log-probability of right rollouts.

The influence of token t of rollout i on the right rollouts of its group is s_it = sum_j K_(it)j over their tokens j,
with K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j> (`workbook.theory.coupling`). It is the first-order change of the token by
a step on all of those, so it is computed without any N x N: memory is one V x D and the states of one group.

A rollout is right where its group advantage is positive and wrong where it is negative. A group that has no tokens of
right or none of wrong rollouts keeps its advantages as they are.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .coupling import predicted_delta_logp
from .credit import CreditBatch
from .credit_weights import Start, per_token, start_from


def nthr(
    batch: CreditBatch, beta: float = 1.0, eta: float | None = None, advantages: Start = "grpo"
) -> Float[Tensor, "B T"]:
    """Push less on tokens of wrong rollouts whose penalty would take right rollouts down with them.

    A_it = eta A_i on tokens of wrong rollouts with s_it > beta min_j mean_t s_jt, j over the right rollouts, else A_i;
    eta = 2 |0.5 - p| with p the share of right rollouts in the group, unless given. s is the negative token hidden
    reward, sum over right tokens of K (arXiv 2505.18830, eq. 7 and algorithm 1, beta = 1).

    The states are those of the policy of now: the sampler's own on the first update.
    """
    started = start_from(batch, advantages)
    out = per_token(batch, started)
    for rows in _mixed_groups(batch, started):
        influence, threshold = _influence(batch, rows, started)
        right = float((started[rows] > 0).double().mean())
        factor = 2 * abs(0.5 - right) if eta is None else eta
        spared = (started[rows] < 0).unsqueeze(1) & (influence > beta * threshold)
        out[rows] = torch.where(spared, factor * out[rows], out[rows])
    return out


def token_hidden_reward(
    batch: CreditBatch, p: float = 0.1, dominant: bool = True, advantages: Start = "grpo"
) -> Float[Tensor, "B T"]:
    """Train on the tokens that move right rollouts most, and lean towards exploitation (p > 0) or exploration (p < 0).

    A_it = A_i (1 + p sign(THR_it)) where |THR_it| > min_j mean_t s_jt, j over the right rollouts, else 0, with the
    token hidden reward THR_it = sign(A_i) s_it: positive where the update makes right rollouts likelier. In s each
    right rollout counts by its mean over tokens. dominant False leaves the threshold out. Source: arXiv 2510.03669,
    p = 0.1 or -0.1 there.

    Our reading: the threshold is NTHR's, its forerunner's, on this s; "following" it is all that is known here.
    """
    started = start_from(batch, advantages)
    out = per_token(batch, started)
    for rows in _mixed_groups(batch, started):
        influence, threshold = _influence(batch, rows, started, mean=True)
        hidden_reward = influence * started[rows].sign().unsqueeze(1)
        kept = hidden_reward.abs() > threshold if dominant else torch.ones_like(hidden_reward, dtype=torch.bool)
        out[rows] = (out[rows] * (1 + p * hidden_reward.sign())).masked_fill(~kept, 0.0)
    return out


def _mixed_groups(batch: CreditBatch, advantages: Float[Tensor, " B"]) -> list[Tensor]:
    """Groups that have tokens of right and of wrong rollouts: elsewhere there is nothing to compare."""
    signs = advantages.sign() * batch.mask.any(1)
    return [rows for rows in batch.groups() if (signs[rows] > 0).any() and (signs[rows] < 0).any()]


def _influence(
    batch: CreditBatch, rows: Tensor, advantages: Float[Tensor, " B"], mean: bool = False
) -> tuple[Float[Tensor, "G T"], Float[Tensor, ""]]:
    """s of one group's tokens, 0 outside the mask, and the least mean of s over a right rollout.

    mean: s is the sum over right rollouts of their means over tokens, not of their sums.
    """
    mask, right = batch.mask[rows], advantages[rows] > 0
    number = batch.mask.flatten().cumsum(0).view_as(batch.mask) - 1  # (B, T): the place of a token among the states
    states = batch.states.select(number[rows][mask])
    lengths = mask.sum(1).clamp(min=1)
    weights = (right / lengths if mean else right).to(advantages.dtype)
    sources = weights.unsqueeze(1).expand_as(mask)[mask].to(states.logits.device)
    cap = getattr(states, "cap", None)
    moved = predicted_delta_logp(states.hidden, states.logits, states.tokens, sources, 1.0, cap=cap)
    out = advantages.new_zeros(mask.shape)
    out[mask] = moved.to(out)
    return out, (out.sum(1) / lengths)[right & mask.any(1)].min()
