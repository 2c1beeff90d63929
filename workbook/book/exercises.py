"""Exercises of chapter 13: read a table, find the flaw in an argument, choose the control."""

from __future__ import annotations

from workbook.topics.grading import grade_choice


def check_three_seeds(answer: str | None) -> None:
    """Check what keeps three seeds of one policy from deciding.

    >>> check_three_seeds("A")
    Not quite: a bootstrap of three numbers draws from ten different samples; it is narrow because it has seen little.
    """
    wrong = {
        "A": "a bootstrap of three numbers draws from ten different samples; it is narrow because it has seen little.",
        "B": "a larger step may make the difference larger; it makes no unit of it.",
        "D": "pairing removes what both runs of a seed share, and was done here; it adds no units.",
    }
    praise = "Right: the unit is a policy with a seed, three of one policy are one draw of what policies differ in."
    grade_choice(answer, "C", wrong, praise)


def check_missing_control(answer: str | None) -> None:
    """Check which arm separates learning credit from merely moving.

    >>> check_missing_control("d")
    Not quite: it tells how good the rule could be at best; a rule that learns nothing might lie just as far below.
    """
    wrong = {
        "A": "another estimator moves results and style alike; it has no floor to compare with.",
        "B": "it tells whether the run is luck; the drift of a run that learns is drift and learning at once.",
        "D": "it tells how good the rule could be at best; a rule that learns nothing might lie just as far below.",
    }
    praise = (
        "Right: with permuted advantages the same batches move as far and learn nothing; what is beyond that is credit."
    )
    grade_choice(answer, "C", wrong, praise)


def check_equivalent(answer: str | None) -> None:
    """Check what an interval of [-0.016, -0.006] inside a smallest effect of interest of 0.02 says.

    >>> check_equivalent("B")
    Not quite: the whole interval lies below 0, so there is an effect; it is small.
    """
    wrong = {
        "A": "contradicted asks for an effect that matters, and all of the interval is smaller than that.",
        "B": "the whole interval lies below 0, so there is an effect; it is small.",
        "D": "the interval is a quarter of the zone; more units would narrow it, not change the outcome.",
    }
    praise = "Right: a difference that is there, and too small to matter by what was said beforehand."
    grade_choice(answer, "C", wrong, praise)
