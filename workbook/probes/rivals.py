"""Coupling of a real policy's tokens through its output layer: pairs by kind, and what rivals do to
one another.

Rivals are different tokens below one half in different contexts, each of which has at least a tenth
of what the other's context leaves over. If a context is undecided between k words equally, rivals
have -1 / (k - 1) of the coupling of equal words.
"""

from collections.abc import Iterator
from itertools import product

import pandas as pd
import torch
from torch import Tensor

from workbook.rollouts.credit import OutputStates, output_states
from workbook.rollouts.sample import Rollouts
from workbook.theory.coupling import BELOW_HALF
from workbook.theory.decomposition import context_index

CONFIDENCE = ("none below one half", "one below one half", "both below one half")  # of a pair, by p
RIVAL_SHARE = 0.1  # of what a context leaves over, from which on a word is a rival


def measure_pairs(policy, rollouts: Rollouts) -> pd.DataFrame:
    """Coupling of all pairs of a prompt's tokens, by kind: columns context, token, confidence,
    pairs, mean, group.

    context: same or different, as their tokens are drawn from one softmax or two.  token: same or
    different.
    confidence: both, one or none below one half (p < 0.5).  mean: of |K|.
    """
    same, tables = ("different", "same"), []
    kinds = [*product(same, same, CONFIDENCE)]  # in the order of `kind`
    for group, states, contexts, _ in _groups(policy, rollouts):
        y = states.tokens
        unsure = (states.logits.softmax(-1).gather(1, y[:, None]).squeeze(1) < BELOW_HALF).long()
        i, j = torch.triu_indices(len(y), len(y), 1)
        kind = (
            (contexts[i] == contexts[j]).long() * 6
            + (y[i] == y[j]).long() * 3
            + unsure[i]
            + unsure[j]
        )
        pairs, total = (
            torch.bincount(kind, k, minlength=12)
            for k in (None, states.kernel()[i, j].double().abs())
        )
        table = pd.DataFrame(kinds, columns=["context", "token", "confidence"])
        tables.append(table.assign(pairs=pairs.numpy(), mean=(total / pairs).numpy(), group=group))
    table = pd.concat(tables, ignore_index=True)
    return table[table["pairs"] > 0]


def measure_unsure(policy, rollouts: Rollouts) -> pd.DataFrame:
    """What couples to tokens below one half, a row per prompt.

    Columns: group; rivals and no_rivals, mean |K| of such pairs in different contexts over that of
    equal such tokens; negative, share of rivals with K < 0; different, the part of what moves such a
    token from other positions, |sum_j A_j K_ij|, that comes from different tokens (NaN where all
    advantages are 0); options, exp(entropy) of such a token's softmax, on average.
    """
    rows = []
    for group, states, contexts, advantages in _groups(policy, rollouts):
        kernel, y, probs = states.kernel(), states.tokens, states.logits.softmax(-1)
        p = probs.gather(1, y[:, None]).squeeze(1)
        unsure, same = p < BELOW_HALF, y[:, None] == y
        # (N, N): share of what i leaves over that j's token has
        given = probs[:, y] / (1 - p)[:, None]
        pairs = (contexts[:, None] != contexts) & unsure[:, None] & unsure
        rivals = pairs & ~same & (given > RIVAL_SHARE) & (given.T > RIVAL_SHARE)
        base = kernel[pairs & same].abs().mean()
        weighted = kernel * advantages  # A_j K_ij
        from_equal = ((weighted * same).sum(1) - weighted.diagonal())[unsure].abs().mean()
        from_different = (weighted * ~same).sum(1)[unsure].abs().mean()
        row = {
            "rivals": kernel[rivals].abs().mean() / base,
            "no_rivals": kernel[pairs & ~same & ~rivals].abs().mean() / base,
            "negative": (kernel[rivals] < 0).float().mean(),
            "options": torch.special.entr(probs[unsure]).sum(-1).exp().mean(),
            "different": from_different / (from_different + from_equal),
        }
        rows.append({"group": group} | {name: float(value) for name, value in row.items()})
    return pd.DataFrame(rows)


def _groups(policy, rollouts: Rollouts) -> Iterator[tuple[int, OutputStates, Tensor, Tensor]]:
    """Of each prompt: its number, the output layer's states, each token's context and advantage,
    all (N,).
    """
    for group in rollouts.group_ids.unique().tolist():
        part = rollouts.select((rollouts.group_ids == group).nonzero().squeeze(1))
        mask = part.completion_mask.bool()
        contexts = context_index(torch.zeros(len(part)), part.completion_ids, mask)[mask]
        yield (
            group,
            output_states(policy, part),
            contexts,
            part.advantages[:, None].expand_as(mask)[mask],
        )
