"""The residual meter: residual of a shared token's update under each mechanism, and what mending it costs."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.exchange.measured import START, drift_strip
from workbook.topics.exchange.shared import TRANSFORMS
from workbook.topics.exchange.toy import MECHANISMS, TOGETHER, compute_exchange, compute_transforms
from workbook.views.explorer import Explorer, menu, slider, switch
from workbook.views.figures import INTERVAL, bars, by_sign, forest, panels, rule
from workbook.views.style import ACCENT, NEUTRAL, SERIES, describe_rows, require, titled

KEPT = ("right answers' own: push kept", "wrong answers' own: push kept")
SHARES = ("shared token: residual", "own tokens pushed the wrong way", "groups silenced")
REPAIRS = [NEUTRAL, *SERIES[:2]]  # of TRANSFORMS
CLIPPINGS = ["none", "symmetric", "asymmetric"]


def exchange_chart(meter: pd.DataFrame, pushes: pd.DataFrame) -> alt.HConcatChart:
    """Left the residual of each mechanism with its interval, right one group's pushes; below, where the drift lies."""
    upper = alt.hconcat(_meter(meter), _pushes(pushes), spacing=24)
    return panels(
        [upper, drift_strip(meter, width=480)],
        "Residual of the update on a token that the whole group shares",
        "left: mean over 200 groups with its 95 % interval, violet: switched on; right: one group of eight rollouts",
        "Bars of the residual under each mechanism alone and all that are switched on; the pushes of one group.",
        vertical=True,
    )


def _meter(meter: pd.DataFrame) -> alt.LayerChart:
    y = alt.Y("mechanism:N", sort=[*MECHANISMS, TOGETHER], title=None).axis(labelLimit=180)
    silent = "(datum.silent > 0.005 ? ', ' + format(datum.silent, '.0%') + ' of groups silent' : '')"
    texts = alt.Chart(meter).transform_calculate(text=f"format(datum.mean, '.2f') + {silent}")
    return bars(
        meter,
        y,
        alt.X("mean:Q", title="residual (0 cancels, 1 adds up)").scale(domain=[0, 1]),
        color=alt.when("datum.on").then(alt.value(ACCENT)).otherwise(alt.value("#b9c3cc")),
        zero=False,
        form=".3f",
        shown=["silent"],
        over=[texts.mark_text(align="left", dx=6).encode(x="high:Q", y=y, text="text:N")],
        width=250,
        height=230,
    )


def _pushes(pushes: pd.DataFrame) -> alt.LayerChart:
    y, ticks = alt.Y("rollout:N", sort=None, title="rollout"), [-1, -0.5, 0, 0.5, 1]
    x = alt.X("push:Q", title="push, share of the group's total").scale(domain=[-1, 1])
    rewards = alt.Chart(pushes).mark_text(align="left", color=NEUTRAL)
    return bars(
        pushes,
        y,
        x.axis(values=ticks),
        color=by_sign("push"),
        number="+.2f",
        outlined="datum.rollout === 'net'",
        shown=["reward"],
        over=[rewards.encode(x=alt.value(4), y=y, text="reward:N")],
        width=180,
        height=230,
    )


def describe_exchange(meter: pd.DataFrame, pushes: pd.DataFrame) -> str:
    """Residual of the mechanisms that are switched on, in a sentence."""
    last = meter.set_index("mechanism").loc[TOGETHER]
    silent = f" In {last['silent']:.0%} of groups nothing pushes it at all." if last["silent"] > 0.005 else ""
    if last["mean"] < 1e-9:
        return f"Switched on together: the shared token cancels.{silent}"
    interval = f"{last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}]"
    return f"Switched on together: a residual of {interval} on the shared token.{silent}"


def explore_exchange() -> Explorer:
    """Every mechanism as a switch, its strength as a slider, on one residual meter."""
    controls = {
        "sequence": switch(True, "sequence ratio (GSPO)"),
        "drift": slider(START, 0.0, 1.0, 0.02, "ratio drift"),
        "clipping": menu("none", CLIPPINGS, "clipping"),
        "clip_range": slider(0.2, 0.01, 1.0, 0.01, "clip range"),
        "per_length": switch(False, "1/T per sequence"),
        "length_spread": slider(0.5, 0.0, 1.0, 0.05, "length spread"),
        "own_embeddings": switch(False, "own embeddings"),
        "angle": slider(60.0, 0.0, 90.0, 5.0, "angle of gradients (°)"),
        "masking": switch(False, "position masking"),
        "masked_share": slider(0.25, 0.0, 0.75, 0.05, "share masked"),
        "transform": menu("none", list(TRANSFORMS), "transform"),
        "follows_reward": slider(0.0, 0.0, 1.0, 0.05, "follows the reward"),
    }
    return Explorer(compute_exchange, exchange_chart, controls, describe_exchange)


def repairs_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Residual of each mechanism alone, without a repair and with either; columns mechanism, transform, mean, ..."""
    require(table, ("mechanism", "transform", *INTERVAL), "repairs_chart")
    x = alt.X("mean:Q", title="residual (0 cancels, 1 adds up)").scale(domainMin=0)
    return titled(
        forest(table, "mechanism", x, by="transform", colors=REPAIRS, zero=True, width=440, height=alt.Step(13)),
        "What leaves a push on a shared token, and what takes it away",
        "each mechanism alone: mean over 200 groups with its 95 % interval",
        describe_rows(table, "mechanism", "transform", form=".3f", interval=True),
    )


def normalizer_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Residual that a loss's normalizer leaves, by batch and loss type; columns batch, loss_type, mean, low, high."""
    require(table, ("batch", "loss_type", *INTERVAL), "normalizer_chart")
    x = alt.X("mean:Q", title="residual (0 cancels, 1 adds up)").scale(domainMin=0)
    return titled(
        forest(table, "batch", x, by="loss_type", zero=True, width=400, height=alt.Step(15)),
        "A rollout's own length is an unequal weight",
        "before the first step, every ratio 1: mean and 95 % interval",
        describe_rows(table, "batch", "loss_type", form=".3f", interval=True),
    )


