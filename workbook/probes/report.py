"""What training did to the tokens of anybody's run: findings from a token table, as tables and numbers.

A token's push is -d loss / d logp = weight * advantage. Opposite pushes on the same token cancel: of a set of tokens,

    cancelled = 1 - |sum of push| / sum of |push|        0 = all push one way, 1 = nothing is left

Letters: a group is the rollouts of one prompt in one step; a place is a token at a position of a group, in all of its
rollouts that have that token there. What a file does not have is in `Report.missing`, with how to get it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from workbook.probes.report_tokens import (
    GROUP,
    ROLLOUT,
    movement_by_step,
    pushed_tokens,
    ratio_spread,
    residuals_by_step,
    shared_tokens,
    stopped_tokens,
)
from workbook.statistics import Interval, t_interval
from workbook.theory.choices import SIGNS

MIN_SAMPLE = 6  # groups or steps below which a t interval says more about its assumptions than about the data
RECORD = "train with record_tokens: 10, or write the column into the file"


@dataclass(frozen=True)
class Report:
    """Findings of `report_findings`, each a table; empty where `missing` says what was not there.

    counts: steps, groups, rollouts, tokens.  signal: a row per step.  signal_share: of the whole run's groups.
    tokens: a row per token text.  shared: a row per class of `SHARED`.  stopped: a row per reason and sign.
    ratios: a row per quantity.  residuals: a row per step.  movement and lengths: a row per sign (and step).
    length_gap: tokens by which negative rollouts are longer than positive ones of their group.
    repeats: share of rollouts that have the very tokens of another of their group.
    """

    source: dict
    objective: dict
    counts: dict[str, int]
    signal: pd.DataFrame
    signal_share: Interval | None
    tokens: pd.DataFrame
    shared: pd.DataFrame
    stopped: pd.DataFrame
    ratios: pd.DataFrame
    residuals: pd.DataFrame
    movement: pd.DataFrame
    lengths: pd.DataFrame
    length_gap: Interval | None
    repeats: float | None
    notes: list[str]
    missing: dict[str, str] = field(default_factory=dict)
    model: Any = None  # a ModelFindings, if a model was given


def report_findings(table: pd.DataFrame, model: Any = None) -> Report:
    """Measure a token table: one of `read_rollouts`, or of a run's `tokens(step)`.

    model: a `ModelFindings` to go with it.  Raises ValueError for a table without the columns group, rollout, position,
    token, or without both reward and advantage.
    """
    rows, notes = prepare(table)
    source = table.attrs.get("source", {})
    grouped = source.get("groups") != "none" and rows.groupby(GROUP)["rollout"].nunique().max() > 1
    missing: dict[str, str] = {}
    if not grouped:
        missing["signal"] = "No two rollouts are known to be of one prompt; give the file a column group, or prompt."
    for section, columns in {
        "stopped": ("stopped",),
        "ratios": ("ratio", "importance"),
        "entropy": ("entropy",),
        "movement": ("logp_after",),
    }.items():
        if not any(column in rows for column in columns):
            missing[section] = f"The file has no column {' or '.join(columns)}; {RECORD}."
    signal = signal_by_step(rows) if grouped else pd.DataFrame()
    return Report(
        source=source,
        objective=table.attrs.get("objective") or {},
        counts=_counts(rows),
        signal=signal,
        signal_share=signal_share(rows) if grouped else None,
        tokens=pushed_tokens(rows),
        shared=shared_tokens(rows) if grouped else pd.DataFrame(),
        stopped=stopped_tokens(rows) if "stopped" in rows else pd.DataFrame(),
        ratios=ratio_spread(rows),
        residuals=residuals_by_step(rows) if grouped else pd.DataFrame(),
        movement=movement_by_step(rows),
        lengths=lengths_by_sign(rows),
        length_gap=length_gap(rows) if grouped else None,
        repeats=repeated_rollouts(rows) if grouped else None,
        notes=[*source.get("notes", ()), *notes],
        missing=missing,
        model=model,
    )


def prepare(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table with step, advantage, push and sign in every row, and a sentence for each that had to be made."""
    if lacking := [name for name in ("group", "rollout", "position", "token") if name not in table]:
        raise ValueError(f"a report needs the column {lacking[0]}; the table has {', '.join(table.columns)}.")
    rows, notes = table.reset_index(drop=True).copy(), []
    rows.attrs = {}
    if "step" not in rows:
        rows["step"] = 0
    for name in ("reward", "advantage", "push", "ratio", "importance"):
        if name in rows and (infinite := np.isinf(rows[name].astype(float))).any():
            rows[name] = rows[name].where(~infinite)
            notes.append(f"{infinite.sum():,} tokens have an infinite {name}, which was taken as unknown.")
    if "advantage" not in rows or rows["advantage"].isna().all():
        rows["advantage"] = _centred_rewards(rows)
        notes.append("The file has no advantages: they are each rollout's reward minus its group's mean.")
    if "push" not in rows or rows["push"].isna().all():
        rows["push"] = _derived_push(rows)
        factors = [name for name in ("ratio", "importance") if name in rows]
        formula = " x ".join(["the advantage", *factors]) + (", 0 where stopped" if "stopped" in rows else "")
        notes.append(f"The file has no weights as trained: a push here is {formula}.")
    rows["push"] = rows["push"].astype(float).fillna(0.0)
    rows["advantage"] = rows["advantage"].astype(float).fillna(0.0)
    rows["sign"] = np.sign(rows["advantage"]).astype(int)
    codes, texts = pd.factorize(rows["token"])
    whole = [str(text).encode("utf-8", "replace").decode() for text in texts]  # half a character of 16 bits is none
    rows["token"] = pd.Categorical(np.array([*whole, ""], dtype=object)[codes])
    return rows, notes


