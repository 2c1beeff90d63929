"""Figures of credit recovered: signal over group sizes and prompts."""

from collections.abc import Mapping

import pandas as pd

from workbook.chapters.recovered.explore import LINES, UPDATE
from workbook.statistics import unit_curve
from workbook.studies.record import FAMILY
from workbook.studies.recovered.study import GROUP_SIZE, RULE

_AXES = ("group_size", "prompts")


def _curves() -> pd.DataFrame:
    """Own-prompt share of signal over each of AXES: axis, line, size, mean, low, high, units."""
    return pd.concat([curve(FAMILY, axis).assign(axis=axis) for axis in _AXES])


def curve(tables: Mapping, axis: str) -> pd.DataFrame:
    """The lines over one axis: all tokens, results, style words, the update, and what group sizes
    predict of it.
    """
    shares, update = (
        _along(tables[f"recovered/{name}"], axis).rename(columns={axis: "size"})
        for name in ("shares", "update")
    )
    lines = [shares[shares["category"] == name].assign(line=words) for name, words in LINES.items()]
    lines.append(update.assign(line=UPDATE))
    if axis == "group_size":
        # noise per signal goes as 1 / (G - 1): 1 / (1 + nu (G0 - 1) / (G - 1)), nu that at G0
        at_base = update[update["size"] == GROUP_SIZE].groupby("seed")["noise_per_signal"].mean()
        noise = update["seed"].map(at_base) * (GROUP_SIZE - 1) / (update["size"] - 1)
        line = f"predicted for the update from {GROUP_SIZE} rollouts"
        lines.append(update.assign(signal=1 / (1 + noise), line=line))
    return unit_curve(pd.concat(lines), "size", "signal", by="line")


def _along(table: pd.DataFrame, axis: str) -> pd.DataFrame:
    return table[(table["rule"] == RULE) & (table["axis"] == axis)]


FIGURES = {"recovered": {"recovered/curves": _curves}}
