"""Grading of an exercise: a reader's answer against the right one and the usual mistakes, answered
in one sentence.

Nothing here raises on a wrong or missing answer, so that a chapter runs to its end with its
exercises unanswered. The exercises themselves are in `exercises.py` of each topic.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature

import torch
from torch import Tensor

UNANSWERED = "Not answered yet: put your answer in place of None and run the cell again."
OURS = "The chapter goes on with the workbook's own version, until yours"


def answer_of(answer: Callable | object, *arguments) -> Tensor | None:
    """Turn an answer, or what a reader's function returns, into a tensor.

    None, and a printed sentence, if it is None or raises.

    >>> answer_of(lambda x: 1 / x, 0)
    Not quite: it raised ZeroDivisionError: division by zero
    >>> answer_of("zero")
    Not quite: 'zero' is no number, nor a list or tensor of numbers.
    """
    try:
        got = answer(*arguments) if callable(answer) else answer
    except Exception as error:
        print(f"Not quite: it raised {type(error).__name__}: {error}")
        return None
    if got is None:
        print(UNANSWERED)
        return None
    try:
        if not (numbers := torch.as_tensor(got).detach()).is_complex():
            return numbers
        raise TypeError
    except (TypeError, ValueError, RuntimeError):  # of what holds anything but numbers
        print(f"Not quite: {str(got)[:60]!r} is no number, nor a list or tensor of numbers.")
        return None


def yours_or_ours(
    yours: Callable, ours: Callable, *trials: tuple, tolerance: float = 1e-4
) -> Callable:
    """Return the function that a chapter goes on with after an exercise, and print which one it is.

    Without trials: one that calls `yours` and, from the first time that this returns None or
    raises, `ours`. With trials: `yours` if it returns within `tolerance` what `ours` does on each
    of them, else `ours`.

    trials: the arguments of a call each; tensors in them are copied.

    >>> double = yours_or_ours(lambda x: None, lambda x: 2 * x)
    >>> double(3)
    The chapter goes on with the workbook's own version, until yours returns something.
    6
    >>> half = yours_or_ours(lambda x: x, lambda x: x / 2, (1.0,))
    The chapter goes on with the workbook's own version, until yours is right.
    """
    if trials:
        if all(_agrees(yours, ours, trial, tolerance) for trial in trials):
            print("The chapter goes on with yours.")
            return yours
        print(f"{OURS} is right.")
        return ours
    chosen = yours

    @wraps(ours)
    def either(*arguments):
        nonlocal chosen
        if chosen is ours:
            return ours(*arguments)
        try:
            returned = yours(*arguments)
        except Exception as error:  # of a reader's function: anything
            print(f"Yours raised {type(error).__name__}: {error}")
            returned = None
        if returned is None:
            print(f"{OURS} returns something.")
            chosen = ours
            return ours(*arguments)
        return returned

    return either


def _agrees(yours: Callable, ours: Callable, trial: tuple, tolerance: float) -> bool:
    """Whether two functions return the same numbers for one call's arguments."""
    right = torch.as_tensor(ours(*trial)).double()
    try:
        copies = (one.clone() if isinstance(one, Tensor) else one for one in trial)
        got = torch.as_tensor(yours(*copies)).detach().double()
    except Exception:  # of a reader's function: anything
        return False
    return got.shape == right.shape and torch.allclose(got, right, rtol=0, atol=tolerance)


def settings_fault(settings: object, *functions: Callable) -> str | None:
    """Name what keeps settings from being keywords of some functions, in one sentence; None if they
    are.

    >>> settings_fault({"aplha": 1}, lambda alpha, beta: 0)
    "there is no setting 'aplha'; there are alpha, beta."
    """
    known = [
        name
        for function in functions
        for name, parameter in signature(function).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if not isinstance(settings, Mapping):
        return (
            f"{str(settings)[:60]!r} is no dict of settings; write one, such as {{{known[0]!r}:"
            " ...}."
        )
    unknown = next((name for name in settings if name not in known), None)
    return (
        None
        if unknown is None
        else f"there is no setting {unknown!r}; there are {', '.join(known)}."
    )


def grade(
    got: Tensor | None,
    right,
    mistakes: Mapping[str, object],
    praise: str,
    entry: str = "",
    otherwise: str = "{entry} should be {right:.4g}, but yours is {got:.4g}.",
    tolerance: float = 1e-4,
) -> None:
    """Print the praise, the mistake that gives this very answer, or the entry that is furthest off.

    got: of `answer_of`; None prints nothing more.  mistakes: sentence -> the answer that the
    mistake gives, or a condition on the answer; the first that fits is printed.  entry: what an
    entry of `right` belongs to, e.g. "token".
    otherwise: for any other answer; {place}, {got} and {right} are of the entry furthest off.
    Answers are equal within `tolerance`, and to a mistake's answer within 1e-3 or that, if it is
    larger, of the largest entry.

    >>> mistakes = {"this forgets the half.": 4.0, "it is below 5.": lambda got: got < 5}
    >>> grade(torch.tensor(3.0), 2.0, mistakes, "Right.")
    Not quite: it is below 5.
    """
    if got is None:
        return
    got, right = got.double(), torch.as_tensor(right).double()
    if right.ndim == 0 and got.numel() == 1:
        got = got.reshape(())
    if got.shape != right.shape:
        wanted = (
            f"{tuple(right.shape)}, one number for each {entry or 'entry'}"
            if right.ndim
            else "one number"
        )
        print(f"Not quite: it returned the shape {tuple(got.shape)}; return {wanted}.")
    elif _equal(got, right, tolerance):
        print(praise)
    else:
        fits = (
            text
            for text, wrong in mistakes.items()
            if (wrong(got) if callable(wrong) else _equal(got, wrong, max(1e-3, tolerance)))
        )
        place = tuple(
            index.item() for index in torch.unravel_index((got - right).abs().argmax(), right.shape)
        )
        name = f"{entry or 'entry'} {place if len(place) > 1 else place[0]}" if place else "it"
        # + 0: no "-0"
        values = {"place": place, "got": got[place].item() + 0.0, "right": right[place].item()}
        print("Not quite: " + next(fits, otherwise).format(entry=name, **values))


def _equal(got: Tensor, wanted, tolerance: float = 1e-3) -> bool:
    wanted = torch.as_tensor(wanted).double()
    return torch.allclose(got, wanted, rtol=0, atol=tolerance * (float(wanted.abs().max()) or 1.0))