def _centred_rewards(rows: pd.DataFrame) -> pd.Series:
    if "reward" not in rows or rows["reward"].isna().all():
        raise ValueError("a report needs the column reward or advantage; the table has neither.")
    rollouts = rows.groupby(ROLLOUT)["reward"].first().astype(float)
    centred = rollouts - rollouts.groupby(level=[0, 1]).transform("mean")
    centred[rollouts.groupby(level=[0, 1]).transform(np.ptp) == 0] = 0.0  # a mean of equals may be off by a rounding
    return centred.reindex(pd.MultiIndex.from_frame(rows[ROLLOUT])).to_numpy()


def _derived_push(rows: pd.DataFrame) -> pd.Series:
    push = rows["advantage"].astype(float)
    for name in ("ratio", "importance"):
        if name in rows:
            push = push * rows[name].astype(float).fillna(1.0)
    return push.where(rows["stopped"].astype(str) == "", 0.0) if "stopped" in rows else push


def _counts(rows: pd.DataFrame) -> dict[str, int]:
    rollouts = rows[ROLLOUT].drop_duplicates()
    return {
        "steps": rollouts["step"].nunique(),
        "groups": len(rollouts[GROUP].drop_duplicates()),
        "rollouts": len(rollouts),
        "tokens": len(rows),
    }


# --- groups


def by_group(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per group: step, group, size, signal, and the reward of one without signal.

    signal: whether any of its tokens has an advantage.  reward: "highest" or "lowest" of the whole table's rewards, or
    "one", if all of its rollouts have it; "" where there is signal, or rewards are unknown.
    """
    table = rows.assign(absolute=rows["advantage"].abs()).groupby(GROUP)
    table = table.agg(size=("rollout", "nunique"), signal=("absolute", "max")).reset_index()
    table["signal"] = table["signal"] > 0
    if "reward" not in rows or rows["reward"].isna().all():
        return table.assign(reward="")
    rewards = rows.groupby(GROUP)["reward"].agg(["min", "max"]).reset_index()
    low, high = rows["reward"].min(), rows["reward"].max()
    one = np.select([rewards["max"] == low, rewards["min"] == high], ["lowest", "highest"], "one")
    one = np.where(low == high, "one", one)
    return table.assign(reward=np.where(table["signal"] | rewards["min"].isna(), "", one))


def signal_by_step(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per step: groups, and their shares with signal, and without it by their reward (highest, lowest, one)."""
    groups = by_group(rows)
    shares = pd.DataFrame({name: groups["reward"] == name for name in ("highest", "lowest", "one")})
    table = pd.concat([groups[["step", "signal"]], shares], axis=1).groupby("step").mean()
    return table.assign(groups=groups.groupby("step").size()).reset_index()


def signal_share(rows: pd.DataFrame) -> Interval:
    """Share of groups with signal; its interval is over steps, or over groups where there are fewer than six steps."""
    groups = by_group(rows)
    steps = groups.groupby("step")["signal"].mean()
    share = mean_interval(steps if len(steps) >= MIN_SAMPLE else groups["signal"].astype(float))
    return Interval(share.mean, *np.clip(share[1:], 0.0, 1.0))


def mean_interval(values) -> Interval:
    """Mean and 95 % t interval of independent units; NaN ends for fewer than `MIN_SAMPLE` of them.

    >>> mean_interval([0.0, 1.0]).mean, mean_interval([2.0] * 6)
    (0.5, Interval(mean=2.0, low=2.0, high=2.0))
    """
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    if len(values) >= MIN_SAMPLE:
        return t_interval(values)
    return Interval(float(values.mean()) if len(values) else np.nan, np.nan, np.nan)


def percent(share: float, digits: int = 0) -> str:
    """A share as text.

    >>> percent(0.614)
    '61 %'
    """
    return f"{100 * share:.{digits}f} %"


def repeated_rollouts(rows: pd.DataFrame) -> float:
    """Share of rollouts with the very tokens of an earlier one of their group."""
    rollouts = rows.groupby(ROLLOUT)["token"].agg(lambda tokens: hash(tuple(tokens.cat.codes)))
    return float(rollouts.reset_index().duplicated([*GROUP, "token"]).mean())


# --- length


def lengths_by_sign(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean length of positive and of negative rollouts, in tokens; columns sign, rollouts, length, push (mean |push|
    of a token)."""
    rollouts = _rollouts(rows)
    rollouts = rollouts[rollouts["sign"] != 0]
    table = rollouts.assign(sign=np.where(rollouts["sign"] > 0, *SIGNS)).groupby("sign")
    sums = table.agg(
        rollouts=("length", "size"), length=("length", "mean"), tokens=("length", "sum"), push=("push", "sum")
    )
    sums["push"] /= sums["tokens"]
    return sums.drop(columns="tokens").reindex([sign for sign in SIGNS if sign in sums.index]).reset_index()


def length_gap(rows: pd.DataFrame) -> Interval:
    """Tokens by which a group's negative rollouts are longer than its positive ones; the interval is over groups."""
    means = _rollouts(rows).query("sign != 0").groupby([*GROUP, "sign"])["length"].mean().unstack("sign")
    return mean_interval(means[-1] - means[1] if {-1, 1} <= set(means) else [])


def _rollouts(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per rollout: its length, its sign (of the sum of its advantages) and its sum of |push|."""
    parts = rows.assign(absolute=rows["push"].abs())
    table = parts.groupby(ROLLOUT).agg(length=("position", "size"), a=("advantage", "sum"), push=("absolute", "sum"))
    return table.assign(sign=np.sign(table["a"]).astype(int)).reset_index()
