"""Coupling of a model's own tokens: maps over confidence, the proxy against full gradients, who follows a push.

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
from workbook.views.explorer import Explorer, log_slider, menu, slider
from workbook.views.style import NEUTRAL, SERIES, color_and_shape, finish, require

TOKENS = ("same token", "different tokens")
PLACES = {"other contexts": ("within a rollout", "across rollouts"), "the same context": ("same context",)}
SHOWN = KINDS[2:]  # followers outside the pushing contexts
FOLDS = len(FINE) + 1


def confidence_chart(table: pd.DataFrame) -> alt.Chart:
    """Mean |K| over bins of both probabilities, for the same and for different tokens; of `compute_confidence`."""
    require(table, ["token", "low_i", "high_i", "low_j", "high_j", "size", "label"], "confidence_chart")
    unit = alt.Scale(domain=[0, 1], nice=False)
    base = alt.Chart(table).encode(
        x=alt.X("low_i:Q", title="p of one token", scale=unit).axis(grid=False),
        x2="high_i:Q",
        y=alt.Y("low_j:Q", title="p of the other", scale=unit).axis(grid=False),
        y2="high_j:Q",
    )
    squares = base.mark_rect(stroke="white").encode(
        color=alt.Color("size:Q", title="mean |K|").scale(scheme="blues", domainMin=0),
        tooltip=[
            "token:N",
            alt.Tooltip("size:Q", format=".4g", title="mean |K|"),
            alt.Tooltip("mean:Q", format="+.4g", title="mean K"),
            alt.Tooltip("pairs:Q", format=","),
        ],
    )
    ink = alt.when(alt.datum.dark).then(alt.value("white")).otherwise(alt.value("black"))
    numbers = (
        alt.Chart(table)
        .mark_text(fontSize=11)
        .encode(x=alt.X("at_i:Q", scale=unit), y=alt.Y("at_j:Q", scale=unit), text="label:N", color=ink)
    )
    panels = alt.layer(squares, numbers).properties(width=290, height=290)
    panels = panels.facet(column=alt.Column("token:N", sort=list(TOKENS), title=None).header(labelFontSize=13))
    heading = alt.TitleParams(
        "Coupling of real token pairs, by how sure the model is of both",
        subtitle="mean |K|: nats per unit of learning rate and advantage; white: no such pairs",
        anchor="start",
        subtitleColor=NEUTRAL,
    )
    about = f"{heading.text}. Two heat maps over both tokens' probabilities."
    return panels.properties(title=heading, description=about)


def products_chart(pairs: pd.DataFrame) -> alt.LayerChart:
    """K of the output layer against the full gradient product, a mark per pair: columns kernel, product, kind."""
    require(pairs, ["kernel", "product", "kind"], "products_chart")
    x, y = (
        alt.X("kernel:Q", title="K, output layer alone (nats per unit of lr and advantage, symmetric log)"),
        alt.Y("product:Q", title="P, all trained weights (same unit)"),
    )
    x, y = (each.axis(values=[-100, -10, -1, 0, 1, 10, 100]) for each in (x, y))
    both = alt.Scale(type="symlog", constant=0.1)
    both_columns = pairs[["kernel", "product"]].to_numpy()
    lowest, highest = float(both_columns.min()), float(both_columns.max())
    line = pd.DataFrame({"kernel": [lowest, highest], "product": [lowest, highest]})
    marks = (
        alt.Chart(pairs)
        .mark_point(filled=True, size=22, opacity=0.55)
        .encode(
            x=x.scale(both),
            y=y.scale(both),
            color=alt.Color("kind:N", title=None).scale(range=SERIES),
            shape=alt.Shape("kind:N", title=None),
            tooltip=["kind:N", alt.Tooltip("kernel:Q", format="+.3g"), alt.Tooltip("product:Q", format="+.3g")],
        )
    )
    diagonal = alt.Chart(line).mark_line(color=NEUTRAL, strokeDash=[5, 4]).encode(x=x.scale(both), y=y.scale(both))
    return finish(
        alt.layer(diagonal, marks).configure_legend(orient="bottom", columns=3, labelLimit=240),
        "The output layer's product against that of all weights",
        "one mark: one pair of tokens; dashed: equal",
        "Scatter plot of the proxy against the full gradient inner product.",
        height=320,
    )


def times_chart(table: pd.DataFrame, threshold: float) -> alt.LayerChart:
    """How many times smaller each kind is: columns kind, mean, low, high, series; a rule at the threshold."""
    require(table, ["kind", "mean", "low", "high", "series"], "times_chart")
    scale = alt.Scale(type="log")
    look = color_and_shape("series", list(dict.fromkeys(table["series"])))
    base = alt.Chart(table).encode(
        y=alt.Y("kind:N", sort=None, title=None).axis(labelLimit=260),
        yOffset=alt.YOffset("series:N", sort=None),
        color=look["color"],
    )
    rule = pd.DataFrame({"threshold": [threshold]})
    chart = alt.layer(
        alt.Chart(rule).mark_rule(strokeDash=[4, 3]).encode(x=alt.X("threshold:Q", scale=scale)),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        base.mark_point(filled=True, size=80, opacity=1).encode(
            x=alt.X("mean:Q", scale=scale, title="times smaller (log scale)").axis(tickCount=6, format="~s"),
            shape=look["shape"],
            tooltip=[
                "series:N",
                "kind:N",
                *[alt.Tooltip(f"{name}:Q", format=".3g") for name in ("mean", "low", "high")],
            ],
        ),
    )
    return finish(
        chart.configure_legend(orient="bottom", columns=2, labelLimit=320),
        "How many times smaller than the same token, unsure",
        f"geometric means, 95% bootstrap intervals over seeds and prompts; dashed: the threshold, {threshold:g}",
        "Points with intervals, one row for each kind.",
        height=alt.Step(14),
    )


def followers_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Mean dlogp of each kind of token in a masked update: columns kind, quantity, mean, low, high."""
    require(table, ["kind", "quantity", "mean", "low", "high"], "followers_chart")
    base = alt.Chart(table).encode(
        y=alt.Y("kind:N", sort=list(KINDS), title=None).axis(labelLimit=200),
        yOffset=alt.YOffset("quantity:N", sort=None),
    )
    chart = alt.layer(
        base.mark_bar().encode(
            x=alt.X("mean:Q", title="mean dlogp (nats)"),
            color=alt.Color("quantity:N", sort=None, title=None).scale(range=SERIES),
            tooltip=["kind:N", "quantity:N", alt.Tooltip("mean:Q", format="+.4f")],
        ),
        base.mark_rule(color="black").encode(x=alt.X("low:Q"), x2="high:Q"),
    )
    return finish(
        chart.configure_legend(orient="bottom", labelLimit=320),
        "One token pushes: who follows?",
        "bars: means; lines: 95% bootstrap intervals over seeds and prompts",
        "Bars of the mean change of log-probability, by kind of token.",
        height=alt.Step(15),
    )


