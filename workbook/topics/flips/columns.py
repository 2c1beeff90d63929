"""Boosted, suppressed and stable tokens by backbone, in positive rollouts, in negative ones and in both (H, figure 9).

    shares = column_shares(token_flips(policy, rollouts, "adamw", lr), eps=0.01)

The study `flip_backbones` measures them after one real step, which moves the batch's tokens by 0.1 nats (root mean
square), on policies of the family, SmolLM2-135M and Gemma 3 270M; once with the step's own advantages and once with
advantages permuted within each group, so that the sign says nothing. It describes: nothing is judged by it.
"""

from __future__ import annotations

from functools import cache

import altair as alt
import numpy as np
import pandas as pd

from workbook.policies.restoring import private_copy
from workbook.probes.step import ONE_STEP_OPTIMIZERS, STEP_NATS, matched_lr
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.bench import Bench
from workbook.studies.claim import NotMeasured, Tables
from workbook.studies.scales import SCALES
from workbook.topics.flips.backbones import BACKBONES
from workbook.topics.flips.charts import CHANGE_COLORS
from workbook.topics.flips.claims import EPS
from workbook.topics.flips.dose import ADVANTAGES, pushing_prompts, with_signs
from workbook.topics.flips.dose_llm import DRAWS_PER_PROMPT
from workbook.topics.flips.live import NOW
from workbook.topics.flips.probe import CHANGES, token_flips
from workbook.topics.flips.study import EPSILONS
from workbook.views.explorer import log_slider, menu, power_slider, slider
from workbook.views.live_study import LiveStudy
from workbook.views.style import require, titled

COLUMNS = ("A > 0", "A < 0", "whole batch")
SIZES = {  # prompts with different rewards, at most; optimizers
    "tiny": (4, ("adamw",)),
    "family": (32, ONE_STEP_OPTIMIZERS),
    "smollm2_plain": (16, ONE_STEP_OPTIMIZERS),
    "gemma3_plain": (8, ("adamw",)),
}
LENGTH = SCALES["bundled"].max_new_tokens
TABLE = ["model", "column", "change", "share", "prompts", "units"]


def flip_backbones_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table shares of one unit: optimizer, advantages (by reward, permuted), eps, column, change, share, prompts."""
    prompts, optimizers = SIZES[bench.scale.name]
    scale = bench.scale
    rows = bench.task.dataset(DRAWS_PER_PROMPT * prompts, bench.data_seed)
    places = pd.Series(map(str, rows["prompt"])).drop_duplicates().index[: 2 * prompts]
    sampled = (bench.task, rows.select(places.tolist()), scale.group_size, bench.data_seed, scale.max_new_tokens)
    rollouts = pushing_prompts(sample_rollouts(bench.policy, *sampled), prompts)
    tables = []
    for optimizer in optimizers:
        lr = matched_lr(bench.policy, rollouts, optimizer, STEP_NATS)
        for signs in ADVANTAGES:
            table = token_flips(bench.policy, with_signs(rollouts, signs, bench.seed), optimizer, lr)
            shares = pd.concat([column_shares(table, eps).assign(eps=eps) for eps in EPSILONS])
            tables.append(shares.assign(optimizer=optimizer, advantages=signs))
    return {"shares": pd.concat(tables, ignore_index=True)}


def column_shares(table: pd.DataFrame, eps: float = EPS) -> pd.DataFrame:
    """Shares of CHANGES in positive rollouts, in negative ones and in both, means over prompts that have both.

    table: of `token_flips`.  Columns: column (of COLUMNS), change, share, prompts.  Raises ValueError if no prompt has
    rollouts of both signs.

    >>> rows = [(0, 1.0, 0.5), (0, 1.0, 0.0), (0, -1.0, 0.5), (0, -1.0, -0.5), (1, 1.0, 0.5)]
    >>> shares = column_shares(pd.DataFrame(rows, columns=["group", "advantage", "dlogp"]))
    >>> shares[shares["change"] == "boosted"]["share"].tolist()
    [0.5, 0.5, 0.5]
    """
    signed = table[table["advantage"] != 0]
    signs = signed["advantage"].gt(0).groupby(signed["group"]).nunique()
    rows = signed[signed["group"].isin(signs.index[signs == 2])]
    if rows.empty:
        raise ValueError("The table has no prompt with positive and negative rollouts; sample more, or larger groups.")
    change = np.select([rows["dlogp"] > eps, rows["dlogp"] < -eps], CHANGES[:2], CHANGES[2])
    dummies = pd.get_dummies(pd.Series(change, index=rows.index)).reindex(columns=list(CHANGES), fill_value=False)
    parts, up = [], rows["advantage"] > 0
    for column, here in zip(COLUMNS, (up, ~up, up | True), strict=True):
        means = dummies[here].groupby(rows["group"][here]).mean().mean()
        parts.append(pd.DataFrame({"column": column, "change": means.index, "share": means.to_numpy()}))
    return pd.concat(parts, ignore_index=True).assign(prompts=rows["group"].nunique())


def compute_columns(optimizer: str = "adamw", eps: float = EPS, signs: str = "by reward") -> pd.DataFrame:
    """The measured shares by model, means over units: model, column, change, share, prompts and units (in all).

    eps: the nearest that was measured.  Models that were not measured so are left out.
    """
    nearest = min(EPSILONS, key=lambda measured: abs(np.log(measured / eps)))
    parts = []
    for scale, name in BACKBONES.items():
        rows = _measured(scale)
        here = (rows["optimizer"] == optimizer) & (rows["advantages"] == signs) & np.isclose(rows["eps"], nearest)
        means = rows[here].groupby(["column", "change"], sort=False)
        means = means.agg(share=("share", "mean"), prompts=("prompts", "sum"), units=("seed", "nunique"))
        parts.append(means.reset_index().assign(model=name))
    return pd.concat(parts, ignore_index=True)[TABLE]


@cache
def _measured(scale: str) -> pd.DataFrame:
    try:
        return Tables(scale)["flip_backbones/shares"]
    except NotMeasured:
        return pd.DataFrame(columns=["optimizer", "advantages", "eps", "column", "change", "share", "prompts", "seed"])


def compute_live_columns(
    policy,
    task,
    optimizer: str = "adamw",
    nats: float = STEP_NATS,
    eps: float = EPS,
    signs: str = "by reward",
    prompts: int = 16,
    group_size: int = 8,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Shares of one real step on this policy, beside the models that were measured: {"table": ...}.

    nats: the step's root mean square movement; the other models' is 0.1.  signs: "by reward", or "permuted".

    Raises ValueError where no prompt has different rewards.
    """
    committed = compute_columns(optimizer, eps, signs)
    sampled = sample_rollouts(policy, task, prompts, group_size, seed, LENGTH)
    rollouts = with_signs(pushing_prompts(sampled, prompts), signs, seed)
    table = token_flips(policy, rollouts, optimizer, matched_lr(policy, rollouts, optimizer, nats))
    live = column_shares(table, eps).assign(model=NOW, units=1)
    return {"table": pd.concat([committed, live[TABLE]], ignore_index=True)}


