"""Coupling of a real policy's tokens through its output layer: pairs by kind, and what rivals do to one another.

Rivals are different unsure tokens in different contexts, each of which has at least a tenth of what the other's context
leaves over. If a context is undecided between k words equally, rivals have -1 / (k - 1) of the coupling of equal words.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import torch

from workbook.rollouts.sample import Rollouts
from workbook.rollouts.states import OutputStates, output_states
from workbook.theory.coupling import UNSURE
from workbook.theory.decomposition import context_index
from workbook.topics.softmax.toy import compute_cells

RIVAL_SHARE = 0.1  # of what a context leaves over, from which on a word is a rival


def measure_pairs(policy, rollouts: Rollouts) -> pd.DataFrame:
    """Mean |K| of all pairs of a prompt's tokens, by kind: the columns of `compute_cells`, and group."""
    tables = [
        compute_cells(states.kernel(), states.tokens, _own(states), contexts).assign(group=group)
        for group, states, contexts, _ in _groups(policy, rollouts)
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[table["pairs"] > 0]


def measure_unsure(policy, rollouts: Rollouts) -> pd.DataFrame:
    """What couples to unsure tokens, a row per prompt.

    Columns: group; rivals and no_rivals, mean |K| of such pairs in different contexts over that of equal unsure tokens;
    negative, share of rivals with K < 0; different, the part of what moves an unsure token from other positions,
    |sum_j A_j K_ij|, that comes from different tokens (NaN where all advantages are 0); options, exp(entropy) of an
    unsure token's softmax, on average.
    """
    rows = [
        {"group": group, **_rivals(states, contexts), **_sources(states, advantages)}
        for group, states, contexts, advantages in _groups(policy, rollouts)
    ]
    return pd.DataFrame(rows)


def _groups(policy, rollouts: Rollouts) -> Iterator[tuple[int, OutputStates, torch.Tensor, torch.Tensor]]:
    """Of each prompt: its number, the output layer's states, each token's context and advantage, all (N,)."""
    for group in rollouts.group_ids.unique().tolist():
        part = rollouts.select((rollouts.group_ids == group).nonzero().squeeze(1))
        mask = part.completion_mask.bool()
        contexts = context_index(torch.zeros(len(part)), part.completion_ids, mask)[mask]
        advantages = part.advantages[:, None].expand_as(mask)[mask]
        yield group, output_states(policy, part), contexts, advantages


def _own(states: OutputStates) -> torch.Tensor:
    """Probability of each token."""
    return states.logits.softmax(-1).gather(1, states.tokens[:, None]).squeeze(1)


def _rivals(states: OutputStates, contexts: torch.Tensor) -> dict[str, float]:
    """Couplings of unsure tokens in different contexts, relative to equal ones."""
    kernel, y, p = states.kernel(), states.tokens, _own(states)
    probs = states.logits.softmax(-1)
    given = probs[:, y] / (1 - p)[:, None]  # (N, N): share of what i leaves over that j's token has
    pairs = (contexts[:, None] != contexts) & (p[:, None] < UNSURE) & (p < UNSURE)
    same = y[:, None] == y
    rivals = pairs & ~same & (given > RIVAL_SHARE) & (given.T > RIVAL_SHARE)
    base = kernel[pairs & same].abs().mean()
    entropy = torch.special.entr(probs[p < UNSURE]).sum(-1)
    values = {
        "rivals": kernel[rivals].abs().mean() / base,
        "no_rivals": kernel[pairs & ~same & ~rivals].abs().mean() / base,
        "negative": (kernel[rivals] < 0).float().mean(),
        "options": entropy.exp().mean(),
    }
    return {name: float(value) for name, value in values.items()}


def _sources(states: OutputStates, advantages: torch.Tensor) -> dict[str, float]:
    """Part of what moves an unsure token from other positions that different tokens make up."""
    weighted, same = states.kernel() * advantages, states.tokens[:, None] == states.tokens  # A_j K_ij
    equal = (weighted * same).sum(1) - weighted.diagonal()
    unsure = _own(states) < UNSURE
    different, equal = ((weighted * ~same).sum(1)[unsure].abs().mean(), equal[unsure].abs().mean())
    return {"different": float(different / (different + equal))}
