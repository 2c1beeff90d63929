"""Claims of chapter 06: which tokens an update favours (H7, H8, H9, R1, R4), and where movement
goes (H6).

H7, H8, H9 and R4 are decided by the study `value_gap`: exact values, matched for position, one
number per policy and seed; what was stated before stands in its registration. H6, R1 and the
falsifier are decided by chapter 05's `dose`.
"""

from functools import partial

import numpy as np
import pandas as pd

from workbook.probes.value_gaps import SMALL_NATS
from workbook.studies.credit.study import FIXED, GROWING, MORE_PROMPTS, TINY_NATS
from workbook.studies.record import Tables
from workbook.theory.choices import SIGNS


def exact_gap(
    tables: Tables,
    pool: str,
    rollouts: str = "all",
    matched: str = "position",
    of: str = "value",
    advantages: str = "own",
) -> pd.Series:
    """Gap after one small step: of tokens matched so, in value or credit, R1 being matched by
    token.
    """
    table = tables["value_gap/gaps"].query(
        "pool == @pool and rollouts == @rollouts and advantages == @advantages"
    )
    return table.query("matched == @matched and of == @of").set_index("seed")["gap"]


def beyond_twin(tables: Tables, pool: str, rollouts: str = "all") -> pd.Series:
    """H7; R4 on held-out prompts: the gap at equal position minus that of the permuted twin."""
    return exact_gap(tables, pool, rollouts) - exact_gap(
        tables, pool, rollouts, advantages="permuted"
    )


def exact_slope(tables: Tables, axis: str, pool: str, matched: str = "position") -> pd.Series:
    """H8: least-squares slope of the gap per doubling of the rollouts per prompt, or of prompts
    where those stay.
    """
    table = (
        tables["value_gap/budget"]
        .query("axis == @axis and pool == @pool and matched == @matched")
        .dropna()
    )
    along = "group_size" if table["group_size"].nunique() > 1 else "prompts"
    fits = {
        seed: float(np.polyfit(np.log2(part[along]), part["gap"], 1)[0])
        for seed, part in table.groupby("seed")
        if len(part) > 1
    }
    return pd.Series(fits, dtype=float)


def widening(tables: Tables, pool: str, nats: float = SMALL_NATS) -> pd.Series:
    """H9: gap at equal position after the last update on one batch, minus that after the first."""
    table = tables["value_gap/repeated"].query(
        "pool == @pool and nats == @nats and matched == 'position'"
    )
    steps = table.pivot(index="seed", columns="step", values="gap")
    return steps[steps.columns.max()] - steps[steps.columns.min()]


TRAINING, _HELD_OUT = "training", "held-out"
MEASURES = {
    "value_gap": {
        "H7": partial(beyond_twin, pool=TRAINING),
        **{f"H7 {sign}": partial(beyond_twin, pool=TRAINING, rollouts=sign) for sign in SIGNS},
        "H7 unmatched": partial(exact_gap, pool=TRAINING, matched="prompt"),
        "H7 credit": partial(exact_gap, pool=TRAINING, of="credit"),
        "H7 permuted": partial(exact_gap, pool=TRAINING, advantages="permuted"),
        "R4": partial(beyond_twin, pool=_HELD_OUT),
        **{f"R4 {sign}": partial(beyond_twin, pool=_HELD_OUT, rollouts=sign) for sign in SIGNS},
        "R4 permuted": partial(exact_gap, pool=_HELD_OUT, advantages="permuted"),
        "R1 value": partial(exact_gap, pool=TRAINING, matched="token"),
        "H8": partial(exact_slope, axis=GROWING, pool=_HELD_OUT),
        "H8 training": partial(exact_slope, axis=GROWING, pool=TRAINING),
        "H8 unmatched": partial(exact_slope, axis=GROWING, pool=TRAINING, matched="prompt"),
        "H8 prompts": partial(exact_slope, axis=MORE_PROMPTS, pool=_HELD_OUT),
        "H8 fixed budget": partial(exact_slope, axis=FIXED, pool=_HELD_OUT),
        "H9": partial(widening, pool=TRAINING),
        "H9 held-out": partial(widening, pool=_HELD_OUT),
        "H9 tenth": partial(widening, pool=TRAINING, nats=TINY_NATS),
    }
}
