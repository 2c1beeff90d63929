"""The study of hidden credit under other settings, from its tables: what chapter 07's sliders compute."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.statistics import normal_interval, unit_curve
from workbook.studies.claim import BUNDLED, FAMILY
from workbook.topics.credit.exact_gaps import GROWING
from workbook.topics.credit.gaps import ALL_BANDS, ALL_SIGNS, value_gap

POOLS = ("training", "held-out")
COLUMNS = ("value", "credit", "credit_mc")
PAPER = {"group_size": (1.0, 8.0), "prompts": (16.0, 96.0)}  # its rollouts per prompt, and its batches
MIN_PROMPTS = 3  # that a mean is taken over


def compute_gap(
    tokens: pd.DataFrame,
    eps: float = 0.01,
    optimizer: str = "sgd",
    pool: str = "training",
    column: str = "value",
    band_by: str = "value",
) -> pd.DataFrame:
    """Gap by sign and band after one step: columns sign, band, mean, low, high, prompts, tokens.

    tokens: of `moved_tokens`.  eps in nats; low, high: mean -+ two standard errors over prompts.  Raises ValueError if
    no token moved so far.
    """
    tokens = tokens[tokens["pool"] == pool].select_dtypes("number")
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


def compute_budget(axis: str = GROWING, pool: str = "training", matched: str = "position") -> pd.DataFrame:
    """Gap in exact value along one axis of H8: columns size, mean, low, high, units (95 % t intervals over policies).

    axis: one of AXES; size is its number of rollouts per prompt, or of prompts where these grow.  matched: "position"
    or "prompt", what is alike in the tokens compared.  paper_low, paper_high, in the first row: the paper's range.
    """
    table = FAMILY["value_gap/budget"]
    rows = table[(table["axis"] == axis) & (table["pool"] == pool) & (table["matched"] == matched)]
    size = "group_size" if rows["group_size"].nunique() > 1 else "prompts"
    curve = unit_curve(rows.rename(columns={size: "size"}), "size", "gap")
    return curve.join(pd.DataFrame([PAPER[size]], columns=["paper_low", "paper_high"]))


def measured_tokens() -> pd.DataFrame:
    """The tokens of the study's first seed, in the columns of `moved_tokens`, with sampled values and credit."""
    return BUNDLED["credit/tokens"]
