"""Curves of chapter 10: the family, SmolLM2-135M and Gemma 3 270M on one axis of prompts per step.

Lines are means over units with t intervals: policies of the family, and of SmolLM2 draws of prompts and rollouts from
one small task, which share most prompts and say nothing of other models or tasks. With fewer than six units the band
reaches from the least to the largest of the measured prompts.
"""

from __future__ import annotations

from contextlib import suppress

import altair as alt
import pandas as pd

from workbook.probes.dose import SETS
from workbook.statistics import unit_curve
from workbook.studies.claim import NotMeasured, Tables
from workbook.studies.registration import MIN_UNITS
from workbook.topics.flips.dose_charts import PAPER, PROMPTS
from workbook.views.curves import curve_chart
from workbook.views.explorer import Explorer, menu

BACKBONES = {"family": "bundled family", "smollm2_plain": "SmolLM2-135M", "gemma3_plain": "Gemma 3 270M"}  # by scale
STUDIES = {"family": "dose", "smollm2_plain": "dose_llm", "gemma3_plain": "dose_llm"}
TOKENS = SETS[:4]  # of other models too few are at the same place of both signs
SAYS_NOTHING = (0.5, "the sign says nothing")
QUANTITIES = {  # what is asked: column, title of the chart, title of its axis, what it is compared with
    "own sign": (
        "follows",
        "The more prompts push, the less a token follows its own rollout, on every model",
        "chance to follow the own sign",
        SAYS_NOTHING,
    ),
    "own share": (
        "own share",
        "What other prompts do outgrows the own prompt's push",
        "own / (own + others), rms",
        (0.5, "own = others"),
    ),
}
BANDS = "band: 95 % t interval over policies (family) or draws of prompts (SmolLM2); least to largest prompt (Gemma)"


def compute_backbones(
    tokens: str = "moved", quantity: str = "own sign", tables: dict[str, Tables] | None = None
) -> dict[str, pd.DataFrame]:
    """What tokens do against prompts per step, by model: {"curve": series, prompts, mean, low, high, units}.

    tokens: of TOKENS.  quantity: of QUANTITIES.  tables: {scale: its tables}, instead of those below data/results.
    Models that were not measured are left out.  Raises ValueError for other tokens or quantities.
    """
    for name, value, choices in (("quantity", quantity, QUANTITIES), ("tokens", tokens, TOKENS)):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is unknown: choose one of {', '.join(choices)}.")
    lines = []
    for scale in tables or BACKBONES:
        with suppress(NotMeasured):
            read = tables[scale] if tables else Tables(scale)
            line = _line(read, STUDIES[scale], QUANTITIES[quantity][0], tokens)
            lines.append(line.assign(series=BACKBONES[scale]))
    return {"curve": pd.concat(lines, ignore_index=True)}


def _line(tables: Tables, study: str, column: str, tokens: str) -> pd.DataFrame:
    """One model's curve."""
    line = unit_curve(_chosen(tables[f"{study}/rates"], tokens), "prompts", column)
    if study == "dose" or line["units"].min() >= MIN_UNITS:
        return line
    spread = _chosen(tables[f"{study}/by_prompt"], tokens).groupby("prompts")[column].agg(["min", "max"])
    return line.assign(low=line["prompts"].map(spread["min"]), high=line["prompts"].map(spread["max"]))


def _chosen(rates: pd.DataFrame, tokens: str) -> pd.DataFrame:
    """The rows of a kind of token, with the own share."""
    rows = rates[rates["tokens"] == tokens]
    return rows.assign(**{"own share": rows["own"] / (rows["own"] + rows["others"])})


def backbones_chart(curve: pd.DataFrame, quantity: str = "own sign") -> alt.LayerChart:
    """Lines of `compute_backbones`, with the paper's place shaded."""
    _, title, y_title, reference = QUANTITIES[quantity]
    return curve_chart(
        curve,
        "prompts",
        series="series",
        x_title=PROMPTS,
        y_title=y_title,
        title=title,
        paper=PAPER,
        reference=[reference],
        subtitle=BANDS,
        names=[name for name in BACKBONES.values() if name in set(curve["series"])],
        height=280,
    )


def describe_backbones(curve: pd.DataFrame) -> str:
    """Where each model's curve starts and ends."""
    ends = curve.sort_values("prompts").groupby("series", sort=False)[["prompts", "mean"]].agg(["first", "last"])
    return "; ".join(
        f"{name}: {row['mean', 'first']:.3f} at {row['prompts', 'first']:.0f}, "
        f"{row['mean', 'last']:.3f} at {row['prompts', 'last']:.0f}"
        for name, row in ends.iterrows()
    )


def explore_backbones() -> Explorer:
    """A menu of kinds of token over `backbones_chart`."""
    controls = {"tokens": menu("moved", list(TOKENS), "tokens")}
    return Explorer(compute_backbones, backbones_chart, controls, describe_backbones)
