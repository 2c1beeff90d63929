"""What happened to tokens: pushes by text and by what they share, what stopped them, ratios, residuals, movement.

Each function takes the rows that `workbook.probes.report.prepare` makes of a token table.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.theory.choices import SIGNS

GROUP, PLACE = ["step", "group"], ["step", "group", "position", "token"]
ROLLOUT = ["step", "group", "rollout"]
SHARED = ("same token at the same position", "same token elsewhere, under both signs", "under one sign only")
ROUNDING = 1e-6  # of the sum of |push|, which files hold in float32
MIN_CHANGE = 1e-4  # nats; a token of probability 1 moves by rounding alone


def pushed_tokens(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per token text: how often, under which sign, what pushes it up and down, and how much of that cancels.

    Columns: token, count, positive and negative (places by the sign of the advantage), up, down (sums of push), net,
    total (sum of |push|), cancelled; the most pushed first.
    """
    push = rows["push"]
    parts = pd.DataFrame(
        {
            "token": rows["token"],
            "count": 1,
            "positive": rows["sign"] > 0,
            "negative": rows["sign"] < 0,
            "up": push.clip(lower=0.0),
            "down": push.clip(upper=0.0),
        }
    )
    table = parts.groupby("token", observed=True).sum().reset_index()
    table["net"], table["total"] = table["up"] + table["down"], table["up"] - table["down"]
    table.loc[table["net"].abs() < ROUNDING * table["total"], "net"] = 0.0
    table["cancelled"] = _cancelled(table["net"].abs(), table["total"])
    return table.astype({"token": str}).sort_values(["total", "count"], ascending=False, ignore_index=True)


def shared_tokens(rows: pd.DataFrame) -> pd.DataFrame:
    """How much of |push| cancels inside groups, by what a token shares with others of its group.

    Columns: shared (one of `SHARED`), tokens and push (shares of all), cancelled (share of its own |push|).  A token is
    in the first class that fits: its place is in several rollouts; its text is in the group under both signs.
    """
    absolute = rows["push"].abs()
    place = _key(rows, PLACE)
    word = _key(rows, [*GROUP, "token"])
    at_place = np.bincount(place)[place] > 1
    both = (np.bincount(word, rows["sign"] > 0)[word] > 0) & (np.bincount(word, rows["sign"] < 0)[word] > 0)
    classes = np.select([at_place, both], [0, 1], 2)
    table = []
    for number, unit in enumerate((place, word, word)):
        chosen = classes == number
        total = float(absolute[chosen].sum())
        net = float(np.abs(np.bincount(unit[chosen], rows["push"][chosen])).sum()) if chosen.any() else 0.0
        push = total / max(float(absolute.sum()), 1e-300)
        row = {"shared": SHARED[number], "tokens": chosen.mean(), "push": push}
        table.append(row | {"cancelled": float(_cancelled(net, total))})
    return pd.DataFrame(table)


def stopped_tokens(rows: pd.DataFrame) -> pd.DataFrame:
    """What took gradients away, by reason and sign of the advantage: shares of tokens and of sum |advantage|.

    Columns: reason ("" for nothing), sign, count, tokens, mass.  A token without an advantage is in neither sign.
    """
    signed = rows[rows["sign"] != 0]
    reason, sign = signed["stopped"].astype(str), np.where(signed["sign"] > 0, *SIGNS)
    parts = pd.DataFrame({"reason": reason, "sign": sign, "count": 1, "mass": signed["advantage"].abs()})
    table = parts.groupby(["reason", "sign"]).sum().reset_index()
    return table.assign(
        tokens=table["count"] / max(len(rows), 1), mass=table["mass"] / max(table["mass"].sum(), 1e-300)
    )


