"""Explorers, live studies and exercises of chapters 09 and 14: exchangeable weights on one batch and in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import altair as alt
import pandas as pd
import torch
from torch import Tensor

from workbook.rollouts.sample import Rollouts
from workbook.statistics import bootstrap_mean
from workbook.studies.claim import FAMILY, NotMeasured, Tables
from workbook.tasks.chain import SEED_CLASSES
from workbook.theory.advantages import group_advantages, prefix_credit, shared_places
from workbook.theory.choices import LEVELS
from workbook.theory.choices import TRANSFORMS_BY_LABEL as TRANSFORMS
from workbook.topics.drift import claims
from workbook.topics.drift.charts import CURVE_OUTCOMES, curves_of, group_size_gaps, outcome_panels
from workbook.topics.drift.probe import CLIPPINGS, left_on_shared, objective_weights
from workbook.topics.drift.study import (
    ARMS,
    COMPARED,
    CURVE_ARMS,
    GROUP_SIZES,
    GROUPS,
    HELD_OUT_SEED,
    LR,
    PAIRS,
    ROLLOUTS,
    FreeWords,
    run_arm,
    training_curves,
)
from workbook.topics.grading import answer_of, grade
from workbook.training.messages import progress
from workbook.views.explorer import Explorer, browse, log_slider, menu, power_slider, slider, switch
from workbook.views.figures import bars, by_sign, panels, series
from workbook.views.live_study import NOW, LiveStudy, live_curve, live_tables
from workbook.views.style import NEUTRAL, SERIES

RESAMPLES = 999  # of a bootstrap interval that a slider waits for
OUTCOMES = {  # of a run of the study `confidence`, with its title
    "free_tax": "tax: movement of free words (nats)",
    "tax": "tax of style words (nats)",
    "template_tax": "tax of free template words (nats)",
    "odds": "change of odds of equal solutions (nats)",
    "style_entropy": "entropy of style words (nats)",
    "value": "exact held-out value",
}
AXES = {"template confidence p, pairs": "confidence", "rollouts per prompt G, p = 0.8": "group_size"}
PLACES = {"groups of eight, usual template words": GROUPS, "pairs, template confidence 0.8": PAIRS}
ROLES = ["first objective", "second objective", "the first, advantages permuted"]
PALE = ["#c9bff0", "#b2dcaa", "#d6bdb9"]  # of the first three of SERIES
EACH_ITS_OWN = "each its own"
IDS = torch.tensor([[5, 1, 9], [5, 1, 8], [5, 2, 8], [6, 2, 8]])
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0])


# --- one batch, used several times


def compute_reuse(
    rollouts: Rollouts,
    path,
    level: str = "sequence",
    clipping: str = "none",
    epsilon: float = 0.03,
    transform: str = "none",
    times: int = 4,
) -> dict[str, pd.DataFrame]:
    """Residual of an objective on the tokens that a group shares, for each number of epochs on a batch.

    path: (times + 1, B, T) log-probabilities, as from `reuse_path`.  Other arguments as in `objective_weights`.

    Returns lines: times, mean, low, high (residual, 95 % over groups), silent, own, chosen;  pushes: of the group whose
    rewards are nearest to half right: rollout, reward and push on the shared tokens, a share of the total, and the net.
    """
    settings, rows = {"level": level, "clipping": clipping, "epsilon": epsilon, "transform": transform}, []
    for k, now in enumerate(path):
        table = left_on_shared(rollouts, objective_weights(rollouts, now, **settings))
        interval = bootstrap_mean(table["residual"], resamples=RESAMPLES)
        rows.append((k, *interval, table["silent"].mean(), table["own"].mean(), k == times))
    lines = pd.DataFrame(rows, columns=["times", "mean", "low", "high", "silent", "own", "chosen"])
    groups = rollouts.group_ids.unique()
    means = [abs(float(rollouts.rewards[rollouts.group_ids == group].mean()) - 0.5) for group in groups]
    here = rollouts.group_ids == groups[means.index(min(means))]
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    weights = objective_weights(rollouts, path[times], **settings)
    pushes = ((weights * shared).sum(1) * rollouts.advantages)[here].double()
    shares = pushes / pushes.abs().sum().clamp(min=1e-12)
    rewards = ["right" if reward > 0 else "wrong" for reward in rollouts.rewards[here]]
    rows = [*zip(map(str, range(1, len(shares) + 1)), rewards, shares.tolist(), strict=True)]
    rows.append(("net", "", float(shares.sum())))
    return {"lines": lines, "pushes": pd.DataFrame(rows, columns=["rollout", "reward", "push"])}


def reuse_chart(lines: pd.DataFrame, pushes: pd.DataFrame) -> alt.HConcatChart:
    """Left the residual against the epochs on a batch, right one group's pushes; tables of compute_reuse."""
    x = alt.X("times:Q", title="epochs on the batch").axis(tickMinStep=1, format="d")
    y = alt.Y("mean:Q", title="residual (0 cancels, 1 adds up)").scale(domain=[0, 1])
    look = {"shown": ("silent", "own"), "form": ".3f", "width": 330, "height": 230}
    residuals = series(lines, x, y, chosen="chosen", number=".3f", title="shared tokens of all groups", **look)
    rollout = alt.Y("rollout:N", sort=None, title="rollout")
    rewards = (
        alt.Chart(pushes).mark_text(align="left", color=NEUTRAL).encode(x=alt.value(4), y=rollout, text="reward:N")
    )
    push = alt.X("push:Q", title="push on shared tokens (share of the total)").scale(domain=[-0.6, 0.6], clamp=True)
    look = {"outlined": "datum.rollout == 'net'", "number": "+.2f", "shown": ["reward"], "over": [rewards]}
    look |= {"title": "one group, at the chosen point", "width": 280, "height": 230}
    return panels(
        [residuals, bars(pushes, rollout, push, color=by_sign("push"), **look)],
        "Residual on the tokens that a whole group shares",
        "left: mean over groups with its 95 % interval; right: pushes of one group's rollouts, and their sum",
        "A line of the residual against reuse, and bars of one group's pushes on the tokens that it shares.",
    )


