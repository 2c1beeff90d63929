"""How many groups can teach anything at a fixed number of rollouts: those that hold both rewards (chapter 13).

A group of G rollouts of a prompt that succeeds with probability q holds both rewards with probability
1 - q^G - (1 - q)^G; all others have advantages of 0. Prompts differ: q is drawn from a Beta distribution.
"""

from __future__ import annotations

from math import exp, lgamma

import altair as alt
import pandas as pd

from workbook.views.curves import curve_chart
from workbook.views.explorer import Explorer, power_slider, slider

SHARE, PROMPTS = "groups that hold both rewards", "prompts that teach, of those possible with pairs"


def compute_mixed(success: float = 0.4, spread: float = 0.3, rollouts: int = 128) -> pd.DataFrame:
    """Groups that hold both rewards, by rollouts per prompt, at a fixed number of rollouts.

    success: mean probability of a right answer.  spread: 0 all prompts alike, towards 1 prompts that are always or
    never solved; the Beta distribution's 1 / (1 + a + b).  Columns group_size, series, mean, low, high (expectations,
    so the three are equal), prompts (how many prompts the rollouts are of), teaching (expected number of mixed groups).

    >>> compute_mixed(0.5, 0.0, 8).query("group_size == 2")["mean"].tolist()
    [0.5, 0.5]
    """
    rows = []
    for size in (2**k for k in range(1, rollouts.bit_length()) if 2**k <= rollouts):
        share = 1 - _all_equal(success, spread, size) - _all_equal(1 - success, spread, size)
        prompts = rollouts // size
        values = {SHARE: share, PROMPTS: share * prompts / (rollouts // 2)}
        rows += [(size, series, value, prompts, share * prompts) for series, value in values.items()]
    table = pd.DataFrame(rows, columns=["group_size", "series", "mean", "prompts", "teaching"])
    return table.assign(low=table["mean"], high=table["mean"])


def _all_equal(success: float, spread: float, size: int) -> float:
    """E[q^G] for q ~ Beta with this mean: B(a + G, b) / B(a, b)."""
    if spread == 0 or success in (0, 1):
        return success**size
    total = 1 / spread - 1
    a = success * total
    return exp(lgamma(a + size) - lgamma(a) + lgamma(total) - lgamma(total + size))


def mixed_chart(table: pd.DataFrame) -> alt.LayerChart:
    """The share of groups that hold both rewards, and of prompts that teach, by rollouts per prompt."""
    return curve_chart(
        table,
        "group_size",
        series="series",
        x_title="rollouts per prompt G",
        y_title="share",
        title="Larger groups more often hold both rewards, and leave fewer prompts",
        subtitle="expected, at a fixed number of rollouts",
        form=".0%",
        scale={"domain": [0, 1]},
        shown=["prompts", "teaching"],
    )


def explore_mixed() -> Explorer:
    """Sliders over the rate of success, how far prompts differ in it, and the rollouts of a step."""
    controls = {
        "success": slider(0.4, 0.02, 0.98, 0.02, "probability of a right answer"),
        "spread": slider(0.3, 0.0, 0.9, 0.05, "spread of difficulty"),
        "rollouts": power_slider(128, 1024, "rollouts in a step", least=16),
    }
    return Explorer(compute_mixed, mixed_chart, controls, describe_mixed)


def describe_mixed(table: pd.DataFrame) -> str:
    """The smallest group of which at least half hold both rewards, and what pairs and groups of eight teach."""
    rows = table[table["series"] == SHARE].set_index("group_size")
    half = rows.index[rows["mean"] >= 0.5]
    first = (
        f"From G = {half[0]} on at least half of the groups teach" if len(half) else "At no G do half the groups teach"
    )
    return f"{first}; of pairs {rows['mean'][2]:.0%} do, of groups of eight {rows['mean'][8]:.0%}."
