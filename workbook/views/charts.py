"""Pure charts, f(DataFrame) -> alt.Chart: what a run has learned, and the reward before and after."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.views.style import NEUTRAL, POSITIVE, SERIES, finish, require


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
    ]
    if target is not None:
        layers.append(alt.Chart().mark_rule(strokeDash=[4, 4], color=NEUTRAL).encode(y=alt.datum(target)))
    told = "thick: mean over seeds" if "seed" in metrics else "the number is the newest step's"
    aim = f"; dashed: the aim of {target:g}" if target is not None else ""
    return finish(
        alt.layer(*layers, data=rows),
        "Reward of the sampled rollouts while the policy trains",
        f"mean of each step's rollouts; {told}{aim}",
        "A line of mean reward from 0 to 1 against optimizer steps, one colour per run.",
    )


def reward_before_after(summary: pd.DataFrame, interval: str = "95 % interval") -> alt.LayerChart:
    """Mean rewards with their intervals, one line per label: columns label, mean, low, high."""
    require(summary, ("label", "mean", "low", "high"), "reward_before_after")
    base = alt.Chart(summary).encode(y=alt.Y("label:N", sort=None, title=None))
    reward = alt.X("mean:Q", title="mean reward (0 to 1)").scale(domain=[0, 1])
    low = alt.X("low:Q", title="mean reward (0 to 1)")
    shown = [alt.Tooltip(f"{column}:Q", format=".3f") for column in ("mean", "low", "high")]
    chart = alt.layer(
        base.mark_rule(size=3, color=POSITIVE, opacity=0.5).encode(x=low, x2="high:Q", tooltip=["label:N", *shown]),
        base.mark_circle(size=110, opacity=1, color=POSITIVE).encode(x=reward, tooltip=["label:N", *shown]),
        base.mark_text(dy=-13, fontWeight="bold").encode(x=reward, text=alt.Text("mean:Q", format=".2f")),
    )
    return finish(
        chart,
        "Reward on held-out prompts, before and after training",
        f"dot: mean; bar: {interval}",
        "; ".join(f"{row.label}: {row.mean:.3f} ({row.low:.3f} to {row.high:.3f})" for row in summary.itertuples()),
        height=alt.Step(52),
    )
