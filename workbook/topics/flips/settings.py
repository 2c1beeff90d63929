"""The shares of boosted, suppressed and stable tokens under many settings: what chapter 05's sliders move through.

One step on every combination of optimizer, learning rate, number of prompts and rollouts per prompt, read at every eps.
Learning rates are factors of the one at which the seed's whole batch moves by 0.1 nats (see `flips.study`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from workbook.probes.step import ONE_STEP_OPTIMIZERS, STEP_NATS, matched_lr, progress
from workbook.rollouts.sample import Rollouts
from workbook.studies.bench import Bench
from workbook.studies.claim import BUNDLED
from workbook.theory.advantages import group_advantages
from workbook.topics.flips.probe import CHANGES, shares_by_prompt, token_flips

FACTORS = (0.1, 0.3, 1.0, 3.0)
PROMPTS = (4, 16, 32)
GROUP_SIZES = (2, 4, 8)
EPSILONS = tuple(float(f"{eps:.3g}") for eps in np.geomspace(1e-3, 1, 25))


def flip_settings_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table shares: a row per optimizer, factor, prompts, group_size, eps and change, averaged over prompts."""
    policy, rollouts = bench.policy, bench.rollouts
    rates = {optimizer: matched_lr(policy, rollouts, optimizer, STEP_NATS) for optimizer in ONE_STEP_OPTIMIZERS}
    tables = []
    for optimizer, factor, prompts, group_size in progress(
        list(product(ONE_STEP_OPTIMIZERS, FACTORS, PROMPTS, GROUP_SIZES)), "settings"
    ):
        part = _part(rollouts, prompts, group_size)
        table = token_flips(policy, part, optimizer, factor * rates[optimizer])
        for eps in EPSILONS:
            shares = shares_by_prompt(table, eps).groupby("change")[["positive", "negative"]].mean().reset_index()
            setting = {"optimizer": optimizer, "factor": factor, "prompts": prompts, "group_size": group_size}
            tables.append(shares.assign(eps=eps, **setting))
    return {"shares": pd.concat(tables, ignore_index=True)}


def _part(rollouts: Rollouts, prompts: int, group_size: int) -> Rollouts:
    """The first rollouts of the first prompts, with the advantages of the groups that they make."""
    group = pd.Series(rollouts.group_ids.cpu().numpy())
    part = rollouts.select(np.flatnonzero((group < prompts) & (group.groupby(group).cumcount() < group_size)).tolist())
    return replace(part, advantages=group_advantages(part.rewards, part.group_ids, "grpo"))


def compute_flips(
    eps: float = 0.01, optimizer: str = "adamw", factor: float = 1.0, prompts: int = 32, group_size: int = 8
) -> dict[str, pd.DataFrame]:
    """Shares of each change by sign (mean, low, high: over seeds, the least and the largest), and distance against eps.

    eps (nats) is taken to the nearest that was measured.  Raises ValueError for settings that were not.
    """
    table = BUNDLED["flip_settings/shares"]
    setting = {"optimizer": optimizer, "factor": factor, "prompts": prompts, "group_size": group_size}
    here = (table["optimizer"] == optimizer) & np.isclose(table["factor"], factor) & (table["prompts"] == prompts)
    chosen = table[here & (table["group_size"] == group_size)]
    if chosen.empty:
        raise ValueError(f"{setting} was not measured; factors are {FACTORS}, prompts {PROMPTS}, groups {GROUP_SIZES}.")
    nearest = min(EPSILONS, key=lambda measured: abs(np.log(measured / eps)))
    gaps = (chosen["positive"] - chosen["negative"]).abs().groupby([chosen["eps"], chosen["seed"]]).sum() / 2
    curve = gaps.groupby("eps").agg(["mean", "min", "max"]).set_axis(["mean", "low", "high"], axis=1).reset_index()
    long = chosen[np.isclose(chosen["eps"], nearest)].melt(["change", "seed"], ["positive", "negative"], "sign")
    shares = long.groupby(["change", "sign"])["value"].agg(["mean", "min", "max"]).reset_index()
    shares = shares.set_axis(["change", "sign", "mean", "low", "high"], axis=1)
    order = shares["change"].map(CHANGES.index)
    return {
        "shares": shares.assign(order=order).sort_values(["order", "sign"], ascending=[True, False], ignore_index=True),
        "curve": curve.assign(chosen=np.isclose(curve["eps"], nearest)),
    }
