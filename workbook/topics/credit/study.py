"""Study of chapter 07: hidden credit. Where updates go (H6), and which tokens they favour (H7, H8, H9).

What was stated before, and what is judged by it: `workbook.topics.credit.claims`.
"""

from __future__ import annotations

import pandas as pd
import torch

from workbook.policies.copies import private_copy
from workbook.probes.categories import categorized
from workbook.probes.step import ONE_STEP_OPTIMIZERS, STEP_NATS, logps, matched_lr, update
from workbook.rollouts.sample import Rollouts
from workbook.studies.bench import Bench
from workbook.topics.credit.gaps import (
    BUDGET_ESTIMATORS,
    Pool,
    pool_change,
    repeated_updates,
    sampling_budget,
    value_gap,
)
from workbook.topics.credit.shares import category_shares
from workbook.topics.credit.values import token_values
from workbook.topics.flips.probe import EPS

SHARE = 0.1  # in "same share" the tokens that moved most count, this share of the pool, whatever EPS is
SIZES = {  # valued: rollouts per prompt.  tuned: rollouts at which learning rates are found.  fixed: the batch of H9
    "tiny": {"valued": 4, "tokens": 6, "continuations": 4, "tuned": 48, "fixed": 48, "steps": 3, "repeats": 1},
    "bundled": {"valued": 4, "tokens": 14, "continuations": 8, "tuned": 512, "fixed": 512, "steps": 16, "repeats": 2},
    "smollm2_chat": {"valued": 3, "tokens": 8, "continuations": 4, "tuned": 16, "fixed": 16, "steps": 4, "repeats": 1},
}
BUDGETS = {  # (batch sizes, rollouts per prompt, estimators)
    "tiny": [((8, 16), (1, 2, 4), BUDGET_ESTIMATORS)],
    "bundled": [((16, 32, 64, 96), (1, 2, 4, 8), BUDGET_ESTIMATORS)],
    "smollm2_chat": [((16, 32), (4,), ("grpo",)), ((16,), (2, 4, 8), ("reinforce",))],
}


def credit_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables shares (H6), gaps (H7), budget (H8), repeated (H9), rates, and for seed 0 tokens, of one seed."""
    sizes, pools = SIZES[bench.scale.name], make_pools(bench)
    tuned = bench.rollouts if sizes["tuned"] >= len(bench.rollouts) else _mixed(bench.rollouts, sizes["tuned"])
    rates = {name: matched_lr(bench.policy, tuned, name, STEP_NATS) for name in ONE_STEP_OPTIMIZERS}
    gaps, tokens = _one_step(bench, pools, rates)
    tables = {
        "shares": _shares(bench, rates["sgd"]),
        "gaps": gaps,
        "budget": _budget(bench, pools, rates["sgd"]),
        "repeated": _repeated(bench, pools, rates["sgd"] / 4, sizes),
        "rates": pd.DataFrame({"optimizer": list(rates), "lr": list(rates.values())}),
    }
    return tables | ({"tokens": tokens} if bench.seed == 0 else {})


def make_pools(bench: Bench) -> dict[str, Pool]:
    """The tokens whose values are known, computed once for everything: of training prompts and of held-out ones."""
    sizes, pools = SIZES[bench.scale.name], {}
    for name, rollouts in {"training": bench.rollouts, "held-out": bench.held_out}.items():
        place = pd.Series(rollouts.group_ids.cpu().numpy()).groupby(rollouts.group_ids.cpu().numpy()).cumcount()
        part = rollouts.select(torch.tensor((place < sizes["valued"]).to_numpy()))
        settings = {"max_new_tokens": bench.scale.max_new_tokens, "seed": bench.seed}
        values = token_values(bench.policy, bench.task, part, sizes["continuations"], sizes["tokens"], **settings)
        pools[name] = (part, values)
    return pools


def _mixed(rollouts: Rollouts, count: int) -> Rollouts:
    """The first rollouts of groups with unequal rewards, about so many."""
    return rollouts.select(rollouts.advantages != 0).select(slice(0, count))


def _shares(bench: Bench, lr: float) -> pd.DataFrame:
    """Shares of movement by category, GRPO beside training on positive rollouts only."""
    rollouts = bench.rollouts if bench.rollouts.categories else categorized(bench.rollouts)
    measures = ("movement", "net movement", "gradient norm")
    if bench.scale.name == "smollm2_chat":  # a pass for every category would take longer than all the rest
        measures, rollouts = measures[:2], _mixed(rollouts, 16)
    parts = [
        category_shares(bench.policy, rollouts, name, "sgd", lr, measures).assign(estimator=name)
        for name in ("grpo", "positive_only")
    ]
    return _small(pd.concat(parts, ignore_index=True))


def _one_step(bench: Bench, pools: dict[str, Pool], rates: dict[str, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Gaps after one step on all training rollouts, by optimizer; and the pools' tokens themselves."""
    policy, rows, tokens = bench.policy, [], []
    moved = {}
    for name, lr in rates.items():
        mine = private_copy(policy)
        before = {pool: logps(mine, pools[pool][0]) for pool in pools}
        update(mine, bench.rollouts, name, lr)
        moved[name] = {pool: pool_change(mine, pools[pool], before[pool]) for pool in pools}
        for pool, table in moved[name].items():
            rows += [part.assign(optimizer=name, pool=pool) for part in _gap_rows(table)]
    for pool, table in moved["sgd"].items():
        keep = ["group", "rollout", "position", "token", "advantage", "reward", "category"]
        values = ["value", "value_before", "credit_mc", "credit"]
        dlogp = {f"dlogp_{name}": moved[name][pool]["dlogp"] for name in rates}
        tokens.append(table[keep + values].assign(**dlogp, pool=pool))
    return _small(pd.concat(rows, ignore_index=True)), _small(pd.concat(tokens, ignore_index=True))


