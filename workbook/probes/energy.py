"""Energy of tokens, and how much of it lies on what a group shares: all that equal weights cancel.

A token's *energy* is the squared size of its push on the logits, A^2 |e_y - p|^2. Equal weights
cancel what all rollouts of a group share; so the energy on shared tokens bounds what any objective
can cancel. It is small for a reason:

- the rest of the group shares a token of probability p with probability p^(G - 1), so mostly sure
  tokens are shared;
- a sure token has p near e_y, and so no energy left.

Of a slot of two words the share is `two_word_share`: at most about 1/(e G), 5 % for groups of
eight; only a pair can share a quarter.

Letters: B rollouts, T tokens, N tokens of all rollouts, V vocabulary, G group size.
"""

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.policies.models import evaluating
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.rollouts.states import output_states
from workbook.theory.advantages import group_index, group_size, group_sum, shared_places
from workbook.theory.weights import cancellation_residual


def two_word_share(p: float, group_size: int) -> float:
    """Expected on-policy share of a two-word slot's energy on tokens that a whole group has.

    p: probability of one of the words.  group_size: rollouts per prompt G >= 2.

    >>> [round(two_word_share(p, 8), 3) for p in (0.998, 0.875, 0.8)]
    [0.002, 0.049, 0.042]
    """
    return p ** (group_size - 1) * (1 - p) + (1 - p) ** (group_size - 1) * p


@in_batches
def token_energy(policy, rollouts: Rollouts) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Energy A^2 |e_y - p|^2 of every token, and the energy that its group is expected to share.

    Expected: the energy times p_y^(G-1), as if every other rollout of the group drew from the same
    softmax. Both are 0 outside the mask.
    """
    alive = rollouts.completion_mask.bool()
    # what the output layer saw where each of the N tokens was drawn
    states = output_states(policy, rollouts)
    probs = states.logits.float().softmax(-1)  # (N, V)
    p_token = probs.gather(-1, states.tokens[:, None]).squeeze(-1)  # (N,)
    # |e_y - p|^2
    score_square = 1 - 2 * p_token + probs.square().sum(-1)

    # G - 1 and A of each token, (N,)
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    others_in_group = group_size(index, groups)[index] - 1  # (B,)
    others = others_in_group[:, None].expand_as(alive)[alive]
    advantages = rollouts.advantages[:, None].expand(alive.shape)[alive]

    # from N tokens back to (B, T)
    energy = torch.zeros(alive.shape)
    energy[alive] = score_square * advantages.square()
    expected = torch.zeros(alive.shape)
    expected[alive] = energy[alive] * p_token**others
    return energy, expected


@in_batches
def shared_energy(policy, rollouts: Rollouts) -> pd.DataFrame:
    """Energy that whole groups share, by class of token; the last row, "all", is of all classes.

    Columns category; tokens, the class's share of all tokens; shared, the share of its tokens that
    a whole group has; energy, the class's share of all energy; shared_energy, that of its shared
    tokens, as a share of *all* energy; expected, the same by the tokens' probabilities
    (`token_energy`); unsure, entropy at its tokens (mean, nats).
    """
    alive = rollouts.completion_mask.bool()
    energy, expected = token_energy(policy, rollouts)
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    table = rollouts.token_table()[["category", "entropy"]].assign(
        shared=shared[alive].numpy(), energy=energy[alive].numpy(), expected=expected[alive].numpy()
    )
    # 0 for a token that some rollout of the group lacks
    table["shared_energy"] = table["energy"] * table["shared"]

    rows = []
    all_energy = table["energy"].sum()
    for category, part in [*table.groupby("category"), ("all", table)]:
        shares = part[["energy", "shared_energy", "expected"]].sum() / all_energy
        row = {
            "category": category,
            "tokens": len(part) / len(table),
            "shared": part["shared"].mean(),
            **shares.to_dict(),
            "unsure": part["entropy"].mean(),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def residual_by_energy(
    rollouts: Rollouts,
    weights: Float[Tensor, "B T"],
    energy: Float[Tensor, "B T"],
    shared: Bool[Tensor, "B T"],
) -> float:
    """Residual |sum w A| / sum |w A| on shared tokens: mean over shared places, by their energy.

    A mean over places alone would speak of sure words, which cannot move; 0 cancels, 1 adds up. A
    place where all weights are 0 has residual 0. NaN where no shared token has energy.
    """
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    energy_at = group_sum(energy * shared, index, groups).double()  # (groups, T)
    # (groups, T), 0 where nothing pushes
    residual = cancellation_residual(weights, rollouts.advantages, rollouts.group_ids).double()
    total = energy_at.sum()
    return float((residual * energy_at).sum() / total) if total > 0 else float("nan")


def shared_gradient(
    policy, rollouts: Rollouts, weights: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"]
) -> float:
    """Residual of the chosen tokens' update in the space of all weights.

    With g_i = sum over rollout i's chosen tokens of w_it grad log pi(y_it), averaged over groups by
    its denominator:

        |sum_i A_i g_i| / sum_i |A_i g_i|     over the rollouts of one group; 0 cancels, 1 adds up

    These are the policy's own gradients, not a proxy in the output layer: equal words behind
    different prefixes have different gradients, so this need not be 0 where weights are equal.
    Memory: two gradients. NaN where nothing pushes.
    """
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    pushes = (weights * rollouts.advantages[:, None]).masked_fill(~chosen, 0.0)  # (B, T)
    pushing = pushes.any(1)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    net = 0.0
    gross = 0.0
    with torch.enable_grad(), evaluating(policy.model):
        for group in range(groups):
            # sum_i A_i g_i, and sum_i |A_i g_i|
            group_gradient = None
            group_gross = 0.0
            for row in ((index == group) & pushing).nonzero().flatten().tolist():
                # A_i g_i; w is taken as given, so no gradient flows through it
                objective = (pushes[[row]] * scores(policy.model, rollouts.select([row]))).sum()
                parts = torch.autograd.grad(objective, trained, allow_unused=True)
                own = torch.cat([part.flatten() for part in parts if part is not None])
                group_gross += float(own.norm())
                group_gradient = own if group_gradient is None else group_gradient + own
            if group_gradient is not None:
                net += float(group_gradient.norm())
                gross += group_gross
    return net / gross if gross > 0 else float("nan")
