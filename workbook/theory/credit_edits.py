"""Credit rules from edits: what a failing rollout would have to change to be its nearest correct sibling.

Correct are a group's rollouts of the best reward, where not all are equal; all others fail. A failing rollout is
aligned with the correct sibling at the smallest Levenshtein distance (insertions, deletions and substitutions of
tokens), and its group advantage goes to the tokens that this alignment edits, none to those that it keeps.
"""

from collections.abc import Sequence
from itertools import takewhile

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .advantages import group_advantages
from .credit import CreditBatch
from .credit_weights import per_token

CELLS = 2**23  # of the alignments' tables at once: 32 MiB


def edit_mask(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, "B T"]:
    """Give a failing rollout's group advantage to the tokens that set it apart from its nearest correct sibling.

    A_it = A_i m_it, m_it = 0 on tokens of a failing rollout that the alignment keeps, else 1: correct rollouts keep
    their advantage on all tokens. A rollout that only lacks tokens has nothing edited, and no push.

    Source: the cheap half of IBPO (arXiv 2605.16302), which needs no new samples. Our reading: the reference is a
    sibling of the same group.

    >>> ids = torch.tensor([[1, 2, 3], [1, 5, 3]])
    >>> edit_mask(CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), ids, torch.ones(2, 3)), "dr_grpo").tolist()
    [[0.5, 0.5, 0.5], [0.0, -0.5, 0.0]]
    """
    kept = _kept(batch, _nearest_correct(batch))
    return per_token(batch, batch.group_advantages(estimator)).masked_fill(kept, 0.0)


def ibpo(
    batch: CreditBatch, weight: float = 0.6, success: float = 0.5, estimator: str = "grpo"
) -> Float[Tensor, "B T"]:
    """Reward a failing rollout in part if one decision of a correct sibling would have saved it; credit edits alone.

    A failing rollout's corrected trajectory is its own tokens before the first edit, then the sibling's tokens of that
    edit (the decision spliced in), continued by the policy: one sample. phi = success where that reaches the group's
    best reward, else 0; R' = R + weight phi, before the groups are normalized; A' as in edit_mask. Cost: the
    continuations' tokens, in batch.sampled_tokens.

    Source: IBPO (arXiv 2605.16302). **Our reading**, from its authors' page and a reader's table (weight 0.6, success
    0.5): how the paper makes its corrected trajectory is not known here. Raises ValueError without a policy to sample.
    """
    siblings = _nearest_correct(batch)
    rewards = batch.rewards.clone()
    if siblings:
        rows = torch.tensor([row for row, _, _ in siblings], device=rewards.device)
        prefixes = [corrected_prefix(_tokens(batch, row), _tokens(batch, other), kept) for row, other, kept in siblings]
        best = batch.rewards[torch.tensor([other for _, other, _ in siblings], device=rewards.device)]
        saved = batch.continue_from(rows, prefixes) >= best
        rewards[rows] += weight * success * saved
    advantages = per_token(batch, group_advantages(rewards, batch.group_ids, estimator))
    return advantages.masked_fill(_kept(batch, siblings), 0.0)


def corrected_prefix(failing: Sequence[int], correct: Sequence[int], kept: Sequence[int | None]) -> list[int]:
    """Tokens of `failing` before its first edit, and the tokens of `correct` that the edit puts there.

    kept: `aligned(failing, correct)`. Where the edit only deletes, the sibling's next token is its decision.

    >>> failing, correct = [1, 8, 9, 4], [1, 5, 4]
    >>> corrected_prefix(failing, correct, aligned(failing, correct))
    [1, 5]
    """
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(failing, correct, strict=False))))
    until = next((place for place in kept[same:] if place is not None), len(correct))
    return [*failing[:same], *correct[same : max(until, same + 1)]]


