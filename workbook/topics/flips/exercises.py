"""Exercises of chapters 05 and 10: shares of flipped tokens, the balance of signs, pieces of words, a small gap."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from workbook.topics.grading import answer_of, grade

DLOGP = torch.tensor([0.20, -0.05, 0.004, 0.03, -0.30, 0.010, -0.002, -0.08])
ADVANTAGE = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0])
TOKENS = torch.tensor([7, 7, 4, 7, 4, 9])
PUSHES = torch.tensor([1.5, -0.5, 1.5, -0.5, -0.5, -0.5])
PIECES = ("The", "re", "fore", " the", " answ", "er", " is", " 1", "2", ".")
WORDS = [0, 0, 0, 1, 2, 2, 3, 4, 4, 5]
GAPS = ((0.1, 0.5), (0.01, 0.2), (0.001, 0.1))  # a gap in value, and the mean reward


def check_shares(function: Callable) -> None:
    """Check a function (dlogp (N,), advantage (N,), eps) -> shares boosted, suppressed, stable of A > 0, A < 0: (2, 3).

    >>> check_shares(lambda dlogp, advantage, eps: torch.zeros(2, 3))
    Not quite: each row's shares should sum to 1; yours sum to 0 and 0.
    """
    got, eps = answer_of(function, DLOGP, ADVANTAGE, 0.01), 0.01
    right = torch.stack([_shares(DLOGP[side], eps) for side in (ADVANTAGE > 0, ADVANTAGE < 0)])
    sums = [] if got is None or got.ndim != 2 else got.float().sum(1)
    mistakes = {
        "the rows are the wrong way round; positive rollouts come first.": right.flip(0),
        f"each row's shares should sum to 1; yours sum to {' and '.join(f'{total:g}' for total in sums)}.": (
            lambda got: not torch.allclose(got.sum(1), torch.ones(2).double(), atol=1e-5)
        ),
        "a rollout of advantage 0 is on neither side; leave it out.": (
            lambda got: torch.allclose(got[1], _shares(DLOGP[ADVANTAGE <= 0], eps).double(), atol=1e-5)
        ),
    }
    grade(got, right, mistakes, "Right: and a token that moved by exactly eps counts as stable.", "sign and change")


def check_balance(function: Callable) -> None:
    """Check a function (tokens (N,), advantages (N,)) of one group -> balance of signs on each token (N,).

    >>> check_balance(lambda tokens, advantages: advantages.sign())
    Not quite: this is the sign of the token's own rollout; add up all occurrences of the token.
    """
    same = TOKENS[:, None] == TOKENS
    net = (same * PUSHES).sum(1)
    mistakes = {
        "this is the sign of the token's own rollout; add up all occurrences of the token.": PUSHES.sign(),
        "this is the sum; divide it by the sum of the sizes.": net,
    }
    praise = "Right: 1 where all occurrences pull up, -1 where all pull down, near 0 where they cancel."
    grade(answer_of(function, TOKENS, PUSHES), net / (same * PUSHES.abs()).sum(1), mistakes, praise, "token")


def check_words(function: Callable) -> None:
    """Check a function (tokens) -> number of the word that each token belongs to; a full stop is a word of its own.

    >>> check_words(lambda tokens: list(range(len(tokens))))
    Not quite: every token is a word of its own here; 're' goes on with 'The', since no space begins it.
    """
    got = answer_of(function, PIECES)
    if got is None:
        return
    got = got.flatten().tolist()
    if len(got) != len(PIECES):
        print(f"Not quite: it returned {len(got)} numbers for {len(PIECES)} tokens; return one for each.")
    elif got == WORDS:
        print("Right: with these numbers, all pieces of a word can be given the class of the whole.")
    elif got == list(range(len(PIECES))):
        print("Not quite: every token is a word of its own here; 're' goes on with 'The', since no space begins it.")
    elif got[:-1] == WORDS[:-1]:
        print("Not quite: the full stop begins with no space, and yet is no part of the number before it.")
    elif [number - got[0] for number in got] == WORDS:
        print(f"Not quite: count from 0; yours begins with {got[0]}.")
    else:
        wrong = next(k for k, word in enumerate(WORDS) if got[k] != word)
        print(f"Not quite: {PIECES[wrong]!r} belongs to word {WORDS[wrong]}, but yours says {got[wrong]}.")


def check_sample_size(function: Callable) -> None:
    """Check a function (gap, p) -> continuations a side, so that a gap in value is twice its standard error.

    Rewards are 0 or 1 with mean p on both sides; the gap is a difference of two means of n rewards each:
    n = 8 p (1 - p) / gap^2, right within 2 %.

    >>> check_sample_size(lambda gap, p: p * (1 - p) * (2 / gap) ** 2)
    Not quite: that is for one mean; a gap is a difference of two, whose variances add up.
    """
    numbers = []
    for case in GAPS:
        if (got := answer_of(function, *case)) is None:
            return
        if got.numel() != 1:
            print(f"Not quite: return one number for each gap and p, not {got.numel()} of them.")
            return
        numbers.append(got.item())
    right = [8 * p * (1 - p) / gap**2 for gap, p in GAPS]
    sentences = {  # by how many times the right number was given
        1: f"Right: a gap of 0.001 at a mean reward of 0.1 takes {right[-1]:,.0f} continuations on either side.",
        0.5: "Not quite: that is for one mean; a gap is a difference of two, whose variances add up.",
        0.25: "Not quite: that makes the gap one standard error; two are asked for.",
        2: "Not quite: that is the number for both sides together; give that of one.",
    }
    for times, sentence in sentences.items():
        if all(abs(number / (times * n) - 1) < 0.02 for number, n in zip(numbers, right, strict=True)):
            print(sentence)
            return
    print(f"Not quite: for a gap of {GAPS[0][0]} at p = {GAPS[0][1]} it is {right[0]:.0f}; yours is {numbers[0]:.0f}.")


def _shares(dlogp: Tensor, eps: float) -> Tensor:
    return torch.stack([change.float().mean() for change in (dlogp > eps, dlogp < -eps, dlogp.abs() <= eps)])
