"""The study of who shares a step, in charts: one level under sliders, and the curve over the levels."""

from __future__ import annotations

from functools import cache

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import Interval, t_interval, unit_curve
from workbook.studies.registration import MIN_UNITS
from workbook.topics.batching.composition import PROMPTS, against_shuffled, ends, measured_curves
from workbook.topics.batching.cut import NAMES
from workbook.views.curves import curve_chart
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.figures import clear_of_zero, forest, panels, series
from workbook.views.style import SERIES

OUTCOMES = {
    "value": "held-out value at the end",
    "area": "mean held-out value in training",
    "jitter": "jitter of the held-out value",
    "collapsed": "share of runs that collapse",
    "sign_cosine": "cosine of a step's two signs",
    "grad_norm": "gradient norm",
    "moved": "movement per batch, nats",
    "tax": "style words' drift, nats",
}
OTHERS = [strategy for strategy in NAMES if strategy != "shuffled"]
MATCHED = {"matched": True, "as it is": False}


def compute_batching(
    outcome: str = "value", level: int = 8, norm: str = "matched", units: int = 30
) -> dict[str, pd.DataFrame]:
    """One level of the study: each order against shuffled mini-batches, and the curves.

    norm: of the gradient, one of MATCHED.  units: how many of the study's are used, the first ones.
    Tables: effects, differences paired by unit: strategy, mean, low, high (95 % t interval over policies, each the mean
    of its units; none below 6), zero (whether 0 lies inside), baseline (the outcome itself under shuffled), units,
    collapsed (pairs that are left out since a run of theirs collapsed); curves: strategy, batch, value (mean over
    units).

    Raises ValueError for what was not measured.
    """
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome={outcome!r} is unknown: choose one of {', '.join(OUTCOMES)}.")
    runs, curves = (
        table[(table["seed"] < units) & (table["level"] == level) & (table["matched"] == MATCHED[norm])]
        for table in _study()
    )
    if runs["order"].nunique() < 2:
        raise ValueError(f"level={level} with gradients {norm} was not measured in several orders.")
    pairs = against_shuffled(runs, outcome).dropna(subset="difference")
    baseline = runs.loc[runs["order"] == "shuffled", outcome].mean()
    rows = []
    for order, part in pairs.groupby("order"):
        policies = part.groupby("policy")["difference"].mean()
        interval = t_interval(policies) if len(policies) >= MIN_UNITS else Interval(policies.mean(), np.nan, np.nan)
        left_out = int((runs["order"] == order).sum()) - len(part)
        rows.append((NAMES[order], *interval, not clear(interval), baseline, len(part), left_out))
    effects = pd.DataFrame(rows, columns=["strategy", *Interval._fields, "zero", "baseline", "units", "collapsed"])
    means = curves.groupby(["order", "batch"])["value"].mean().reset_index()
    return {"effects": effects, "curves": means.assign(strategy=means["order"].map(NAMES)).drop(columns="order")}


def clear(interval: Interval) -> bool:
    """Whether 0 lies outside."""
    return interval.low > 0 or interval.high < 0


@cache
def _study() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The committed runs, and their curves by generation batch."""
    curves = measured_curves()
    return ends(curves), curves


def batching_chart(effects: pd.DataFrame, curves: pd.DataFrame) -> alt.HConcatChart:
    """Left each order's paired difference from shuffled with its interval, right the curves of exact value."""
    names, size = list(NAMES.values()), {"height": 220}
    strategy = alt.Y("strategy:N", sort=names, title=None).axis(labelLimit=200)
    look = {"number": "+.3f", "form": "+.4f", "threshold": 0, "color": clear_of_zero(), "width": 230}
    title = "paired by unit, 95 % t intervals over policies; grey: 0 lies inside"
    differences_panel = forest(effects, strategy, "difference from shuffled", title=title, **look, **size)
    batch = alt.X("batch:Q", title="generation batches trained on").axis(tickMinStep=1)
    value = alt.Y("value:Q", title="exact held-out value, mean").scale(zero=False)
    look = {"names": names, "spread": None, "legend": {"columns": 3}, "form": ".3f", "width": 260}
    curves_panel = series(curves, batch, value, "strategy", title="held-out value", **look, **size)
    return panels(
        [differences_panel, curves_panel],
        "Five ways of cutting a batch: one level of the study",
        "left: what an order adds to the chosen outcome; right: mean curves",
        "Points with intervals: each order's difference from shuffled mini-batches. Lines: held-out value by batch.",
    )


def describe_batching(effects: pd.DataFrame, curves: pd.DataFrame) -> str:
    """How many orders differ from shuffled, and from what."""
    apart, first = effects.loc[~effects["zero"], "strategy"].tolist(), effects.iloc[0]
    return (
        f"Up to {effects['units'].max():.0f} units, shuffled: {first['baseline']:.3f}. Intervals without 0: "
        f"{', '.join(apart) if apart else 'none'}. Pairs left out for a collapse: {effects['collapsed'].sum():.0f}."
    )


def explore_batching() -> Explorer:
    """Menus over the study of who shares a step, and a slider over how many of its units one looks at."""
    controls = {
        "outcome": menu("value", [(label, name) for name, label in OUTCOMES.items()], "outcome"),
        "level": menu(8, [1, 2, 4, 8, 16], "prompts per mini-batch"),
        "norm": menu("matched", list(MATCHED), "gradient norm"),
        "units": slider(30, 6, 30, 1, "units"),
    }
    return Explorer(compute_batching, batching_chart, controls, describe_batching)


def level_curve(runs: pd.DataFrame, outcome: str = "value") -> pd.DataFrame:
    """Every order's difference from shuffled over the prompts per mini-batch, matched: t intervals over policies."""
    pairs = against_shuffled(runs[runs["matched"]], outcome)
    curve = unit_curve(pairs, "level", "difference", unit="policy", by="order")
    return curve.assign(order=curve["order"].map(NAMES))


def level_chart(curve: pd.DataFrame, outcome: str = "value", bound: float | None = None) -> alt.LayerChart:
    """The table of `level_curve` as curves; bound: the smallest effect of interest, dashed on both sides of 0."""
    lines: list = [0.0]
    lines += [] if bound is None else [(bound, f"{bound:g}: smallest effect of interest"), (-bound, "")]
    return curve_chart(
        curve,
        "level",
        series="order",
        x_title=f"prompts' worth of rollouts in a mini-batch (of {PROMPTS} in a generation batch)",
        y_title="difference from shuffled",
        title=f"What an order of mini-batches adds: {OUTCOMES[outcome]}",
        subtitle="line: mean; band: 95 % t interval over policies, each the mean of its units",
        paper=(PROMPTS, 2 * PROMPTS, "the paper: tens of prompts or more"),
        reference=lines,
        form="+.3f",
        names=[NAMES[order] for order in OTHERS],
        colors=SERIES[1:],  # as in the curves, where shuffled is the first
    )
