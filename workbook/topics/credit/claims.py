"""Claims of chapter 07: hidden credit. Which tokens an update favours (H7, H8, H9, R1, R4), and where it goes (H6).

H7, R4, H8 and H9 are decided by the study `value_gap` (`workbook.topics.credit.exact_gaps`): exact values, matched for
position, one number per policy and seed; its registration says what was stated before. H6 and R1 are decided by the
study `dose` of chapter 05.

The rows of the study `credit` are of one policy, values sampled by continuing rollouts, not matched for position. They
are described: prompts and samples differ between its seeds, the policy does not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from workbook.statistics import Estimate, nested_estimate, slope_by_prompt
from workbook.studies.claim import Claim, Measurement, Tables
from workbook.theory.choices import SIGNS
from workbook.topics.credit.exact_gaps import FIXED, GROWING, MORE_PROMPTS, SMALL_NATS, TINY_NATS

FIXED_GROUP = {"tiny": 4, "bundled": 8, "smollm2_chat": 4}
FIXED_BATCH = {"tiny": 16, "bundled": 64, "smollm2_chat": 16}
REASONING = {"bundled": ("result",), "tiny": ("result",), "smollm2_chat": ("Reasoning", "Math")}
FORMATTING = {"bundled": ("template", "style"), "tiny": ("template", "style"), "smollm2_chat": ("Template",)}
MIN_PROMPTS = 10  # over all seeds
NO_GAP = "no prompt has both boosted and suppressed tokens of this kind"


# --- of policies and seeds: one number per unit


def exact_gap(
    tables: Tables,
    pool: str,
    rollouts: str = "all",
    matched: str = "position",
    of: str = "value",
    advantages: str = "own",
) -> pd.Series:
    """Gap after one small step: H7; R4 on held-out prompts; R1 matched by token; permuted advantages as control."""
    table = tables["value_gap/gaps"].query("pool == @pool and rollouts == @rollouts and advantages == @advantages")
    return table.query("matched == @matched and of == @of").set_index("seed")["gap"]


def exact_slope(tables: Tables, axis: str, pool: str, matched: str = "position") -> pd.Series:
    """H8: least-squares slope of the gap per doubling of the rollouts per prompt, or of prompts where those stay."""
    table = tables["value_gap/budget"].query("axis == @axis and pool == @pool and matched == @matched").dropna()
    along = "group_size" if table["group_size"].nunique() > 1 else "prompts"
    fits = {
        seed: float(np.polyfit(np.log2(part[along]), part["gap"], 1)[0])
        for seed, part in table.groupby("seed")
        if len(part) > 1
    }
    return pd.Series(fits, dtype=float)


def widening(tables: Tables, pool: str, nats: float = SMALL_NATS) -> pd.Series:
    """H9: gap at equal position after the last update on one batch, minus that after the first."""
    table = tables["value_gap/repeated"].query("pool == @pool and nats == @nats and matched == 'position'")
    steps = table.pivot(index="seed", columns="step", values="gap")
    return steps[steps.columns.max()] - steps[steps.columns.min()]


# --- of one policy


def category_shift(shares: pd.DataFrame, categories: tuple[str, ...], measure: str = "movement") -> pd.DataFrame:
    """GRPO's share of these categories minus that of positive-only training: columns seed, group, shift."""
    rows = shares[(shares["measure"] == measure) & shares["category"].isin(categories)]
    sums = rows.groupby(["seed", "group", "estimator"])["share"].sum().unstack()
    return (sums["grpo"] - sums["positive_only"]).rename("shift").reset_index()


def mean_shift(tables: Tables, categories: dict[str, tuple[str, ...]]) -> Estimate:
    """H6: mean of `category_shift`; categories: of each scale."""
    shares = tables["credit/shares"]
    return nested_estimate(category_shift(shares, categories[tables.scale]), "shift", resamples=tables.resamples)


