"""Charts of many chapters: what a run has learned, reward before and after, intervals, and a table folded away."""

from __future__ import annotations

import html

import altair as alt
import pandas as pd

from workbook.views.figures import forest, rule
from workbook.views.style import NEUTRAL, SERIES, describe_rows, finish, require, titled


def learning_curve(metrics: pd.DataFrame, target: float | None = None, steps: int | None = None) -> alt.LayerChart:
    """Mean reward of the sampled rollouts at each optimizer step.

    metrics: columns step, reward, and optionally run (one colour each) and seed (thin lines, their mean thick).
    target: a reward to draw a line at.  steps: where the axis ends, for a run that is still going.
    """
    require(metrics, ("step", "reward"), "learning_curve")
    rows = pd.DataFrame(
        {
            "step": metrics["step"].astype(float),
            "reward": metrics["reward"].astype(float),
            "run": metrics["run"].astype(str) if "run" in metrics else "reward",
            "seed": metrics["seed"].astype(str) if "seed" in metrics else "0",
        }
    )
    legend = alt.Legend(title=None, orient="bottom", symbolOpacity=1) if "run" in metrics else None
    step = alt.X("step:Q", title="optimizer step")
    base = alt.Chart(rows).encode(
        x=step.scale(domain=[0, steps]) if steps else step,
        color=alt.Color("run:N", legend=legend).scale(range=SERIES),
    )
    reward = alt.Y("reward:Q", title="mean reward (0 to 1)").scale(domain=[0, 1])
    mean = alt.Y("mean(reward):Q", title="mean reward (0 to 1)")
    layers = [
        base.mark_line(size=1, opacity=0.35, clip=True).encode(y=reward, detail="seed:N"),
        base.mark_line(size=2.5, clip=True).encode(y=mean),
        base.mark_circle(size=22, opacity=1, clip=True).encode(
            y=mean, tooltip=["run:N", "step:Q", alt.Tooltip("mean(reward):Q", format=".3f", title="mean reward")]
        ),
        base.transform_joinaggregate(last="max(step)", runs="distinct(run)")
        .transform_filter("datum.step == datum.last && datum.runs == 1")  # of several they would hide one another
        .mark_text(align="left", dx=7, fontSize=12, fontWeight="bold")
        .encode(y=mean, text=alt.Text("mean(reward):Q", format=".2f")),
        *([] if target is None else [rule(target, "y", dashed=True, color=NEUTRAL)]),
    ]
    lines = "thick: mean over seeds" if "seed" in metrics else "the number is the newest step's"
    aim = f"; dashed: the aim of {target:g}" if target is not None else ""
    return finish(
        alt.layer(*layers, data=rows),
        "Reward of the sampled rollouts while the policy trains",
        f"mean of each step's rollouts; {lines}{aim}",
        "A line of mean reward from 0 to 1 against optimizer steps, one colour per run.",
    )


def reward_before_after(summary: pd.DataFrame, interval: str = "95 % interval") -> alt.LayerChart:
    """Mean rewards with their intervals, one line per label: columns label, mean, low, high."""
    require(summary, ("label", "mean", "low", "high"), "reward_before_after")
    reward = alt.X("mean:Q", title="mean reward (0 to 1)").scale(domain=[0, 1])
    return titled(
        forest(summary, "label", reward, number=".2f", form=".3f", height=alt.Step(52)),
        "Reward on held-out prompts, before and after training",
        f"dot: mean; bar: {interval}",
        describe_rows(summary, "label", form=".3f", interval=True),
    )


def intervals_chart(
    table: pd.DataFrame, title: str, subtitle: str, unit: str, threshold: float | None = None, zero: bool = True
) -> alt.LayerChart:
    """A line per row: dot, interval and number; columns label, mean, low, high, and scale (colour, shape) if there.

    threshold: what was stated beforehand, as a dashed line.  zero: whether the axis must reach 0.
    """
    require(table, ("label", "mean", "low", "high"), "intervals_chart")
    x = alt.X("mean:Q", title=unit).scale(zero=zero, padding=30)
    ends = [*table["low"], *table["high"], *([] if threshold is None else [threshold])]
    if zero and 0 <= min(ends) < max(ends):  # what can't be negative has no axis there
        x = x.scale(domain=[0, 1.08 * max(ends)])
    look = {"by": "scale"} if "scale" in table else {}
    return titled(
        forest(table, "label", x, number=".3~g", form=".4g", threshold=threshold, **look),
        title,
        subtitle,
        describe_rows(table, "label", interval=True),
    )


class Fold:
    """A table under a line that opens it; in a terminal, the table itself."""

    def __init__(self, table: pd.DataFrame, title: str):
        self.table, self.title = table, title

    def __repr__(self) -> str:
        return f"{self.title}\n{self.table}"

    def _repr_html_(self) -> str:
        title, count = html.escape(self.title), f"{len(self.table)} row{'s' * (len(self.table) != 1)}"
        body = self.table.to_html(border=0, escape=True, max_rows=None)
        scroll = f'<div style="overflow-x: auto" tabindex="0" role="region" aria-label="{title}">'
        return f"<details><summary>{title} ({count})</summary>{scroll}{body}</div></details>"


def fold(table: pd.DataFrame, title: str) -> Fold:
    """Return a table that shows its title and number of rows until it is opened; its cells are escaped."""
    return Fold(table, title)
