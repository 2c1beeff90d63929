"""Chapter 14, live: which classes of token one real step moves, under two estimators (H6, figure 4 of paper H)."""

from __future__ import annotations

from dataclasses import replace

import altair as alt
import pandas as pd

from workbook.policies.copies import private_copy
from workbook.probes.categories import categorized
from workbook.probes.step import ONE_STEP_OPTIMIZERS, STEP_NATS, matched_lr
from workbook.rollouts.sample import sample_rollouts
from workbook.theory.advantages import group_advantages
from workbook.theory.choices import ESTIMATORS
from workbook.topics.credit.shares import MEASURES, update_share_by_category
from workbook.topics.flips.explore import NEW_TOKENS as LENGTH
from workbook.training.progress import progress, show_partial
from workbook.views.explorer import log_slider, menu, power_slider, slider
from workbook.views.figures import bars
from workbook.views.live_study import LiveStudy
from workbook.views.style import describe_rows, require, titled

ROLES = ["first estimator", "second estimator"]
TABLE = ["category", "role", "estimator", "mean", "low", "high"]


def compute_live_shares(
    policy,
    task,
    one: str = "grpo",
    other: str = "positive_only",
    optimizer: str = "sgd",
    nats: float = STEP_NATS,
    measure: str = "movement",
    prompts: int = 16,
    group_size: int = 8,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Shares of each class of token in one step under two estimators: {"table": its columns TABLE}.

    nats: the step's root mean square movement, to which each estimator's learning rate is matched.  measure: of
    MEASURES.  low, high: a bootstrap interval over prompts; none of the gradient's norm.

    Raises ValueError where no prompt has different rewards.
    """
    rollouts = sample_rollouts(policy, task, prompts, group_size, seed, LENGTH)
    rollouts, parts = rollouts if rollouts.categories else categorized(rollouts), []
    for role, estimator in progress(list(zip(ROLES, (one, other), strict=True)), "estimators"):
        advantages = group_advantages(rollouts.rewards, rollouts.group_ids, estimator)
        if not advantages.any():
            raise ValueError(f"No prompt has different rewards with seed={seed} and prompts={prompts}; take others.")
        lr = matched_lr(policy, replace(rollouts, advantages=advantages), optimizer, nats)
        shares = update_share_by_category(policy, rollouts, estimator, optimizer, lr, measures=(measure,))
        parts.append(shares.assign(role=role).reindex(columns=TABLE))
        show_partial(table=pd.concat(parts, ignore_index=True))
    return {"table": pd.concat(parts, ignore_index=True)}


def live_shares_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Shares of one step by class of token, a bar an estimator; table of `compute_live_shares`."""
    require(table, TABLE, "live_shares_chart")
    share = alt.Y("mean:Q", title="share of the step").scale(domainMin=0)
    look = {"vertical": True, "number": ".2f", "form": ".3f", "shown": ["estimator"], "names": ROLES}
    return titled(
        bars(table, "category", share, "role", **look),
        "Which classes of token one step moves, under two estimators",
        "means over prompts, with 95 % bootstrap intervals over them",
        describe_rows(table, "category", "role", form=".2f"),
    )


def describe_live_shares(table: pd.DataFrame) -> str:
    """How each class's share changes from the second estimator to the first."""
    wide = table.pivot_table("mean", "category", "role", sort=False)
    if list(wide.columns) != ROLES:
        return ""
    change = (wide[ROLES[0]] - wide[ROLES[1]]).sort_values(ascending=False)
    one, other = (table.loc[table["role"] == role, "estimator"].iloc[0] for role in ROLES)
    return f"{one} minus {other}: {', '.join(f'{name} {share:+.3f}' for name, share in change.items())}."


def live_shares(policy, task, prompts: int = 16) -> LiveStudy:
    """Two estimators, the optimizer, the step, what is shared out, batch and seed: steps of a copy of a policy."""
    controls = {
        "one": menu("grpo", list(ESTIMATORS), ROLES[0]),
        "other": menu("positive_only", list(ESTIMATORS), ROLES[1]),
        "optimizer": menu("sgd", list(ONE_STEP_OPTIMIZERS), "optimizer"),
        "nats": log_slider(STEP_NATS, -3, 0, "step (nats, rms)", step=0.25),
        "measure": menu("movement", list(MEASURES), "share of"),
        "prompts": power_slider(prompts, 64, "prompts in the batch"),
        "group_size": power_slider(8, 16, "rollouts per prompt, G", least=2),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    tables = {"table": pd.DataFrame(columns=TABLE)}
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_shares, live_shares_chart, controls, tables, describe_live_shares, variables)