def costs_chart(table: pd.DataFrame) -> alt.VConcatChart:
    """What either repair does to the tokens that should move, by setting; columns setting, measure, transform, mean."""
    require(table, ("setting", "measure", "transform", *INTERVAL), "costs_chart")
    rows = table[table["transform"] != "none"]
    titles = {KEPT[0]: "right answers' push kept", KEPT[1]: "wrong answers' push kept"}
    titles |= {SHARES[1]: "pushed the wrong way", SHARES[2]: "groups silenced"}
    parts = [
        _cost(rows[rows["measure"] == m], title, m in KEPT, k % 2 == 0) for k, (m, title) in enumerate(titles.items())
    ]
    pairs = [alt.hconcat(*parts[:2], spacing=16), alt.hconcat(*parts[2:], spacing=16)]
    return panels(
        pairs,
        "What a repair costs the tokens that should move",
        "above: multiple of the push without repair (line: 1); below: shares; 95 % intervals over 200 groups",
        describe_rows(rows[rows["measure"].isin(titles)], "setting", "measure", "transform", form=".2f"),
        spacing=8,
        vertical=True,
    )


def _cost(rows: pd.DataFrame, title: str, kept: bool, labels: bool) -> alt.LayerChart:
    x = alt.X("mean:Q", title="multiple" if kept else "share").scale(domain=[0, 3] if kept else [0, 0.6], clamp=True)
    look = {"by": "transform", "names": list(TRANSFORMS)[1:], "colors": REPAIRS[1:], "labels": labels, "width": 200}
    under = [rule(1, "x", color=NEUTRAL)] if kept else []
    return forest(rows, "setting", x, title=title, under=under, height=alt.Step(16), **look)


def transforms_chart(table: pd.DataFrame) -> alt.VConcatChart:
    """Three transforms beside one another: what they do to the shared token, and to the tokens that should move."""
    shares = _measures(table, SHARES, [0, 1], "share", ".3f")
    kept = _measures(table, KEPT, [0, 3], "multiple of the untransformed push", ".2f")
    return panels(
        [shares, kept],
        "What a transform mends, and what it does to the tokens that should move",
        "means over 200 groups with their 95 % intervals; bars end at the panel's edge, the label has the number",
        "For no transform, min-replace and advantage-orthogonal: residual, wrong-way and silenced shares, push kept.",
        spacing=12,
        vertical=True,
    )


def _measures(table: pd.DataFrame, measures: tuple, domain: list, title: str, number: str) -> alt.FacetChart:
    x = alt.X("mean:Q", title=title).scale(domain=domain, clamp=True, nice=False).axis(tickCount=6)
    chart = bars(
        table,
        alt.Y("transform:N", sort=list(TRANSFORMS), title=None).axis(labelLimit=150),
        x,
        color=alt.Color("transform:N", legend=None).scale(domain=list(TRANSFORMS), range=REPAIRS),
        number=number,
        shown=["measure"],
        zero=False,
        width=330,
        height=54,
    )
    header = alt.Header(labelAngle=0, labelAlign="left", labelLimit=230, labelFontSize=12)
    row = alt.Row("measure:N", sort=list(measures), title=None, header=header)
    return chart.transform_filter(alt.FieldOneOfPredicate("measure", list(measures))).facet(row=row, spacing=8)


def describe_transforms(table: pd.DataFrame) -> str:
    """Cost of either transform, in a sentence."""
    mean = table.pivot(index="measure", columns="transform", values="mean")
    low, project = mean["min-replace"], mean["advantage-orthogonal"]
    return (
        f"Min-replace keeps {low[KEPT[0]]:.0%} of the right answers' push and {low[KEPT[1]]:.0%} of the wrong ones', "
        f"and silences {low[SHARES[2]]:.0%} of groups. Advantage-orthogonal keeps {project[KEPT[0]]:.0%} and "
        f"{project[KEPT[1]]:.0%}, and pushes {project[SHARES[1]]:.1%} of own tokens against their advantage."
    )


def explore_transforms() -> Explorer:
    """Make the weights unequal, and see what either transform does to the tokens that should move."""
    controls = {
        "level": menu("sequence", ["sequence", "token"], "ratio"),
        "drift": slider(0.2, 0.0, 1.0, 0.02, "ratio drift"),
        "clipping": menu("none", CLIPPINGS, "clipping"),
        "clip_range": slider(0.2, 0.01, 1.0, 0.01, "clip range"),
        "per_length": switch(True, "1/T per sequence"),
        "length_spread": slider(0.5, 0.0, 1.0, 0.05, "length spread"),
        "right": slider(0.5, 0.05, 0.95, 0.05, "share of right answers"),
        "follows_reward": slider(0.0, 0.0, 1.0, 0.05, "follows the reward"),
        "group_size": slider(8, 2, 32, 1, "group size"),
    }
    return Explorer(compute_transforms, transforms_chart, controls, describe_transforms)
