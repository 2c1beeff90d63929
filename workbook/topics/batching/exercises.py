"""Checks of chapter 08: an order that keeps prompts whole, and what cancels inside one step, from inner products."""

from __future__ import annotations

import torch

from workbook.grading import answer_of

GROUPS = torch.tensor([4, 7, 4, 9, 7, 9, 4, 7, 9, 2, 2, 2])  # four prompts of three rollouts, mixed up
PARTS = 2
GRAM = torch.tensor([[4.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 2.0]])  # <g_i, g_j> of three rollouts
ADVANTAGES = torch.tensor([1.0, 1.0, -1.0])


def check_order(function) -> None:
    """A function (group_ids (B,), parts) -> a permutation of the rollouts whose equal parts hold whole prompts.

    >>> check_order(lambda group_ids, parts: torch.arange(len(group_ids)))
    Not quite: prompt 4 has rollouts in mini-batches 1 and 2; keep it in one.
    """
    got = answer_of(function, GROUPS.clone(), PARTS)
    if got is None:
        return
    if got.shape != GROUPS.shape:
        print(f"Not quite: it returned the shape {tuple(got.shape)}; return {len(GROUPS)} numbers of rollouts.")
        return
    if sorted(got.tolist()) == sorted(GROUPS.tolist()):
        print("Not quite: these are the prompts' labels; return the rollouts' numbers, in an order that sorts them.")
        return
    if sorted(got.tolist()) != list(range(len(GROUPS))):
        print(f"Not quite: each of the rollouts 0 to {len(GROUPS) - 1} must come exactly once.")
        return
    where = torch.arange(PARTS).repeat_interleave(len(GROUPS) // PARTS)
    labels = GROUPS[got.long()]
    for label in sorted(set(labels.tolist())):
        held = sorted(set((where[labels == label] + 1).tolist()))
        if len(held) > 1:
            print(f"Not quite: prompt {label} has rollouts in mini-batches {held[0]} and {held[1]}; keep it in one.")
            return
    print("Right: no prompt is cut apart. To be fair over many batches, deal the prompts in a random order, too.")


def check_in_step(function) -> None:
    """A function (gram (B, B), advantages (B,)) of one mini-batch -> 1 - |g+ + g-| / (|g+| + |g-|).

    >>> check_in_step(lambda gram, advantages: 1 - gram.sum().sqrt() / gram.diagonal().sqrt().sum())
    Not quite: this lets every rollout stand for itself; first add up those of one sign.
    """
    got = answer_of(function, GRAM.clone(), ADVANTAGES.clone())
    if got is None:
        return
    plus, minus, both = (ADVANTAGES > 0), (ADVANTAGES < 0), torch.ones(3, dtype=torch.bool)
    squared = {name: GRAM[rows][:, rows].sum() for name, rows in {"+": plus, "-": minus, "both": both}.items()}
    long = {name: value.sqrt() for name, value in squared.items()}
    right = 1 - long["both"] / (long["+"] + long["-"])
    wrong = {
        "this is what is left; what cancelled is 1 less that.": 1 - right,
        "these are squared lengths; take their roots first.": 1 - squared["both"] / (squared["+"] + squared["-"]),
        "this lets every rollout stand for itself; first add up those of one sign.": 1
        - long["both"] / GRAM.diagonal().sqrt().sum(),
        "the advantages are in the gradients already; the Gram matrix needs no further sign.": 1
        - ((ADVANTAGES @ GRAM @ ADVANTAGES).sqrt() / (long["+"] + long["-"])),
    }
    if got.numel() != 1:
        print(f"Not quite: it returned the shape {tuple(got.shape)}; return one number for the mini-batch.")
    elif torch.isclose(got.float().reshape(()), right, atol=1e-4):
        print(f"Right: {right:.3f}. Two of these rollouts oppose each other, the third one is unrelated.")
    else:
        for sentence, value in wrong.items():
            if torch.isclose(got.float().reshape(()), value, atol=1e-4):
                print(f"Not quite: {sentence}")
                return
        print(f"Not quite: it should be {right:.3f}, but yours is {float(got):.3f}.")
