"""Coupling of a model's own tokens: maps over confidence, the proxy against full gradients, a push's spillover.

The explorers read what the study of chapter 06 measured; nothing is trained here.
"""

from __future__ import annotations

from functools import cache

import altair as alt
import numpy as np
import pandas as pd

from workbook.studies.record import load_measured
from workbook.topics.coupling.masked import KINDS
from workbook.topics.coupling.study import ADAM_SCALE, FINE, LRS
from workbook.views import figures
from workbook.views.explorer import Explorer, log_slider, menu, slider
from workbook.views.style import NEUTRAL, SERIES, finish, require, titled

TOKENS = ("same token", "different tokens")
PLACES = {"other contexts": ("within a rollout", "across rollouts"), "the same context": ("same context",)}
OUTSIDE = KINDS[2:]  # kinds of tokens outside the pushing contexts
FOLDS = len(FINE) + 1  # the finest bins of probability that were kept


# --- the map over both probabilities


def explore_confidence() -> Explorer:
    """Merge the map of real couplings into few or many bins of confidence."""
    controls = {
        "bins": slider(4, 2, FOLDS, 1, "bins of confidence"),
        "scale": menu("bundled", [("the bundled policy", "bundled"), ("SmolLM2-135M, chat", "smollm2_chat")], "model"),
        "place": menu("other contexts", list(PLACES), "pairs in"),
    }
    return Explorer(compute_confidence, confidence_chart, controls, describe_confidence)


def compute_confidence(bins: int = 4, scale: str = "bundled", place: str = "other contexts") -> pd.DataFrame:
    """Mean |K| and mean K of the study's pairs in bins x bins of both probabilities, pooled over prompts and seeds.

    Bins are as equal as twelfths allow. Each pair is counted at (i, j) and at (j, i).
    """
    edges = np.round(np.linspace(0, FOLDS, bins + 1)).astype(int)
    table = _map(scale)
    table = table[table["where"].isin(PLACES[place])]
    coarse = {name: np.searchsorted(edges, table[name], side="right") - 1 for name in ("less_sure", "more_sure")}
    sums = table.assign(**coarse).groupby(["same", "less_sure", "more_sure"])[["pairs", "total", "total_size"]].sum()
    sums = sums.reset_index()
    mirrored = sums.rename(columns={"less_sure": "more_sure", "more_sure": "less_sure"})
    cells = pd.concat([sums, mirrored[mirrored["less_sure"] != mirrored["more_sure"]]], ignore_index=True)
    for axis, name in (("i", "less_sure"), ("j", "more_sure")):
        low, high = edges[cells[name]] / FOLDS, edges[cells[name] + 1] / FOLDS
        cells[f"low_{axis}"], cells[f"high_{axis}"], cells[f"at_{axis}"] = low, high, (low + high) / 2
    cells["size"], cells["mean"] = cells["total_size"] / cells["pairs"], cells["total"] / cells["pairs"]
    cells["token"] = np.where(cells["same"], *TOKENS)
    cells["label"] = [f"{size:.2g}" if bins <= 5 else "" for size in cells["size"]]
    cells["dark"] = cells["size"] > 0.6 * cells["size"].max()
    return cells.drop(columns=["same", "total", "total_size"])


@cache
def _map(scale: str) -> pd.DataFrame:
    return load_measured("coupling", scale, "map")


