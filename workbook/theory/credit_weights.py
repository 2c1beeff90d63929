"""Credit rules that weigh each token's group advantage: by shared prefixes, by position, by probability, by sign.

Every rule takes a CreditBatch of B rollouts with T tokens and gives advantages (B,) or (B, T), 0 outside the mask, in
the unit of the advantages it starts from. `advantages` is what it starts from: an estimator of group_advantages, or a
tensor (B,) of one's own. Where all of these are 0, as in a group of equal rewards or of one rollout, so is the result.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from . import advantages as estimators
from .credit import CreditBatch
from .groups import group_index, group_size, group_sum

Start = str | Float[Tensor, " B"]


def start_from(batch: CreditBatch, advantages: Start) -> Float[Tensor, " B"]:
    """One advantage per rollout to begin with: of an estimator's name, or the tensor itself.

    Raises ValueError for an unknown estimator and for a tensor that is not (B,).
    """
    if isinstance(advantages, str):
        return batch.group_advantages(advantages)
    if advantages.shape != batch.rewards.shape:
        shape, valid = tuple(advantages.shape), tuple(batch.rewards.shape)
        raise ValueError(f"advantages has shape {shape}; it must be {valid}, one number per rollout.")
    return advantages.detach()


def per_token(batch: CreditBatch, advantages: Float[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """The advantage of each rollout on each of its tokens, 0 outside the mask."""
    return torch.where(batch.mask, advantages.unsqueeze(1), 0.0)


def sampled_logps(batch: CreditBatch) -> Float[Tensor, "B T"]:
    """Log-probabilities when sampled, or those of now where the sampler's are not known; nats."""
    return batch.old_logps if batch.knows("old_logps") else batch.logps


def prefix_credit(batch: CreditBatch, fallback: str = "dr_grpo") -> Float[Tensor, "B T"]:
    """Mean reward of the group's rollouts that took this step, minus that of all that stood before it.

    See `workbook.theory.advantages.prefix_credit`. Source: the hidden process reward of arXiv 2509.21154. Our reading:
    the gain of a step over its own prefix, where the paper compares with the group.

    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.tensor([[5, 1], [5, 2]]), torch.ones(2, 2))
    >>> prefix_credit(batch).tolist()
    [[0.0, 0.5], [0.0, -0.5]]
    """
    return estimators.prefix_credit(batch.rewards, batch.completion_ids, batch.mask, batch.group_ids, fallback)


def lambda_grpo(batch: CreditBatch, advantages: Start = "grpo") -> Float[Tensor, "B T"]:
    """Divide each token's advantage by the size of its process set.

    A_it / n_it, with n_it the number of the group's rollouts, i too, that have i's tokens up to and including t
    (lambda-GRPO, arXiv 2509.21154, eq. 9: a prefix that many rollouts share is one step of a process, and GRPO
    counts it n_it times).

    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.tensor([[5, 1], [5, 2]]), torch.ones(2, 2))
    >>> lambda_grpo(batch, "dr_grpo").tolist()
    [[0.25, 0.5], [-0.25, -0.5]]
    """
    return per_token(batch, start_from(batch, advantages)) / process_set_size(batch).clamp(min=1)


def process_set_size(batch: CreditBatch) -> Int[Tensor, "B T"]:
    """Number of the group's rollouts that share the tokens up to and including each token; 0 outside the mask."""
    sizes = torch.zeros_like(batch.completion_ids)
    for rows in batch.groups():
        ids, mask = batch.completion_ids[rows], batch.mask[rows]
        agree = (ids[:, None] == ids) & (mask[:, None] == mask)  # (G, G, T)
        sizes[rows] = agree.cumprod(2).sum(1) * mask
    return sizes


def gtpo(batch: CreditBatch, boost: float = 2.0, advantages: Start = "grpo") -> Float[Tensor, "B T"]:
    """Leave conflict tokens of negative rollouts alone and push those of positive rollouts harder.

    A_it = 0 on conflict tokens where A_i < 0, boost A_i where A_i > 0, and A_i on all others. A conflict token stands
    at the same position, counted from the start or from the end, in a positive and in a negative rollout of the group,
    and so do all tokens of its rollout before it (from the end: after it). It is the opposite of letting them cancel.

    Source: GTPO (arXiv 2508.03772), runs from both ends as in its authors' code. Our reading: the boost counts once for
    a token in both runs; their entropy filter, the entropy that they take off each advantage, and their division by
    the number of conflict tokens are not part of it.

    >>> ids = torch.tensor([[1, 2, 3], [1, 5, 3]])
    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), ids, torch.ones(2, 3))
    >>> gtpo(batch, advantages="dr_grpo").tolist()
    [[1.0, 0.5, 1.0], [0.0, -0.5, 0.0]]
    """
    started = start_from(batch, advantages)
    in_conflict = boost * started.clamp(min=0)
    return torch.where(conflict_tokens(batch, started), in_conflict.unsqueeze(1), per_token(batch, started))


def conflict_tokens(batch: CreditBatch, advantages: Float[Tensor, " B"]) -> Bool[Tensor, "B T"]:
    """Mask of GTPO's conflict tokens, of rollouts of either sign."""
    order = (~batch.mask).to(torch.uint8).argsort(dim=1, stable=True)  # the mask's tokens first, holes and padding last
    ids, lengths = batch.completion_ids.gather(1, order), batch.mask.sum(1, keepdim=True)
    place = torch.arange(ids.shape[1], device=ids.device)
    alive, backwards = place < lengths, (lengths - 1 - place).clamp(min=0)
    both = torch.zeros_like(alive)
    for rows in batch.groups():
        signs, here = advantages[rows].sign(), alive[rows]
        runs = _conflict_runs(ids[rows], here, signs)
        from_end = _conflict_runs(ids[rows].gather(1, backwards[rows]), here, signs)
        both[rows] = (runs | from_end.gather(1, backwards[rows])) & here
    return torch.zeros_like(both).scatter(1, order, both)


