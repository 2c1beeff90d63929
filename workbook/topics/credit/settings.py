"""The study of hidden credit under other settings, from its tables: what chapter 07's sliders compute."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from workbook.studies.record import load_measured
from workbook.topics.credit.gaps import BANDS, SIGNS, value_gap

POOLS = ("training", "held-out")
COLUMNS = ("value", "credit_mc", "credit")
BATCHES = (16, 32, 64, 96)
LEAST = 3  # prompts that a mean is taken over, at the least


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
        error = 2 * gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) >= LEAST else np.nan
        moved = int(part["n_boosted"].sum() + part["n_suppressed"].sum())
        rows.append((sign, band, gap.mean(), gap.mean() - error, gap.mean() + error, len(gap), moved))
    table = pd.DataFrame(rows, columns=["sign", "band", "mean", "low", "high", "prompts", "tokens"]).dropna()
    if table.empty:
        raise ValueError(
            f"Fewer than {LEAST} prompts have tokens beyond eps = {eps:.3g} nats both ways; take a smaller eps."
        )
    order = 10 * table["sign"].map(SIGNS.index) + table["band"].map(("all", *BANDS).index)
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
    cell = cell.assign(order=cell["band"].map(("all", *BANDS).index)).sort_values("order")
    return {
        "lines": lines.reset_index(drop=True),
        "bands": cell[["band", "mean", "low", "high"]].reset_index(drop=True),
    }


@cache
def _tokens(pool: str) -> pd.DataFrame:
    tokens = load_measured("credit", "bundled", "tokens")
    return tokens[tokens["pool"] == pool].select_dtypes("number").reset_index(drop=True)


@cache
def _budget() -> pd.DataFrame:
    """Mean gap of each cell over prompts, then its mean and range over seeds."""
    table = load_measured("credit", "bundled", "budget")
    table = table[table["of"] == "value"]
    cell = ["estimator", "pool", "band", "batch_size", "group_size"]
    seeds = table.groupby([*cell, "seed"], observed=True)["gap"].mean()
    found = seeds.groupby(cell, observed=True).agg(["mean", "min", "max"])
    return found.set_axis(["mean", "low", "high"], axis=1).reset_index()
