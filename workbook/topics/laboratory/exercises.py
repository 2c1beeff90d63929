"""Exercises of chapters 11 and 12: a model that fits a card, seeds for an interval, a safe reward, a control."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from workbook.topics.grading import UNANSWERED, answer_of, settings_fault

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
SEEDS = {0.9: 5, 0.95: 6, 0.99: 8}  # level: least number of seeds
FEWER_TRAINED = "they exist for trained weights only; train fewer."
REMEDIES = {  # of the largest part of a memory forecast
    "weights": "the frozen weights need fewer bits.",
    "Adam's moments": FEWER_TRAINED,
    "gradients": FEWER_TRAINED,
    "kept for backward": "what else can be recomputed instead of kept?",
}


def check_fits(settings: dict | None, limit_gib: float = 15.0) -> None:
    """Check settings with which a model of 7B parameters trains within 15 GiB, in micro-batches of 8.

    >>> check_fits({"quantization": "nf4", "lora": 16, "microbatch": 8})
    Not quite: 24 GiB, most of it kept for backward; what else can be recomputed instead of kept?
    """
    from workbook.training.memory import QWEN_7B, WORKLOAD, at_peak, memory_forecast

    if settings is None:
        print(UNANSWERED)
        return
    if fault := settings_fault(settings, partial(memory_forecast, QWEN_7B)):
        print(f"Not quite: {fault}")
        return
    try:
        table = at_peak(memory_forecast(QWEN_7B, **WORKLOAD | settings))
    except ValueError as error:
        print(f"Not quite: {error}")
        return
    except TypeError:  # text in the place of a number
        print(f"Not quite: {settings} must be numbers, True or False; quantization is None or 'nf4'.")
        return
    peak, part = table["mib"].sum() / 1024, table.loc[table["mib"].idxmax(), "part"]
    size = settings.get("microbatch", 1)
    if peak > limit_gib:
        print(f"Not quite: {peak:.0f} GiB, most of it {part}; {REMEDIES.get(part, 'make that smaller.')}")
    elif size < 8:
        print(f"It fits with {peak:.1f} GiB, but in micro-batches of {size}; 8 is the aim.")
    else:
        print(f"Right: {peak:.1f} GiB of {limit_gib:g}, most of it {part}.")


def check_seeds(function: Callable) -> None:
    """Check a function (level) -> the least number of seeds n with 1 - 2 ** (1 - n) of at least level.

    >>> check_seeds(lambda level: 5)
    Not quite: with 5 seeds the range covers the median in 0.938 of all cases, which is below 0.95.
    """
    for level, right in SEEDS.items():
        seeds = _number_of(function, level)
        if seeds is None:
            return
        if seeds == right:
            continue
        if not seeds.is_integer():
            print(f"Not quite: {seeds:g} is no whole number of seeds; round up.")
        elif seeds < right:
            covers = f"with {seeds:.0f} seeds the range covers the median in {1 - 2 ** (1 - seeds):.3f} of all cases"
            print(f"Not quite: {covers}, which is below {level:g}.")
        else:
            print(f"Not quite: {seeds:.0f} seeds reach {level:g}, but so do {right}; give the least.")
        return
    print(f"Right: six seeds for 0.95, {SEEDS[0.99]} for 0.99. Fewer can't give a 95 % interval, whatever they say.")


def check_reward(function: Callable) -> None:
    """Check a reward (completion, answer) -> 1 if the number after the last `answer is` is the answer, else 0.

    >>> check_reward(lambda completion, answer: float(answer in completion))
    Not quite: 'so the answer is 12' states 12, which only contains the digit 2; it should get 0, not 1.
    """
    for completion, answer, right, why in CASES:
        got = _number_of(function, completion, answer)
        if got is None:
            return
        if got != right:
            print(f"Not quite: {completion!r} {why}; it should get {right:g}, not {got:g}.")
            return
    print("Right: what is paid is the last stated answer, and nothing said on the way.")


def _number_of(function: Callable, *arguments) -> float | None:
    """A reader's answer as a number; None, and a printed sentence, if it is none."""
    got = answer_of(function, *arguments)
    if got is not None and got.numel() != 1:
        print(f"Not quite: it returned the shape {tuple(got.shape)}; return one number.")
        return None
    return None if got is None else float(got)
