"""Figures of coupling: where the mass lies, and along training."""

from itertools import product

import pandas as pd

from workbook.chapters.coupling.charts import (
    AGREEMENT,
    FOLLOWERS,
    SIGNS,
    WEIGHTS,
    mass_shares,
)
from workbook.statistics import unit_curve
from workbook.studies.record import FAMILY, Tables
from workbook.studies.registration import registered_outcome


def _mass(tables: Tables = FAMILY) -> pd.DataFrame:
    """Shares of pairs and of mass, and net coupling, by kind of pair, of every choice of pairs.

    Columns weights, signs, same_context, shown (of SHARES), kind, mean, low, high, units.
    """
    parts = []
    for weights, signs, same_context in product(WEIGHTS, SIGNS, (True, False)):
        curves = mass_shares(tables["mass/pairs"], weights, signs, same_context)
        setting = {"weights": weights, "signs": signs, "same_context": same_context}
        parts += [curve.assign(shown=name, **setting) for name, curve in curves.items()]
    return pd.concat(parts)


def agreement_in_training(tables: Tables = FAMILY) -> pd.DataFrame:
    """Spillover and agreement along training, with the threshold of the claim about each.

    Columns panel, threshold, series, step, mean, low, high, units.
    """
    rows = tables["mass/training"].rename(columns={"quantity": "series"})
    curve = unit_curve(rows, "step", "size", by="series")
    far, agreed = (registered_outcome("mass", key).threshold for key in ("H3", "H4"))
    followers = curve[curve["series"].isin(FOLLOWERS)].assign(panel="followers", threshold=1 / far)
    agreement = curve[curve["series"].isin(AGREEMENT)].assign(panel="agreement", threshold=agreed)
    return pd.concat([followers, agreement])


FIGURES = {
    "mass": {
        "coupling/mass": _mass,
        "coupling/training": agreement_in_training,
    }
}
