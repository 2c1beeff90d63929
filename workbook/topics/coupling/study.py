"""Study of chapter 06: which tokens couple (H2, R2), what a masked update moves (H3), how well the output layer stands
for the whole network (H4), and what Adam's first step hides (H10).

Stated before anything was measured; a token is unsure at p < 0.5, and pairs in one and the same context are set apart:

- H2 replicates if mean |K| of pairs of the same token, both unsure, is at least `TIMES` that of every other kind of
  pair (geometric mean over prompts, lower end of the interval). Likewise with full gradients instead of K.
- R2: the same, of pairs across rollouts whose advantages have opposite signs, with full gradients.
- H3: in each prompt the token that is unsure most often on both sides pushes, in its positive rollouts alone. It
  replicates if the same token, unsure, in other rollouts follows (mean dlogp above 0), and moves at least `TIMES` as
  far as every other kind of token outside the pushing contexts.  SGD, at the rate that moves the group's tokens by
  `MOVED` nats (root mean square); the paper's rate of 0.1 beside it.
- H4 replicates if the sign of dlogp after a full step and after one of the output layer alone agree on at least `AGREE`
  of the tokens, at every moment of training that is looked at.  SGD, at the rate of `MOVED` nats, too.
- H10: a sure token pushes instead of an unsure one, at the same rate. It replicates if SGD's movement of the other
  tokens falls at least `TIMES` as far as AdamW's.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.policies.load import load_policy
from workbook.probes.step import along_training, matched_lr, progress
from workbook.rollouts.sample import Rollouts
from workbook.statistics import Interval, nested_mean, verdict
from workbook.studies.bench import Bench
from workbook.studies.record import load_measured
from workbook.topics.coupling.masked import UNSURE, choose_tokens, followers, masked_update, shared_token
from workbook.topics.coupling.probe import coupling_by_confidence, gradient_products, product_agreement

TIMES, AGREE = 3.0, 0.6
LEAST = 5  # prompts below which no interval is trusted; set after SmolLM2 had been measured, to judge more strictly
MOVED = 0.03  # nats, root mean square: of the group's tokens by a masked step, of a batch's by a full one
PAPER_LR = 0.1
FINE = tuple(np.arange(1, 12) / 12)  # cuts of the map: twelve bins, to be merged into 6, 4, 3 or 2
LORA = 8
LRS = tuple(float(f"{10.0**k:.4g}") for k in np.arange(-2, 1.25, 0.25))  # SGD's; AdamW's are a hundredth of these
ADAM_SCALE = 0.01
SGD_ALONE = ("smollm2",)  # where the output layer is compared with SGD's full step, and not with AdamW's as well
SIZES = {  # anchors: per prompt.  lora, masked, curves: prompts.  training: steps, every, prompts and rate
    "tiny": {"anchors": 4, "lora": 2, "masked": 6, "curves": 2, "training": (4, 2, 4, 1e-3)},
    "bundled": {"anchors": 6, "lora": 16, "masked": 64, "curves": 8, "training": (60, 10, 32, 1e-3)},
    "smollm2": {"anchors": 3, "lora": 2, "masked": 3, "curves": 0, "training": (2, 1, 4, 1e-5)},
}


def coupling_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables cells, map, products, product_agreement, masked, curves and agreement of one seed."""
    sizes, policy, rollouts = SIZES[bench.scale.name], bench.policy, bench.rollouts
    products, agreement = _products(bench, sizes)
    return {
        "cells": coupling_by_confidence(policy, rollouts, (UNSURE,)),
        "map": _map(coupling_by_confidence(policy, rollouts, FINE)),
        "products": products,
        "product_agreement": agreement,
        "masked": _masked(policy, rollouts, sizes["masked"]),
        "curves": _curves(policy, rollouts, sizes["curves"]),
        "agreement": _agreement(bench, *sizes["training"]),
    }


def _map(cells: pd.DataFrame) -> pd.DataFrame:
    """Sums over all prompts, which can be merged into larger bins."""
    sums = cells.assign(total=cells["pairs"] * cells["mean"], total_size=cells["pairs"] * cells["size"])
    return (
        sums.groupby(["same", "where", "less_sure", "more_sure"])[["pairs", "total", "total_size"]].sum().reset_index()
    )


