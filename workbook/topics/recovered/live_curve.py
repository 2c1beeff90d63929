"""Chapter 07, live: share of signal in a real step by rollouts per prompt, measured now, over the committed curve."""

from __future__ import annotations

import altair as alt
import pandas as pd
import torch

from workbook.policies.restoring import private_copy
from workbook.probes.recovered import credit_recovered
from workbook.probes.values import chain_values
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import unit_curve
from workbook.topics.recovered.charts import RULE_MENU, measured
from workbook.topics.recovered.claims import STUDY
from workbook.topics.recovered.study import RULE
from workbook.training.progress import progress, show_partial
from workbook.views.curves import curve_chart
from workbook.views.explorer import menu, power_slider, slider
from workbook.views.live_study import LiveStudy

SIZES = (2, 4, 8, 16, 32)
TOKENS = 12  # of each class, measured now
TABLES = ("shares", "update")
NAMES = ["all tokens, the family", "the update, the family", "all tokens, now", "the update, now"]


def compute_live_recovered(
    policy, task, prompts: int = 4, most: int = 16, rule: str = "grpo", seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Share of signal by rollouts per prompt: {"curve": series, group_size, mean, low, high, units}.

    series: of NAMES. The family's are of 16 prompts and the rule grpo.  most: rollouts per prompt of the largest group.
    Settings without any group of different rewards are left out.  Raises ValueError where all are.
    """
    committed = _committed()
    show_partial(curve=committed)
    rollouts = sample_rollouts(policy, task, prompts, most, seed=seed, max_new_tokens=48)
    values, place, rows = chain_values(policy, task, rollouts), torch.arange(len(rollouts)) % most, []
    for size in progress([size for size in SIZES if size <= most], "rollouts per prompt"):
        chosen = (place < size).nonzero().squeeze(1)
        part = rollouts.select(chosen)
        if not part.advantages.any():
            continue
        split = credit_recovered(policy, part, rule, task, values=values.select(chosen), tokens=TOKENS)
        everything = split.shares.set_index("category").loc["all", "signal"]
        rows += [(NAMES[2], size, everything), (NAMES[3], size, split.update["signal"])]
        show_partial(curve=_with(committed, rows))
    if not rows:
        raise ValueError(f"{prompts} prompts have no group of different rewards with seed={seed}; take more.")
    return {"curve": _with(committed, rows)}


def _with(committed: pd.DataFrame, rows: list) -> pd.DataFrame:
    now = pd.DataFrame(rows, columns=["series", "group_size", "mean"])
    return pd.concat([committed, now.assign(low=now["mean"], high=now["mean"], units=1)], ignore_index=True)


def _committed() -> pd.DataFrame:
    tables = (measured(STUDY, name) for name in TABLES)
    shares, update = (table[(table["axis"] == "group_size") & (table["rule"] == RULE)] for table in tables)
    lines = {NAMES[0]: shares[shares["category"] == "all"], NAMES[1]: update}
    curves = [unit_curve(table, "group_size", "signal").assign(series=name) for name, table in lines.items()]
    return pd.concat(curves, ignore_index=True)


def live_recovered_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Share of signal by rollouts per prompt; table of `compute_live_recovered`."""
    return curve_chart(
        curve,
        "group_size",
        series="series",
        x_title="rollouts per prompt",
        y_title="share of signal",
        title="How much of one step is credit, on this policy now",
        subtitle="the family: 16 prompts, grpo, 95 % t intervals over its units; now: one policy and one draw",
        reference=[0.0, 1.0],
        form=".0%",
        clip=True,
        scale={"domain": (-0.25, 1.25), "nice": False},
        names=NAMES,
    )


def describe_live_recovered(curve: pd.DataFrame) -> str:
    """The live update's first and last share of signal."""
    own = curve[curve["series"] == NAMES[3]]
    ends = [f"{row.mean:.0%} at {row.group_size} rollouts" for row in own.iloc[[0, -1]].itertuples()]
    return f"Signal in this policy's update, now: {', '.join(dict.fromkeys(ends))}."


def live_recovered(policy, task, prompts: int = 4) -> LiveStudy:
    """Prompts, rollouts, rule and seed of real steps of a copy of a policy, split into signal and noise."""
    controls = {
        "prompts": power_slider(prompts, 16, "prompts in the step"),
        "most": power_slider(16, 32, "rollouts per prompt at most", least=2),
        "rule": menu("grpo", RULE_MENU, "rule"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(
        compute_live_recovered,
        live_recovered_chart,
        controls,
        {"curve": _committed()},
        describe_live_recovered,
        variables,
    )
