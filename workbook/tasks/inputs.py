"""What readers and models hand in, brought into one form: values in messages, integers, completions, scores."""

import math
from typing import Any


def short(value: Any, most: int = 60) -> str:
    """Return a value as Python writes it, of one that is long the beginning."""
    try:
        text = repr(value)
    except Exception:  # an integer of too many digits, an object of the reader's own
        text = f"a {type(value).__name__} that can't be shown"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def positive_int(field: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return value if it is an integer in [least, most], else raise a ValueError that names the field."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{field} is {short(value)}, but must be an integer {limits}.")
    return value


def completion_text(completion: object) -> str:
    """Return the text of one completion: a string as it is, of chat messages the last one's content, of all else "".

    >>> completion_text([{"role": "assistant", "content": "so the answer is 2"}])
    'so the answer is 2'
    """
    if isinstance(completion, list | tuple) and completion:
        completion = completion[-1]
    if isinstance(completion, dict):
        completion = completion.get("content")
    return completion if isinstance(completion, str) else ""


def clamp(score: object) -> float:
    """Return a score as a float in [0, 1]; what is not a finite number gives 0.

    >>> clamp(1.7), clamp(float("nan")), clamp(None), clamp(True)
    (1.0, 0.0, 0.0, 1.0)
    """
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(1.0, max(0.0, number)) if math.isfinite(number) else 0.0
