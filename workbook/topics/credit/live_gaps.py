"""Chapter 07, live: the gap in exact value by sampling budget, and after repeated updates, over the study's curves."""

from __future__ import annotations

from dataclasses import replace

import altair as alt
import pandas as pd
import torch

from workbook.policies.copies import private_copy
from workbook.probes.step import matched_lr
from workbook.probes.value_gaps import exact_pool
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.statistics import unit_curve
from workbook.studies.claim import FAMILY
from workbook.tasks.chain import SEED_CLASSES
from workbook.theory.advantages import group_advantages
from workbook.topics.credit.exact_gaps import AXES, FRESH, GROWING, SMALL_NATS, STEPS, gaps_after, repeated_gaps
from workbook.topics.credit.settings import POOLS, compute_budget
from workbook.training.progress import progress, show_partial
from workbook.views.curves import PAPER_COLOR
from workbook.views.explorer import log_slider, menu, power_slider, slider
from workbook.views.figures import rule, series
from workbook.views.live_study import LiveStudy
from workbook.views.style import NEUTRAL, describe_rows, require, titled

NAMES = ["the family", "this policy, now"]
MATCHED = {"position": "prompt and position", "prompt": "prompt"}
HELD_OUT_PROMPTS, HELD_OUT_SEED = 16, 5  # a residue class of prompts that no seed of these studies trains on
MOST_PROMPTS = 32
BUDGET = ["series", "size", "mean", "low", "high", "units", "paper_low", "paper_high"]
REPEATED = ["series", "step", "mean", "low", "high", "units"]


# --- the sampling budget