def _products(bench: Bench, sizes: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Full products by kind of pair and their agreement with K: of all weights, and of LoRA's at a few prompts."""
    few = bench.rollouts.select(bench.rollouts.group_ids < sizes["lora"])
    kinds = ["group", "same", "where", "signs", "less_sure", "more_sure"]
    tables, agreements = [], []
    for weights in ("all", f"LoRA, rank {LORA}"):
        full = weights == "all"
        policy = bench.policy if full else load_policy(bench.scale.policy, lora=LORA, seed=bench.seed)
        pairs = gradient_products(policy, bench.rollouts if full else few, sizes["anchors"], seed=bench.seed)
        apart = pairs[pairs["where"] != "itself"].assign(
            pairs=1, kernel_size=pairs["kernel"].abs(), product_size=pairs["product"].abs()
        )
        means = dict.fromkeys(("kernel", "product", "kernel_size", "product_size"), "mean")
        tables.append(apart.groupby(kinds).agg({"pairs": "sum", **means}).reset_index().assign(weights=weights))
        agreements.append(product_agreement(pairs).assign(weights=weights, method=pairs["method"].iloc[0]))
    return pd.concat(tables, ignore_index=True), pd.concat(agreements, ignore_index=True)


def _masked(policy, rollouts: Rollouts, prompts: int) -> pd.DataFrame:
    """What moves when one token of a prompt pushes: a row per prompt, pushing confidence, optimizer, rate and kind."""
    tables = []
    for group, part, unsure, sure in _with_shared_tokens(rollouts, prompts):
        sgd = matched_lr(policy, part, "sgd", MOVED, chosen=unsure)
        adam = matched_lr(policy, part, "adamw", MOVED, start=1e-4, chosen=unsure)
        steps = [("sgd", sgd, "matched"), ("adamw", adam, "matched"), ("sgd", PAPER_LR, "the paper's")]
        for pushing, chosen in {"unsure": unsure, "sure": sure}.items():
            if chosen is None:
                continue
            for optimizer, lr, rate in steps if pushing == "unsure" else steps[:2]:
                table = masked_update(policy, part, chosen, optimizer, lr)
                about = {"group": group, "pushing": pushing, "optimizer": optimizer, "rate": rate, "lr": lr}
                tables.append(followers(part, table).assign(**about))
    return pd.concat(tables, ignore_index=True)


def _curves(policy, rollouts: Rollouts, prompts: int) -> pd.DataFrame:
    """The same over a range of learning rates, at few prompts; lr is SGD's, AdamW takes a hundredth."""
    tables = [pd.DataFrame()]
    for group, part, unsure, sure in _with_shared_tokens(rollouts, prompts, both=True):
        for pushing, chosen in {"unsure": unsure, "sure": sure}.items():
            for optimizer, scale in (("sgd", 1.0), ("adamw", ADAM_SCALE)):
                for lr in LRS:
                    table = masked_update(policy, part, chosen, optimizer, lr * scale)
                    about = {"group": group, "pushing": pushing, "optimizer": optimizer, "lr": lr}
                    tables.append(followers(part, table).assign(**about))
    return pd.concat(tables, ignore_index=True)


def _with_shared_tokens(rollouts: Rollouts, prompts: int, both: bool = False):
    """(group, its rollouts, what pushes if unsure, if sure or None) of the first prompts that have such tokens."""
    found = []
    for group in rollouts.group_ids.unique().tolist():
        part = rollouts.select(rollouts.group_ids == group)
        masks = []
        for confidence in ((0.0, UNSURE), (0.9, 1.0)):
            token = shared_token(part, confidence)
            masks.append(token if token is None else choose_tokens(part, token, confidence=confidence, sign=1))
        if masks[0] is not None and not (both and masks[1] is None):
            found.append((group, part, *masks))
    return progress(found[:prompts], "masked updates")


def _agreement(bench: Bench, steps: int, every: int, prompts: int, lr: float) -> pd.DataFrame:
    """Share of tokens on which full step and output layer agree in sign: a row per prompt, moment and optimizer."""
    policy, scale, rows = bench.policy, bench.scale, []
    moments = along_training(
        policy,
        bench.task,
        steps,
        prompts,
        scale.group_size,
        lr,
        every=every,
        seed=bench.seed,
        max_new_tokens=scale.max_new_tokens,
    )
    for step, rollouts in moments:
        if not rollouts.advantages.any():
            continue
        everything = rollouts.completion_mask.bool()
        sgd = masked_update(policy, rollouts, everything, "sgd", matched_lr(policy, rollouts, "sgd", MOVED))
        taken = {"sgd": sgd}
        if scale.name not in SGD_ALONE:
            adam_lr = matched_lr(policy, rollouts, "adamw", MOVED, start=1e-4)
            taken["adamw"] = masked_update(policy, rollouts, everything, "adamw", adam_lr)
        for optimizer, table in taken.items():
            agree = np.sign(table["dlogp"]) == np.sign(sgd["predicted"])
            columns = table[["group"]].assign(
                agree=agree.astype(float),
                agree_unsure=agree.where(table["logp"] < np.log(UNSURE)),
                agree_moved=agree.where(table["dlogp"].abs() > 0.01),
                tokens=1,
            )
            means = {"agree": "mean", "agree_unsure": "mean", "agree_moved": "mean", "tokens": "sum"}
            reward = float(rollouts.rewards.mean())
            per_prompt = columns.astype(float).groupby("group").agg(means).reset_index()
            rows.append(per_prompt.assign(step=step, optimizer=optimizer, reward=reward))
    return pd.concat(rows, ignore_index=True)


# --- what the claims are judged by

TOP = "same token, both unsure"


def coupling_times(scale: str) -> pd.DataFrame:
    """How many times smaller K is for each other kind of pair: H2, by the proxy. See `times_smaller`."""
    return times_smaller(_apart(load_measured("coupling", scale, "cells")), "size")


def product_times(scale: str, opposite: bool = False, weights: str = "all") -> pd.DataFrame:
    """The same by full gradients: H2; with opposite, across rollouts of opposite signs alone: R2."""
    table = _apart(load_measured("coupling", scale, "products"))
    table = table[table["weights"] == weights]
    if opposite:
        table = table[(table["where"] == "across rollouts") & (table["signs"] == "opposite")]
    return times_smaller(table, "product_size")


def _apart(table: pd.DataFrame) -> pd.DataFrame:
    """Pairs that do not stand in one and the same context, with the name of their kind."""
    token = np.where(table["same"], "same token", "different tokens")
    confidence = np.select(
        [table["more_sure"] == 0, table["less_sure"] == 0], ["both unsure", "one unsure"], "both sure"
    )
    kind = pd.Series(token, table.index) + ", " + confidence
    return table.assign(kind=kind)[table["where"] != "same context"]


def times_smaller(table: pd.DataFrame, size: str, top: str = TOP, count: str = "pairs") -> pd.DataFrame:
    """How many times as large `size` is for the kind `top` as for each other: columns kind, mean, low, high, prompts.

    Sizes are averaged over the tokens or pairs of a prompt; then the logarithm of the ratio is averaged over prompts
    and seeds (a geometric mean) and resampled. Prompts that lack a kind, or in which it does not move at all, are out.

    Raises ValueError if no prompt has the kind `top`.
    """
    totals = table.assign(total=table[size] * table[count]).groupby(["seed", "group", "kind"])[["total", count]].sum()
    sizes = (totals["total"] / totals[count]).unstack("kind")
    if top not in sizes:
        raise ValueError(f"no prompt has any of: {top}.")
    rows = []
    for kind in sizes.columns.drop(top):
        with np.errstate(divide="ignore"):
            ratio = np.log(sizes[top] / sizes[kind]).replace([np.inf, -np.inf], np.nan).rename("ratio").reset_index()
        if ratio["ratio"].isna().all():
            continue
        interval = Interval(*np.exp(nested_mean(ratio, "ratio")))
        rows.append({"kind": kind, **interval._asdict(), "prompts": int(ratio["ratio"].notna().sum())})
    return pd.DataFrame(rows)


def follow_times(scale: str, optimizer: str = "sgd", rate: str = "matched") -> tuple[Interval, pd.DataFrame]:
    """H3: mean dlogp (nats) of the same token, unsure, in other rollouts, and how many times less other kinds move."""
    table = _pushed(scale, optimizer, rate)
    table = table[~table["kind"].isin(["pushing", "same context"])]
    follower = nested_mean(table[table["kind"] == "same token, unsure"], "dlogp")
    return follower, times_smaller(table, "size", "same token, unsure", "tokens")


def hidden_by_adam(scale: str) -> Interval:
    """H10: how many times more SGD's movement falls than AdamW's when a sure token pushes in place of an unsure one."""
    table = load_measured("coupling", scale, "masked").query("rate == 'matched' and kind != 'pushing'")
    totals = table.assign(total=table["size"] * table["tokens"])
    totals = totals.groupby(["seed", "group", "optimizer", "pushing"])[["total", "tokens"]].sum()
    logs = np.log(totals["total"] / totals["tokens"]).unstack(["optimizer", "pushing"])
    fall = {optimizer: logs[optimizer, "unsure"] - logs[optimizer, "sure"] for optimizer in ("sgd", "adamw")}
    gap = (fall["sgd"] - fall["adamw"]).replace([np.inf, -np.inf], np.nan).rename("gap").reset_index()
    return Interval(*np.exp(nested_mean(gap, "gap")))


def agreement_along(scale: str, optimizer: str = "sgd", column: str = "agree") -> pd.DataFrame:
    """H4: share of tokens that agree in sign at each moment of training: columns step, mean, low, high."""
    table = load_measured("coupling", scale, "agreement").query("optimizer == @optimizer")
    return pd.DataFrame([{"step": step, **nested_mean(rows, column)._asdict()} for step, rows in table.groupby("step")])


def judged(rows: pd.DataFrame, above: float) -> str:
    """One verdict on several intervals, all of which must lie above: the worst of theirs.

    Where an interval rests on fewer than `LEAST` prompts, nothing can be told: inconclusive.
    """
    if "prompts" in rows and rows["prompts"].min() < LEAST:
        return "inconclusive"
    each = {verdict(Interval(row.mean, row.low, row.high), above=above) for row in rows.itertuples()}
    return next(word for word in ("does not replicate", "inconclusive", "replicates") if word in each)


def _pushed(scale: str, optimizer: str, rate: str) -> pd.DataFrame:
    table = load_measured("coupling", scale, "masked")
    return table[(table["pushing"] == "unsure") & (table["optimizer"] == optimizer) & (table["rate"] == rate)]