def _conflict_runs(
    ids: Int[Tensor, "G T"], alive: Bool[Tensor, "G T"], signs: Float[Tensor, " G"]
) -> Bool[Tensor, "G T"]:
    same = (ids[:, None] == ids) & alive[:, None] & alive  # (G, G, T)
    of_sign = [(same & (signs == sign)[:, None]).any(1) for sign in (1, -1)]
    return (of_sign[0] & of_sign[1]).cumprod(1).bool()


def advantage_reweighting(batch: CreditBatch, alpha: float = 0.2, advantages: Start = "grpo") -> Float[Tensor, "B T"]:
    """Weaken the push on tokens of low probability, whose gradients are the largest.

    A_it = A_i (alpha p_it + 1 - alpha), with p_it the probability of the token under the policy of now, so the rule is
    evaluated again in every micro-batch (AR, arXiv 2505.12929, eq. 4; alpha = 0.2 in its authors' script for 7B). Their
    code takes p_it when sampled, which is the same for one optimizer step per generation batch.
    """
    return per_token(batch, start_from(batch, advantages)) * (alpha * batch.logps.exp() + 1 - alpha)


def lopti(batch: CreditBatch, threshold: float = 0.5, advantages: Start = "grpo") -> Float[Tensor, "B T"]:
    """Train tokens of low probability and all others in separate optimizer steps.

    A_it = A_i where (p_it < threshold) = (batch.step is even), else 0: Lopti (arXiv 2505.12929, section 4.2, threshold
    0.5) updates first on tokens of low probability, then, with the policy that comes of it, on the others.

    Our reading: a weight cannot make two updates of one, so the optimizer step decides whose turn it is, and p_it is
    the probability when sampled, so that each token has one turn. With num_iterations: 2 and one optimizer step per
    iteration both turns fall on the same rollouts, as published; with 1 they fall on rollouts of alternate steps.
    """
    low = sampled_logps(batch).exp() < threshold
    others = low != (batch.step % 2 == 0)
    return per_token(batch, start_from(batch, advantages)).masked_fill(others, 0.0)


advantage_reweighting.each_step = lopti.each_step = True


def w_reinforce(batch: CreditBatch, positive: float = 0.1, advantages: Start = "grpo") -> Float[Tensor, " B"]:
    """Weigh positive rollouts by 0.1, so that the negative ones lead.

    A_i = positive A_i where A_i > 0, else A_i. Source: W-REINFORCE (arXiv 2506.01347, lambda = 0.1). Our reading: group
    advantages take the place of its rewards +1 and -1, so that a group of equal rewards still pushes nothing.
    """
    started = start_from(batch, advantages)
    return torch.where(started > 0, positive * started, started)


def negative_token_filtering(batch: CreditBatch, keep: float = 0.1, advantages: Start = "grpo") -> Float[Tensor, "B T"]:
    """Push down only the least probable tokens of negative rollouts.

    A_it = A_i on the ceil(keep T_i) tokens of lowest probability of a rollout with A_i < 0, 0 on its other tokens, and
    A_i everywhere where A_i > 0; the loss still divides by all T_i tokens (arXiv 2606.17250, keep = 0.1 for agents).

    Our reading: group advantages take the place of its batch-wide +1 and -1. To train without groups, as it does, give
    `advantages=batch.rewards - batch.rewards.mean()`.
    """
    started = start_from(batch, advantages)
    logps = sampled_logps(batch).masked_fill(~batch.mask, torch.inf)
    rank = logps.argsort(dim=1, stable=True).argsort(dim=1)  # 0 for the least probable
    kept = rank < (keep * batch.mask.sum(1, keepdim=True)).ceil()
    return per_token(batch, started).masked_fill(~kept & (started < 0).unsqueeze(1), 0.0)


def balanced_aggregation(batch: CreditBatch, advantages: Start = "grpo") -> Float[Tensor, " B"]:
    """Balance long against short: take the mean over tokens separately for the positive and the negative rollouts.

    A_i L / L_s, with L the mean length of the batch's rollouts (in training, of those of i's process) and L_s that of
    the rollouts of i's sign in i's group.
    Under a loss that weighs all tokens alike (dapo, bnpo, dr_grpo) a group's objective is then, up to a constant,
    (n_+ mean over positive tokens + n_- mean over negative tokens) / n, as in Balanced Aggregation (arXiv 2605.04077).
    With loss_type grpo, which divides by T_i already, it is not.

    >>> mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.ones(2, 3).int(), mask)
    >>> balanced_aggregation(batch, "dr_grpo").tolist()
    [0.3333333432674408, -1.0]
    """
    started = start_from(batch, advantages)
    lengths = batch.mask.sum(1).to(started.dtype)
    index, _ = group_index(batch.group_ids, len(batch))
    side, sides = group_index(3 * index + started.sign().long(), len(batch))
    mean = group_sum(lengths, side, sides) / group_size(side, sides)
    return started * torch.where(mean > 0, lengths.mean() / mean, 0.0)[side]
