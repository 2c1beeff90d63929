"""Credit rules from edits: what a failing rollout would have to change to be its nearest correct
sibling.

Correct are a group's rollouts of the best reward, where not all are equal; all others fail. A
failing rollout is aligned with the correct sibling at the smallest Levenshtein distance
(insertions, deletions and substitutions of tokens), and its group advantage goes to the tokens that
this alignment edits, none to those that it keeps. Tokens that the mask leaves out before a
rollout's last, as a tool's are, are aligned too.
"""

from collections.abc import Sequence
from itertools import takewhile

import torch
from jaxtyping import Bool, Float
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from .advantages import group_advantages
from .credit import CreditBatch, credit_rule, per_token


@credit_rule("edit_mask", paper="arXiv 2605.16302", exact="our reading")
def edit_mask(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, "B T"]:
    """Give a failing rollout's group advantage to the tokens that set it apart from its nearest
    correct sibling.

    A_it = A_i m_it, m_it = 0 on tokens of a failing rollout that the alignment keeps, else 1:
    correct rollouts keep their advantage on all tokens. A rollout that only lacks tokens has
    nothing edited, and no push.

    Source: the cheap half of IBPO (arXiv 2605.16302), which needs no new samples. Our reading: the
    reference is a sibling of the same group.

    >>> ids = torch.tensor([[1, 2, 3], [1, 5, 3]])
    >>> edit_mask(CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), ids, torch.ones(2, 3)), "dr_grpo").tolist()
    [[0.5, 0.5, 0.5], [0.0, -0.5, 0.0]]
    """
    kept = _kept(batch, _nearest_correct(batch))
    return per_token(batch, batch.group_advantages(estimator)).masked_fill(kept, 0.0)


@credit_rule("ibpo", paper="arXiv 2605.16302", needs=("continue_from",), exact="our reading")
def ibpo(
    batch: CreditBatch, weight: float = 0.6, success: float = 0.5, estimator: str = "grpo"
) -> Float[Tensor, "B T"]:
    """Reward a failing rollout in part if one decision of a correct sibling would have saved it;
    credit edits alone.

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
    siblings = _nearest_correct(batch)
    rewards = batch.rewards + 0.0  # a copy, in floats
    if siblings:
        rows = torch.tensor([row for row, _, _ in siblings], device=rewards.device)
        prefixes = [
            corrected_prefix(_tokens(batch, row), _tokens(batch, other), kept)
            for row, other, kept in siblings
        ]
        best = batch.rewards[
            torch.tensor([other for _, other, _ in siblings], device=rewards.device)
        ]
        saved = batch.continue_from(rows, prefixes) >= best
        rewards[rows] += weight * success * saved.to(rewards)
    advantages = per_token(batch, group_advantages(rewards, batch.group_ids, estimator))
    return advantages.masked_fill(_kept(batch, siblings), 0.0)


def corrected_prefix(
    failing: Sequence[int], correct: Sequence[int], kept: Sequence[int | None]
) -> list[int]:
    """Tokens of `failing` before its first edit, and the tokens of `correct` that the edit puts
    there.

    kept: `aligned(failing, correct)`. Where the edit only deletes, the sibling's next token is its
    decision.

    >>> failing, correct = [1, 8, 9, 4], [1, 5, 4]
    >>> corrected_prefix(failing, correct, aligned(failing, correct))
    [1, 5]
    """
    same = len(
        list(takewhile(lambda pair: pair[0] == pair[1], zip(failing, correct, strict=False)))
    )
    until = next((place for place in kept[same:] if place is not None), len(correct))
    return [*failing[:same], *correct[same : max(until, same + 1)]]


def aligned(first: Sequence[int], second: Sequence[int]) -> list[int | None]:
    """Where `second` has each token of `first` in a shortest edit, None for tokens that the edit
    replaces or deletes.

    The common beginning and the common end are always kept, so the first edit is the first
    difference.

    >>> aligned([1, 2, 3, 4], [1, 5, 3, 3, 4])
    [0, None, 3, 4]
    """
    kept: list[int | None] = [None] * len(first)
    for start, place, size in Levenshtein.opcodes(first, second).as_matching_blocks():
        kept[start : start + size] = range(place, place + size)
    return kept


def _nearest_correct(batch: CreditBatch) -> list[tuple[int, int, list[int | None]]]:
    """(row, row of the nearest correct sibling, alignment) of every failing rollout; ties by the
    sibling's tokens.
    """
    out = []
    for rows in batch.groups():
        best = batch.rewards[rows].max()
        texts = {row: _tokens(batch, row) for row in rows.tolist()}
        correct = sorted((row for row in texts if batch.rewards[row] == best), key=texts.get)
        failing = [row for row in texts if batch.rewards[row] < best]
        for row in failing:
            distances = [Levenshtein.distance(texts[row], texts[other]) for other in correct]
            other = correct[distances.index(min(distances))]
            out.append((row, other, aligned(texts[row], texts[other])))
    return out


def _kept(
    batch: CreditBatch, siblings: list[tuple[int, int, list[int | None]]]
) -> Bool[Tensor, "B T"]:
    """Mask of the tokens of failing rollouts that their alignments keep."""
    out = torch.zeros_like(batch.mask)
    for row, _, kept in siblings:
        out[row, [t for t, place in enumerate(kept) if place is not None]] = True
    return out


def _tokens(batch: CreditBatch, row: int) -> list[int]:
    """A rollout's tokens up to the last one in the mask; what the mask leaves out before it is
    context.
    """
    alive = batch.mask[row].nonzero()
    return batch.completion_ids[row, : int(alive[-1]) + 1 if len(alive) else 0].tolist()
