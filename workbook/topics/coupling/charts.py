"""Coupling of a model's own tokens: maps over confidence, the proxy against full gradients, a push's spillover.

Charts of tables that a chapter makes now, and an explorer beside what the study measured; nothing is trained here.
"""

from __future__ import annotations

from functools import cache

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import bootstrap_mean
from workbook.studies.record import load_measured
from workbook.theory.coupling import UNSURE
from workbook.topics.coupling.masked import KINDS
from workbook.topics.coupling.probe import coupling_by_confidence
from workbook.topics.coupling.study import ADAM_SCALE, FINE
from workbook.views import figures
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.style import ACCENT, NEUTRAL, describe_rows, finish, require, titled

LINEAR, SQUARE = 0.1, 0.35  # of the symmetric log plane: where it is linear; side of a square
TOKENS = ("same token", "different tokens")
PLACES = {"other contexts": ("within a rollout", "across rollouts"), "the same context": ("same context",)}
OUTSIDE = KINDS[2:]  # kinds of tokens outside the pushing contexts
NOW = "now"  # the scale of a policy in hand
FOLDS = len(FINE) + 1  # the finest bins of probability that were kept


# --- the map over both probabilities


def explore_couplings(policy, rollouts) -> Explorer:
    """Merge the map of a policy's couplings, taken now, or of one measured before, into few or many bins."""
    models = [("this policy, now", NOW), ("the bundled policy", "bundled"), ("SmolLM2-135M, chat", "smollm2_chat")]
    controls = {
        "bins": slider(4, 2, FOLDS, 1, "bins of confidence"),
        "scale": menu(NOW, models, "model"),
        "place": menu("other contexts", list(PLACES), "pairs in"),
    }
    variables = {"cells": coupling_by_confidence(policy, rollouts, FINE)}
    return Explorer(compute_couplings, confidence_chart, controls, describe_confidence, variables)


def compute_couplings(
    cells: pd.DataFrame, bins: int = 4, scale: str = NOW, place: str = "other contexts"
) -> pd.DataFrame:
    """`compute_confidence` of pairs taken now, by `coupling_by_confidence` in bins cut at FINE; or of another scale."""
    return compute_confidence(bins, scale, place) if scale != NOW else _merged(_sums(cells), bins, place)


def compute_confidence(bins: int = 4, scale: str = "bundled", place: str = "other contexts") -> pd.DataFrame:
    """Mean |K| and mean K of the study's pairs in bins x bins of both probabilities, pooled over prompts and seeds.

    Bins are as equal as twelfths allow. Each pair is counted at (i, j) and at (j, i).
    """
    return _merged(load_map(scale), bins, place)


def _merged(table: pd.DataFrame, bins: int, place: str) -> pd.DataFrame:
    """The map's sums in bins x bins."""
    edges = np.round(np.linspace(0, FOLDS, bins + 1)).astype(int)
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
    cells["label"] = ["" if bins > 5 else f"{size:,.0f}" if size >= 100 else f"{size:.2g}" for size in cells["size"]]
    cells["dark"] = cells["size"] > 0.6 * cells["size"].max()
    return cells.drop(columns=["same", "total", "total_size"])


@cache
def load_map(scale: str) -> pd.DataFrame:
    """The study's sums of K and |K| by kind of pair, in twelfths of both probabilities."""
    return load_measured("coupling", scale, "map")


def _sums(cells: pd.DataFrame) -> pd.DataFrame:
    """The same of pairs taken now."""
    sums = cells.assign(total=cells["pairs"] * cells["mean"], total_size=cells["pairs"] * cells["size"])
    keys = ["same", "where", "less_sure", "more_sure"]
    return sums.groupby(keys)[["pairs", "total", "total_size"]].sum().reset_index()


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
        color=alt.Color("size:Q", title="mean |K|").scale(scheme="purples", domainMin=0),
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


def push_curves(optimizer: str = "sgd", pushing: str = "unsure") -> pd.DataFrame:
    """Movement of each kind of token over the learning rates of the study: columns kind, lr, size, dlogp.

    AdamW's rates are a hundredth of SGD's.
    """
    scale = ADAM_SCALE if optimizer == "adamw" else 1.0
    curves = _curves()
    curves = curves[(curves["optimizer"] == optimizer) & (curves["pushing"] == pushing)]
    return curves.assign(lr=scale * curves["lr"])[["kind", "lr", "size", "dlogp"]]


@cache
def _curves() -> pd.DataFrame:
    """Means over seeds and prompts of the study's masked updates, for each kind outside the pushing contexts."""
    table = load_measured("coupling", "bundled", "curves")
    table = table[table["kind"].isin(OUTSIDE)]
    means = table.groupby(["optimizer", "pushing", "lr", "kind"])[["dlogp", "size"]].mean().reset_index()
    return means.sort_values(["kind", "lr"], ignore_index=True)


