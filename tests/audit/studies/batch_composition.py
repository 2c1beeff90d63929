"""batch_composition and, at level 1, batch_one_prompt: an order of mini-batches minus shuffled ones.

Both runs are of one unit, level and matching. A pair in which a run's value ever falls below half of the start's gives
no number but to the share of collapsed runs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from audit.tables import Missing, at, each


def end(run: pd.DataFrame) -> float:
    return run["value"].iloc[-1]


def jitter(run: pd.DataFrame) -> float:
    return np.abs(np.diff(run["value"], 2)).mean()


def collapsed(run: pd.DataFrame) -> float:
    return float(run["value"].min() < run["value"].iloc[0] / 2)


def less_shuffled(order, outcome=end, level=8, matched=True):
    def number(unit):
        try:
            pair = [at(unit, order=name).sort_values("batch") for name in (order, "shuffled")]
        except Missing:
            return np.nan
        if outcome is not collapsed and any(map(collapsed, pair)):
            return np.nan
        return outcome(pair[0]) - outcome(pair[1])

    return lambda units: each(at(units.table("curves"), level=level, matched=matched), number)


def opposition(units):
    """Mean over batches of the cosine of the two signs' gradients in shuffled steps."""
    rows = at(units.table("curves"), level=8, matched=True, order="shuffled")
    return each(rows, lambda run: np.nan if collapsed(run.sort_values("batch")) else run["sign_cosine"].mean())


ORDERS = {"H11": "sign_partitioned", "H12": "query_preserved", "H13": "reward_balanced"}
OUTCOMES = {"H11 mechanism": opposition, "H13 with H12": less_shuffled("query_preserved_reward_balanced")}
for claim, order in ORDERS.items():
    OUTCOMES |= {
        claim: less_shuffled(order),
        f"{claim} small steps": less_shuffled(order, level=2),
        f"{claim} unmatched": less_shuffled(order, matched=False),
    }
for claim in ("H12", "H13"):
    OUTCOMES |= {
        f"{claim} jitter": less_shuffled(ORDERS[claim], jitter),
        f"{claim} collapse": less_shuffled(ORDERS[claim], collapsed),
    }
ONE_PROMPT = {f"{claim} one prompt": less_shuffled(order, level=1) for claim, order in ORDERS.items()}
