"""The batching study in charts: one cell of its grid under sliders, and all cells at once."""

from __future__ import annotations

from functools import cache

import altair as alt
import pandas as pd

from workbook.statistics import bootstrap_mean
from workbook.studies.effects import effect
from workbook.studies.sweeps import OUTCOMES, load_runs
from workbook.topics.batching.cut import NAMES
from workbook.topics.groups.charts import beside, small
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES, require

OPTIMIZERS = {
    "AdamW": {"optim": "adamw_torch", "adam_beta1": 0.9},
    "AdamW, no momentum": {"optim": "adamw_torch", "adam_beta1": 0.0},
    "SGD": {"optim": "sgd", "adam_beta1": None},
}
CLIPPING = {"off": 0.0, "at 1.0": 1.0}
RATES = ("calm", "near instability")
TOLD = {
    "area under the reward curve": "area",
    "held-out reward at the end": "final",
    "share of runs that collapse": "collapsed",
    "jitter": "jitter",
    "cancelled inside a step": "in_step",
    "cancelled across steps": "across_steps",
    "gradient norm": "grad_norm",
    "style words' movement": "tax",
}
OTHERS = [strategy for strategy in NAMES if strategy != "shuffled"]


def label_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """The study's runs with the columns optimizer, clipping and rate, in the words of OPTIMIZERS, CLIPPING and RATES.

    runs: as from `load_runs("batching")`; of an optimizer's two learning rates the smaller one is calm.
    """
    named = {(s["optim"], s["adam_beta1"]): name for name, s in OPTIMIZERS.items()}
    beta1 = runs["adam_beta1"].astype(object).where(runs["adam_beta1"].notna(), None)
    optimizer = pd.Series([named[pair] for pair in zip(runs["optim"], beta1, strict=True)], index=runs.index)
    clipping = runs["max_grad_norm"].map({value: name for name, value in CLIPPING.items()})
    calm = runs["learning_rate"] == runs.groupby(optimizer)["learning_rate"].transform("min")
    return runs.assign(optimizer=optimizer, clipping=clipping, rate=calm.map({True: RATES[0], False: RATES[1]}))


def compute_batching(
    outcome: str = "area", optimizer: str = "AdamW", clipping: str = "off", rate: str = "calm", seeds: int = 10
) -> dict[str, pd.DataFrame]:
    """One cell of the batching study: each strategy against shuffled mini-batches, and the curves.

    seeds: how many of the study's seeds are used, the first ones.
    Tables: effects, paired differences: strategy, mean, low, high (95 % over seeds), zero (whether 0 lies inside),
    baseline (the outcome itself under shuffled), seeds; curves: strategy, batch, reward (mean over seeds).

    Raises ValueError for what was not measured.
    """
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome={outcome!r} is unknown: choose one of {', '.join(OUTCOMES)}.")
    runs, curves = _study()
    chosen = (runs["optimizer"] == optimizer) & (runs["clipping"] == clipping) & (runs["rate"] == rate)
    runs = runs.loc[chosen & (runs["seed"] < seeds), ["run", "batching", "seed", outcome]]
    by_seed = runs.groupby(["seed", "batching"])[outcome].mean().unstack()
    rows = []
    for strategy in OTHERS:
        pairs = (by_seed[strategy] - by_seed["shuffled"]).dropna()
        if len(pairs):  # else an outcome that this strategy does not have: nothing to compare
            found = bootstrap_mean(pairs)
            rows.append((strategy, *found, found.low <= 0 <= found.high))
    if not rows:
        raise ValueError(f"{outcome} was not measured for {optimizer}, clipping {clipping}, {rate}.")
    effects = pd.DataFrame(rows, columns=["strategy", "mean", "low", "high", "zero"])
    baseline = runs.loc[runs["batching"] == "shuffled", outcome].mean()
    drawn = curves[curves["run"].isin(runs["run"])].groupby(["batching", "batch"], observed=True)["reward"].mean()
    drawn = drawn.rename_axis(index={"batching": "strategy"}).reset_index()
    return {
        "effects": effects.assign(
            strategy=effects["strategy"].map(NAMES), baseline=baseline, seeds=runs["seed"].nunique()
        ),
        "curves": drawn.assign(strategy=drawn["strategy"].map(NAMES)),
    }


@cache
def _study() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The committed runs with their cells' names, and their curves by generation batch."""
    runs = label_cells(load_runs("batching"))
    curves = load_runs("batching", table="curves").dropna(subset="reward")
    curves = curves.assign(batch=curves.groupby("run").cumcount() + 1)[["run", "batch", "reward"]]
    return runs, curves.merge(runs[["run", "batching"]], on="run")


