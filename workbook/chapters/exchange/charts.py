"""Charts of gradient exchangeability: the residual meter, repairs, measured residuals, KL drift,
right answers.

Measured: the study `loss_types`, whose policies go on stepping on one batch of rollouts (8 units
each). The bundled policy's groups share words; SmolLM2's share none, so that there a position
counts as if the whole group shared it.
"""

import altair as alt
import numpy as np
import pandas as pd

from workbook.chapters.exchange.drift import PATHS, STEPS, WHEN
from workbook.chapters.exchange.toy import (
    MECHANISMS,
    TOGETHER,
    draw_drifted_groups,
    interval,
    residuals,
    single_thread,
)
from workbook.views.figures import INTERVAL, bars, by_sign, forest, panels, rule, series
from workbook.views.style import (
    ACCENT,
    NEUTRAL,
    SERIES,
    describe_rows,
    finish,
    require_columns,
    titled,
    tooltips,
)

REPAIRS = [NEUTRAL, *SERIES[:2]]  # of TRANSFORMS
_ORDERS = ["exact", "quadratic", "difference"]
STROKES = {"columns": 3, "symbolType": "stroke", "symbolStrokeWidth": 2.5, "labelLimit": 220}
RUNS = ["your settings", "equal weights"]
MEASURES = {
    "entropy": ("entropy over the right answers (nats)", [0, 1.1]),
    "log-odds": ("change of log-odds, first : second", [-1, 3.5]),
    "reward": ("probability of a right answer", [0.4, 1]),
}
RESIDUAL = "residual (0 cancels, 1 adds up)"
# what the study loss_types measured of the toy's mechanisms
MEASURED_MECHANISMS = ["sequence ratio", "asymmetric clipping"]


# --- the residual of one step


def exchange_chart(meter: pd.DataFrame, pushes: pd.DataFrame) -> alt.HConcatChart:
    """Left the residual of each mechanism with its interval, right one group's pushes."""
    y = alt.Y("mechanism:N", sort=[*MECHANISMS, TOGETHER], title=None).axis(labelLimit=180)
    silent = (
        "(datum.silent > 0.005 ? ', ' + format(datum.silent, '.0%') + ' of groups silent' : '')"
    )
    texts = alt.Chart(meter).transform_calculate(text=f"format(datum.mean, '.2f') + {silent}")
    mechanisms = bars(
        meter,
        y,
        alt.X("mean:Q", title=RESIDUAL).scale(domain=[0, 1]),
        color=alt.when("datum.on").then(alt.value(ACCENT)).otherwise(alt.value("#b9c3cc")),
        zero=False,
        form=".3f",
        shown=["silent"],
        over=[texts.mark_text(align="left", dx=6).encode(x="high:Q", y=y, text="text:N")],
        width=288,
        height=230,
    )
    rollout = alt.Y("rollout:N", sort=None, title="rollout")
    push = alt.X("push:Q", title="push, share of the group's total").scale(domain=[-1, 1])
    rewards = (
        alt.Chart(pushes)
        .mark_text(align="left", color=NEUTRAL)
        .encode(x=alt.value(4), y=rollout, text="reward:N")
    )
    look = {
        "number": "+.2f",
        "outlined": "datum.rollout === 'net'",
        "shown": ["reward"],
        "over": [rewards],
    }
    push = push.axis(values=[-1, -0.5, 0, 0.5, 1])
    group = bars(pushes, rollout, push, color=by_sign("push"), width=207, height=230, **look)
    return panels(
        [mechanisms, group],
        "Residual of the update on a token that the whole group shares",
        "left: mean over 200 groups with its 95 % interval, dark: switched on; right: one group of"
        " eight rollouts",
        "Bars of the residual under each mechanism alone and all that are switched on; the pushes"
        " of one group.",
        spacing=24,
    )


@single_thread()
def toy_residuals(least: float = 0.01, most: float = 1.0) -> pd.DataFrame:
    """The toy's residual of the same two mechanisms along its drift: mechanism, drift, mean, low,
    high.
    """
    rows = []
    for drift in np.geomspace(least, most, 25):
        draw = draw_drifted_groups(drift)
        for mechanism in MEASURED_MECHANISMS:
            values = residuals(draw, **MECHANISMS[mechanism])[0]
            rows.append({"mechanism": mechanism, "drift": drift, **interval(values)})
    return pd.DataFrame(rows)


