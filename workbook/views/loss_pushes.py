"""The push of every token under an objective, so that two objectives can be compared on the same rollouts.

`loss_term` has the same formula for one token, in symbols and with its reason; a test holds them equal.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from workbook.views.loss_slopes import (
    SAPO,
    UNCOUNTED,
    bounds,
    correction,
    loss_type,
    normalizer,
    number_of,
    phi_weight,
    ratio_level,
    spreads,
    stopped_by,
    transformed_weights,
)
from workbook.views.loss_term import MASKS, OWN_LENGTH
from workbook.views.style import require

DEFAULTS = {"level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2}  # TRL's
NEEDED = ("group", "rollout", "position", "advantage")


def with_push(table: pd.DataFrame, objective: dict | None = None) -> pd.DataFrame:
    """The token table with the push of every token under an objective, which then stands in its `attrs`.

    table: columns group, rollout, position, advantage, and where they matter ratio, importance, stopped, logp and
    old_logp; without a ratio every token has 1, as in the first step after sampling.  objective: loss_type and what
    else the loss reads; what it does not name is as in the table's own, else TRL's default. A normalizer that is not
    given is that of one batch of all these rollouts, unless the table's own loss has one.

    Raises ValueError for a loss without its numbers, and for another ratio level than the one that was recorded.

    >>> rows = pd.DataFrame({"group": 0, "rollout": [0, 0, 1], "position": [0, 1, 0], "advantage": [1.0, 1.0, -1.0]})
    >>> with_push(rows, {"loss_type": "grpo"})["push"].tolist()
    [0.25, 0.25, -0.5]
    >>> with_push(rows, {"loss_type": "dapo"})["push"].round(3).tolist()
    [0.333, 0.333, -0.333]
    """
    require(table, NEEDED, "with_push")
    own = table.attrs.get("objective")
    full = merged(table, own if isinstance(own, dict) else {}, objective or {})
    rows = table if "ratio" in table else table.assign(ratio=1.0)
    groups = [_pushes(group, full) for _, group in rows.groupby("group", sort=False)]
    pushed = rows.assign(push=pd.concat(groups))
    pushed.attrs = table.attrs | {"objective": full | {"computed": True}}
    return pushed


def merged(table: pd.DataFrame, own: dict, objective: dict) -> dict:
    """A whole objective: what is asked for, else the table's own, else the defaults, with a normalizer."""
    full = DEFAULTS | own | objective
    kind = loss_type(full)
    if "ratio" in table and own and ratio_level(full) != ratio_level(own):
        raise ValueError(
            f"level={ratio_level(full)!r}: the table's ratios are those of level={ratio_level(own)!r}; compare "
            "objectives of one level."
        )
    if "normalizer" in objective or ("normalizer" in own and kind == own.get("loss_type")):
        return full
    return full | {"normalizer": batch_normalizer(table, kind, full)}


def batch_normalizer(table: pd.DataFrame, kind: str, objective: dict) -> float:
    """N of one batch of all rollouts of a table."""
    counted = table[~stopped_by(table).isin(UNCOUNTED)]
    rollouts = table.groupby(["group", "rollout"]).ngroups
    if kind in OWN_LENGTH:
        return float(rollouts)
    if kind == "dr_grpo":
        longest = objective.get("max_completion_length") or int(table["position"].max()) + 1
        return float(rollouts * longest)
    if kind == "luspo":
        raise ValueError("loss_type='luspo' needs its normalizer: give normalizer=.")
    return float(max(len(counted), 1))


def _pushes(group: pd.DataFrame, objective: dict) -> pd.Series:
    """Pushes of one group's tokens; NaN where a token has no ratio or advantage."""
    kind, mask = loss_type(objective), stopped_by(group)
    slopes = _slopes(group, kind, objective)
    pushes = pd.Series(np.nan, index=group.index)
    for rollout, rows in group.groupby("rollout", sort=False):
        counted = rows[~mask[rows.index].isin(UNCOUNTED)]
        factor = slopes[rows.index] * rows["advantage"].astype(float) / normalizer(objective, rollout)
        if kind in OWN_LENGTH:
            factor = factor / max(len(counted), 1)
        if "group_transform" not in objective or not objective["group_transform"]:
            factor = factor * (1.0 if kind == "vespo" else _correction(rows, counted, objective))
        pushes[rows.index] = factor
    return pushes.mask(mask.isin(MASKS), 0.0)


def _slopes(group: pd.DataFrame, kind: str, objective: dict) -> pd.Series:
    """The slope of the loss's term at each token."""
    if transform := objective.get("group_transform"):
        return pd.Series(transformed_weights(group, objective, transform)[1], index=group.index)
    r, a = (group[name].to_numpy(dtype=float) for name in ("ratio", "advantage"))
    if kind == "cispo":
        slopes = np.minimum(r, number_of(objective, "epsilon_high"))
    elif kind == "sapo":
        up, down = (number_of(objective, f"sapo_temperature_{sign}", SAPO) for sign in ("pos", "neg"))
        gate = 1 / (1 + np.exp(-np.where(a > 0, up, down) * (r - 1)))
        slopes = 4 * gate * (1 - gate) * r
    elif kind == "vespo":
        slopes = _phis(group, a, objective)
    else:
        slopes = np.where(_is_clipped(r, a, objective), 0.0, r)
    return pd.Series(np.where(np.isnan(r), np.nan, slopes), index=group.index)


def _is_clipped(r: np.ndarray, a: np.ndarray, objective: dict) -> np.ndarray:
    low, high = bounds(objective)
    if objective.get("clipping") == "symmetric":
        return (r < low) | (r > high)
    clipped = ((r > high) & (a > 0)) | ((r < low) & (a < 0))
    if objective.get("delta") is not None:
        clipped |= (r > high) & (r > number_of(objective, "delta"))
    return clipped


def _phis(group: pd.DataFrame, a: np.ndarray, objective: dict) -> np.ndarray:
    """VESPO's weight of each token's rollout, by the sign of its advantage."""
    slopes, counts = np.full(len(group), np.nan), ~stopped_by(group).isin(UNCOUNTED).to_numpy()
    numbers = group["rollout"].to_numpy()
    for rollout in pd.unique(numbers):
        counted = group[(numbers == rollout) & counts]
        for up in (True, False):
            here = (numbers == rollout) & ((a >= 0) == up)
            if here.any():
                slopes[here] = phi_weight(counted, 1.0 if up else -1.0, objective)[0]
    return slopes


def _correction(rows: pd.DataFrame, counted: pd.DataFrame, objective: dict) -> np.ndarray | float:
    """The importance ratio as a factor of each token, or its mean where a rollout's terms share a gradient."""
    if "importance" not in rows:
        return 1.0
    if spreads(objective, rows):
        return math.prod(correction(rows.iloc[0], counted, True).values())
    rho = rows["importance"].to_numpy(dtype=float)
    return np.where(np.isfinite(rho), rho, 1.0)
