"""Exercises of chapter 07: how many continuations a value needs, a gap taken within prompts, a control that lacks."""

from __future__ import annotations

import math

import pandas as pd

from workbook.topics.grading import UNANSWERED, answer_of, grade

VALUE, STANDARD_ERROR = 0.4, 0.05  # a token's value, and the standard error that is asked for
TOKENS = pd.DataFrame(  # two prompts of unequal difficulty and numbers of tokens: pooled, the gap has the wrong sign
    [(0, 0.2, 0.9), *[(0, -0.2, 0.8)] * 6, *[(1, 0.2, 0.2)] * 6, (1, -0.2, 0.1), (1, 0.001, 1.0)],
    columns=["group", "dlogp", "value"],
)


def check_continuations(answer: int | None) -> None:
    """Check the least number of continuations with a standard error of 0.05 at most; value 0.4, rewards 0 or 1.

    >>> check_continuations(5)
    Not quite: with 5 the standard error is 0.219; it falls with its root.
    """
    variance = VALUE * (1 - VALUE)
    right = math.ceil(variance / STANDARD_ERROR**2 - 1e-9)
    if answer is None:
        print(UNANSWERED)
    elif not isinstance(answer, int) or answer < 1:
        print(f"Not quite: {answer!r} is no number of continuations; give a whole number.")
    elif answer == right:
        print("Right: a reward of 0 or 1 has variance v (1 - v), and the mean of K of them one K-th of it.")
    elif answer < right:
        error = math.sqrt(variance / answer)
        print(f"Not quite: with {answer} the standard error is {error:.3f}; it falls with its root.")
    elif answer == math.ceil(VALUE / STANDARD_ERROR**2):
        print(f"Not quite: {answer} takes the variance for v; it is v (1 - v).")
    else:
        print(f"It suffices, but fewer do: with {answer} the error is {math.sqrt(variance / answer):.4f}.")


def check_gap(function) -> None:
    """Check a function (table with group, dlogp, value; eps) -> gap: mean over prompts of boosted minus suppressed.

    >>> check_gap(lambda table, eps: table["value"][table["dlogp"] > eps].mean())
    Not quite: this is the mean value of the boosted tokens alone; subtract that of the suppressed ones.
    """
    table, eps = TOKENS.copy(), 0.01
    boosted, suppressed = table[table["dlogp"] > eps], table[table["dlogp"] < -eps]

    def by_prompt(rows: pd.DataFrame) -> pd.Series:
        return rows.groupby("group")["value"].mean()

    within = by_prompt(boosted) - by_prompt(suppressed)
    alone = boosted["value"].mean()
    pooled = alone - suppressed["value"].mean()
    without_eps = by_prompt(table[table["dlogp"] > 0]) - by_prompt(suppressed)
    mistakes = {
        "the sign is turned round; it is boosted minus suppressed.": -within.mean(),
        "{got:+.2f} pools all prompts, and so measures which prompt was easy; go prompt by prompt.": pooled,
        "this is the mean value of the boosted tokens alone; subtract that of the suppressed ones.": alone,
        "a token that moved by less than eps counts as stable; leave it out.": without_eps.mean(),
    }
    grade(
        answer_of(function, table, eps),
        within.mean(),
        mistakes,
        f"Right: {within.mean():+.2f} within prompts. Pooled it is {pooled:+.2f}: prompts differ more than tokens.",
        otherwise=f"{{got:+.3f}}; the two prompts' gaps are {within[0]:+.2f} and {within[1]:+.2f}.",
    )
