"""Study of chapter 06: which tokens couple (H2, R2), what a masked update moves (H3), how well the output layer stands
for the whole network (H4), and what Adam's first step hides (H10).

What was stated before, and what is judged by it: `workbook.topics.coupling.claims`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.policies.load import load_policy
from workbook.probes.step import along_training, matched_lr, progress
from workbook.rollouts.sample import Rollouts
from workbook.studies.bench import Bench
from workbook.topics.coupling.masked import UNSURE, choose_tokens, followers, masked_update, shared_token
from workbook.topics.coupling.probe import coupling_by_confidence, gradient_products, product_agreement

MASKED_STEP_NATS = 0.03  # root mean square: of the group's tokens by a masked step, of a batch's by a full one
PAPER_LR = 0.1
FINE = tuple(np.arange(1, 12) / 12)  # cuts of the map: twelve bins, to be merged into 6, 4, 3 or 2
LORA = 8
LRS = tuple(float(f"{10.0**k:.4g}") for k in np.arange(-2, 1.25, 0.25))  # SGD's; AdamW's are a hundredth of these
ADAM_SCALE = 0.01
SGD_ALONE = ("smollm2_chat",)  # where the output layer is compared with SGD's full step, and not with AdamW's as well
SIZES = {  # anchors: per prompt.  lora, masked, curves: prompts.  training: steps, every, prompts and rate
    "tiny": {"anchors": 4, "lora": 2, "masked": 6, "curves": 2, "training": (4, 2, 4, 1e-3)},
    "bundled": {"anchors": 6, "lora": 16, "masked": 64, "curves": 8, "training": (60, 10, 32, 1e-3)},
    "smollm2_chat": {"anchors": 3, "lora": 2, "masked": 3, "curves": 0, "training": (2, 1, 4, 1e-5)},
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
        sgd = matched_lr(policy, part, "sgd", MASKED_STEP_NATS, chosen=unsure)
        adam = matched_lr(policy, part, "adamw", MASKED_STEP_NATS, start=1e-4, chosen=unsure)
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
    groups = []
    for group in rollouts.group_ids.unique().tolist():
        part = rollouts.select(rollouts.group_ids == group)
        masks = []
        for confidence in ((0.0, UNSURE), (0.9, 1.0)):
            token = shared_token(part, confidence)
            masks.append(token if token is None else choose_tokens(part, token, confidence=confidence, sign=1))
        if masks[0] is not None and not (both and masks[1] is None):
            groups.append((group, part, *masks))
    return progress(groups[:prompts], "masked updates")


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
    for step, trained, rollouts in moments:
        if not rollouts.advantages.any():
            continue
        everything = rollouts.completion_mask.bool()
        sgd = masked_update(
            trained, rollouts, everything, "sgd", matched_lr(trained, rollouts, "sgd", MASKED_STEP_NATS)
        )
        taken = {"sgd": sgd}
        if scale.name not in SGD_ALONE:
            adam_lr = matched_lr(trained, rollouts, "adamw", MASKED_STEP_NATS, start=1e-4)
            taken["adamw"] = masked_update(trained, rollouts, everything, "adamw", adam_lr)
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
