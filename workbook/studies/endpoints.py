"""When a training curve gets somewhere: sampled tokens until a value is reached, batches until a policy has collapsed.

A curve is the table of `studies.loop.train_in_memory`, or its columns batch, value and sampled_tokens. Between readings
the value is on a straight line.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

COLLAPSED = 0.5  # share of the start's value below which a policy has collapsed


class Reached(NamedTuple):
    """Where a curve reaches a level, or, `censored`, where it ends without."""

    at: float
    censored: bool


def tokens_to(curve: pd.DataFrame, level: float, budget: float | None = None) -> Reached:
    """Sampled tokens until the value first reaches a level, censored at the budget (None: the last reading's tokens).

    Raises ValueError for a curve without readings, or with a value that is not known.

    >>> curve = pd.DataFrame({"batch": [0, 4, 8], "value": [0.25, 0.5, 0.375], "sampled_tokens": [0, 1000, 2000]})
    >>> tokens_to(curve, 0.375), tokens_to(curve, 0.375, budget=400), tokens_to(curve, 0.75)
    (Reached(at=500.0, censored=False), Reached(at=400.0, censored=True), Reached(at=2000.0, censored=True))
    """
    return _first(curve, "sampled_tokens", curve["value"] - level, budget)


def batches_to_collapse(curve: pd.DataFrame, share: float = COLLAPSED) -> Reached:
    """Generation batches until the value first falls to a share of the start's, censored at the last reading.

    Raises ValueError as `tokens_to` does.

    >>> curve = pd.DataFrame({"batch": [0, 4, 8], "value": [0.5, 0.375, 0.125], "sampled_tokens": [0, 1000, 2000]})
    >>> batches_to_collapse(curve), batches_to_collapse(curve, 0.1)
    (Reached(at=6.0, censored=False), Reached(at=8.0, censored=True))
    """
    return _first(curve, "batch", share * curve["value"].iloc[:1].sum() - curve["value"], None)


def _first(curve: pd.DataFrame, column: str, above: pd.Series, end: float | None) -> Reached:
    """Where `above` first is 0 or more, in the column's unit."""
    if above.isna().any() or not len(above):
        raise ValueError("curve has no readings, or a value that is not known: it must have a number in each row.")
    places, heights = curve[column].to_numpy(dtype=float), above.to_numpy(dtype=float)
    end = float(places[-1] if end is None else end)
    k = int((heights >= 0).argmax())
    if heights[k] < 0:
        return Reached(end, True)
    rise = -heights[k - 1] / (heights[k] - heights[k - 1]) if k else 0.0
    at = float(places[k - 1] + rise * (places[k] - places[k - 1])) if k else float(places[0])
    return Reached(at, False) if at <= end else Reached(end, True)