def agreement_chart(table: pd.DataFrame, threshold: float) -> alt.LayerChart:
    """Agreement of signs along training: columns step, tokens (a name), mean, low, high; a rule at the threshold."""
    require(table, ["step", "tokens", "mean", "low", "high"], "agreement_chart")
    base = alt.Chart(table).encode(
        x=alt.X("step:Q", title="training step").axis(values=sorted(table["step"].unique().tolist())),
        color=alt.Color("tokens:N", sort=None, title=None)
        .scale(range=SERIES)
        .legend(symbolOpacity=1, symbolType="circle"),
    )
    share = alt.Scale(domain=[0, 1])
    rule = pd.DataFrame({"threshold": [threshold]})
    chart = alt.layer(
        base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", scale=share), y2="high:Q"),
        base.mark_line(point=True, strokeWidth=2.5).encode(
            y=alt.Y("mean:Q", title="share that agrees in sign", scale=share),
            strokeDash=alt.StrokeDash("tokens:N", sort=None, legend=None),
            tooltip=[
                "tokens:N",
                "step:Q",
                *[alt.Tooltip(f"{name}:Q", format=".3f") for name in ("mean", "low", "high")],
            ],
        ),
        alt.Chart(rule).mark_rule(strokeDash=[4, 3]).encode(y="threshold:Q"),
    )
    return finish(
        chart.configure_legend(orient="bottom", labelLimit=320),
        "Does the output layer alone foretell the sign?",
        f"lines: means; bands: 95% intervals over seeds and prompts; dashed: the threshold, {threshold:g}",
        "Lines of the share of tokens whose change agrees in sign with the output layer's, over training.",
        height=240,
    )


