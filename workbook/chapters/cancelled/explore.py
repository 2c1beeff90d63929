"""Explorers of the cancelled share: of rows in hand (a toy's, a policy's), of measured sums, and
its curves.
"""

import pandas as pd

from workbook.chapters.cancelled.charts import (
    bar_tables,
    cancellation_chart,
    describe_shares,
)
from workbook.chapters.cancelled.toy import toy_rows
from workbook.probes.cancellation import PushRows, prompt_rows
from workbook.probes.categories import categorized
from workbook.rollouts.sample import sample_rollouts
from workbook.views.explorer import Explorer, browse, menu, power_slider, slider
from workbook.views.measured import measured_table
from workbook.views.style import SERIES

_SAMPLED = 16  # prompts of `policy_rows`, of which those that push are measured
NEW_TOKENS = 48
REWARD_MENU = [("by reward", None), ("permuted", 0)]
COSINES = {"all tokens": "all", "shared words": "shared words"}  # the kinds of words that have one


def policy_rows(policy, task, prompts: int = 10, group_size: int = 12, seed: int = 0) -> PushRows:
    """Rows of every rollout of some prompts that push, `prompts` at most: some 120 small steps, 20
    s on one core.
    """
    rollouts = categorized(sample_rollouts(policy, task, _SAMPLED, group_size, seed, NEW_TOKENS))
    return prompt_rows(policy, rollouts, prompts, prompts, bundle=_SAMPLED)


def compute_cancellation(
    rows: PushRows, prompts: int = 1, rollouts: int = 8, permuted: int | None = None
) -> dict[str, pd.DataFrame]:
    """Who pushes shared words in a step on so many prompts, of so many rollouts each: tables of
    `bar_tables`.

    permuted: seed of a permutation of the rewards within each group; None: as they are.  Fewer
    prompts, if fewer push.
    """
    weights = rows.weights(rollouts, permuted)
    pushing = rows.blocks.blocks.loc[weights != 0, "group"].nunique()
    return bar_tables(rows.sums(weights, min(prompts, pushing)))


def compute_measured(
    table: pd.DataFrame, prompts: int = 1, rewards: str = "by reward"
) -> dict[str, pd.DataFrame]:
    """The same from measured sums over units, of steps on prompts of 8 rollouts."""
    rows = table.query("prompts == @prompts and rewards == @rewards")
    if rows.empty:
        raise ValueError(
            f"No step on {prompts} prompts was measured with rewards {rewards}; take fewer prompts."
        )
    return bar_tables(rows)


def explore_cancellation(rows: PushRows | pd.DataFrame | None = None) -> Explorer:
    """Four bars per class of word and its cancelled share, with sliders over the prompts of a step
    and their rollouts.

    rows: of a policy (`policy_rows`), of a toy (`toy_rows`, the default), or measured sums, such as
    the table "cancelled/smollm2".
    """
    rows = toy_rows(12) if rows is None else rows
    if isinstance(rows, pd.DataFrame):
        return _explore_measured(rows)
    most = int(rows.blocks.blocks["last"].max()) + 1
    controls = {
        "prompts": slider(1, 1, len(rows.groups), 1, "prompts in the step"),
        "rollouts": slider(min(8, most), 2, most, 1, "rollouts per prompt"),
        "permuted": menu(None, REWARD_MENU, "rewards"),
    }
    presets = {
        "two rollouts per prompt": {"rollouts": 2},
        f"{most} rollouts per prompt": {"rollouts": most},
        f"{len(rows.groups)} prompts in the step": {"prompts": len(rows.groups)},
        "rewards permuted": {"permuted": 0},
    }
    return Explorer(
        compute_cancellation,
        cancellation_chart,
        controls,
        describe_shares,
        {"rows": rows},
        presets=presets,
    )


def _explore_measured(table: pd.DataFrame) -> Explorer:
    most = int(table["prompts"].max())
    controls = {"prompts": power_slider(1, most, "prompts in the step")}
    kinds = table["rewards"].unique().tolist()
    if len(kinds) > 1:
        controls["rewards"] = menu(kinds[0], kinds, "rewards")
    presets = {f"{most} prompts in the step": {"prompts": most}} if most > 1 else {}
    return Explorer(
        compute_measured,
        cancellation_chart,
        controls,
        describe_shares,
        {"table": table},
        presets=presets,
    )


def explore_curves() -> Explorer:
    """The family's curves over rollouts of one prompt and over prompts, laid over one another at
    equal rollouts.
    """
    return browse(
        measured_table("cancelled/curves"),
        "rollouts",
        ["cancelled share", "follows", "cosine"],
        {"kind": "style", "rewards": "by reward"},
        "series",
        labels={"kind": "shared words", "value": "shown"},
        presets={
            f"cosine of {name}": {"value": "cosine", "kind": kind} for name, kind in COSINES.items()
        },
        x_title="rollouts in the step",
        y_title="share, chance or cosine, as chosen",
        title="More rollouts of one prompt, and more prompts",
        reference=[0.0],
        colors=SERIES[:2],
    )
