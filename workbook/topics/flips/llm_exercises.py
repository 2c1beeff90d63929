"""Checks of chapter 10: pieces of words, and how many continuations it takes to see a small gap in value."""

from __future__ import annotations

from collections.abc import Callable

from workbook.grading import answer_of

PIECES = ("The", "re", "fore", " the", " answ", "er", " is", " 1", "2", ".")
WORDS = [0, 0, 0, 1, 2, 2, 3, 4, 4, 5]


def check_words(function: Callable) -> None:
    """A function (tokens) -> the number of the word that each token belongs to; a full stop is a word of its own.

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
        wrong = next(k for k, (mine, right) in enumerate(zip(got, WORDS, strict=True)) if mine != right)
        print(f"Not quite: {PIECES[wrong]!r} belongs to word {WORDS[wrong]}, but yours says {got[wrong]}.")


def check_continuations(function: Callable) -> None:
    """A function (gap, p) -> continuations a side, so that a gap in value is twice its standard error.

    Rewards are 0 or 1 with mean p on both sides; the gap is a difference of two means of n rewards each.

    >>> check_continuations(lambda gap, p: p * (1 - p) * (2 / gap) ** 2)
    Not quite: that is for one mean; a gap is a difference of two, whose variances add up.
    """
    cases = ((0.1, 0.5), (0.01, 0.2), (0.001, 0.1))
    asked = [answer_of(function, *case) for case in cases[:1]]
    if asked[0] is None:
        return
    got = [float(function(*case)) for case in cases]
    right = [8 * p * (1 - p) / gap**2 for gap, p in cases]

    def like(factor: float, other: list[float] = right) -> bool:
        return all(abs(mine / (factor * one) - 1) < 0.02 for mine, one in zip(got, other, strict=True))

    if like(1):
        print(f"Right: a gap of 0.001 at a mean reward of 0.1 takes {right[-1]:,.0f} continuations on either side.")
    elif like(0.5):
        print("Not quite: that is for one mean; a gap is a difference of two, whose variances add up.")
    elif like(0.25):
        print("Not quite: that makes the gap one standard error; two are asked for.")
    elif like(2):
        print("Not quite: that is the number for both sides together; give that of one.")
    else:
        print(
            f"Not quite: for a gap of {cases[0][0]} at p = {cases[0][1]} it is {right[0]:.0f}; yours is {got[0]:.0f}."
        )