def _gap_rows(table: pd.DataFrame) -> list[pd.DataFrame]:
    """H7's rows: gaps in value, by band too, in sampled credit and, where it is known, in true credit."""
    columns = ["value", "credit_mc"] + (["credit"] if table["credit"].notna().all() else [])
    rows = []
    for matched in (False, True):
        for column in columns:
            gaps = value_gap(table, EPS, column, matched=matched).drop(columns=["boosted", "suppressed"])
            gaps = gaps if column == "value" else gaps[gaps["band"] == "all"]
            rows.append(gaps.assign(of=column, matched=matched))
        gaps = value_gap(table, EPS, "value", band_by="value_before", matched=matched)
        rows.append(gaps[gaps["band"] != "all"].assign(of="value, by value before", matched=matched))
    return [part.drop(columns=["boosted", "suppressed"], errors="ignore") for part in rows]


def _measure(table: pd.DataFrame) -> pd.DataFrame:
    """What is followed along a budget or along steps: group, band, sign, of, gap."""
    value = value_gap(table, EPS)
    parts = [
        value[(value["sign"] == "all") | (value["band"] == "all")].assign(of="value"),
        value_gap(table, EPS, "credit_mc").query("band == 'all' and sign == 'all'").assign(of="credit_mc"),
        value_gap(table, share=SHARE).query("band == 'all' and sign == 'all'").assign(of="value, same share"),
    ]
    return pd.concat(parts, ignore_index=True)[["group", "sign", "band", "of", "gap"]]


def _measure_all(table: pd.DataFrame) -> pd.DataFrame:
    return _measure(table).query("sign == 'all'")


def _budget(bench: Bench, pools: dict[str, Pool], lr: float) -> pd.DataFrame:
    """Gaps after one step on parts of the training rollouts, by their size and by rollouts per prompt."""
    settings = {"lr": lr, "repeats": SIZES[bench.scale.name]["repeats"], "seed": bench.seed}
    parts = [
        sampling_budget(bench.policy, bench.rollouts, pools, *budget, measure=_measure_all, **settings)
        for budget in BUDGETS[bench.scale.name]
    ]
    return _small(pd.concat(parts, ignore_index=True).drop(columns="sign"))


def _repeated(bench: Bench, pools: dict[str, Pool], lr: float, sizes: dict) -> pd.DataFrame:
    """Gaps after each of several steps on one batch."""
    batch = bench.rollouts if sizes["fixed"] >= len(bench.rollouts) else _mixed(bench.rollouts, sizes["fixed"])
    return _small(
        repeated_updates(bench.policy, batch, pools, sizes["steps"], "sgd", lr, _measure).drop(columns="norm")
    )


def _small(table: pd.DataFrame) -> pd.DataFrame:
    """Numbers in 32 bits, since their noise is a thousand times larger than what that rounds off."""
    floats = table.select_dtypes("float64").columns
    return table.astype(dict.fromkeys(floats, "float32"))
