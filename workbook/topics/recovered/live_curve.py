"""Chapter 07, live: share of signal in a real step by rollouts per prompt or by prompts, over the committed curve."""

from __future__ import annotations

import altair as alt
import pandas as pd
import torch

from workbook.policies.copies import private_copy
from workbook.probes.recovered import credit_recovered
from workbook.probes.values import chain_values
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import unit_curve
from workbook.topics.recovered.charts import AXES, PAPERS, RULE_MENU, measured
from workbook.topics.recovered.claims import STUDY
from workbook.topics.recovered.study import RULE
from workbook.training.progress import progress, show_partial
from workbook.views.curves import PAPER_COLOR
from workbook.views.explorer import menu, power_slider, slider
from workbook.views.figures import rule as line
from workbook.views.figures import series
from workbook.views.live_study import LiveStudy
from workbook.views.style import NEUTRAL, describe_rows, require, titled

SIZES = (1, 2, 4, 8, 16, 32)
TOKENS = 12  # of each class, measured now
TABLES = ("shares", "update")
NAMES = ["all tokens, the family", "the update, the family", "all tokens, now", "the update, now"]
COLUMNS = ["series", "size", "mean", "low", "high", "units"]
SHARES = (-0.1, 1.1)  # of the axis


def compute_live_recovered(
    policy, task, axis: str = "group_size", prompts: int = 4, most: int = 16, rule: str = "grpo", seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Share of signal by size of the batch: {"curve": series (of NAMES), size, mean, low, high, units, paper's place}.

    axis: group_size or prompts, what grows.  The family's are of the rule grpo, of 16 prompts, or of 8 rollouts each.
    prompts, most: of the largest batch, and rollouts of each.  Settings without any group of different rewards are left
    out.  Raises ValueError where all are.
    """
    committed = _committed(axis)
    show_partial(curve=committed)
    rollouts = sample_rollouts(policy, task, prompts, most, seed=seed, max_new_tokens=48)
    values, rows = chain_values(policy, task, rollouts), []
    place = torch.arange(len(rollouts)) % most if axis == "group_size" else rollouts.group_ids
    largest, least = (most, 2) if axis == "group_size" else (prompts, 1)
    for size in progress([size for size in SIZES if least <= size <= largest], AXES[axis]):
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
    now = pd.DataFrame(rows, columns=["series", "size", "mean"])
    return pd.concat([committed, now.assign(low=now["mean"], high=now["mean"], units=1)], ignore_index=True)


def _committed(axis: str = "group_size") -> pd.DataFrame:
    """The family's curves along an axis, and in the first row the papers' place on it."""
    tables = (measured(STUDY, name) for name in TABLES)
    shares, update = (table[(table["axis"] == axis) & (table["rule"] == RULE)] for table in tables)
    lines = {NAMES[0]: shares[shares["category"] == "all"], NAMES[1]: update}
    lines = {name: table.dropna(subset="signal") for name, table in lines.items()}
    curves = [unit_curve(table, axis, "signal").assign(series=name) for name, table in lines.items()]
    curve = pd.concat(curves, ignore_index=True).rename(columns={axis: "size"})[COLUMNS]
    return curve.join(pd.DataFrame([PAPERS[axis][:2]], columns=["paper_low", "paper_high"], dtype=float))


def live_recovered_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Share of signal by size of the batch; table of `compute_live_recovered`."""
    require(curve, [*COLUMNS, "paper_low"], "live_recovered_chart")
    x = alt.X("size:Q", title="rollouts per prompt, or prompts").scale(type="log", base=2, domain=[1, 96], nice=False)
    x = x.axis(values=[1, 2, 4, 8, 16, 32, 64], grid=False)
    y = alt.Y("mean:Q", title="share of signal").scale(domain=SHARES, nice=False).axis(format=".0%")
    place = alt.Chart(curve).transform_filter("isValid(datum.paper_low)").mark_rect(color=PAPER_COLOR, opacity=0.7)
    bounds = [line(bound, "y", dashed=True, color=NEUTRAL) for bound in (0.0, 1.0)]
    under = [place.encode(x="paper_low:Q", x2="paper_high:Q"), *bounds]
    look = {"names": NAMES, "dash": "series", "form": ".0%", "shown": ["units"], "clip": True, "legend": {"columns": 2}}
    return titled(
        series(curve, x, y, "series", under=under, **look),
        "How much of one step is credit",
        "family: 95 % t intervals over its units; now: one policy and one draw; shaded: the papers' sizes",
        describe_rows(curve, "series", "size", form=".0%", interval=True),
    )


def describe_live_recovered(curve: pd.DataFrame) -> str:
    """The live update's first and last share of signal."""
    own = curve[curve["series"] == NAMES[3]]
    ends = [f"{row['mean']:.0%} at {row['size']:.0f}" for _, row in own.iloc[[0, -1]].iterrows()]
    return f"Signal in this policy's update, now: {', '.join(dict.fromkeys(ends))}."


def live_recovered(policy, task, prompts: int = 4) -> LiveStudy:
    """What grows, prompts, rollouts, rule and seed of real steps of a copy of a policy, split into signal and noise."""
    controls = {
        "axis": menu("group_size", [(words, name) for name, words in AXES.items()], "what grows"),
        "prompts": power_slider(prompts, 32, "prompts at most"),
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
