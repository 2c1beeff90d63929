"""Figures of hidden credit: gaps after one step, by the sample, and over repeated updates."""

from itertools import product

import pandas as pd

from workbook.chapters.credit.explore import named_comparisons
from workbook.probes.value_gaps import CELLS
from workbook.statistics import unit_curve
from workbook.studies.credit.study import MORE_PROMPTS
from workbook.studies.record import FAMILY


def _gaps() -> pd.DataFrame:
    """Gaps after one step: matched, of, tokens (which are compared), mean, low, high, units."""
    parts = []
    for matched, of in product(CELLS, ("value", "credit")):
        rows = named_comparisons(FAMILY["value_gap/gaps"], matched, of).assign(place=0)
        curve = unit_curve(rows, "place", "gap", by="tokens").set_index("tokens")
        ordered = curve.loc[rows["tokens"].unique()].reset_index().drop(columns="place")
        parts.append(ordered.assign(matched=matched, of=of))
    return pd.concat(parts)


def _budget() -> pd.DataFrame:
    """The gap of every unit along the axes of H8: axis, pool, matched, size, seed, gap.

    size: rollouts per prompt, or prompts where these grow.
    """
    rows = FAMILY["value_gap/budget"]
    size = rows["group_size"].where(rows["axis"] != MORE_PROMPTS, rows["prompts"])
    return rows.assign(size=size)[["axis", "pool", "matched", "size", "seed", "gap"]]


def _repeated() -> pd.DataFrame:
    """The gap of every unit after each update on one batch.

    Columns pool, matched, nats, step, seed, gap.
    """
    return FAMILY["value_gap/repeated"][["pool", "matched", "nats", "step", "seed", "gap"]]


FIGURES = {
    "value_gap": {"credit/gaps": _gaps, "credit/budget": _budget, "credit/repeated": _repeated}
}