def batching_chart(effects: pd.DataFrame, curves: pd.DataFrame) -> alt.HConcatChart:
    """Left each strategy's paired difference from shuffled with its interval, right the reward curves."""
    names = list(NAMES.values())
    base = alt.Chart(effects).encode(y=alt.Y("strategy:N", sort=names, title=None).axis(labelLimit=200))
    title = "difference from shuffled"
    holds = alt.when("datum.zero").then(alt.value(NEUTRAL)).otherwise(alt.value(POSITIVE))
    number = [alt.Tooltip(f"{name}:Q", format="+.4f") for name in ("mean", "low", "high")]
    left = alt.layer(
        alt.Chart().mark_rule(strokeDash=[5, 4], color=NEUTRAL).encode(x=alt.datum(0)),
        base.mark_rule(size=3, opacity=0.5).encode(x=alt.X("low:Q", title=title), x2="high:Q", color=holds),
        base.mark_point(filled=True, size=80, opacity=1).encode(
            x=alt.X("mean:Q", title=title), color=holds, tooltip=["strategy", *number]
        ),
        base.mark_text(dy=-11, fontSize=10).encode(x="mean:Q", text=alt.Text("mean:Q", format="+.3f")),
    ).properties(width=270, height=220, title=small("paired by seed, 95 % intervals; grey: 0 lies inside"))
    legend = alt.Legend(title=None, orient="bottom", columns=3)
    color = alt.Color("strategy:N", sort=names, legend=legend).scale(domain=names, range=SERIES[: len(names)])
    shape = alt.Shape("strategy:N", sort=names, legend=legend).scale(domain=names)
    lines = alt.Chart(curves).encode(x=alt.X("batch:Q", title="generation batch").axis(tickMinStep=1), color=color)
    y = alt.Y("reward:Q", title="sampled reward, mean over seeds").scale(domain=[0, 1])
    right = alt.layer(
        lines.mark_line(strokeWidth=2).encode(y=y),
        lines.mark_point(filled=True, size=35, opacity=1).encode(
            y=y, shape=shape, tooltip=["strategy", "batch:Q", alt.Tooltip("reward:Q", format=".3f")]
        ),
    ).properties(width=300, height=220, title=small("reward while training"))
    return beside(
        [left, right],
        "Five ways of cutting a batch: one cell of the study",
        "left: what a strategy adds to the chosen outcome; right: mean curves",
        "Points with intervals: each strategy's difference from shuffled mini-batches. Lines: reward by batch.",
    )


def say_batching(effects: pd.DataFrame, curves: pd.DataFrame) -> str:
    """How many strategies differ from shuffled, and from what."""
    apart = effects.loc[~effects["zero"], "strategy"].tolist()
    first = effects.iloc[0]
    return (
        f"{first['seeds']:.0f} seeds, shuffled: {first['baseline']:.3f}. "
        f"Intervals without 0: {', '.join(apart) if apart else 'none'}."
    )


def explore_batching() -> Explorer:
    """Menus over the cells of the batching study, and a slider over how many of its seeds one looks at."""
    controls = {
        "outcome": menu("area", list(TOLD.items()), "outcome"),
        "optimizer": menu("AdamW", list(OPTIMIZERS), "optimizer"),
        "clipping": menu("off", list(CLIPPING), "gradient clipping"),
        "rate": menu("calm", list(RATES), "learning rate"),
        "seeds": slider(10, 2, 10, 1, "seeds"),
    }
    return Explorer(compute_batching, batching_chart, controls, say_batching)


def cell_effects(runs: pd.DataFrame, outcome: str, cells: list[str]) -> pd.DataFrame:
    """Every strategy against shuffled in every cell: columns strategy, cell, mean, low, high, zero.

    cells: the columns whose combinations are the cells.
    """
    rows = []
    for names, part in runs.groupby(cells, sort=False):
        for strategy in OTHERS:
            found = effect(part, outcome, {"batching": strategy}, {"batching": "shuffled"})
            rows.append((strategy, ", ".join(map(str, names)), *found, found.low <= 0 <= found.high))
    return pd.DataFrame(rows, columns=["strategy", "cell", "mean", "low", "high", "zero"])


def cells_chart(table: pd.DataFrame, outcome: str) -> alt.HConcatChart:
    """A panel per strategy, a line per cell of the study; the table of `cell_effects`. Hollow: 0 lies inside."""
    require(table, ("strategy", "cell", "mean", "low", "high", "zero"), "cells_chart")
    panels, cells = [], list(dict.fromkeys(table["cell"]))
    domain = [float(table["low"].min()), float(table["high"].max())]
    for strategy in dict.fromkeys(table["strategy"]):
        axis = None if panels else alt.Axis(labelLimit=260)
        base = alt.Chart(table[table["strategy"] == strategy]).encode(
            y=alt.Y("cell:N", sort=cells, title=None).axis(axis),
            tooltip=["cell", *[alt.Tooltip(f"{name}:Q", format="+.4f") for name in ("mean", "low", "high")]],
        )
        x = alt.X("low:Q", title="difference from shuffled").scale(domain=domain, nice=True).axis(tickCount=4)
        sign = alt.when("datum.mean >= 0").then(alt.value(POSITIVE)).otherwise(alt.value(NEGATIVE))
        layers = [alt.Chart().mark_rule(strokeDash=[5, 4], color=NEUTRAL).encode(x=alt.datum(0))]
        layers.append(base.mark_rule(size=2, opacity=0.6).encode(x=x, x2="high:Q", color=sign))
        for inside in (True, False):
            dots = base.transform_filter(alt.datum.zero == inside)
            layers.append(dots.mark_point(size=45, filled=not inside, opacity=1).encode(x="mean:Q", color=sign))
        title = small(NAMES[strategy])
        panels.append(alt.layer(*layers).properties(width=150, height=alt.Step(20), title=title))
    apart = table[~table["zero"]]
    told = "; ".join(f"{NAMES[row.strategy]}, {row.cell}: {row.mean:+.3f}" for row in apart.itertuples())
    return beside(
        panels,
        f"Every cell of the study: {outcome}",
        "differences from shuffled, paired by seed, with 95 % intervals; hollow: 0 lies inside",
        f"Intervals that leave 0 out: {told or 'none'}.",
    )
