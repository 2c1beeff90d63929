"""Grading of an exercise: a reader's answer against the right one and the usual mistakes, answered in one sentence.

Nothing here raises on a wrong or missing answer, so that a chapter runs to its end with its exercises unanswered.
The exercises themselves are in `exercises.py` of each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

UNANSWERED = "Not answered yet: put your answer in place of None and run the cell again."


def answer_of(answer: Callable | object, *arguments) -> Tensor | None:
    """Turn an answer, or what a reader's function returns, into a tensor.

    None, and a printed sentence, if it is None or raises.

    >>> answer_of(lambda x: 1 / x, 0)
    Not quite: it raised ZeroDivisionError: division by zero
    """
    try:
        got = answer(*arguments) if callable(answer) else answer
        if got is not None:
            return torch.as_tensor(got).detach()
        print(UNANSWERED)
    except Exception as error:
        print(f"Not quite: it raised {type(error).__name__}: {error}")
    return None


def grade(
    got: Tensor | None,
    right,
    mistakes: Mapping[str, object],
    praise: str,
    entry: str = "",
    otherwise: str = "{entry} should be {right:.4g}, but yours is {got:.4g}.",
) -> None:
    """Print the praise, the mistake that gives this very answer, or the entry that is furthest off.

    got: of `answer_of`; None prints nothing more.  mistakes: sentence -> the answer that the mistake gives, or a
    condition on the answer; the first that fits is printed.  entry: what an entry of `right` belongs to, e.g. "token".
    otherwise: for any other answer; {place}, {got} and {right} are of the entry furthest off.
    Answers are equal within 1e-4, and to a mistake's answer within 1e-3, of the largest entry.

    >>> grade(torch.tensor(3.0), 2.0, {"this forgets the half.": 4.0, "it is below 5.": lambda got: got < 5}, "Right.")
    Not quite: it is below 5.
    """
    if got is None:
        return
    got, right = got.double(), torch.as_tensor(right).double()
    if right.ndim == 0 and got.numel() == 1:
        got = got.reshape(())
    if got.shape != right.shape:
        wanted = f"{tuple(right.shape)}, one number for each {entry or 'entry'}" if right.ndim else "one number"
        print(f"Not quite: it returned the shape {tuple(got.shape)}; return {wanted}.")
    elif _equal(got, right, 1e-4):
        print(praise)
    else:
        fits = (text for text, wrong in mistakes.items() if (wrong(got) if callable(wrong) else _equal(got, wrong)))
        place = tuple(index.item() for index in torch.unravel_index((got - right).abs().argmax(), right.shape))
        name = f"{entry or 'entry'} {place if len(place) > 1 else place[0]}" if place else "it"
        values = {"place": place, "got": got[place].item() + 0.0, "right": right[place].item()}  # + 0: no "-0"
        print("Not quite: " + next(fits, otherwise).format(entry=name, **values))


def _equal(got: Tensor, wanted, tolerance: float = 1e-3) -> bool:
    wanted = torch.as_tensor(wanted).double()
    return torch.allclose(got, wanted, rtol=0, atol=tolerance * (float(wanted.abs().max()) or 1.0))
