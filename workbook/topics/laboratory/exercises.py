"""Checks of chapter 12: how many seeds an interval needs, and a reward that can't be had for talking."""

from __future__ import annotations

from collections.abc import Callable

from workbook.grading import answer_of

# completion, answer, the right reward, and what is wrong with a function that gives another
CASES = (
    ("so the answer is 2", "2", 1.0, "is right and plain"),
    ("so the answer is 12", "2", 0.0, "states 12, which only contains the digit 2"),
    ("then 2 - 6 is 6 ; so the answer is 6", "2", 0.0, "mentions 2 on the way, but answers 6"),
    ("the answer is 2 ; no , the answer is 7", "2", 0.0, "states two answers, and the last is 7"),
    ("the answer is 1 the answer is 2 the answer is 3", "3", 1.0, "ends with the right one of three"),
    ("", "2", 0.0, "is empty"),
    ("so the answer is", "2", 0.0, "stops before its answer"),
)


def check_seeds(function: Callable) -> None:
    """A function (level) -> the least number of seeds n with 1 - 2 ** (1 - n) of at least level.

    >>> check_seeds(lambda level: 5)
    Not quite: with 5 seeds the range covers the median in 0.938 of all cases, which is below 0.95.
    """
    cases = {0.9: 5, 0.95: 6, 0.99: 8}
    for level, right in cases.items():
        got = answer_of(function, level)
        if got is None:
            return
        got = float(got)
        covered = 1 - 2 ** (1 - got)
        if got != int(got):
            print(f"Not quite: {got:g} is no whole number of seeds; round up.")
        elif got < right:
            print(
                f"Not quite: with {got:.0f} seeds the range covers the median in {covered:.3f} of all cases, which is "
                f"below {level:g}."
            )
        elif got > right:
            print(f"Not quite: {got:.0f} seeds reach {level:g}, but so do {right}; give the least.")
        else:
            continue
        return
    print(f"Right: six seeds for 0.95, {cases[0.99]} for 0.99. Fewer can't give a 95 % interval, whatever they say.")


def check_reward(function: Callable) -> None:
    """A reward (completion, answer) -> 1 if the number after the last `answer is` is the answer, else 0.

    >>> check_reward(lambda completion, answer: float(answer in completion))
    Not quite: 'so the answer is 12' states 12, which only contains the digit 2; it should get 0, not 1.
    """
    if answer_of(lambda: function(CASES[0][0], CASES[0][1])) is None:
        return
    for completion, answer, right, why in CASES:
        got = answer_of(function, completion, answer)
        if got is None:
            return
        if float(got) != right:
            print(f"Not quite: {completion!r} {why}; it should get {right:g}, not {float(got):g}.")
            return
    print("Right: what is paid is the last stated answer, and nothing said on the way.")