def mean_gap(
    tables: Tables, pool: str, sign: str, matched: bool = False, optimizer: str = "sgd", of: str = "value"
) -> Estimate:
    """Gap in value between boosted and suppressed tokens after one step: H7; R4 held-out; R1 matched."""
    gaps = tables["credit/gaps"]
    here = (gaps["of"] == of) & (gaps["band"] == "all") & (gaps["sign"] == sign) & (gaps["pool"] == pool)
    return _trusted(gaps[here & (gaps["matched"] == matched) & (gaps["optimizer"] == optimizer)], "gap", tables)


def gap_per_doubling(tables: Tables, pool: str, along: str) -> Estimate:
    """H8: slope of the gap per doubling of "batch_size" (GRPO) or of "group_size" (baseline of the batch)."""
    rows = _of_value(tables["credit/budget"], pool)
    if along == "batch_size":
        rows = rows[(rows["group_size"] == FIXED_GROUP[tables.scale]) & (rows["estimator"] == "grpo")]
    else:
        rows = rows[(rows["batch_size"] == FIXED_BATCH[tables.scale]) & (rows["estimator"] == "reinforce")]
    return _trusted_slope(rows, along, tables, log2=True)


def gap_per_step(tables: Tables, pool: str, sign: str) -> Estimate:
    """H9: slope of the gap per step on one batch."""
    rows = _of_value(tables["credit/repeated"], pool)
    return _trusted_slope(rows[rows["sign"] == sign], "step", tables)


def _of_value(table: pd.DataFrame, pool: str) -> pd.DataFrame:
    return table[(table["of"] == "value") & (table["band"] == "all") & (table["pool"] == pool)]


def _trusted_slope(rows: pd.DataFrame, along: str, tables: Tables, log2: bool = False) -> Estimate:
    try:
        slopes = slope_by_prompt(rows, along, log2=log2)
    except ValueError:  # no prompt had tokens on both sides
        raise ValueError(NO_GAP) from None
    return _trusted(slopes, "slope", tables)


def _trusted(rows: pd.DataFrame, column: str, tables: Tables) -> Estimate:
    """Mean over seeds and prompts, doubted if there are fewer than `MIN_PROMPTS` of these."""
    if rows.empty:
        raise ValueError(NO_GAP)
    few = len(rows[["seed", "group"]].drop_duplicates()) < MIN_PROMPTS
    estimate = nested_estimate(rows, column, resamples=tables.resamples)
    return estimate._replace(doubt=f"fewer than {MIN_PROMPTS} prompts" if few else "")


def gap_rows(pools: tuple[str, ...], matched: bool = False, optimizer: str = "sgd", prefix: str = "") -> list:
    """H7's measurements, of each sign in each pool of prompts."""
    label = f"{prefix}{{}} rollouts, {{}} prompts, {optimizer}" + (", frequencies matched" if matched else "")
    return [
        row(label.format(sign, pool), mean_gap, above=0, pool=pool, sign=sign, matched=matched, optimizer=optimizer)
        for pool, sign in product(pools, SIGNS)
    ]


def row(label: str, measure, above: float | None = None, below: float | None = None, **settings) -> Measurement:
    """A measurement of this study: measure(tables, **settings) against a threshold."""
    return Measurement("credit", label, partial(measure, **settings), above=above, below=below)


def claim(id: str, source: str, statement: str, refuted_if: str, rows: list[Measurement]) -> Claim:
    """A claim whose measurements by this study stand as one row, the statement's, where the study was not made."""
    rows = [replace(row, whole=row.whole or statement) if row.study == "credit" else row for row in rows]
    return Claim(id, statement, source, refuted_if, rows)


H7 = "boosted tokens have higher value than suppressed ones at equal position, within rollouts of one reward"
PART_2 = "2: boosted - suppressed tokens, value: "
TRAINING, HELD_OUT, ALONG = "training", "held-out", {"batch_size": "batch", "group_size": "rollouts per prompt"}