def confidence_chart(table: pd.DataFrame) -> alt.FacetChart:
    """Mean |K| over bins of both probabilities, for the same and for different tokens; of `compute_confidence`."""
    require(table, ["token", "low_i", "high_i", "low_j", "high_j", "size", "label"], "confidence_chart")
    unit = alt.Scale(domain=[0, 1], nice=False)
    x, y = alt.X("low_i:Q", title="p of one token", scale=unit), alt.Y("low_j:Q", title="p of the other", scale=unit)
    base = alt.Chart(table)
    squares = base.mark_rect(stroke="white").encode(
        x=x.axis(grid=False),
        x2="high_i:Q",
        y=y.axis(grid=False),
        y2="high_j:Q",
        color=alt.Color("size:Q", title="mean |K|").scale(scheme="blues", domainMin=0),
        tooltip=[
            "token:N",
            alt.Tooltip("size:Q", format=".4g", title="mean |K|"),
            alt.Tooltip("mean:Q", format="+.4g", title="mean K"),
            alt.Tooltip("pairs:Q", format=","),
        ],
    )
    ink = alt.when(alt.datum.dark).then(alt.value("white")).otherwise(alt.value("black"))
    middle = {"x": alt.X("at_i:Q", scale=unit), "y": alt.Y("at_j:Q", scale=unit)}
    numbers = base.mark_text(fontSize=11).encode(**middle, text="label:N", color=ink)
    halves = alt.layer(squares, numbers).properties(width=290, height=290)
    return titled(
        halves.facet(column=alt.Column("token:N", sort=list(TOKENS), title=None).header(labelFontSize=13)),
        "Coupling of real token pairs, by how sure the model is of both",
        "mean |K|: nats per unit of learning rate and advantage; white: no such pairs",
        "Two heat maps over both tokens' probabilities.",
    )


def describe_confidence(table: pd.DataFrame) -> str:
    """The two largest cells, in words."""
    top = {token: table[table["token"] == token]["size"].max() for token in TOKENS}
    at = table.loc[table["size"].idxmax()]
    return (
        f"Largest mean |K|: {top[TOKENS[0]]:.3g} for the same token, {top[TOKENS[1]]:.3g} for different tokens. The "
        f"largest of all is a {at['token']} cell, p from {at['low_i']:.2f} to {at['high_i']:.2f} and from "
        f"{at['low_j']:.2f} to {at['high_j']:.2f}."
    )


# --- one token pushes


def explore_push() -> Explorer:
    """Choose the optimizer, the learning rate, and whether an unsure or a sure token pushes."""
    controls = {
        "lr": log_slider(0.1, -2, 1, "learning rate", step=0.25),
        "optimizer": menu("sgd", [("SGD", "sgd"), ("AdamW (a hundredth of the rate)", "adamw")], "optimizer"),
        "pushing": menu("unsure", [("an unsure token", "unsure"), ("a sure token", "sure")], "what pushes"),
    }
    return Explorer(compute_push, curves_chart, controls, describe_push)


def compute_push(lr: float = 0.1, optimizer: str = "sgd", pushing: str = "unsure") -> dict[str, pd.DataFrame]:
    """Movement of each kind of token over the learning rates of the study, and at the one nearest to lr.

    lr: SGD's; AdamW's is a hundredth of it.
    """
    nearest = min(LRS, key=lambda rate: abs(np.log(rate / lr)))
    scale = ADAM_SCALE if optimizer == "adamw" else 1.0
    curves = _curves()
    curves = curves[(curves["optimizer"] == optimizer) & (curves["pushing"] == pushing)]
    bars = curves[np.isclose(curves["lr"], nearest)]
    columns = ["kind", "lr", "dlogp", "size"]
    return {name: table.assign(lr=scale * table["lr"])[columns] for name, table in (("curves", curves), ("bars", bars))}


@cache
def _curves() -> pd.DataFrame:
    """Means over seeds and prompts of the study's masked updates, for each kind outside the pushing contexts."""
    table = load_measured("coupling", "bundled", "curves")
    table = table[table["kind"].isin(OUTSIDE)]
    means = table.groupby(["optimizer", "pushing", "lr", "kind"])[["dlogp", "size"]].mean().reset_index()
    return means.sort_values(["kind", "lr"], ignore_index=True)


def curves_chart(curves: pd.DataFrame, bars: pd.DataFrame) -> alt.HConcatChart:
    """Movement of each kind over the learning rate, and at the rate chosen; tables of `compute_push`."""
    log, kinds = alt.Scale(type="log"), list(OUTSIDE)
    x = alt.X("lr:Q", title="learning rate (log scale)", scale=log).axis(tickCount=4, format="~g")
    y = alt.Y("size:Q", title="mean |dlogp| (nats, log scale)", scale=log).axis(tickCount=6, format="~g")
    here = alt.Chart(bars).mark_rule(strokeDash=[4, 3], color=NEUTRAL).encode(x=alt.X("lr:Q", scale=log))
    look = {"by": "kind", "names": kinds, "spread": None, "form": ".2g"}
    by_rate = figures.series(curves, x, y, over=[here], width=330, height=230, **look)
    by_kind = figures.bars(
        bars,
        alt.Y("kind:N", sort=kinds, title=None).axis(labelLimit=160),
        alt.X("dlogp:Q", title="mean dlogp at the dashed rate (nats)"),
        color=alt.Color("kind:N", sort=kinds, title=None).scale(domain=kinds, range=SERIES[: len(kinds)]),
        form="+.3g",
        shown=["size"],
        width=250,
        height=230,
    )
    return figures.panels(
        [by_rate, by_kind],
        "One token pushes: how far others move",
        "means over prompts of the bundled policy; the pushing contexts are left out",
        "Left: mean movement over the learning rate. Right: the mean change at one rate.",
        spacing=20,
    )


