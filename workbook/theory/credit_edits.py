"""Credit rules from edits: what would a failing rollout have to change to be a correct one?

Group advantages push all tokens of a failing rollout down, the right ones too. A correct sibling,
another rollout of the same prompt, shows which of them it need not have said: align the two, and
what the alignment keeps is left alone, while what it replaces or deletes takes the blame.

Correct are a group's rollouts of the best reward, where not all are equal; all others fail. The
reference of a failing rollout is the correct sibling at the smallest Levenshtein distance
(insertions, deletions and substitutions of tokens). Tokens that the mask leaves out before a
rollout's last, as a tool's are, are aligned too.

Letters: B rollouts, T completion tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from .advantages import group_advantages
from .credit import CreditBatch, credit_rule, spread_over_tokens


class Alignment(NamedTuple):
    """A failing rollout beside its nearest correct sibling.

    row, sibling: rows of the batch.
    kept: where the sibling has each token of the failing rollout, None where it is edited.
    """

    row: int
    sibling: int
    kept: list[int | None]


@credit_rule("edit_mask", paper="arXiv 2605.16302", fidelity="our reading")
def edit_mask(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, "B T"]:
    """Push a failing rollout only on the tokens that set it apart from its nearest correct sibling.

    A_it = A_i m_it, m_it = 0 on tokens of a failing rollout that the alignment keeps, else 1:
    correct rollouts keep their advantage on all tokens. A rollout that only lacks tokens has
    nothing edited, and no push.

    Source: the cheap half of IBPO (arXiv 2605.16302), which needs no new samples. Our reading: the
    reference is a sibling of the same group.

    >>> ids = torch.tensor([[1, 2, 3], [1, 5, 3]])
    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), ids, torch.ones(2, 3))
    >>> edit_mask(batch, "dr_grpo").tolist()
    [[0.5, 0.5, 0.5], [0.0, -0.5, 0.0]]
    """
    kept = _kept_tokens(batch, _align_failing(batch))
    return spread_over_tokens(batch, batch.group_advantages(estimator)).masked_fill(kept, 0.0)


@credit_rule("ibpo", paper="arXiv 2605.16302", needs=("continue_from",), fidelity="our reading")
def ibpo(
    batch: CreditBatch, weight: float = 0.6, success: float = 0.5, estimator: str = "grpo"
) -> Float[Tensor, "B T"]:
    """Reward a failing rollout in part if one decision of a sibling saves it; credit edits alone.

    A failing rollout's corrected trajectory is its own tokens before the first edit, then the
    sibling's tokens of that edit (the decision spliced in), continued by the policy: one sample.
    phi = success where that reaches the group's best reward, else 0; R' = R + weight phi, before
    the groups are normalized; A' as in edit_mask. Cost: the continuations' tokens, in
    batch.sampled_tokens.

    Source: IBPO (arXiv 2605.16302). **Our reading**, from its authors' page and a reader's table
    (weight 0.6, success 0.5): one reference, the nearest correct sibling, where the paper takes
    several; and its revision is prompted with both texts, in a way that is not known here. Raises
    ValueError without a policy to sample.
    """
    alignments = _align_failing(batch)
    rewards = batch.rewards + 0.0  # a copy, in floats
    if alignments:
        # does one decision of the sibling's save the rollout?
        prefixes = [
            corrected_prefix(_tokens(batch, row), _tokens(batch, sibling), kept)
            for row, sibling, kept in alignments
        ]
        rows = torch.tensor([a.row for a in alignments], device=rewards.device)
        siblings = torch.tensor([a.sibling for a in alignments], device=rewards.device)
        saved = batch.continue_from(rows, prefixes) >= batch.rewards[siblings]
        rewards[rows] += weight * success * saved.to(rewards)
    advantages = spread_over_tokens(batch, group_advantages(rewards, batch.group_ids, estimator))
    return advantages.masked_fill(_kept_tokens(batch, alignments), 0.0)


def corrected_prefix(
    failing: Sequence[int], correct: Sequence[int], kept: Sequence[int | None]
) -> list[int]:
    """Tokens of `failing` before its first edit, and those of `correct` that the edit puts there.

    kept: `aligned(failing, correct)`. Where the edit only deletes, the sibling's next token is its
    decision.

    >>> failing, correct = [1, 8, 9, 4], [1, 5, 4]
    >>> corrected_prefix(failing, correct, aligned(failing, correct))
    [1, 5]
    """
    # length of the common beginning, which alignments keep
    start = 0
    while start < min(len(failing), len(correct)) and failing[start] == correct[start]:
        start += 1

    # the edit ends where the sibling has the next token that is kept
    ends = [place for place in kept[start:] if place is not None]
    end = ends[0] if ends else len(correct)
    return [*failing[:start], *correct[start : max(end, start + 1)]]


def aligned(first: Sequence[int], second: Sequence[int]) -> list[int | None]:
    """Place in `second` of each token of `first` in a shortest edit, None where it is edited away.

    The common beginning and the common end are always kept, so the first edit is the first
    difference.

    >>> aligned([1, 2, 3, 4], [1, 5, 3, 3, 4])
    [0, None, 3, 4]
    """
    kept: list[int | None] = [None] * len(first)
    for start, place, size in Levenshtein.opcodes(first, second).as_matching_blocks():
        kept[start : start + size] = range(place, place + size)
    return kept


def _align_failing(batch: CreditBatch) -> list[Alignment]:
    """Every failing rollout beside its nearest correct sibling; ties by the sibling's tokens."""
    alignments = []
    for rows in batch.groups():
        best = batch.rewards[rows].max()
        texts = {row: _tokens(batch, row) for row in rows.tolist()}
        correct = sorted((row for row in texts if batch.rewards[row] == best), key=texts.get)
        failing = [row for row in texts if batch.rewards[row] < best]
        for row in failing:
            distances = [Levenshtein.distance(texts[row], texts[other]) for other in correct]
            sibling = correct[distances.index(min(distances))]
            alignments.append(Alignment(row, sibling, aligned(texts[row], texts[sibling])))
    return alignments


def _kept_tokens(batch: CreditBatch, alignments: list[Alignment]) -> Bool[Tensor, "B T"]:
    """Mask of the tokens of failing rollouts that their alignments keep."""
    mask = torch.zeros_like(batch.mask)
    for row, _, kept in alignments:
        mask[row, [t for t, place in enumerate(kept) if place is not None]] = True
    return mask


def _tokens(batch: CreditBatch, row: int) -> list[int]:
    """A rollout's tokens up to the last one in the mask; what the mask leaves out is context."""
    alive = batch.mask[row].nonzero()
    length = int(alive[-1]) + 1 if len(alive) else 0
    return batch.completion_ids[row, :length].tolist()
