"""The study of hidden credit under other settings, from its tables: what chapter 07's sliders compute."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from workbook.statistics import normal_interval
from workbook.studies.claim import BUNDLED
from workbook.topics.credit.gaps import ALL_BANDS, ALL_SIGNS, value_gap

POOLS = ("training", "held-out")
COLUMNS = ("value", "credit_mc", "credit")
BATCHES = (16, 32, 64, 96)
MIN_PROMPTS = 3  # that a mean is taken over


def compute_gap(
    eps: float = 0.01, optimizer: str = "sgd", pool: str = "training", column: str = "value", band_by: str = "value"
) -> pd.DataFrame:
    """Gap by sign and band after one step, of the first seed: columns sign, band, mean, low, high, prompts, tokens.

    eps in nats; low, high: mean -+ two standard errors over prompts.  Raises ValueError if no token moved so far.
    """
    tokens = _tokens(pool)
    gaps = value_gap(tokens.assign(dlogp=tokens[f"dlogp_{optimizer}"]), eps, column, band_by)
    rows = []
    for (sign, band), part in gaps.groupby(["sign", "band"]):
        gap = part["gap"].to_numpy()
        moved = int(part["n_boosted"].sum() + part["n_suppressed"].sum())
        interval = normal_interval(gap, errors=2) if len(gap) >= MIN_PROMPTS else [np.nan] * 3
        rows.append((sign, band, *interval, len(gap), moved))
    table = pd.DataFrame(rows, columns=["sign", "band", "mean", "low", "high", "prompts", "tokens"]).dropna()
    if table.empty:
        raise ValueError(
            f"Fewer than {MIN_PROMPTS} prompts have tokens beyond eps = {eps:.3g} nats both ways; take a smaller eps."
        )
    order = 10 * table["sign"].map(ALL_SIGNS.index) + table["band"].map(ALL_BANDS.index)
    return table.iloc[np.argsort(order)].reset_index(drop=True)


def compute_budget(
    doublings: int = 3, batch_size: int = 64, estimator: str = "reinforce", pool: str = "training"
) -> dict[str, pd.DataFrame]:
    """Gap against batch size, a line for each number of rollouts per prompt; and by band at the chosen cell.

    doublings: 2**doublings rollouts per prompt.  mean over seeds; low, high: the least and the largest seed.
    Raises ValueError for a cell that was not measured.
    """
    group_size, table = 2**doublings, _budget()
    rows = table[(table["estimator"] == estimator) & (table["pool"] == pool)]
    lines = rows[rows["band"] == "all"].drop(columns="band")
    lines = lines.assign(chosen=(lines["group_size"] == group_size) & (lines["batch_size"] == batch_size))
    cell = rows[(rows["group_size"] == group_size) & (rows["batch_size"] == batch_size)]
    if cell.empty:
        raise ValueError(
            f"{batch_size} rollouts with {group_size} per prompt under {estimator} were not measured: grpo needs two "
            "per prompt, and there are 64 prompts."
        )
    cell = cell.assign(order=cell["band"].map(ALL_BANDS.index)).sort_values("order")
    return {
        "lines": lines.reset_index(drop=True),
        "bands": cell[["band", "mean", "low", "high"]].reset_index(drop=True),
    }


@cache
def _tokens(pool: str) -> pd.DataFrame:
    tokens = BUNDLED["credit/tokens"]
    return tokens[tokens["pool"] == pool].select_dtypes("number").reset_index(drop=True)


@cache
def _budget() -> pd.DataFrame:
    """Mean gap of each cell over prompts, then its mean and range over seeds."""
    table = BUNDLED["credit/budget"]
    table = table[table["of"] == "value"]
    cell = ["estimator", "pool", "band", "batch_size", "group_size"]
    seeds = table.groupby([*cell, "seed"], observed=True)["gap"].mean()
    ranges = seeds.groupby(cell, observed=True).agg(["mean", "min", "max"])
    return ranges.set_axis(["mean", "low", "high"], axis=1).reset_index()