EXACT = {  # claim: {key of its outcome in the registration of value_gap: measure}
    "H7": {
        "H7": partial(exact_gap, pool=TRAINING),
        **{f"H7 {sign}": partial(exact_gap, pool=TRAINING, rollouts=sign) for sign in SIGNS},
        "H7 unmatched": partial(exact_gap, pool=TRAINING, matched="prompt"),
        "H7 credit": partial(exact_gap, pool=TRAINING, of="credit"),
        "H7 permuted": partial(exact_gap, pool=TRAINING, advantages="permuted"),
    },
    "R4": {
        "R4": partial(exact_gap, pool=HELD_OUT),
        **{f"R4 {sign}": partial(exact_gap, pool=HELD_OUT, rollouts=sign) for sign in SIGNS},
        "R4 permuted": partial(exact_gap, pool=HELD_OUT, advantages="permuted"),
    },
    "R1": {"R1 value": partial(exact_gap, pool=TRAINING, matched="token")},
    "H8": {
        "H8": partial(exact_slope, axis=GROWING, pool=TRAINING),
        "H8 held-out": partial(exact_slope, axis=GROWING, pool=HELD_OUT),
        "H8 unmatched": partial(exact_slope, axis=GROWING, pool=TRAINING, matched="prompt"),
        "H8 prompts": partial(exact_slope, axis=MORE_PROMPTS, pool=HELD_OUT),
        "H8 fixed budget": partial(exact_slope, axis=FIXED, pool=HELD_OUT),
    },
    "H9": {
        "H9": partial(widening, pool=TRAINING),
        "H9 held-out": partial(widening, pool=HELD_OUT),
        "H9 tenth": partial(widening, pool=TRAINING, nats=TINY_NATS),
    },
}


def exact_rows(claim: str) -> list[Measurement]:
    """A claim's measurements by the study value_gap."""
    return [Measurement("value_gap", key, measure, scales=("family",)) for key, measure in EXACT[claim].items()]


CLAIMS = [
    claim(
        "H6",
        "Fig 4",
        "updates shift from formatting to reasoning tokens, against positive-only training",
        "reasoning tokens gain no share of the movement, or formatting tokens lose none",
        [
            row("reasoning tokens: share of GRPO less positive-only", mean_shift, above=0, categories=REASONING),
            row("formatting tokens: share of GRPO less positive-only", mean_shift, below=0, categories=FORMATTING),
        ],
    ),
    claim(
        "H7",
        "Fig 5",
        H7,
        "boosted tokens are worth no more than suppressed ones at equal position, within rollouts of one reward",
        [*exact_rows("H7"), *gap_rows((TRAINING,))],
    ),
    claim(
        "H8",
        "Fig 6",
        "that gap grows with rollouts per prompt at fixed prompts (the batch: row H8 prompts)",
        "the gap in value does not grow with rollouts per prompt at fixed prompts",
        [
            *exact_rows("H8"),
            *(
                row(
                    f"per doubling of the {ALONG[along]}, {pool} prompts",
                    gap_per_doubling,
                    above=0,
                    pool=pool,
                    along=along,
                )
                for pool, along in product((HELD_OUT, TRAINING), ALONG)
            ),
        ],
    ),
    claim(
        "H9",
        "Fig 11",
        "that gap grows with repeated updates on one batch",
        "the gap in value does not grow per step",
        [
            *exact_rows("H9"),
            *(
                row(f"per step, {sign} rollouts, {pool} prompts", gap_per_step, above=0, pool=pool, sign=sign)
                for pool, sign in product((TRAINING, HELD_OUT), ("all", *SIGNS))
            ),
        ],
    ),
    claim(
        "R1",
        "review of H: frequencies",
        "H1 and H7 hold with token frequencies matched",
        "with frequencies matched the shares lie apart, or the gap in value is gone",
        [
            *exact_rows("R1"),
            *gap_rows((TRAINING, HELD_OUT), matched=True),
        ],
    ),
    claim(
        "R4",
        "review of H: held-out prompts",
        "H7 holds on held-out prompts",
        "on held-out prompts boosted tokens are worth no more than suppressed ones",
        [*exact_rows("R4"), *gap_rows((HELD_OUT,))],
    ),
    claim(
        "H-falsifier",
        "review of H: what would falsify it",
        "in a large step shared words get as much net change as specific ones",
        "in a large step shared words get at least the net change that specific ones get",
        [
            *(replace(row, whole=PART_2 + H7) for row in gap_rows((TRAINING,), prefix=PART_2)),
        ],
    ),
]