def compute_live_budget(
    policy,
    task,
    axis: str = GROWING,
    pool: str = "training",
    matched: str = "position",
    draws: int = 2,
    nats: float = SMALL_NATS,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Gap in exact value by the size of the sample: {"curve": series, size, mean, low, high, units, paper's place}.

    axis: of AXES.  pool: tokens of the prompts that are trained on, or held-out ones.  matched: of MATCHED.  draws:
    batches at each size, whose mean, least and largest gap are shown.  nats: the step's root mean square movement.
    Sizes of more than 32 prompts, and batches that push nothing, are left out.
    """
    committed = compute_budget(axis, pool, matched).assign(series=NAMES[0])[BUDGET]
    show_partial(curve=committed)
    estimator, cells = AXES[axis]
    cells = [cell for cell in cells if cell[0] <= MOST_PROMPTS]
    data, pools = _pools(policy, task, max(prompts for prompts, _ in cells), seed)
    lr, rows = matched_lr(policy, pools["training"][0], "sgd", nats), []
    size = int(len({group for _, group in cells}) > 1)  # of (prompts, group size), which of them grows
    batches = [(cell, draw) for cell in cells for draw in range(draws)]
    for cell, draw in progress(batches, "batches"):
        part = _batch(policy, task, data, *cell, estimator, seed + 100 * (draw + 1))
        if part.advantages.any():
            table = pd.DataFrame(gaps_after(policy, part, pools, lr)).query("pool == @pool and matched == @matched")
            rows.append((cell[size], float(table["gap"].iloc[0])))
            show_partial(curve=_with(committed, rows))
    return {"curve": _with(committed, rows)}


def _pools(policy, task, prompts: int, seed: int):
    """Training prompts, and pools of fresh rollouts of them and of held-out ones, with exact values."""
    data = task.dataset(prompts, SEED_CLASSES * seed)
    other = task.dataset(HELD_OUT_PROMPTS, HELD_OUT_SEED)
    sampled = {"training": (data, seed + 1), "held-out": (other, seed + 2)}
    rollouts = {name: sample_rollouts(policy, task, rows, FRESH, at, 48) for name, (rows, at) in sampled.items()}
    return data, {name: exact_pool(policy, task, part) for name, part in rollouts.items()}


def _batch(policy, task, data, prompts: int, group_size: int, estimator: str, seed: int) -> Rollouts:
    rollouts = sample_rollouts(policy, task, data.select(range(prompts)), group_size, seed, 48)
    own = torch.zeros_like(rollouts.group_ids) if estimator == "reinforce" else rollouts.group_ids
    return replace(rollouts, advantages=group_advantages(rollouts.rewards, own, estimator))


def _with(committed: pd.DataFrame, rows: list[tuple[int, float]]) -> pd.DataFrame:
    """The committed curve, and the means of the live gaps from their least to their largest."""
    live = pd.DataFrame(rows, columns=["size", "gap"]).dropna()
    named = live.groupby("size")["gap"].agg(["mean", "min", "max"]).reset_index()
    named = named.rename(columns={"min": "low", "max": "high"}).assign(series=NAMES[1], units=1)
    return pd.concat([committed, named.reindex(columns=BUDGET)], ignore_index=True)


def live_budget_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Gap against the size of the sample, the paper's place shaded; table of `compute_live_budget`."""
    require(curve, BUDGET, "live_budget_chart")
    x = alt.X("size:Q", title="rollouts per prompt, or prompts").scale(type="log", base=2, domain=[1, 96], nice=False)
    x = x.axis(values=[1, 2, 4, 8, 16, 32, 64], grid=False)
    place = alt.Chart(curve).transform_filter("isValid(datum.paper_low)").mark_rect(color=PAPER_COLOR, opacity=0.7)
    under = [place.encode(x="paper_low:Q", x2="paper_high:Q"), rule(0, "y", dashed=True, color=NEUTRAL)]
    look = {"names": NAMES, "dash": "series", "form": "+.3f", "shown": ["units"]}
    return titled(
        series(curve, x, "boosted − suppressed (reward)", "series", under=under, **look),
        "What a larger sample buys",
        "family: 95 % t interval over policies; now: least to largest draw; shaded: the paper's sizes",
        describe_rows(curve, "series", "size", interval=True),
    )


def describe_live_budget(curve: pd.DataFrame) -> str:
    """The ends of the live curve, and of the family's."""
    words = []
    for name, part in curve.groupby("series", sort=False):
        ends = [
            f"{row['mean']:+.3f} at {row['size']:.0f}" for _, row in part.sort_values("size").iloc[[0, -1]].iterrows()
        ]
        words.append(f"{name}: {', '.join(ends)}")
    return f"Gap in exact value, {'; '.join(words)}."


def live_budget(policy, task, draws: int = 2) -> LiveStudy:
    """What grows, the prompts, what is alike, draws, step and seed: steps on a copy of a policy."""
    controls = {
        "axis": menu(GROWING, list(AXES), "what grows"),
        "pool": menu("training", list(POOLS), "prompts"),
        "matched": menu("position", [(words, name) for name, words in MATCHED.items()], "alike in"),
        "draws": slider(draws, 1, 6, 1, "batches of each size"),
        "nats": log_slider(SMALL_NATS, -4, -0.5, "movement by a step (nats)"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    start = {"curve": compute_budget().assign(series=NAMES[0])[BUDGET]}
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_budget, live_budget_chart, controls, start, describe_live_budget, variables)


# --- repeated updates


def compute_live_repeated(
    policy,
    task,
    prompts: int = 8,
    group_size: int = 8,
    steps: int = STEPS,
    nats: float = SMALL_NATS,
    pool: str = "training",
    matched: str = "position",
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Gap in exact value after each update on one batch: {"curve": series, step, mean, low, high, units}.

    nats: root mean square movement by the first update; others as in `compute_live_budget`.

    Raises ValueError where no prompt of the batch has different rewards.
    """
    committed = _committed_repeated(pool, matched)
    show_partial(curve=committed)
    data, pools = _pools(policy, task, prompts, seed)
    batch = _batch(policy, task, data, prompts, group_size, "grpo", seed + 100)
    if not batch.advantages.any():
        raise ValueError(f"No prompt has different rewards with seed={seed} and prompts={prompts}; take others.")
    pools = {"training": exact_pool(policy, task, batch), "held-out": pools["held-out"]}
    table = repeated_gaps(policy, batch, {pool: pools[pool]}, matched_lr(policy, batch, "sgd", nats), steps)
    live = table[table["matched"] == matched].rename(columns={"gap": "mean"})
    live = live.assign(series=NAMES[1], low=live["mean"], high=live["mean"], units=1)[REPEATED]
    return {"curve": pd.concat([committed, live], ignore_index=True)}


def _committed_repeated(pool: str = "training", matched: str = "position") -> pd.DataFrame:
    rows = FAMILY["value_gap/repeated"]
    rows = rows[(rows["pool"] == pool) & (rows["matched"] == matched) & (rows["nats"] == SMALL_NATS)]
    return unit_curve(rows, "step", "gap").assign(series=NAMES[0])[REPEATED]


def live_repeated_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Gap after each update on one batch, this policy over the family; table of `compute_live_repeated`."""
    require(curve, REPEATED, "live_repeated_chart")
    x = alt.X("step:Q", title="updates on the same batch").axis(tickMinStep=1, format="d")
    look = {"names": NAMES, "dash": "series", "form": "+.4f", "shown": ["units"]}
    return titled(
        series(curve, x, "boosted − suppressed (reward)", "series", under=[rule(0, "y", dashed=True)], **look),
        "Repeated updates on one batch",
        "gap in exact value, changes counted from the start; family: 95 % t interval over policies",
        describe_rows(curve, "series", "step", interval=True),
    )


def describe_live_repeated(curve: pd.DataFrame) -> str:
    """The gap after the first and after the last update, of each line."""
    words = []
    for name, part in curve.groupby("series", sort=False):
        ends = part.sort_values("step")["mean"]
        words.append(f"{name}: {ends.iloc[0]:+.3f} after the first update, {ends.iloc[-1]:+.3f} after the last")
    return "; ".join(words) + "."


def live_repeated(policy, task, prompts: int = 8) -> LiveStudy:
    """Prompts, rollouts, updates, their size, the tokens compared and the seed: updates of a copy of a policy."""
    controls = {
        "prompts": power_slider(prompts, 32, "prompts in the batch", least=2),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "steps": slider(STEPS, 2, 24, 1, "updates on the batch"),
        "nats": log_slider(SMALL_NATS, -4, -0.5, "movement by a step (nats)"),
        "pool": menu("training", list(POOLS), "prompts"),
        "matched": menu("position", [(words, name) for name, words in MATCHED.items()], "alike in"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    start, variables = {"curve": _committed_repeated()}, {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_repeated, live_repeated_chart, controls, start, describe_live_repeated, variables)