def drift_chart(toy: pd.DataFrame, measured: pd.DataFrame) -> alt.LayerChart:
    """Residual against drift: lines are the toy, dots with intervals what was measured on two
    policies.

    toy: of `toy_residuals`.  measured: columns policy, mechanism, step, drift, mean, low, high.
    """
    names = MEASURED_MECHANISMS
    below = alt.Legend(title=None, orient="bottom", symbolOpacity=1)
    color = alt.Color("mechanism:N", legend=below, sort=names).scale(domain=names, range=SERIES[:2])
    x = alt.X("drift:Q", title="ratio drift: spread of the log-ratios (nats)")
    x = x.scale(type="log", domain=[0.01, 1], nice=False).axis(
        values=[0.01, 0.03, 0.1, 0.3, 1], format="~g"
    )
    scale = {"type": "symlog", "constant": 0.002, "domain": [0, 1], "clamp": True, "nice": False}
    axis = {"values": [0, 0.003, 0.01, 0.03, 0.1, 0.3, 1], "format": "~g"}
    y, low = (
        alt.Y(field, title=RESIDUAL).scale(**scale).axis(**axis) for field in ("mean:Q", "low:Q")
    )
    dots = alt.Chart(measured).encode(x=x, color=color)
    shape = alt.Shape("policy:N", legend=below).scale(
        domain=measured["policy"].unique().tolist(), range=["circle", "triangle-up"]
    )
    hints = tooltips(measured, "policy", "mechanism", "step", "drift", *INTERVAL)
    layers = [
        rule(0.2, "x", dashed=True, color=NEUTRAL),
        alt.Chart(toy).mark_line(strokeWidth=2.5).encode(x=x, y=y, color=color),
        dots.mark_rule(opacity=0.6).encode(y=low, y2="high:Q"),
        dots.mark_point(filled=True, size=80, opacity=1).encode(y=y, shape=shape, tooltip=hints),
    ]
    return finish(
        alt.layer(*layers).resolve_scale(shape="independent"),
        "The toy against real batches: what is left on a shared token",
        "lines: toy; dots: measured at the 2nd, 4th and 8th step on a batch; dashed: the clip"
        " range; linear near 0",
        describe_rows(measured, "policy", "mechanism", "step", form=".3f", interval=True),
        height=260,
    )


def repairs_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Residual of each mechanism alone, without a repair and with either; columns mechanism,
    transform, mean, ...
    """
    title = "What leaves a push on a shared token, and what takes it away"
    subtitle = "each mechanism alone: mean over 200 groups with its 95 % interval"
    return _residuals(
        table, "mechanism", "transform", title, subtitle, colors=REPAIRS, height=alt.Step(15)
    )


def normalizer_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Residual that a loss's normalizer leaves, by batch and loss type; columns batch, loss_type,
    mean, low, high.
    """
    title, subtitle = (
        "A rollout's own length is an unequal weight",
        "before the first step: mean and 95 % interval",
    )
    return _residuals(table, "batch", "loss_type", title, subtitle, height=alt.Step(15))


def _residuals(
    table: pd.DataFrame, row: str, by: str, title: str, subtitle: str, **look
) -> alt.LayerChart:
    require_columns(table, (row, by, *INTERVAL), "a chart of residuals")
    x = alt.X("mean:Q", title=RESIDUAL).scale(domainMin=0)
    numbers = describe_rows(table, row, by, form=".3f", interval=True)
    return titled(forest(table, row, x, by=by, zero=True, **look), title, subtitle, numbers)


# --- drift over many steps


