"""A chapter's open task: a reader's own hypothesis, tried in pairs on the reader's own settings and
graded.

The check names what keeps a comparison from deciding anything: no difference, two at once, or too
few pairs.
"""

import math
from collections.abc import Callable, Mapping
from inspect import signature

from workbook.chapters.grading import UNANSWERED
from workbook.statistics import t_interval

FEWEST = 6  # pairs: with fewer all can agree by chance more than once in twenty
FORM = '{"larger": {...}, "smaller": {...}, "pairs": 6}'


def check_hypothesis(measure: Callable[..., float], mine: Mapping | None) -> None:
    """Print whether `measure` is larger under one of the reader's settings than under the other, in
    pairs by seed.

    measure: takes settings by name, and seed; returns a number.  mine: {"larger": settings under
    which the larger number is expected, "smaller": those under which the smaller, "pairs": how many
    seeds}; None is no answer yet.

    >>> hypothesis = {"larger": {"size": 2}, "smaller": {}, "pairs": 6}
    >>> check_hypothesis(lambda seed, size=1: size + seed % 2, hypothesis)
    6 pairs, larger minus smaller: 1 [1, 1]. Your hypothesis holds at these settings.
    """
    if mine is None:
        print(UNANSWERED)
    elif fault := _fault(measure, mine):
        print(f"Not quite: {fault}")
    else:
        try:
            gaps = [
                float(measure(**mine["larger"], seed=seed))
                - float(measure(**mine["smaller"], seed=seed))
                for seed in range(mine["pairs"])
            ]
        except LookupError as value:
            print(f"Not quite: your function has no case for {value}; read which it has.")
            return
        except (ValueError, TypeError, ArithmeticError) as error:
            print(f"Not quite: {error}")
            return
        print(f"{len(gaps)} pairs, larger minus smaller: {_verdict(gaps)}")


def _fault(measure: Callable[..., float], mine: object) -> str:
    """What keeps an answer from being a test, in one sentence; "" for nothing."""
    if not isinstance(mine, Mapping) or {*mine} != {"larger", "smaller", "pairs"}:
        return f"{str(mine)[:60]!r} is no hypothesis; write {FORM}."
    known = [name for name in signature(measure).parameters if name != "seed"]
    for side in ("larger", "smaller"):
        if not isinstance(mine[side], Mapping):
            return (
                f"{side} is {str(mine[side])[:60]!r}, but must be a dict of settings, such as"
                f" {{{known[0]!r}: ...}}."
            )
        if unknown := [name for name in mine[side] if name not in known]:
            return f"{side} has no setting {str(unknown[0])[:60]!r}; there are {', '.join(known)}."
    defaults = {name: signature(measure).parameters[name].default for name in known}
    larger, smaller = ({**defaults, **mine[side]} for side in ("larger", "smaller"))
    changed = [name for name in known if larger[name] != smaller[name]]
    if not changed:
        return (
            "larger and smaller are the same settings, so nothing can differ; change one of them."
        )
    if len(changed) > 1:
        return (
            f"they differ in {' and '.join(changed)}: whatever comes out could be the work of"
            " either; change one."
        )
    pairs = mine["pairs"]
    if not isinstance(pairs, int) or isinstance(pairs, bool) or not FEWEST <= pairs <= 1000:
        return (
            f"pairs is {str(pairs)[:60]!r}, but must be a whole number from {FEWEST} (fewer decide"
            " little) to 1000."
        )
    return ""


def _verdict(gaps: list[float]) -> str:
    """The interval of the differences, and what it says of the hypothesis."""
    interval, here = t_interval(gaps), "at these settings"
    number = f"{interval.mean:.3g} [{interval.low:.3g}, {interval.high:.3g}]"
    if interval.low > 0:
        return f"{number}. Your hypothesis holds {here}."
    if interval.high < 0:
        return f"{number}. The opposite holds {here}: which force did your reasoning leave out?"
    if not any(gaps):
        return f"{number}. The number does not depend on what you changed, {here}."
    half, mean = (interval.high - interval.low) / 2, abs(interval.mean)
    needed = math.ceil(len(gaps) * (half / mean) ** 2) if mean > half / 20 else None
    more = (
        f"some {needed} pairs would tell a difference of this size"
        if needed
        else "the mean is next to 0"
    )
    return f"{number}. Open {here}: neither sign is excluded; {more}."
