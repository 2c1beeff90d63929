"""Exercises of chapters 13 and 14: read a table, find the flaw in an argument, choose the control."""

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


def check_budget_control(answer: str | None) -> None:
    """Check which control tells a larger group from a larger sample (chapter 14, figure 6 of paper H).

    >>> check_budget_control("a")
    Not quite: other prompts show whether the gap is learned by heart; the sample grows there just as well.
    """
    wrong = {
        "A": "other prompts show whether the gap is learned by heart; the sample grows there just as well.",
        "C": "they narrow the interval of each point; both things still grow together.",
        "D": "it changes the size of the gap at every point; more rollouts per prompt are still more rollouts.",
    }
    praise = "Right: with 64 rollouts in all larger groups are paid for with fewer prompts; the sample stays as large."
    grade_choice(answer, "B", wrong, praise)


def check_missing_arm(answer: str | None) -> None:
    """Check which arm tells exchangeable weights from a clip that no longer binds (chapter 14, table 1 of paper D).

    >>> check_missing_arm("B")
    Not quite: that is the price of noise; it learns nothing, so it has no score to compare.
    """
    wrong = {
        "A": "larger groups share fewer tokens as a whole; both reasons for the score would change at once.",
        "B": "that is the price of noise; it learns nothing, so it has no score to compare.",
        "D": "a second score of the same two arms repeats the question; it takes neither reason away.",
    }
    praise = "Right: only an arm without the clip and without the fix tells what each of them does."
    grade_choice(answer, "C", wrong, praise)
