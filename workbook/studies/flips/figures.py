"""Figures of token flipping: whose sign a token follows, and shares by sign.

Every interval is a t interval over units (policy and prompts), unless a function says otherwise.
"""

from collections.abc import Mapping
from contextlib import suppress

import pandas as pd

from workbook.chapters.flips.charts import BACKBONES
from workbook.statistics import unit_curve
from workbook.studies.flips.claims import predicted_follows
from workbook.studies.record import FAMILY, NotMeasured, Tables
from workbook.studies.registration import MIN_UNITS

# which measured a backbone's curves, if not dose_llm
_STUDIES = {"family": "dose", "smollm2:sums": "smollm2_probes"}
_TOKENS = "moved"  # of which backbones are compared, as in `flip_rates`
_QUANTITIES = {"own sign": "follows", "own share": "own share"}  # of a chart: the column it draws


def _follows() -> pd.DataFrame:
    """Chance of the family's unsure tokens to follow their own sign, measured and predicted.

    Columns series, prompts, mean, low, high, units.
    """
    rows = predicted_follows(FAMILY["dose/rates"]).query("tokens == 'unsure'")
    lines = {"measured": "follows", "predicted": "predicted"}
    return pd.concat(
        [unit_curve(rows, "prompts", column).assign(series=name) for name, column in lines.items()]
    )


def backbone_flips(tables: Mapping[str, Mapping] | None = None) -> pd.DataFrame:
    """Moved tokens against prompts per step, by backbone.

    Columns quantity, series, prompts, mean, low, high, units.

    tables: {scale: its tables}, instead of those below data/results; those that were not measured
    are left out.  With fewer than six units the band is the range over the measured prompts.
    """
    lines = []
    for quantity, column in _QUANTITIES.items():
        for scale in tables or BACKBONES:
            with suppress(NotMeasured):
                line = _backbone_curve(tables[scale] if tables else Tables(scale), scale, column)
                lines.append(line.assign(series=BACKBONES[scale], quantity=quantity))
    return pd.concat(lines)


def _backbone_curve(tables: Mapping, scale: str, column: str) -> pd.DataFrame:
    """A column of a backbone's moved tokens against prompts per step."""
    study = _STUDIES.get(scale, "dose_llm")
    line = unit_curve(_moved(tables[f"{study}/rates"]), "prompts", column)
    if study != "dose_llm" or line["units"].min() >= MIN_UNITS:
        return line
    by_prompt = _moved(tables["dose_llm/by_prompt"]).groupby("prompts")[column]
    return line.assign(
        low=line["prompts"].map(by_prompt.min()), high=line["prompts"].map(by_prompt.max())
    )


def _moved(rates: pd.DataFrame) -> pd.DataFrame:
    """The rates of moved tokens, with the part of the movement that their own prompt makes."""
    rows = rates[rates["tokens"] == _TOKENS]
    return rows.assign(**{"own share": rows["own"] / (rows["own"] + rows["others"])})


def _shares() -> pd.DataFrame:
    """Shares of tokens by what one step does to them, by model: means over units.

    Columns optimizer, advantages, eps, model, column, change, share, prompts, units.
    """
    keys = ["optimizer", "advantages", "eps", "column", "change"]
    parts = []
    for scale, name in BACKBONES.items():
        with suppress(NotMeasured):
            means = Tables(scale)["flip_backbones/shares"].groupby(keys, sort=False)
            means = means.agg(
                share=("share", "mean"), prompts=("prompts", "sum"), units=("seed", "nunique")
            )
            parts.append(means.reset_index().assign(model=name))
    return pd.concat(parts)


FIGURES = {
    "dose": {"flips/follows": _follows, "flips/backbones": backbone_flips},
    "flip_backbones": {"flips/shares": _shares},
}