def describe_push(curves: pd.DataFrame, bars: pd.DataFrame) -> str:
    """The movement of each kind, in numbers."""
    movements = "; ".join(f"{row.kind}: {row.dlogp:+.4f}" for row in bars.itertuples())
    return f"At a rate of {bars['lr'].iloc[0]:.2g}, mean dlogp in nats: {movements}."


# --- what was measured


def products_chart(pairs: pd.DataFrame) -> alt.LayerChart:
    """K of the output layer against the full gradient product, a mark per pair: columns kernel, product, kind."""
    require(pairs, ["kernel", "product", "kind"], "products_chart")
    axis, scale = alt.Axis(values=[-100, -10, -1, 0, 1, 10, 100]), alt.Scale(type="symlog", constant=0.1)
    title = "K, output layer alone (nats per unit of lr and advantage, symmetric log)"
    x = alt.X("kernel:Q", title=title, axis=axis, scale=scale)
    y = alt.Y("product:Q", title="P, all trained weights (same unit)", axis=axis, scale=scale)
    values = pairs[["kernel", "product"]].to_numpy()
    ends = [float(values.min()), float(values.max())]
    marks = (
        alt.Chart(pairs)
        .mark_point(filled=True, size=22, opacity=0.55)
        .encode(
            x=x,
            y=y,
            color=alt.Color("kind:N", title=None).scale(range=SERIES),
            shape=alt.Shape("kind:N", title=None),
            tooltip=["kind:N", alt.Tooltip("kernel:Q", format="+.3g"), alt.Tooltip("product:Q", format="+.3g")],
        )
    )
    line = alt.Chart(pd.DataFrame({"kernel": ends, "product": ends})).mark_line(color=NEUTRAL, strokeDash=[5, 4])
    return finish(
        alt.layer(line.encode(x=x, y=y), marks).configure_legend(orient="bottom", columns=3, labelLimit=240),
        "The output layer's product against that of all weights",
        "one mark: one pair of tokens; dashed: equal",
        "Scatter plot of the proxy against the full gradient inner product.",
        height=320,
    )


def times_chart(table: pd.DataFrame, threshold: float) -> alt.LayerChart:
    """Factors by which each kind moves less: columns kind, mean, low, high, series; a rule at the threshold."""
    require(table, ["kind", "mean", "low", "high", "series"], "times_chart")
    x = alt.X("mean:Q", title="times smaller (log scale)").scale(type="log").axis(tickCount=6, format="~s")
    look = {"legend": {"columns": 2}, "height": alt.Step(14)}
    return titled(
        figures.forest(table, "kind", x, "series", threshold=threshold, **look),
        "How many times smaller than the same token, unsure",
        f"geometric means, 95% bootstrap intervals over seeds and prompts; dashed: the threshold, {threshold:g}",
        "Points with intervals, one row for each kind.",
    )


def followers_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Mean dlogp of each kind of token in a masked update: columns kind, quantity, mean, low, high."""
    require(table, ["kind", "quantity", "mean", "low", "high"], "followers_chart")
    kind = alt.Y("kind:N", sort=list(KINDS), title=None).axis(labelLimit=200)
    return titled(
        figures.bars(table, kind, "mean dlogp (nats)", "quantity", form="+.4f", height=alt.Step(15)),
        "Spillover of a single-token update",
        "bars: means; lines: 95% bootstrap intervals over seeds and prompts",
        "Bars of the mean change of log-probability, by kind of token.",
    )
