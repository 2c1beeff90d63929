"""Claims of chapter 08: how mini-batches are cut (H11, H12, H13), against shuffled ones, which are
TRL's default.

Everything that a number is judged by stands in the registrations of batch_composition and, for
mini-batches of one prompt's worth, of batch_one_prompt; a unit's number is one arm minus the
shuffled arm of the same policy, prompts, level and matching.
"""

from functools import partial

import pandas as pd

from workbook.studies.batching.study import against_shuffled, ends
from workbook.studies.record import Tables

STUDY, ONE_PROMPT = "batch_composition", "batch_one_prompt"
# prompts' worth of rollouts in a mini-batch: of the primary outcomes, and of a control
LEVEL, SMALL = 8, 2


def difference(
    tables: Tables,
    order: str,
    outcome: str = "value",
    level: int = LEVEL,
    matched: bool = True,
    study: str = STUDY,
) -> pd.Series:
    """What an order adds to an outcome, minus shuffled, one number per unit; NaN where a run of the
    pair collapsed.
    """
    runs = ends(tables[f"{study}/curves"])
    pairs = against_shuffled(runs, outcome).query(
        "order == @order and level == @level and matched == @matched"
    )
    units = runs.query("order == @order and level == @level and matched == @matched")["seed"]
    return pairs.set_index("seed")["difference"].reindex(sorted(units))


def batch_size(tables: Tables) -> pd.Series:
    """Positive control: what half as many prompts a step, hence twice as many steps, add to the
    value.
    """
    half, whole = (ends(tables[f"{STUDY}/{name}"]) for name in ("control", "curves"))
    whole = whole.query("order == 'shuffled' and level == @LEVEL and matched")
    half, whole = (runs.set_index("seed") for runs in (half, whole))
    return (half["value"] - whole["value"]).where(
        (half["collapsed"] == 0) & (whole["collapsed"] == 0)
    )


def opposition(tables: Tables, level: int = LEVEL) -> pd.Series:
    """Mean cosine between the gradients of a step's two signs in shuffled runs that did not
    collapse, per unit.
    """
    runs = ends(tables[f"{STUDY}/curves"]).query(
        "order == 'shuffled' and level == @level and matched"
    )
    return runs.set_index("seed")["sign_cosine"].where(runs.set_index("seed")["collapsed"] == 0)


_ORDERS = {"H11": "sign_partitioned", "H12": "query_preserved", "H13": "reward_balanced"}
_SETTINGS = {  # of every order's rows
    "": {},
    " small steps": {"level": SMALL},
    " unmatched": {"matched": False},
    " jitter": {"outcome": "jitter"},
    " collapse": {"outcome": "collapsed"},
}
MEASURES = {
    STUDY: {
        **{
            f"{claim}{name}": partial(difference, order=order, **settings)
            for claim, order in _ORDERS.items()
            for name, settings in _SETTINGS.items()
            if claim != "H11" or "outcome" not in settings
        },
        "H11 mechanism": opposition,
        "H11 batch size": batch_size,
        "H13 with H12": partial(difference, order="query_preserved_reward_balanced"),
    },
    ONE_PROMPT: {
        f"{claim} one prompt": partial(difference, order=order, level=1, study=ONE_PROMPT)
        for claim, order in _ORDERS.items()
    },
}