# --- what was measured


def products_chart(pairs: pd.DataFrame, labelled: int = 5) -> alt.LayerChart:
    """K of the output layer against the full gradient product: how many pairs, the pairs farthest off by name.

    pairs: columns kernel, product, kind, and pair, the words of both tokens.
    """
    require(pairs, ["kernel", "product", "kind", "pair"], "products_chart")
    ends = [float(pairs[["kernel", "product"]].min().min()), float(pairs[["kernel", "product"]].max().max())]
    room = [2.2 * min(ends[0], -1.0), 2.2 * max(ends[1], 1.0)]
    axis = alt.Axis(values=[-100, -10, -1, 0, 1, 10, 100])
    scale = alt.Scale(type="symlog", constant=LINEAR, domain=room, nice=False)
    x = alt.X("x0:Q", title="K, output layer alone (nats per unit of lr and advantage)", axis=axis, scale=scale)
    y = alt.Y("y0:Q", title="P, all trained weights (same unit)", axis=axis, scale=scale)
    count = alt.Color("pairs:Q", title="pairs").scale(type="log", scheme="purples")
    cells = alt.Chart(_cells(pairs)).mark_rect(stroke="#999999", strokeWidth=0.3)
    hints = [alt.Tooltip("pairs:Q", format=","), alt.Tooltip("kind:N", title="mostly")]
    cells = cells.encode(x=x, x2="x1:Q", y=y, y2="y1:Q", color=count, tooltip=hints)
    at = {"x": alt.X("kernel:Q", axis=axis, scale=scale), "y": alt.Y("product:Q", axis=axis, scale=scale)}
    line = alt.Chart(pd.DataFrame({"kernel": ends, "product": ends})).mark_line(color=NEUTRAL, strokeDash=[5, 4])
    names = alt.Chart(_farthest(pairs, labelled))
    points = names.mark_point(filled=True, color="black", size=30).encode(**at)
    texts = names.mark_text(fontSize=11, align="left", dx=6, dy=-5).encode(**at, text="pair:N")
    return finish(
        alt.layer(cells, line.encode(**at), points, texts),
        "Large couplings of the output layer hold for all weights; small ones say little",
        "darkness: number of pairs; dashed: equal; named: the pairs farthest off; both axes symmetric log",
        "Density of pairs by the proxy and the full gradient inner product. " + describe_kinds(pairs),
        height=320,
    )


def describe_kinds(pairs: pd.DataFrame) -> str:
    """Mean sizes of K and P by kind of pair, in words."""
    sizes = pairs[["kernel", "product"]].abs().groupby(pairs["kind"]).mean()
    return "; ".join(f"{row.Index}: |K| {row.kernel:.3g}, |P| {row.product:.3g}" for row in sizes.itertuples())


def _cells(pairs: pd.DataFrame) -> pd.DataFrame:
    """Pairs counted in squares of the symmetric log plane: columns x0, x1, y0, y1, pairs, kind (the commonest)."""
    places = pd.DataFrame({"x": pairs["kernel"], "y": pairs["product"]})
    places = np.round(np.sign(places) * np.log1p(places.abs() / LINEAR) / SQUARE).astype(int)
    counts = places.assign(kind=pairs["kind"]).groupby(["x", "y"])["kind"]
    table = counts.agg(pairs="size", kind=lambda kinds: kinds.mode()[0]).reset_index()
    for axis in "xy":
        for end, half in ((f"{axis}0", -0.5), (f"{axis}1", 0.5)):
            edge = (table[axis] + half) * SQUARE
            table[end] = np.sign(edge) * LINEAR * np.expm1(edge.abs())
    return table.drop(columns=["x", "y"])


def _farthest(pairs: pd.DataFrame, count: int) -> pd.DataFrame:
    """The pairs of words whose P is farthest from their K, one of each neighbourhood, so that names stay apart."""
    gap = (pairs["product"] - pairs["kernel"]).abs()
    near = [np.round(np.sign(pairs[name]) * np.log1p(pairs[name].abs() / LINEAR)) for name in ("kernel", "product")]
    order = pairs.assign(gap=gap, x=near[0], y=near[1]).sort_values("gap", ascending=False)
    return order.drop_duplicates("pair").drop_duplicates(["x", "y"]).head(count)[["kernel", "product", "pair"]]


