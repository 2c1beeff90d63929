"""The toy's residual along its ratio drift, and what a real batch left at the drift that steps on it brought.

Measured: the study `loss_types`, whose policies go on stepping on one batch of rollouts (8 units each). The bundled
policy's groups share words; SmolLM2's share none, so that there a position counts as if the whole group shared it.
"""

from __future__ import annotations

from functools import cache

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import t_interval
from workbook.studies.record import load_measured
from workbook.topics.exchange.shared import draw_groups, interval, residuals, single_thread
from workbook.views.figures import INTERVAL, rule
from workbook.views.style import ACCENT, NEUTRAL, SERIES, WIDTH, describe_rows, finish, require, tooltips

SCALES = {"bundled": "bundled policy", "smollm2_chat": "SmolLM2-135M"}
COLUMN = {
    "bundled": "shared",
    "smollm2_chat": "every",
}  # of the study's table: words that a group shares, or all places
STEPS = {2: "2nd", 4: "4th", 8: "8th"}  # step on the batch; at the first nothing has moved
ARMS = {"sequence ratio alone": "sequence ratio", "dr_grpo": "asymmetric clipping"}  # of the study: the toy's mechanism
SWITCHES = {"sequence ratio": {"level": "sequence"}, "asymmetric clipping": {"clipping": "asymmetric"}}
START = 0.04  # the drift that the meter starts with: about that of the second step, by either policy


@cache
def measured_drift() -> pd.DataFrame:
    """Root mean square log-ratio of a batch (nats) by policy and step on it, means and 95 % t intervals over units.

    Columns policy, step, mean, low, high, units; shared, the mean of position-shared words alone (NaN: there are none).
    """
    rows = []
    for scale, policy in SCALES.items():
        table = load_measured("loss_types", scale, "drift")
        for step in STEPS:
            units = table[table["reuse"] == step]
            ends = t_interval(units["drift"])._asdict()
            more = {"units": len(units), "shared": units["shared_drift"].mean()}
            rows.append({"policy": policy, "step": step, **ends, **more})
    return pd.DataFrame(rows)


@cache
def measured_residuals() -> pd.DataFrame:
    """Residual of sequence ratios and of PPO's clip at those steps: policy, mechanism, step, drift, mean, low, high."""
    rows, drift = [], measured_drift().set_index(["policy", "step"])["mean"]
    for scale, policy in SCALES.items():
        table = load_measured("loss_types", scale, "residuals")
        means = table.groupby(["arm", "reuse", "seed"])[COLUMN[scale]].mean()
        for arm, mechanism in ARMS.items():
            for step in STEPS:
                place = {"policy": policy, "mechanism": mechanism, "step": step, "drift": drift[policy, step]}
                rows.append(place | t_interval(means[arm, step])._asdict())
    return pd.DataFrame(rows)


@single_thread
def toy_residuals(least: float = 0.01, most: float = 1.0) -> pd.DataFrame:
    """The toy's residual of the same two mechanisms along its drift: mechanism, drift, mean, low, high."""
    rows = []
    for drift in np.geomspace(least, most, 25):
        draw = draw_groups(drift)
        for mechanism, switches in SWITCHES.items():
            rows.append({"mechanism": mechanism, "drift": drift, **interval(residuals(draw, **switches)[0])})
    return pd.DataFrame(rows)


def drift_chart(toy: pd.DataFrame, measured: pd.DataFrame) -> alt.LayerChart:
    """Residual against drift: lines are the toy, dots with intervals what was measured on two policies.

    toy, measured: as of `toy_residuals` and `measured_residuals`.
    """
    require(toy, ("mechanism", "drift", "mean"), "drift_chart")
    require(measured, ("policy", "mechanism", "drift", "mean", "low", "high"), "drift_chart")
    names = list(SWITCHES)
    below = alt.Legend(title=None, orient="bottom", symbolOpacity=1)
    color = alt.Color("mechanism:N", legend=below, sort=names).scale(domain=names, range=SERIES[:2])
    x = alt.X("drift:Q", title="ratio drift: spread of the log-ratios (nats)")
    x = x.scale(type="log", domain=[0.01, 1], nice=False).axis(values=[0.01, 0.03, 0.1, 0.3, 1], format="~g")
    y = alt.Y("mean:Q", title="residual (0 cancels, 1 adds up)")
    y = y.scale(type="symlog", constant=0.002, domain=[0, 1], clamp=True, nice=False)
    y = y.axis(values=[0, 0.003, 0.01, 0.03, 0.1, 0.3, 1], format="~g")
    dots = alt.Chart(measured).encode(x=x, color=color)
    shape = alt.Shape("policy:N", legend=below).scale(domain=[*SCALES.values()], range=["circle", "triangle-up"])
    hints = tooltips(measured, "policy", "mechanism", "step", "drift", *INTERVAL)
    layers = [
        rule(0.2, "x", dashed=True, color=NEUTRAL),
        alt.Chart(toy).mark_line(strokeWidth=2.5).encode(x=x, y=y, color=color),
        dots.mark_rule(opacity=0.6).encode(y=_end(y, "low"), y2="high:Q"),
        dots.mark_point(filled=True, size=80, opacity=1).encode(y=y, shape=shape, tooltip=hints),
    ]
    return finish(
        alt.layer(*layers).resolve_scale(shape="independent"),
        "The toy against real batches: what is left on a shared token",
        "lines: toy; dots: measured at the 2nd, 4th and 8th step on a batch; dashed: the clip range",
        describe_rows(measured, "policy", "mechanism", "step", form=".3f", interval=True),
        width=WIDTH,
        height=260,
    )


def _end(channel: alt.Y, column: str) -> alt.Y:
    other = channel.copy()
    other.shorthand = f"{column}:Q"
    return other


def drift_strip(meter: pd.DataFrame, width: int) -> alt.LayerChart:
    """Where the slider's drift lies among the measured ones: intervals over units at each step, a line at the slider.

    meter: a table with the column drift.
    """
    y, layers = alt.Y(title=None), []
    for row in measured_drift().itertuples():
        place = alt.Chart().encode(x=alt.datum(row.low), y=alt.datum(row.policy))
        layers.append(place.mark_rule(size=7, color=NEUTRAL, opacity=0.75).encode(x2=alt.datum(row.high)))
        text = place.mark_text(align="left", dx=-2, dy=-10, fontSize=10, color=NEUTRAL)
        layers.append(text.encode(text=alt.value(STEPS[row.step])))
    x = alt.X(
        "max(drift):Q", title="line: your drift (nats); bars: measured before the 2nd, 4th and 8th step on a batch"
    )
    x = x.scale(domain=[0, 1])
    here = alt.Chart(meter).mark_rule(size=3, color=ACCENT).encode(x=x)
    return alt.layer(here, *layers).encode(y=y).properties(width=width, height=alt.Step(30))