def ratio_spread(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean and percentiles of the loss's ratio and of the importance ratio over tokens with an advantage.

    Columns: quantity, n, mean, p1, p25, p50, p75, p99.
    """
    table = []
    for name in ("ratio", "importance"):
        if name in rows:
            values = rows.loc[rows["sign"] != 0, name].astype(float)
            values = values[np.isfinite(values)].to_numpy()
            if len(values):
                ends = np.percentile(values, [1, 25, 50, 75, 99])
                shares = dict(zip(("p1", "p25", "p50", "p75", "p99"), ends, strict=True))
                table.append({"quantity": name, "n": len(values), "mean": values.mean(), **shares})
    return pd.DataFrame(table)


def residuals_by_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean residual |sum of push| / sum of |push| of places in several rollouts, and of those in all of the group.

    Columns: step, places, residual, equal (what equal weights would leave, |sum of A| / sum of |A|), and the same of
    places that all rollouts of the group have: whole, whole_residual, whole_equal. There whole_equal is 0 if the
    step holds the whole group and its advantages are centred, and the rest comes from weights that differ (D1 of arXiv
    2604.13088).
    """
    sizes = rows.groupby(GROUP)["rollout"].nunique()
    parts = rows.assign(absolute=rows["push"].abs(), a=rows["advantage"], b=rows["advantage"].abs())
    places = parts.groupby(PLACE, observed=True).agg(
        n=("rollout", "nunique"), net=("push", "sum"), total=("absolute", "sum"), a=("a", "sum"), b=("b", "sum")
    )
    places = places[(places["n"] > 1) & (places["total"] > 0)].reset_index()
    whole = places["n"].to_numpy() == sizes.reindex(pd.MultiIndex.from_frame(places[GROUP])).to_numpy()
    values = {"residual": places["net"].abs() / places["total"], "equal": places["a"].abs() / places["b"]}
    values |= {f"whole_{name}": column.where(whole) for name, column in values.items()}
    table = pd.DataFrame(values | {"step": places["step"], "places": 1, "whole": whole}).groupby("step")
    return table[["places", "whole"]].sum().join(table[list(values)].mean()).reset_index()


def mean_residual(table: pd.DataFrame, column: str) -> float:
    """Mean of a column of `residuals_by_step` over all steps' places; NaN without any."""
    weights = table["whole" if column.startswith("whole") else "places"]
    return float(np.average(table[column].fillna(0.0), weights=weights)) if weights.sum() else float("nan")


def movement_by_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Entropy and log-probability of tokens by step and sign of the advantage, in nats.

    Columns: step, sign, entropy, change (logp_after - logp), against (of the tokens that were pushed and moved by more
    than `MIN_CHANGE`, the share that moved against their own push), moved (how many these are).
    """
    signed = rows[rows["sign"] != 0]
    table = pd.DataFrame({"step": signed["step"], "sign": np.where(signed["sign"] > 0, *SIGNS)})
    if "entropy" in rows:
        table["entropy"] = signed["entropy"].astype(float)
    if "logp_after" in rows and "logp" in rows:
        change = signed["logp_after"].astype(float) - signed["logp"].astype(float)
        moved = (change.abs() > MIN_CHANGE) & (signed["push"] != 0)
        table["change"] = change
        table["against"] = (change * signed["push"] < 0).astype(float).where(moved)
    if len(table.columns) == 2:
        return pd.DataFrame()
    rows = table.groupby(["step", "sign"])
    means = rows.mean()
    return means.assign(moved=rows["against"].count() if "against" in means else 0).reset_index()


def against_share(movement: pd.DataFrame) -> float:
    """Share of all tokens that were pushed and moved, over steps and signs, that moved against their push; or NaN."""
    if "against" not in movement or not movement["moved"].sum():
        return float("nan")
    return float(np.average(movement["against"].fillna(0.0), weights=movement["moved"]))


def _key(rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    return rows.groupby(columns, observed=True, sort=False).ngroup().to_numpy()


def _cancelled(net, total):
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.asarray(total) > 0, 1 - np.asarray(net) / np.asarray(total), 0.0)
