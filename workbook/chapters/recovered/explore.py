"""Chapter 06's figures of credit recovered: measured curves, and one real step in its parts."""

from functools import cache

import altair as alt
import pandas as pd
import torch

from workbook.policies.load import load_policy
from workbook.probes.recovered import credit_recovered
from workbook.probes.values import exact_values
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task
from workbook.views.charts import curve_chart, describe_parts, parts_table, signal_noise_chart
from workbook.views.explorer import Explorer, menu, slider

_SHARES = (-0.25, 1.25)  # of the axis; a share may lie beyond where signal and noise point apart
PAPERS = {
    "group_size": (2, 16, "group sizes of the two papers"),
    "prompts": (16, 96, "batch sizes of arXiv 2605.08666"),
}
AXES = {"group_size": "rollouts per prompt", "prompts": "prompts in the step"}
TITLES = {
    "group_size": "More rollouts per prompt make more of a step credit",
    "prompts": "More prompts make more of what moves results credit",
}
UPDATE = "the update, in the weights' space"
UPDATE_LABEL = "the update, through all weights"  # in the chart
LINES = {"all": "all tokens", "result": "result words", "style": "style words"}
SAMPLED_PROMPTS, SAMPLED_SIZE = 8, 16  # of which a setting takes the first
_MEASURED = 12  # tokens of each class
RULES = ["grpo", "dr_grpo", "positive_only", "known_credit", "permuted"]


# --- measured


def recovered_chart(curves: pd.DataFrame) -> alt.LayerChart:
    """Own-prompt share of signal over one of AXES: all tokens, results, style words, the update.

    curves: rows of the table "recovered/curves" that have one axis.
    """
    [axis] = curves["axis"].unique()
    return curve_chart(
        curves.replace({"line": {UPDATE: UPDATE_LABEL}}),
        "size",
        series="line",
        x_title=AXES[axis],
        y_title="own-prompt share",
        title=TITLES[axis],
        log2=True,
        reference=[0.0, 1.0],
        paper=PAPERS.get(axis),
        form=".0%",
        clip=True,
        scale={"domain": _SHARES, "nice": False},
        subtitle=(
            "words: of their squared movement; update: of its squared length; band: 95 % t interval"
            " over policies"
        ),
    )


# --- one step now


def compute_recovered(prompts: int = 4, group_size: int = 8, rule: str = "grpo") -> pd.DataFrame:
    """Shares of the squared movement of one step of the bundled policy, a row per token class and
    part.

    Columns: those of `parts_table`, prompts, group_size, rule, cosine (of the update with the exact
    gradient). prompts: 1 to 8.  group_size: 2 to 16.  ValueError where no group has different
    rewards.
    """
    policy, task, rollouts, values = _sampled()
    place = torch.arange(len(rollouts)) % SAMPLED_SIZE
    rows = ((rollouts.group_ids < prompts) & (place < group_size)).nonzero().squeeze(1)
    chosen = {"values": values.select(rows), "tokens": _MEASURED}
    recovered = credit_recovered(policy, rollouts.select(rows), rule, task, **chosen)
    if recovered.shares["signal"].isna().all():
        raise ValueError(
            f"{prompts} prompts of {group_size} rollouts have no group of different rewards; take"
            " more."
        )
    setting = {
        "prompts": prompts,
        "group_size": group_size,
        "rule": rule,
        "cosine": recovered.update["cosine"],
    }
    return parts_table(recovered.shares).assign(**setting)


@cache
def _sampled():
    policy, task = load_policy("bundled"), get_task("chain")
    rollouts = sample_rollouts(
        policy, task, SAMPLED_PROMPTS, SAMPLED_SIZE, seed=0, max_new_tokens=48
    )
    return policy, task, rollouts, exact_values(policy, task, rollouts)


def _parts_chart(table: pd.DataFrame) -> alt.LayerChart:
    return signal_noise_chart(table, "GRPO moves style words by noise, results by credit as well")


def explore_recovered() -> Explorer:
    """Sliders over prompts, rollouts per prompt and rule: one real step of the bundled policy,
    split in a second.
    """
    controls = {
        "prompts": slider(4, 1, 8, 1, "prompts in the step"),
        "group_size": slider(8, 2, 16, 1, "rollouts per prompt"),
        "rule": menu("grpo", RULES, "rule"),
    }
    presets = {
        "more prompts": {"prompts": 8},
        "more rollouts per prompt": {"group_size": 16},
        "positive-only": {"rule": "positive_only"},
        "permuted advantages: the floor": {"rule": "permuted"},
        "known credit: the ceiling": {"rule": "known_credit"},
    }
    return Explorer(compute_recovered, _parts_chart, controls, describe_parts, presets=presets)
