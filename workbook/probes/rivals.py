"""Coupling of a real policy's tokens through its output layer: pairs by kind, and what rivals do.

Two tokens couple by K = (h_i . h_j) (e_i - p_i) . (e_j - p_j). For equal tokens the second factor
is positive. For different ones it is mostly small, since each has little probability in the other's
softmax. *Rivals* are the exception: different tokens below one half in different contexts, each of
which has at least a tenth of what the other's context leaves over. If a context is undecided
between k words equally, rivals have -1 / (k - 1) of the coupling of equal words.

Letters: N tokens of one prompt, V vocabulary.
"""

import itertools
from collections.abc import Iterator

import pandas as pd
import torch
from torch import Tensor

from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.rollouts.states import OutputStates, output_states
from workbook.theory.coupling import BELOW_HALF
from workbook.theory.decomposition import context_index

# of a pair, by p; in the order of the number of its tokens below one half
_CONFIDENCES = ("none below one half", "one below one half", "both below one half")
_RIVAL_SHARE = 0.1  # of what a context leaves over, from which on a word is a rival


@in_batches
def measure_pairs(policy, rollouts: Rollouts) -> pd.DataFrame:
    """Coupling of all pairs of a prompt's tokens, a row per kind of pair and prompt.

    Columns: context (same or different, as the two tokens are drawn from one softmax or two); token
    (same or different); confidence (both, one or none below one half, p < 0.5); pairs, their
    number; mean, of |K|; group.
    """
    kinds = pd.DataFrame(
        itertools.product(("different", "same"), ("different", "same"), _CONFIDENCES),
        columns=["context", "token", "confidence"],
    )
    tables = []
    for group, states, contexts, _ in _groups(policy, rollouts):
        tokens = states.tokens
        p_token = states.logits.softmax(-1).gather(1, tokens[:, None]).squeeze(1)  # (N,)
        unsure = (p_token < BELOW_HALF).long()
        # each pair once, its row in `kinds`
        i, j = torch.triu_indices(len(tokens), len(tokens), 1)
        same_context = (contexts[i] == contexts[j]).long()
        same_token = (tokens[i] == tokens[j]).long()
        kind = same_context * 6 + same_token * 3 + unsure[i] + unsure[j]

        size = states.kernel()[i, j].double().abs()
        pairs = torch.bincount(kind, minlength=len(kinds))
        total = torch.bincount(kind, size, minlength=len(kinds))
        tables.append(kinds.assign(pairs=pairs.numpy(), mean=(total / pairs).numpy(), group=group))
    table = pd.concat(tables, ignore_index=True)
    return table[table["pairs"] > 0]


@in_batches
def measure_unsure(policy, rollouts: Rollouts) -> pd.DataFrame:
    """Coupling to tokens below one half: by rivals, by equal tokens and by all others, per prompt.

    Columns: group; rivals and no_rivals, mean |K| of such pairs in different contexts over that of
    equal such tokens; negative, share of rivals with K < 0; different, the part of what moves such
    a token from other positions, |sum_j A_j K_ij|, that comes from different tokens (NaN where all
    advantages are 0); options, exp(entropy) of such a token's softmax, on average.
    """
    rows = []
    for group, states, contexts, advantages in _groups(policy, rollouts):
        kernel = states.kernel()  # (N, N)
        tokens = states.tokens
        probs = states.logits.softmax(-1)  # (N, V)
        p_token = probs.gather(1, tokens[:, None]).squeeze(1)
        unsure = p_token < BELOW_HALF
        same = tokens[:, None] == tokens

        # (N, N): of what i's context leaves over, the share that j's token has there
        share = probs[:, tokens] / (1 - p_token)[:, None]
        pairs = (contexts[:, None] != contexts) & unsure[:, None] & unsure
        rivals = pairs & ~same & (share > _RIVAL_SHARE) & (share.T > _RIVAL_SHARE)
        size_of_equal = kernel[pairs & same].abs().mean()

        # A_j K_ij; a token's push on itself comes from no other position
        weighted = kernel * advantages
        from_equal = ((weighted * same).sum(1) - weighted.diagonal())[unsure].abs().mean()
        from_different = (weighted * ~same).sum(1)[unsure].abs().mean()
        row = {
            "rivals": kernel[rivals].abs().mean() / size_of_equal,
            "no_rivals": kernel[pairs & ~same & ~rivals].abs().mean() / size_of_equal,
            "negative": (kernel[rivals] < 0).float().mean(),
            "options": torch.special.entr(probs[unsure]).sum(-1).exp().mean(),
            "different": from_different / (from_different + from_equal),
        }
        rows.append({"group": group, **{name: float(value) for name, value in row.items()}})
    return pd.DataFrame(rows)


def _groups(policy, rollouts: Rollouts) -> Iterator[tuple[int, OutputStates, Tensor, Tensor]]:
    """Each prompt's number, output layer states, and its tokens' contexts and advantages, (N,)."""
    for group in rollouts.group_ids.unique().tolist():
        part = rollouts.select((rollouts.group_ids == group).nonzero().squeeze(1))
        mask = part.completion_mask.bool()
        # all of one prompt, number 0
        prompt = torch.zeros(len(part))
        contexts = context_index(prompt, part.completion_ids, mask)[mask]
        advantages = part.advantages[:, None].expand_as(mask)[mask]
        yield group, output_states(policy, part), contexts, advantages
