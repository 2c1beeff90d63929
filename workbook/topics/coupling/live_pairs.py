"""Chapter 06, live: where the coupling of a policy in hand goes by mass, and H3, H4 along a short training of it."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.policies.copies import private_copy
from workbook.probes.step import along_training
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import unit_curve
from workbook.studies.claim import FAMILY, Tables
from workbook.topics.coupling.claims import MIN_AGREEMENT, MIN_RATIO
from workbook.topics.coupling.mass import pair_sums, proxy_signs, spillover
from workbook.topics.coupling.mass_charts import NOW, SIGNS, WEIGHTS, compute_mass, describe_mass, mass_chart
from workbook.training.progress import show_partial
from workbook.views.explorer import log_slider, menu, power_slider, slider, switch
from workbook.views.figures import rule
from workbook.views.live_study import LiveStudy
from workbook.views.style import NEUTRAL, SERIES, panel_title, require, titled

MASKED = 4  # prompts of which one token pushes, at each moment of training
FOLLOWERS = ("same token, unsure", "different, unsure", "different, sure")
PANELS = {  # quantities of a panel, its title, its dashed line
    "one token pushes: how far others move": (FOLLOWERS, 1 / MIN_RATIO),
    "the output layer predicts the direction": (
        ("agreement, all", "agreement, unsure", "agreement, moved"),
        MIN_AGREEMENT,
    ),
}
QUANTITIES = [name for names, _ in PANELS.values() for name in names]
COLUMNS = ["quantity", "step", "mean", "low", "high"]


def compute_live_mass(
    policy,
    task,
    weights: str = "output layer",
    signs: str = "any",
    same_context: bool = True,
    prompts: int = 8,
    group_size: int = 8,
    anchors: int = 8,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """`compute_mass` of the family, and of this policy now.

    anchors: tokens of each prompt whose gradient of all weights is taken.  Raises ValueError for unknown choices.
    """
    choice = {"weights": weights, "signs": signs, "same_context": same_context}
    family = compute_mass(**choice)
    rollouts = sample_rollouts(policy, task, prompts, group_size, seed, max_new_tokens=48)
    tables = {"mass/pairs": pair_sums(policy, rollouts, prompts, anchors, seed).assign(seed=0)}
    own = compute_mass(**choice, tables=tables)
    return {name: pd.concat([table, own[name].assign(series=NOW)], ignore_index=True) for name, table in family.items()}


def live_mass(policy, task, prompts: int = 8) -> LiveStudy:
    """Weights, signs, contexts, prompts, rollouts and anchors of the pairs of a copy of a policy."""
    controls = {
        "weights": menu("output layer", list(WEIGHTS), "gradients of"),
        "signs": menu("any", list(SIGNS), "signs of the rollouts"),
        "same_context": switch(True, "pairs in the same context, too"),
        "prompts": power_slider(prompts, 32, "prompts"),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "anchors": power_slider(8, 32, "anchor tokens of a prompt"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_mass, mass_chart, controls, compute_mass(), describe_mass, variables)


# --- along training


def compute_live_training(
    policy,
    task,
    steps: int = 8,
    every: int = 4,
    prompts: int = 8,
    group_size: int = 8,
    lr: float = 1e-3,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """H3 and H4 at moments of a short training by AdamW: {"committed", "live"}, each with `COLUMNS`.

    The policy is left as it was. Each moment's rollouts are fresh.
    """
    committed = committed_training()
    show_partial(committed=committed, live=committed.iloc[:0])
    moments, tables = (
        along_training(policy, task, steps, prompts, group_size, lr, every=every, seed=seed, max_new_tokens=48),
        [committed.iloc[:0]],
    )
    for step, trained, rollouts in moments:
        if rollouts.advantages.any():
            rows = pd.concat([spillover(trained, rollouts, MASKED), proxy_signs(trained, rollouts)])
            rows = rows[rows["quantity"].isin(QUANTITIES)].rename(columns={"size": "mean"})
            tables.append(rows.assign(step=step, low=float("nan"), high=float("nan"))[COLUMNS])
            show_partial(live=pd.concat(tables[1:], ignore_index=True))
    return {"committed": committed, "live": pd.concat(tables[1:] or tables, ignore_index=True)}


def committed_training(tables: Tables | None = None) -> pd.DataFrame:
    """The study's curves: means over ten policies with their t intervals."""
    rows = (tables or FAMILY)["mass/training"]
    return unit_curve(rows[rows["quantity"].isin(QUANTITIES)], "step", "size", by="quantity")[COLUMNS]


def live_training_chart(committed: pd.DataFrame, live: pd.DataFrame) -> alt.HConcatChart:
    """Lines with bands as committed, points as measured now, a panel for each of PANELS."""
    require(committed, COLUMNS, "live_training_chart")
    panels = []
    for title, (names, threshold) in PANELS.items():
        color = alt.Color("quantity:N", title=None, sort=list(names)).scale(domain=list(names), range=SERIES[:3])
        color = color.legend(orient="bottom", columns=1, labelLimit=260, symbolOpacity=1)
        x = alt.X("step:Q", title="optimizer steps of training")
        kept = alt.FieldOneOfPredicate("quantity", list(names))
        base = alt.Chart(committed).transform_filter(kept).encode(x=x, color=color)
        value = alt.Y("mean:Q", title="movement / the pushing tokens'" if threshold < 0.5 else "share that agrees")
        points = alt.Chart(live).transform_filter(kept).mark_point(filled=True, size=70, opacity=1)
        hints = ["quantity:N", "step:Q", alt.Tooltip("mean:Q", format=".3f")]
        layers = [
            rule(threshold, "y", dashed=True, color=NEUTRAL),
            base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q"), y2="high:Q"),
            base.mark_line(opacity=0.6).encode(y=value),
            points.encode(x=x, y=value, color=color, tooltip=hints),
        ]
        panels.append(alt.layer(*layers).properties(width=285, height=220, title=panel_title(title)))
    return titled(
        alt.hconcat(*panels, spacing=14).resolve_scale(color="independent"),
        "Both hold along training",
        "lines: mean of ten policies, 95 % t bands; points: this policy now; dashed: what was registered",
        f"Curves over training of {len(QUANTITIES)} quantities, and points of this policy.",
    )


def describe_live_training(committed: pd.DataFrame, live: pd.DataFrame) -> str:
    """Where the run ends: how far the same and other unsure tokens move, and the agreement on moved tokens."""
    last = live[live["step"] == live["step"].max()].set_index("quantity")["mean"]
    known = [f"{name} {last[name]:.2f}" for name in QUANTITIES if name in last]
    return f"After {live['step'].max()} steps: {'; '.join(known)}." if known else ""


def live_training(policy, task, steps: int = 8) -> LiveStudy:
    """Steps, batch and learning rate of a short training of a copy of a policy, measured on the way."""
    controls = {
        "steps": slider(steps, 0, 40, 2, "optimizer steps"),
        "every": power_slider(4, 8, "measured every"),
        "prompts": power_slider(8, 32, "prompts"),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "lr": log_slider(1e-3, -4, -2, "learning rate", step=0.25),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    committed = committed_training()
    tables = {"committed": committed, "live": committed.iloc[:0]}
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_training, live_training_chart, controls, tables, describe_live_training, variables)