def explore_reuse(rollouts: Rollouts, path) -> Explorer:
    """Level, clipping, epsilon, transform and epochs on one batch of a real policy."""

    def describe(lines, pushes) -> str:
        here = lines[lines["chosen"]].iloc[0]
        return (
            f"After {here['times']:.0f} epochs: residual {here['mean']:.3f} [{here['low']:.3f}, {here['high']:.3f}]; "
            f"{here['silent']:.0%} of shared tokens have weight 0; tokens of a rollout's own keep {here['own']:.0%} "
            "of their push."
        )

    controls = {
        "level": menu("sequence", list(LEVELS), "ratio"),
        "clipping": menu("none", list(CLIPPINGS), "clipping"),
        "epsilon": log_slider(0.03, -2.5, 0, "clip range"),
        "transform": menu("none", [(name, value or "none") for name, value in TRANSFORMS.items()], "transform"),
        "times": slider(min(4, len(path) - 1), 0, len(path) - 1, 1, "epochs on the batch"),
    }
    return Explorer(compute_reuse, reuse_chart, controls, describe, {"rollouts": rollouts, "path": path})


# --- what was measured in training


def explore_training(tables: Tables = FAMILY) -> Explorer:
    """An outcome of GSPO, of min-replace and of their twins after training, along both axes of `confidence`."""
    rows = [
        {"along": along, "place": at, "seed": seed, "arm": arm + ", permuted" * twin}
        | {title: claims.at_end(arm, twin, outcome)(path) for outcome, title in OUTCOMES.items()}
        for along, axis in AXES.items()
        for at, paths in claims.places_on(tables, axis).items()
        for seed, path in paths.items()
        for arm in COMPARED
        for twin in (False, True)
    ]
    look = {"x_title": "p or G", "y_title": "mean over units", "labels": {"value": "outcome"}, "log2": False}
    title = "Training without and with exchangeable weights"
    start = {"along": next(iter(AXES))}
    return browse(pd.DataFrame(rows), "place", list(OUTCOMES.values()), start, series="arm", title=title, **look)


def compute_curves(place: str = "groups of eight, usual template words") -> dict[str, pd.DataFrame]:
    """Measured curves of every objective at a place: {"curves": arm, batch, outcome, mean, low, high, units}."""
    return {"curves": curves_of(CURVE_OUTCOMES, PLACES[place])}