def curves_chart(curves: pd.DataFrame, bars: pd.DataFrame) -> alt.HConcatChart:
    """Movement of each kind over the learning rate, and at the rate chosen; tables of `compute_push`."""
    kind = alt.Color("kind:N", sort=list(SHOWN), title=None).scale(domain=list(SHOWN), range=SERIES[: len(SHOWN)])
    log = alt.Scale(type="log")
    lines = (
        alt.Chart(curves)
        .mark_line(strokeWidth=2.5)
        .encode(
            x=alt.X("lr:Q", title="learning rate (log scale)", scale=log).axis(tickCount=4, format="~g"),
            y=alt.Y("size:Q", title="mean |dlogp| (nats, log scale)", scale=log).axis(tickCount=6, format="~g"),
            color=kind,
            tooltip=["kind:N", alt.Tooltip("lr:Q", format=".2g"), alt.Tooltip("size:Q", format=".3g")],
        )
    )
    here = alt.Chart(bars).mark_rule(strokeDash=[4, 3], color=NEUTRAL).encode(x=alt.X("lr:Q", scale=log))
    marks = (
        alt.Chart(bars)
        .mark_bar()
        .encode(
            x=alt.X("dlogp:Q", title="mean dlogp at the dashed rate (nats)"),
            y=alt.Y("kind:N", sort=list(SHOWN), title=None).axis(labelLimit=160),
            color=kind,
            tooltip=["kind:N", alt.Tooltip("dlogp:Q", format="+.4f"), alt.Tooltip("size:Q", format=".4g")],
        )
    )
    panels = alt.hconcat(
        alt.layer(lines, here).properties(width=330, height=230), marks.properties(width=250, height=230), spacing=20
    )
    heading = alt.TitleParams(
        "One token pushes: how far others move",
        subtitle="means over prompts of the bundled policy; the pushing contexts are left out",
        anchor="start",
        subtitleColor=NEUTRAL,
    )
    about = f"{heading.text}. Left: mean movement over the learning rate. Right: the mean change at one rate."
    return panels.configure_legend(orient="bottom").properties(title=heading, description=about)


def explore_confidence() -> Explorer:
    """Merge the map of real couplings into few or many bins of confidence."""
    controls = {
        "bins": slider(4, 2, FOLDS, 1, "bins of confidence"),
        "scale": menu("bundled", [("the bundled policy", "bundled"), ("SmolLM2-135M", "smollm2")], "model"),
        "place": menu("other contexts", list(PLACES), "pairs in"),
    }
    return Explorer(compute_confidence, confidence_chart, controls, say_confidence)


def explore_push() -> Explorer:
    """Choose the optimizer, the learning rate, and whether an unsure or a sure token pushes."""
    controls = {
        "lr": log_slider(0.1, -2, 1, "learning rate", step=0.25),
        "optimizer": menu("sgd", [("SGD", "sgd"), ("AdamW (a hundredth of the rate)", "adamw")], "optimizer"),
        "pushing": menu("unsure", [("an unsure token", "unsure"), ("a sure token", "sure")], "what pushes"),
    }
    return Explorer(compute_push, curves_chart, controls, say_push)


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


def say_confidence(table: pd.DataFrame) -> str:
    """The two largest cells."""
    top = {token: table[table["token"] == token]["size"].max() for token in TOKENS}
    at = table.loc[table["size"].idxmax()]
    return (
        f"Largest mean |K|: {top[TOKENS[0]]:.3g} for the same token, {top[TOKENS[1]]:.3g} for different tokens. The "
        f"largest of all is a {at['token']} cell, p from {at['low_i']:.2f} to {at['high_i']:.2f} and from "
        f"{at['low_j']:.2f} to {at['high_j']:.2f}."
    )


def say_push(curves: pd.DataFrame, bars: pd.DataFrame) -> str:
    """Who moves, in numbers."""
    told = "; ".join(f"{row.kind}: {row.dlogp:+.4f}" for row in bars.itertuples())
    return f"At a rate of {bars['lr'].iloc[0]:.2g}, mean dlogp in nats: {told}."


@cache
def _map(scale: str) -> pd.DataFrame:
    return load_measured("coupling", scale, "map")


@cache
def _curves() -> pd.DataFrame:
    """Means over seeds and prompts of the study's masked updates, for each kind outside the pushing contexts."""
    table = load_measured("coupling", "bundled", "curves")
    table = table[table["kind"].isin(SHOWN)]
    means = table.groupby(["optimizer", "pushing", "lr", "kind"])[["dlogp", "size"]].mean().reset_index()
    return means.sort_values(["kind", "lr"], ignore_index=True)
