"""Checks of chapter 07: how many continuations a value needs, and a gap taken within prompts."""

from __future__ import annotations

import math

import pandas as pd

from workbook.grading import UNANSWERED, answer_of

VALUE, WANTED = 0.4, 0.05  # a token's value, and the standard error that is asked for


def check_continuations(answer: int | None) -> None:
    """The least number of continuations for a standard error of at most 0.05 where the value is 0.4, rewards 0 or 1.

    >>> check_continuations(5)
    Not quite: with 5 the standard error is 0.219; it falls with its root.
    """
    right = math.ceil(VALUE * (1 - VALUE) / WANTED**2 - 1e-9)
    if answer is None:
        print(UNANSWERED)
    elif not isinstance(answer, int) or answer < 1:
        print(f"Not quite: {answer!r} is no number of continuations; give a whole number.")
    elif answer == right:
        print("Right: a reward of 0 or 1 has variance v (1 - v), and the mean of K of them one K-th of it.")
    elif answer < right:
        error = math.sqrt(VALUE * (1 - VALUE) / answer)
        print(f"Not quite: with {answer} the standard error is {error:.3f}; it falls with its root.")
    elif answer == math.ceil(VALUE / WANTED**2):
        print(f"Not quite: {answer} takes the variance for v; it is v (1 - v).")
    else:
        print(f"It suffices, but fewer do: with {answer} the error is {math.sqrt(VALUE * (1 - VALUE) / answer):.4f}.")


def example_tokens() -> pd.DataFrame:
    """Two prompts of unequal difficulty and unequal numbers of tokens: pooled, the gap has the wrong sign."""
    rows = [(0, 0.2, 0.9)] + [(0, -0.2, 0.8)] * 6 + [(1, 0.2, 0.2)] * 6 + [(1, -0.2, 0.1)] + [(1, 0.001, 1.0)]
    return pd.DataFrame(rows, columns=["group", "dlogp", "value"])


def check_gap(function) -> None:
    """A function (table with group, dlogp, value; eps) -> gap: boosted less suppressed in each prompt, then the mean.

    >>> check_gap(lambda table, eps: table["value"][table["dlogp"] > eps].mean())
    Not quite: this is the mean value of the boosted tokens alone; take that of the suppressed ones off.
    """
    table, eps = example_tokens(), 0.01
    got = answer_of(function, table, eps)
    if got is None:
        return
    got = float(got)
    boosted, suppressed = table[table["dlogp"] > eps], table[table["dlogp"] < -eps]
    within = boosted.groupby("group")["value"].mean() - suppressed.groupby("group")["value"].mean()
    pooled = boosted["value"].mean() - suppressed["value"].mean()
    signed = table[table["dlogp"] > 0].groupby("group")["value"].mean() - suppressed.groupby("group")["value"].mean()
    if abs(got - within.mean()) < 1e-6:
        print(f"Right: {got:+.2f} within prompts. Pooled it would be {pooled:+.2f}: prompts differ more than tokens.")
    elif abs(got + within.mean()) < 1e-6:
        print("Not quite: the sign is turned round; it is boosted less suppressed.")
    elif abs(got - pooled) < 1e-6:
        print(f"Not quite: {got:+.2f} pools all prompts, and so measures which prompt was easy; go prompt by prompt.")
    elif abs(got - boosted["value"].mean()) < 1e-6:
        print("Not quite: this is the mean value of the boosted tokens alone; take that of the suppressed ones off.")
    elif abs(got - signed.mean()) < 1e-6:
        print("Not quite: a token that moved by less than eps counts as stable; leave it out.")
    else:
        print(f"Not quite: {got:+.3f}; the two prompts' gaps are {within[0]:+.2f} and {within[1]:+.2f}.")