def aligned(first: Sequence[int], second: Sequence[int]) -> list[int | None]:
    """Where `second` has each token of `first` in a shortest edit, None for tokens that the edit replaces or deletes.

    The common beginning and the common end are always kept, so the first edit is the first difference.

    >>> aligned([1, 2, 3, 4], [1, 5, 3, 3, 4])
    [0, None, 3, 4]
    """
    start, end = _common_ends(first, second)
    table = _tables([(first[start : len(first) - end], second[start : len(second) - end])])[:, 0].tolist()
    i, j = len(first) - end, len(second) - end
    kept: list[int | None] = [*range(start), *[None] * (i - start), *range(j, len(second))]
    while i > start and j > start:
        here, row, above = table[i - start][j - start], table[i - start], table[i - start - 1]
        if first[i - 1] == second[j - 1]:
            i, j = i - 1, j - 1
            kept[i] = j
        elif here == above[j - start - 1] + 1:
            i, j = i - 1, j - 1
        elif here == above[j - start] + 1:
            i -= 1
        else:
            assert here == row[j - start - 1] + 1
            j -= 1
    return kept


def edit_distances(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """Levenshtein distance of each pair of token sequences.

    Time: as many vectorized steps as the longest first sequence has tokens, once for every CELLS cells of the tables.

    >>> edit_distances([([1, 2, 3], [1, 5, 3]), ([1], []), ([], [])])
    [1, 1, 0]
    """
    trimmed = []
    for first, second in pairs:
        start, end = _common_ends(first, second)
        trimmed.append((first[start : len(first) - end], second[start : len(second) - end]))
    size = (max((len(a) for a, _ in trimmed), default=0) + 1) * (max((len(b) for _, b in trimmed), default=0) + 1)
    out, chunk = [], max(1, CELLS // size)
    for at in range(0, len(trimmed), chunk):
        part = trimmed[at : at + chunk]
        table = _tables(part)
        out += [int(table[len(first), k, len(second)]) for k, (first, second) in enumerate(part)]
    return out


def _tables(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Int[Tensor, "N P M"]:
    """Distances of all beginnings: [i, p, j] of the first i tokens from the first j of pair p.

    The recursion over j (an insertion costs 1) is a running minimum of D - j, so a row is made in one go.
    """
    first, second = (_padded([pair[side] for pair in pairs], -1 - side) for side in (0, 1))
    column = torch.arange(second.shape[1] + 1, dtype=torch.int32)
    rows = [column.expand(len(pairs), -1)]
    for i in range(first.shape[1]):
        replaced = rows[-1][:, :-1] + (first[:, i : i + 1] != second)
        row = torch.cat([rows[-1][:, :1] + 1, torch.minimum(rows[-1][:, 1:] + 1, replaced)], dim=1)
        rows.append((row - column).cummin(1).values + column)
    return torch.stack(rows)


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Int[Tensor, "P N"]:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows]).view(len(rows), width)


def _common_ends(first: Sequence[int], second: Sequence[int]) -> tuple[int, int]:
    """Lengths of the common beginning, and of the common end of what is left."""
    short = min(len(first), len(second))
    start = next((i for i in range(short) if first[i] != second[i]), short)
    end = next((i for i in range(short - start) if first[-1 - i] != second[-1 - i]), short - start)
    return start, end


def _nearest_correct(batch: CreditBatch) -> list[tuple[int, int, list[int | None]]]:
    """(row, row of the nearest correct sibling, alignment) of every failing rollout; ties by the sibling's tokens."""
    out = []
    for rows in batch.groups():
        best = batch.rewards[rows].max()
        texts = {row: _tokens(batch, row) for row in rows.tolist()}
        correct = sorted((row for row in texts if batch.rewards[row] == best), key=texts.get)
        failing = [row for row in texts if batch.rewards[row] < best]
        distances = iter(edit_distances([(texts[row], texts[other]) for row in failing for other in correct]))
        for row in failing:
            _, other = min(zip([next(distances) for _ in correct], correct, strict=True), key=lambda pair: pair[0])
            out.append((row, other, aligned(texts[row], texts[other])))
    return out


def _kept(batch: CreditBatch, siblings: list[tuple[int, int, list[int | None]]]) -> Bool[Tensor, "B T"]:
    """Mask of the tokens of failing rollouts that their alignments keep."""
    out = torch.zeros_like(batch.mask)
    for row, _, kept in siblings:
        out[row, [t for t, place in enumerate(kept) if place is not None]] = True
    return out


def _tokens(batch: CreditBatch, row: int) -> list[int]:
    """A rollout's tokens up to the last one in the mask; what the mask leaves out before it is context."""
    alive = batch.mask[row].nonzero()
    return batch.completion_ids[row, : int(alive[-1]) + 1 if len(alive) else 0].tolist()
