"""The batching study in charts: one cell of its grid under sliders, and all cells at once."""

from __future__ import annotations

from functools import cache

import altair as alt
import pandas as pd

from workbook.statistics import Interval, bootstrap_mean
from workbook.studies.paired import differences
from workbook.studies.sweeps import OUTCOMES, load_runs
from workbook.topics.batching.cut import NAMES
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.figures import by_sign, clear_of_zero, forest, panels, series
from workbook.views.style import describe_rows, require

OPTIMIZER_SETTINGS = {
    "AdamW": {"optim": "adamw_torch", "adam_beta1": 0.9},
    "AdamW, no momentum": {"optim": "adamw_torch", "adam_beta1": 0.0},
    "SGD": {"optim": "sgd", "adam_beta1": None},
}
CLIPPING = {"off": 0.0, "at 1.0": 1.0}
RATES = ("calm", "near instability")
OUTCOME_LABELS = {
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
    """The study's runs with columns optimizer, clipping and rate, in the words of OPTIMIZER_SETTINGS, CLIPPING, RATES.

    runs: as from `load_runs("batching")`; of an optimizer's two learning rates the smaller one is calm.
    """
    named = {(s["optim"], s["adam_beta1"]): name for name, s in OPTIMIZER_SETTINGS.items()}
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
    effects = _against_shuffled(runs, outcome)
    if effects.empty:
        raise ValueError(f"{outcome} was not measured for {optimizer}, clipping {clipping}, {rate}.")
    baseline = runs.loc[runs["batching"] == "shuffled", outcome].mean()
    means = curves[curves["run"].isin(runs["run"])].groupby(["batching", "batch"], observed=True)["reward"].mean()
    means = means.rename_axis(index={"batching": "strategy"}).reset_index()
    return {
        "effects": effects.assign(
            strategy=effects["strategy"].map(NAMES), baseline=baseline, seeds=runs["seed"].nunique()
        ),
        "curves": means.assign(strategy=means["strategy"].map(NAMES)),
    }


def _against_shuffled(runs: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """Paired differences of the outcome: columns strategy (without those that lack it), mean, low, high, zero."""
    rows = []
    for strategy in OTHERS:
        pairs = differences(runs, outcome, {"batching": strategy}, {"batching": "shuffled"})["difference"]
        if len(pairs):
            interval = bootstrap_mean(pairs)
            rows.append((strategy, *interval, interval.low <= 0 <= interval.high))
    return pd.DataFrame(rows, columns=["strategy", *Interval._fields, "zero"])


@cache
def _study() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The committed runs with their cells' names, and their curves by generation batch."""
    runs = label_cells(load_runs("batching"))
    curves = load_runs("batching", table="curves").dropna(subset="reward")
    curves = curves.assign(batch=curves.groupby("run").cumcount() + 1)[["run", "batch", "reward"]]
    return runs, curves.merge(runs[["run", "batching"]], on="run")


def batching_chart(effects: pd.DataFrame, curves: pd.DataFrame) -> alt.HConcatChart:
    """Left each strategy's paired difference from shuffled with its interval, right the reward curves."""
    names, size = list(NAMES.values()), {"height": 220}
    strategy = alt.Y("strategy:N", sort=names, title=None).axis(labelLimit=200)
    look = {"number": "+.3f", "form": "+.4f", "threshold": 0, "color": clear_of_zero(), "width": 270}
    title = "paired by seed, 95 % intervals; grey: 0 lies inside"
    differences_panel = forest(effects, strategy, "difference from shuffled", title=title, **look, **size)
    batch = alt.X("batch:Q", title="generation batch").axis(tickMinStep=1)
    reward = alt.Y("reward:Q", title="sampled reward, mean over seeds").scale(domain=[0, 1])
    look = {"names": names, "spread": None, "legend": {"columns": 3}, "form": ".3f", "width": 300}
    curves_panel = series(curves, batch, reward, "strategy", title="reward while training", **look, **size)
    return panels(
        [differences_panel, curves_panel],
        "Five ways of cutting a batch: one cell of the study",
        "left: what a strategy adds to the chosen outcome; right: mean curves",
        "Points with intervals: each strategy's difference from shuffled mini-batches. Lines: reward by batch.",
    )


def describe_batching(effects: pd.DataFrame, curves: pd.DataFrame) -> str:
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
        "outcome": menu("area", list(OUTCOME_LABELS.items()), "outcome"),
        "optimizer": menu("AdamW", list(OPTIMIZER_SETTINGS), "optimizer"),
        "clipping": menu("off", list(CLIPPING), "gradient clipping"),
        "rate": menu("calm", list(RATES), "learning rate"),
        "seeds": slider(10, 2, 10, 1, "seeds"),
    }
    return Explorer(compute_batching, batching_chart, controls, describe_batching)


def cell_effects(runs: pd.DataFrame, outcome: str, cells: list[str]) -> pd.DataFrame:
    """Every strategy against shuffled in every cell: columns strategy, cell, mean, low, high, zero.

    cells: the columns whose combinations are the cells.
    """
    parts = [
        _against_shuffled(part, outcome).assign(cell=", ".join(map(str, names)))
        for names, part in runs.groupby(cells, sort=False)
    ]
    return pd.concat(parts, ignore_index=True)[["strategy", "cell", *Interval._fields, "zero"]]


def study_cells_chart(table: pd.DataFrame, outcome: str) -> alt.HConcatChart:
    """A panel per strategy, a line per cell of the study; the table of `cell_effects`. Hollow: 0 lies inside."""
    require(table, ("strategy", "cell", "mean", "low", "high", "zero"), "study_cells_chart")
    x = alt.X("mean:Q", title="difference from shuffled").axis(tickCount=4)
    x = x.scale(domain=[float(table["low"].min()), float(table["high"].max())], nice=True)
    cell = alt.Y("cell:N", sort=None, title=None).axis(labelLimit=260)
    look = {"threshold": 0, "color": by_sign("mean"), "hollow": "datum.zero", "form": "+.4f"}
    look |= {"width": 150, "height": alt.Step(20)}
    parts = table.groupby("strategy", sort=False)
    apart = table[~table["zero"]].assign(strategy=lambda rows: rows["strategy"].map(NAMES))
    return panels(
        [forest(part, cell, x, labels=k == 0, title=NAMES[name], **look) for k, (name, part) in enumerate(parts)],
        f"Every cell of the study: {outcome}",
        "differences from shuffled, paired by seed, with 95 % intervals; hollow: 0 lies inside",
        f"Intervals that leave 0 out: {describe_rows(apart, 'strategy', 'cell', form='+.3f') or 'none'}.",
    )
