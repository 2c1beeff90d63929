"""Exercises of chapter 08: an order that keeps prompts whole, what cancels inside a step, and what three pairs say."""

from __future__ import annotations

import torch

from workbook.topics.grading import answer_of, grade

GROUPS = torch.tensor([4, 7, 4, 9, 7, 9, 4, 7, 9, 2, 2, 2])  # four prompts of three rollouts, mixed up
PARTS = 2
GRAM = torch.tensor([[4.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 2.0]])  # <g_i, g_j> of three rollouts
ADVANTAGES = torch.tensor([1.0, 1.0, -1.0])


def check_order(function) -> None:
    """Check a function (group_ids (B,), parts) -> permutation of the rollouts whose equal parts hold whole prompts.

    >>> check_order(lambda group_ids, parts: torch.arange(len(group_ids)))
    Not quite: prompt 4 has rollouts in mini-batches 1 and 2; keep it in one.
    """
    got = answer_of(function, GROUPS.clone(), PARTS)
    if got is None:
        return
    if got.shape != GROUPS.shape:
        print(f"Not quite: it returned the shape {tuple(got.shape)}; return {len(GROUPS)} numbers of rollouts.")
    elif sorted(got.tolist()) == sorted(GROUPS.tolist()):
        print("Not quite: these are the prompts' labels; return the rollouts' numbers, in an order that sorts them.")
    elif sorted(got.tolist()) != list(range(len(GROUPS))):
        print(f"Not quite: each of the rollouts 0 to {len(GROUPS) - 1} must come exactly once.")
    else:
        parts = GROUPS[got.long()].view(PARTS, -1)  # (parts, B / parts)
        for label in GROUPS.unique().tolist():
            inside = ((parts == label).any(1).nonzero().flatten() + 1).tolist()
            if len(inside) > 1:
                first, second = inside[:2]
                print(f"Not quite: prompt {label} has rollouts in mini-batches {first} and {second}; keep it in one.")
                return
        print("Right: no prompt is cut apart. To be fair over many batches, shuffle the order of the prompts, too.")


def check_in_step(function) -> None:
    """Check a function (gram (B, B), advantages (B,)) of one mini-batch -> 1 - |g+ + g-| / (|g+| + |g-|).

    >>> check_in_step(lambda gram, advantages: 1 - gram.sum().sqrt() / gram.diagonal().sqrt().sum())
    Not quite: this lets every rollout stand for itself; first add up those of one sign.
    """
    signs = ADVANTAGES > 0, ADVANTAGES < 0
    plus, minus = (GRAM[rows][:, rows].sum() for rows in signs)  # squared lengths of g+ and g-
    both, lengths = GRAM.sum(), plus.sqrt() + minus.sqrt()
    residual, single = both.sqrt() / lengths, both.sqrt() / GRAM.diagonal().sqrt().sum()
    signed = (ADVANTAGES @ GRAM @ ADVANTAGES).sqrt() / lengths
    mistakes = {
        "this is the residual; what cancelled is 1 minus that.": residual,
        "these are squared lengths; take their roots first.": 1 - both / (plus + minus),
        "this lets every rollout stand for itself; first add up those of one sign.": 1 - single,
        "the advantages are in the gradients already; the Gram matrix needs no further sign.": 1 - signed,
    }
    praise = f"Right: {1 - residual:.3f}. Two of these rollouts oppose each other, the third one is unrelated."
    grade(answer_of(function, GRAM.clone(), ADVANTAGES.clone()), 1 - residual, mistakes, praise)