def explore_curves() -> Explorer:
    """A menu of the two places over the measured curves of all objectives: value, tax, odds and entropy."""

    def chart(curves):
        names = [*CURVE_ARMS[GROUPS], *(name for name in curves["arm"].unique() if "permuted" in name)]
        title = "Along training: what each objective earns, and what it moves that no reward asks for"
        subtitle = "means over six policies; four AdamW steps on each batch, learning rate 3e-4"
        look = {"names": names, "colors": [*SERIES, NEUTRAL], "spread": None, "dash": "arm"}
        return outcome_panels(curves, CURVE_OUTCOMES, "arm", title, subtitle, **look)

    def describe(curves) -> str:
        ends = curves[(curves["batch"] == curves["batch"].max()) & ~curves["arm"].str.contains("permuted")]
        value, tax = (ends[ends["outcome"] == name].set_index("arm")["mean"] for name in ("value", "tax"))
        return (
            f"At the end values lie from {value.min():.3f} ({value.idxmin()}) to {value.max():.3f} ({value.idxmax()}), "
            f"taxes from {tax.min():.4f} ({tax.idxmin()}) to {tax.max():.4f} nats a word ({tax.idxmax()})."
        )

    controls = {"place": menu(next(iter(PLACES)), list(PLACES), "place")}
    return Explorer(compute_curves, chart, controls, describe)


# --- live


def measure_curves(
    policy,
    task,
    first: str = "GSPO",
    second: str = "min-replace",
    twin: bool = False,
    lr: float = LR,
    epsilon: str | float = EACH_ITS_OWN,
    group_size: int = 2,
    batches: int = 4,
    seed: int = 1,
) -> Iterator[dict[str, pd.DataFrame]]:
    """Train two objectives on this policy, read after every batch: table curves with series, batch, outcome, mean.

    twin: train the first once more, with advantages permuted within their groups.  epsilon: half the clip range of
    both.  Raises ValueError as `training_curves` does.
    """
    settings = {"batches": batches, "group_size": group_size, "lr": lr, "seed": SEED_CLASSES * seed}
    settings["epsilon"] = None if epsilon == EACH_ITS_OWN else float(epsilon)
    lines = []
    for role, arm in zip(ROLES, (first, second, *((first,) if twin else ())), strict=False):
        run = training_curves(policy, task, [arm], permuted=role == ROLES[2], **settings)
        lines.append(run.melt(["arm", "batch"], list(CURVE_OUTCOMES), "outcome", "mean").assign(series=role))
        yield {"curves": pd.concat(lines, ignore_index=True)}


def committed_curves(first: str, second: str, twin: bool, group_size: int) -> dict[str, pd.DataFrame]:
    """The same arms' means over the family, at pairs or else groups of eight; what was not measured is missing."""
    columns, parts = ["arm", "batch", "outcome", "mean", "series"], []
    with suppress(NotMeasured):
        curves = curves_of(CURVE_OUTCOMES, PAIRS if group_size == PAIRS[0] else GROUPS)
        for role, arm in zip(ROLES, (first, second, *((f"{first}, permuted",) if twin else ())), strict=False):
            parts.append(curves[curves["arm"] == arm].assign(series=f"{role}, six policies"))
    return {"curves": pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)}


def live_curves(policy, task, batches: int = 4, group_size: int = 2) -> LiveStudy:
    """Two objectives, their rate, clip range, group size, batches and seed: runs on a copy of a policy."""

    def chart(curves):
        title = "Two objectives along training"
        subtitle = (
            "strong: trained now, on this policy; pale: means over six policies, at the study's rate and clip ranges"
        )
        look = {"names": [*ROLES, *(f"{role}, six policies" for role in ROLES)], "colors": [*SERIES[:3], *PALE]}
        return outcome_panels(curves, CURVE_OUTCOMES, "series", title, subtitle, spread=None, **look)

    def describe(curves) -> str:
        ends = curves[curves["series"].isin(ROLES)]
        ends = ends[ends["batch"] == ends["batch"].max()].pivot_table("mean", ["series", "arm"], "outcome", sort=False)
        words = [
            f"{role} ({arm}): value {row['value']:.3f}, tax {row['tax']:.4f} nats a word"
            for (role, arm), row in ends.iterrows()
        ]
        return "; ".join(words) + "."

    controls = {
        "first": menu("GSPO", list(ARMS), ROLES[0]),
        "second": menu("min-replace", list(ARMS), ROLES[1]),
        "twin": switch(False, "twin with permuted advantages"),
        "lr": log_slider(LR, -4, -2.5, "learning rate"),
        "epsilon": menu(EACH_ITS_OWN, [EACH_ITS_OWN, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5], "clip range"),
        "group_size": power_slider(group_size, 16, "rollouts per prompt", least=2),
        "batches": slider(batches, 1, 12, 1, "generation batches"),
        "seed": slider(1, 0, 19, 1, "seed of prompts, rollouts"),
    }
    return live_tables(measure_curves, committed_curves, chart, controls, policy, task, describe, now=None)


