"""The toy's residual along its ratio drift, and what a real batch left at the drift that steps on it brought.

Measured: the study `loss_types`, whose policies go on stepping on one batch of rollouts (8 units each). The bundled
policy's groups share words; SmolLM2's share none, so that there a position counts as if the whole group shared it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from workbook.statistics import t_interval
from workbook.studies.record import load_measured
from workbook.topics.exchange.toy import MECHANISMS, draw_groups, interval, residuals, single_thread

SCALES = {"bundled": "bundled policy", "smollm2_chat": "SmolLM2-135M"}
COLUMN = {"bundled": "shared", "smollm2_chat": "every"}  # of the study's table: shared words, or all places
STEPS = {2: "2nd", 4: "4th", 8: "8th"}  # step on the batch; at the first nothing has moved
ARMS = {"sequence ratio alone": "sequence ratio", "dr_grpo": "asymmetric clipping"}  # of the study: the toy's mechanism
START_DRIFT = 0.04  # the drift that the meter starts with: about that of the second step, by either policy


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
        for mechanism in ARMS.values():
            values = residuals(draw, **MECHANISMS[mechanism])[0]
            rows.append({"mechanism": mechanism, "drift": drift, **interval(values)})
    return pd.DataFrame(rows)