def columns_chart(table: pd.DataFrame) -> alt.FacetChart:
    """Stacked shares, a row a model and a panel a column; table of `compute_columns` or `compute_live_columns`."""
    require(table, TABLE, "columns_chart")
    order, models = list(CHANGE_COLORS), [*BACKBONES.values(), NOW]
    color = alt.Color("change:N", title=None, sort=order).scale(domain=order, range=list(CHANGE_COLORS.values()))
    bars = alt.Chart(table).transform_calculate(rank=f"indexof({order}, datum.change)").mark_bar(stroke="white")
    shown = ["model:N", "column:N", "change:N", alt.Tooltip("share:Q", format=".3f"), "prompts:Q", "units:Q"]
    bars = bars.encode(
        x=alt.X("share:Q", title="share of tokens", stack="zero").scale(domain=[0, 1]),
        y=alt.Y("model:N", title=None, sort=models),
        color=color.legend(orient="bottom"),
        order=alt.Order("rank:Q"),
        tooltip=shown,
    )
    column = alt.Column("column:N", sort=list(COLUMNS), title=None)
    return titled(
        bars.properties(width=170, height=alt.Step(30)).facet(column=column.header(labelFontSize=13)),
        "What one step does to tokens, by backbone and by the sign of their rollout",
        "shares over prompts that have rollouts of both signs",
        _words(table),
    )


def _words(table: pd.DataFrame) -> str:
    """The boosted shares of every model, in words."""
    boosted = table[table["change"] == "boosted"].pivot_table("share", "model", "column", sort=False)
    rows = (f"{name}: {', '.join(f'{row[c]:.0%} of {c}' for c in COLUMNS)}" for name, row in boosted.iterrows())
    return f"Boosted, {'; '.join(rows)}."


def describe_columns(table: pd.DataFrame) -> str:
    """How far apart the two signs' shares are, by model: half the sum of |differences|."""
    wide = table.pivot_table("share", ["model", "change"], "column", sort=False)
    apart = (wide[COLUMNS[0]] - wide[COLUMNS[1]]).abs().groupby("model", sort=False).sum() / 2
    return f"Distance of the two signs' shares: {', '.join(f'{name} {size:.3f}' for name, size in apart.items())}."


def live_columns(policy, task, prompts: int = 16) -> LiveStudy:
    """Optimizer, size of the step, eps, signs, batch and seed of one step on a copy of a policy, beside the models."""
    controls = {
        "optimizer": menu("adamw", list(ONE_STEP_OPTIMIZERS), "optimizer"),
        "nats": log_slider(STEP_NATS, -3, 0, "step (nats, rms)", step=0.25),
        "eps": menu(EPS, list(EPSILONS), "eps (nats)"),
        "signs": menu("by reward", list(ADVANTAGES), "advantages"),
        "prompts": power_slider(prompts, 64, "prompts in the batch"),
        "group_size": power_slider(8, 16, "rollouts per prompt, G", least=2),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    tables, variables = {"table": compute_columns()}, {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_columns, columns_chart, controls, tables, describe_columns, variables)