def measure_group_sizes(
    policy, task, arm: str = "GSPO", lr: float = 6e-4, epsilon: float = 0.01, batches: int = 4, seeds: int = 2
) -> Iterator[tuple]:
    """Train an arm with 2, 4, 8 and 16 rollouts per prompt, 128 a batch: exact held-out value minus that in pairs."""
    readings = FreeWords(policy, task, task.dataset(16, HELD_OUT_SEED)["prompt"][:])
    ends: dict[int, list[float]] = {}
    for size, seed in progress([(size, seed) for size in GROUP_SIZES for seed in range(seeds)], "runs"):
        run = run_arm(policy, task, readings, arm, size, SEED_CLASSES * seed, False, batches, lr=lr, epsilon=epsilon)
        values = ends.setdefault(size, [])
        values.append(run["value"].iloc[-1])
        if len(values) == seeds:
            yield size, NOW, (sum(values) - sum(ends[2])) / seeds


def live_group_sizes(policy, task, batches: int = 4, seeds: int = 2) -> LiveStudy:
    """Rollouts per prompt at a fixed budget: objective, rate, clip range, batches and seeds, on a copy of a policy."""

    def committed() -> pd.DataFrame:
        return group_size_gaps().assign(series=lambda table: table["arm"] + ", the family").drop(columns="arm")

    controls = {
        "arm": menu("GSPO", list(ARMS), "objective"),
        "lr": log_slider(ARMS["GSPO"].lr, -4, -2.5, "learning rate"),
        "epsilon": log_slider(ARMS["GSPO"].epsilon, -2.5, 0, "clip range"),
        "batches": slider(batches, 1, 8, 1, "generation batches"),
        "seeds": slider(seeds, 1, 6, 1, "seeds"),
    }
    return live_curve(
        measure_group_sizes,
        committed,
        controls,
        policy,
        task,
        x="group_size",
        x_title=f"rollouts per prompt G ({ROLLOUTS} rollouts a batch)",
        y_title="held-out value minus that at G = 2",
        title="At a fixed budget sixteen rollouts per prompt are no better than two",
        subtitle="after four generation batches; bands: 95 % t intervals over 6 units, p = 0.8; rates tuned at G = 2",
        reference=[0.0],
        form="+.3f",
    )


# --- exercises


def check_prefix_credit(function) -> None:
    """Check a function (rewards (B,), ids (B, T)) of one group -> step advantages (B, T), `prefix_credit`.

    >>> check_prefix_credit(lambda rewards, ids: (rewards - rewards.mean())[:, None].expand(4, 3))
    Not quite: this is the group's advantage on every token; compare only with rollouts that stood in the same state.
    """
    group = torch.zeros(len(IDS))
    right = prefix_credit(REWARDS, IDS, torch.ones_like(IDS), group)
    same_token = IDS[:, None] == IDS  # (B, B, T)
    same_prefix = same_token.cumprod(2)
    after = _mean_reward(same_prefix)
    alone = torch.cat([torch.zeros(len(IDS), 1), (same_prefix.sum(1) == 1)[:, :-1]], 1).bool()  # before the token
    mistakes = {
        "this is the group's advantage on every token; compare only with rollouts that stood in the same state.": (
            group_advantages(REWARDS, group, "dr_grpo")[:, None].expand(right.shape)
        ),
        "this looks at the token alone; the state is everything that stands before it.": _mean_reward(same_token)
        - REWARDS.mean(),
        "this is the mean reward after the step; subtract the mean reward of all that stood before it.": after,
        "the baseline is the mean over those in the same state, not over the whole group.": after - REWARDS.mean(),
        "a rollout that is alone in its state falls back to the group's advantage.": right.masked_fill(alone, 0.0),
        "the sign is turned round.": -right,
    }
    praise = "Right: steps that all take are worth 0, and only where rollouts part is anything told apart."
    grade(answer_of(function, REWARDS.clone(), IDS.clone()), right, mistakes, praise, "rollout and position")


def _mean_reward(chosen: Tensor) -> Tensor:
    """Mean reward (B, T) of the rollouts chosen (B, B, T) for each token."""
    return (chosen * REWARDS[:, None]).sum(1) / chosen.sum(1)