def kl_drift_chart(
    rates: pd.DataFrame, chosen: pd.DataFrame, path: pd.DataFrame
) -> alt.HConcatChart:
    """Left one step's KL over the learning rate, right the KL over many steps; logarithmic axes."""
    scale = {"type": "log", "domain": [1e-10, 10], "nice": False}
    axis = {"format": ".0e", "values": [10.0**exponent for exponent in range(-10, 2, 2)]}
    look = {"legend": STROKES, "clip": True, "points": False, "width": 242, "height": 230}
    x = alt.X("lr:Q", title="learning rate").scale(type="log", domain=[1e-3, 10], nice=False)
    x = x.axis(format=".0e", values=[1e-3, 1e-2, 1e-1, 1, 10])
    y = alt.Y("kl:Q", title="KL(new, old) after one step (nats)").scale(**scale).axis(**axis)
    marks = alt.Chart(chosen).mark_point(size=90, filled=True, opacity=1, clip=True)
    marks = marks.encode(x=x, y=y, color=alt.Color("order:N"), tooltip=["order:N", "lr:Q", "kl:Q"])
    one = series(
        rates, x, y, by="order", names=_ORDERS, dash="order", spread=None, over=[marks], **look
    )
    x = alt.X("step:Q", title="step").scale(type="log", domain=[1, STEPS], nice=False)
    y = alt.Y("mean:Q", title="KL (nats), mean and 95 % interval").scale(**scale).axis(**axis)
    return panels(
        [one, series(path, x, y, by="series", names=PATHS, dash="series", **look)],
        "An uncancelled push drifts: quadratic in the learning rate, and adding up",
        "left: one step, exact, its quadratic form, and their difference; right: 40 steps with the"
        " same learning rate",
        "Two log-log charts: KL divergence of one step against the learning rate, and over steps.",
        spacing=40,
    ).resolve_scale(color="independent", strokeDash="independent")


def solutions_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Entropy over equally right answers, their log-odds and the reward, step by step, against
    equal weights.
    """
    x, look = alt.X("step:Q", title="step").scale(domain=[0, STEPS]), {"width": 171, "height": 220}
    return panels(
        [_measure(table, measure, x, RUNS, **look) for measure in MEASURES],
        "Three answers are equally right: do they stay equally likely?",
        "means over 48 seeds with 95 % intervals; dashed: the same with equal weights",
        "Three line charts over steps: entropy over the right answers, log-odds of two of them, and"
        " reward.",
        spacing=24,
    )


def _measure(
    table: pd.DataFrame, measure: str, x: alt.X, runs: list[str], **look
) -> alt.LayerChart:
    """One of MEASURES over steps, a line per run."""
    title, domain = MEASURES[measure]
    y = alt.Y("mean:Q", title=title).scale(domain=domain, nice=False)
    lines = series(
        table,
        x,
        y,
        by="run",
        names=runs,
        dash="run",
        points=False,
        clip=True,
        **{"legend": STROKES} | look,
    )
    return lines.transform_filter(alt.datum.measure == measure)


def long_run_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Entropy over equally right answers and their log-odds on a logarithmic step axis; table of
    `long_runs`.
    """
    runs = table["run"].drop_duplicates().tolist()
    x = alt.X("step:Q", title="step").scale(type="log", nice=False).axis(values=[1, 10, 100, 1000])
    legend = STROKES | {"columns": 2, "labelLimit": 240}
    look = {"spread": "bars", "legend": legend, "width": 287, "height": 240}
    return panels(
        [_measure(table, measure, x, runs, **look) for measure in ("entropy", "log-odds")],
        "Over thousands of steps: the softmax gradient goes on, the natural gradient halts",
        "means over seeds with 95 % intervals; the step axis is logarithmic",
        "Two line charts on a logarithmic step axis: entropy over the right answers, and change of"
        " their log-odds.",
        spacing=30,
    )


def entropy_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Entropy of every setting, a dot for each of WHEN, against where all began; table of
    `entropy_by_setting`.
    """
    start = float(table["start"].iloc[0])
    x = alt.X("mean:Q", title="entropy over three equally right answers (nats)").scale(
        domain=[0.4, 1], nice=False
    )
    look = {"by": "when", "names": [*WHEN.values()], "colors": SERIES[:2], "number": ".2f"}
    under = [rule(start, "x", dashed=True, color=NEUTRAL)]
    return titled(
        forest(table, "setting", x, under=under, **look),
        "Entropy falls with equal weights, too",
        f"means over seeds with 95 % intervals; dashed: the start, {start:.2f} nats",
        describe_rows(table, "setting", "when", form=".3f", interval=True),
    )
