"""Energy of tokens, and how much of it lies on what a group shares: all that equal weights cancel.

A token's *energy* is the squared size of its push on the logits, A^2 |e_y - p|^2. Of a token with
probability p the rest of its group shares it with p^(G - 1), and a token that is sure to be shared
has no energy left. Of a slot of two words the share is `two_word_share`: at most about 1/(e G), 5 %
for groups of eight; only a pair can share a quarter.
"""

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.policies.models import evaluating
from workbook.rollouts.credit import output_states
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import Rollouts
from workbook.theory.advantages import group_index, group_size, group_sum, shared_places
from workbook.theory.weights import cancellation_residual


def two_word_share(p: float, group_size: int) -> float:
    """Share of a two-word slot's energy on tokens that a whole group has, on-policy, in
    expectation.

    p: probability of one of the words.  group_size: rollouts per prompt G >= 2.

    >>> [round(two_word_share(p, 8), 3) for p in (0.998, 0.875, 0.8)]
    [0.002, 0.049, 0.042]
    """
    return p ** (group_size - 1) * (1 - p) + (1 - p) ** (group_size - 1) * p


def token_energy(policy, rollouts: Rollouts) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Energy A^2 |e_y - p|^2 of every token, and what its group is expected to share of it; 0
    outside the mask.

    Expected: the energy times p_y^(G-1), as if every other rollout of the group drew from the same
    softmax.
    """
    states, alive = output_states(policy, rollouts), rollouts.completion_mask.bool()
    p = states.logits.float().softmax(-1)  # (N, V)
    own = p.gather(-1, states.tokens[:, None]).squeeze(-1)
    size = 1 - 2 * own + p.square().sum(-1)  # |e_y - p|^2
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    others = (group_size(index, groups)[index] - 1)[:, None].expand_as(alive)[alive]
    advantages = rollouts.advantages[:, None].expand(alive.shape)
    energy, expected = torch.zeros(alive.shape), torch.zeros(alive.shape)
    energy[alive] = size * advantages[alive].square()
    expected[alive] = energy[alive] * own**others
    return energy, expected


def shared_energy(policy, rollouts: Rollouts) -> pd.DataFrame:
    """Energy that whole groups share, by class of token: a row for each class, and one for all of
    them, "all".

    Columns category; tokens, the class's share of all tokens; shared, the share of its tokens that
    a whole group has; energy, the class's share of all energy; shared_energy, that of its shared
    tokens, as a share of *all* energy; expected, the same by the tokens' probabilities
    (`token_energy`); unsure, entropy at its tokens (mean, nats).
    """
    energy, expected = token_energy(policy, rollouts)
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    alive = rollouts.completion_mask.bool()
    table = rollouts.token_table()[["category", "entropy"]].assign(
        shared=shared[alive].numpy(), energy=energy[alive].numpy(), expected=expected[alive].numpy()
    )
    table["on_shared"] = table["energy"] * table["shared"]
    whole, rows = table["energy"].sum(), []
    for category, part in [*table.groupby("category"), ("all", table)]:
        sums = part[["energy", "on_shared", "expected"]].sum() / whole
        rows.append(
            (category, len(part) / len(table), part["shared"].mean(), *sums, part["entropy"].mean())
        )
    columns = ["category", "tokens", "shared", "energy", "shared_energy", "expected", "unsure"]
    return pd.DataFrame(rows, columns=columns)


def residual_by_energy(
    rollouts: Rollouts,
    weights: Float[Tensor, "B T"],
    energy: Float[Tensor, "B T"],
    shared: Bool[Tensor, "B T"],
) -> float:
    """Residual |sum w A| / sum |w A| on shared tokens, averaged over the groups' shared places by
    their energy.

    A mean over places alone would speak of sure words, which cannot move; 0 cancels, 1 adds up. A
    place where all weights are 0 has residual 0. NaN where no shared token has energy.
    """
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    places = group_sum(energy * shared, index, groups).double()  # (groups, T)
    residual = cancellation_residual(weights, rollouts.advantages, rollouts.group_ids).double()
    return float((residual * places).sum() / places.sum()) if places.sum() > 0 else float("nan")


def shared_gradient(
    policy, rollouts: Rollouts, weights: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"]
) -> float:
    """Residual of the chosen tokens' update in the space of all weights: the policy's own
    gradients, no proxy.

    With g_i = sum over rollout i's chosen tokens of w_it grad log pi(y_it), averaged over groups by
    its denominator:

        |sum_i A_i g_i| / sum_i |A_i g_i|     over the rollouts of one group; 0 cancels, 1 adds up

    Equal words behind different prefixes have different gradients, so this need not be 0 where
    weights are equal.
    Memory: two gradients. NaN where nothing pushes.
    """
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    pushes = (weights * rollouts.advantages[:, None]).masked_fill(~chosen, 0.0)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    net = gross = 0.0
    with torch.enable_grad(), evaluating(policy.model):
        for group in range(groups):
            total, sizes = None, 0.0
            for row in ((index == group) & pushes.any(1)).nonzero().flatten().tolist():
                scored = scores(policy.model, rollouts.select([row]))
                parts = torch.autograd.grad(
                    (pushes[[row]] * scored).sum(), trained, allow_unused=True
                )
                own = torch.cat([part.flatten() for part in parts if part is not None])
                sizes, total = sizes + float(own.norm()), own if total is None else total + own
            if total is not None:
                net, gross = net + float(total.norm()), gross + sizes
    return net / gross if gross > 0 else float("nan")