def agreement_by_movement(table: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """H4 by how far tokens move: share whose direction the output layer predicts, in equally many tokens a bin.

    table: of `proxy_agreement`.  Columns size (median |dlogp|, nats), mean, low, high (interval over prompts), tokens,
    unsure (share of tokens below UNSURE).
    """
    moved = table.dropna(subset="agree").assign(size=lambda t: t["dlogp"].abs())
    rank = moved["size"].rank(method="first")
    place = np.minimum((rank - 1) * bins // len(moved), bins - 1)
    rows = []
    for _, part in moved.groupby(place):
        interval = bootstrap_mean(part["agree"].astype(float), part["group"])
        unsure = float((part["logp"] < np.log(UNSURE)).mean())
        rows.append({"size": part["size"].median(), **interval._asdict(), "tokens": len(part), "unsure": unsure})
    return pd.DataFrame(rows)


def agreement_by_movement_chart(table: pd.DataFrame, paper: float = 0.7) -> alt.LayerChart:
    """Points of `agreement_by_movement`, from tokens that hardly move to those that move most."""
    require(table, ["size", "mean", "low", "high", "tokens", "unsure"], "agreement_by_movement_chart")
    x = (
        alt.X("size:Q", title="how far a token moves, |dlogp| (nats, log scale)")
        .scale(type="log")
        .axis(format="~e", tickCount=6, grid=False)
    )
    y = alt.Y("mean:Q", title="share whose sign agrees").scale(domain=[0, 1])
    look = {"spread": "bars", "shown": ["tokens", "unsure"], "color": alt.value(ACCENT)}
    return titled(
        figures.series(table, x, y, threshold=paper, **look),
        "The output layer predicts the direction of tokens that move far",
        f"a tenth of the tokens a point, 95 % intervals over prompts; dashed: {paper:g}, the paper's, of all tokens",
        describe_rows(table.assign(name=table["size"].map("{:.1e} nats".format)), "name", form=".2f", interval=True),
    )


def first_step_chart(table: pd.DataFrame) -> alt.LayerChart:
    """How far a first step moves tokens against how hard they are pushed: columns optimizer, factor, size (nats)."""
    require(table, ["optimizer", "factor", "size"], "first_step_chart")
    log = alt.Scale(type="log")
    x = alt.X("factor:Q", title="how hard the token pushes (times its advantage)", scale=log).axis(
        format="~g", tickCount=5
    )
    y = alt.Y("size:Q", title="mean |dlogp| of all tokens (nats)", scale=log).axis(format="~e", tickCount=5)
    return titled(
        figures.series(table, x, y, by="optimizer", spread=None, dash="optimizer", form=".2g"),
        "Adam's first step is as long for a whisper as for a shout",
        "one masked update each, from the same weights; both axes logarithmic",
        describe_rows(table, "optimizer", "factor", value="size", form=".2g"),
    )


def times_chart(table: pd.DataFrame, threshold: float) -> alt.HConcatChart:
    """Factors by which each kind moves less, a panel for each policy: kind, panel, series, mean, low, high."""
    require(table, ["kind", "panel", "mean", "low", "high", "series"], "times_chart")
    order = table.groupby("kind")["mean"].mean().sort_values().index.tolist()
    table = table.assign(place=table["kind"].map(order.index)).sort_values("place", kind="stable").drop(columns="place")
    low, high = 0.8 * min(table["low"].min(), threshold), 1.25 * table["high"].max()
    x = alt.X("mean:Q", title="times smaller (log scale)").scale(type="log", domain=[low, high], nice=False)
    look = {"names": list(dict.fromkeys(table["series"])), "width": 240, "height": alt.Step(16)}
    panels = []
    for number, (name, part) in enumerate(table.groupby("panel", sort=False)):
        rule = alt.Chart(pd.DataFrame({"x": [threshold], "text": [f"{threshold:g} times"]}))
        words = rule.mark_text(align="left", dx=4, fontSize=11, dy=-4, color=NEUTRAL, baseline="bottom")
        words = words.encode(x=alt.X("x:Q"), y=alt.value("height"), text="text:N")
        y = alt.Y("kind:N", sort=order, title=None).axis(labelLimit=160).scale(domain=order)
        axis = x.axis(values=[1, 3, 10, 100, 1_000, 10_000, 100_000], format="~s")
        panels.append(
            figures.forest(
                part,
                y,
                axis,
                "series",
                threshold=threshold,
                labels=number == 0,
                over=[words] if number == 0 else [],
                title=name,
                **look,
            )
        )
    return figures.panels(
        panels,
        "Within one update Adam blurs which tokens move",
        "movement of the same token, unsure, over that of each kind; 95 % bootstrap intervals over seeds and prompts",
        describe_rows(table, "panel", "series", "kind"),
    )


def followers_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Mean dlogp of each kind of token in masked updates: columns kind, quantity, mean; low and high if there are."""
    require(table, ["kind", "quantity", "mean"], "followers_chart")
    kind = alt.Y("kind:N", sort=list(KINDS), title=None).axis(labelLimit=200)
    return titled(
        figures.bars(table, kind, "mean dlogp (nats)", "quantity", form="+.4f", height=alt.Step(15)),
        "The same unsure token goes along; its rivals go the other way",
        "mean change of log-probability when one token of a prompt pushes, by kind of token",
        describe_rows(table, "quantity", "kind", form="+.3f"),
    )
