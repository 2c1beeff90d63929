"""Chapters 07 and 14 under sliders: gaps in value after one step, over the study's policies; and the exercises."""

from __future__ import annotations

import math
from collections.abc import Iterator

import altair as alt
import pandas as pd

from workbook.probes.step import matched_lr
from workbook.probes.values import Pool, exact_pool
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.statistics import unit_curve
from workbook.studies.claim import FAMILY
from workbook.tasks.chain import SEED_CLASSES
from workbook.topics.credit.study import (
    AXES,
    FRESH,
    GROWING,
    MORE_PROMPTS,
    SMALL_NATS,
    STEPS,
    gaps_after,
    repeated_gaps,
    step_gaps,
    with_estimator,
)
from workbook.topics.grading import UNANSWERED, answer_of, grade
from workbook.training.messages import progress
from workbook.views.explorer import log_slider, menu, power_slider, slider
from workbook.views.figures import forest
from workbook.views.live_study import NOW, LiveStudy, live_curve, live_tables
from workbook.views.style import describe_rows, titled

FAMILY_NAME = "ten policies"
LENGTH = 48  # new tokens at most
HELD_OUT_PROMPTS, HELD_OUT_CLASS = 16, 5  # a residue class of seeds that no study trains on
MAX_PROMPTS = 32
GAP = "boosted − suppressed (reward)"
POOLS = {"training": "prompts of the step", "held-out": "held-out prompts"}
MATCHED = {"position": "prompt and position", "prompt": "prompt"}
SEED = "seed of prompts, rollouts"


def _menu(value, words: dict, label: str):
    return menu(value, [(text, name) for name, text in words.items()], label)


def _batch(policy, task, data, prompts: int, group_size: int, estimator: str, seed: int) -> Rollouts:
    rollouts = sample_rollouts(policy, task, data.select(range(prompts)), group_size, seed, LENGTH)
    return with_estimator(rollouts, estimator)


def _pools(policy, task, prompts: int, seed: int) -> tuple[object, dict[str, Pool]]:
    """Training prompts, and pools of fresh rollouts of them and of held-out ones, with exact values."""
    data, other = task.dataset(prompts, SEED_CLASSES * seed), task.dataset(HELD_OUT_PROMPTS, HELD_OUT_CLASS)
    sampled = {"training": (data, seed + 1), "held-out": (other, seed + 2)}
    rollouts = {name: sample_rollouts(policy, task, rows, FRESH, at, LENGTH) for name, (rows, at) in sampled.items()}
    return data, {name: exact_pool(policy, task, part) for name, part in rollouts.items()}


def _pushing(rollouts: Rollouts, prompts: int, seed: int) -> Rollouts:
    """The rollouts; ValueError where no group has different rewards."""
    if not rollouts.advantages.any():
        raise ValueError(f"No prompt has different rewards with seed={seed} and prompts={prompts}; take others.")
    return rollouts


# --- H7: one step


def family_gaps(matched: str = "position", of: str = "value") -> dict[str, pd.DataFrame]:
    """The study's gaps after one step: {"gaps": tokens (which are compared), mean, low, high, units, series}."""
    rows = _named(FAMILY["value_gap/gaps"], matched, of).assign(place=0)
    curve = unit_curve(rows, "place", "gap", by="tokens").assign(series=FAMILY_NAME)
    return {"gaps": curve.drop(columns="place").set_index("tokens").loc[rows["tokens"].unique()].reset_index()}


def _named(table: pd.DataFrame, matched: str, of: str) -> pd.DataFrame:
    """Rows of one comparison, by sign, with the name that the chart shows."""
    signs = {"positive": "right rollouts", "negative": "failing rollouts"}
    rows = table[(table["matched"] == matched) & (table["of"] == of) & table["rollouts"].isin(list(signs))]
    chance = rows["advantages"].map({"own": "", "permuted": ", advantages permuted"})
    names = rows["rollouts"].map(signs) + ", " + rows["pool"].map(POOLS) + chance
    return rows.assign(tokens=names).sort_values(["rollouts", "pool", "advantages"], ascending=[False, False, True])


def measure_gap(
    policy,
    task,
    prompts: int = 16,
    group_size: int = 8,
    rule: str = "grpo",
    optimizer: str = "sgd",
    nats: float = SMALL_NATS,
    matched: str = "position",
    of: str = "value",
    seed: int = 0,
) -> Iterator[dict[str, pd.DataFrame]]:
    """Yield the table of `family_gaps` after one real step, and after one whose advantages are permuted.

    nats: root mean square movement of the batch's tokens.  matched: what is alike in tokens that are compared.
    of: value or credit.  Raises ValueError where no group has different rewards.
    """
    own, other = SEED_CLASSES * seed, SEED_CLASSES * seed + HELD_OUT_CLASS  # seeds whose prompts differ
    rollouts = sample_rollouts(policy, task, prompts, group_size, seed=own, max_new_tokens=LENGTH, estimator=rule)
    rollouts = _pushing(rollouts, prompts, seed)
    held_out = sample_rollouts(policy, task, HELD_OUT_PROMPTS, FRESH, seed=other, max_new_tokens=LENGTH)
    pools = {"training": exact_pool(policy, task, rollouts), "held-out": exact_pool(policy, task, held_out)}
    lr = matched_lr(policy, rollouts, optimizer, nats)
    rows = _named(step_gaps(policy, rollouts, pools, lr, seed, optimizer), matched, of)
    yield {"gaps": rows[["tokens"]].assign(mean=rows["gap"], low=rows["gap"], high=rows["gap"], units=1)}


def gap_chart(gaps: pd.DataFrame) -> alt.LayerChart:
    """Gaps by sign of the rollout, prompts and advantages: intervals of ten policies, and what was measured now."""
    return titled(
        forest(gaps, "tokens", GAP, "series", names=[FAMILY_NAME, NOW], zero=True, form="+.4f", width=420),
        "Are the tokens that a step boosts worth more?",
        "ten policies: mean and 95 % t interval; now: one step of this policy",
        describe_rows(gaps, "series", "tokens", form="+.3f", interval=True),
    )


def live_value_gap(policy, task, prompts: int = 16) -> LiveStudy:
    """Sizes, rule, optimizer, size of the step, matching and seed of one real step of a copy of a policy."""
    matched = MATCHED | {"token": "prompt and word frequency"}
    rules = {"grpo": "grpo", "dr_grpo": "dr_grpo", "positive_only": "positive only", "reinforce": "reinforce"}
    controls = {
        "prompts": power_slider(prompts, MAX_PROMPTS, "prompts in the step", least=2),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "rule": _menu("grpo", rules, "rule"),
        "optimizer": menu("sgd", [("SGD", "sgd"), ("AdamW", "adamw")], "optimizer"),
        "nats": log_slider(SMALL_NATS, -4, -1, "step (nats, rms)"),
        "matched": _menu("position", matched, "alike in"),
        "of": menu("value", ["value", "credit"], "gap in"),
        "seed": slider(0, 0, 19, 1, SEED),
    }
    return live_tables(measure_gap, family_gaps, gap_chart, controls, policy, task)


# --- H8: the sampling budget


def family_budget(axis: str = GROWING, pool: str = "training", matched: str = "position") -> pd.DataFrame:
    """The study's gap along one axis of H8: columns series, size, mean, low, high, units (t intervals over policies).

    axis: one of AXES; size is its number of rollouts per prompt, or of prompts where these grow.
    """
    rows = FAMILY["value_gap/budget"].query("axis == @axis and pool == @pool and matched == @matched")
    size = "prompts" if axis == MORE_PROMPTS else "group_size"
    return unit_curve(rows.rename(columns={size: "size"}), "size", "gap").assign(series=FAMILY_NAME)


def measure_budget(
    policy,
    task,
    axis: str = GROWING,
    pool: str = "training",
    matched: str = "position",
    nats: float = SMALL_NATS,
    seed: int = 0,
) -> Iterator[tuple[int, str, float]]:
    """Yield (size, name, gap in exact value) after a step on one batch of each size, up to 32 prompts.

    pool: tokens of the prompts that are trained on, or held-out ones.  Batches that push nothing are left out.
    """
    estimator, cells = AXES[axis]
    cells = [cell for cell in cells if cell[0] <= MAX_PROMPTS]
    data, pools = _pools(policy, task, max(prompts for prompts, _ in cells), seed)
    lr = matched_lr(policy, pools["training"][0], "sgd", nats)
    for prompts, group_size in progress(cells, "batches"):
        batch = _batch(policy, task, data, prompts, group_size, estimator, seed + 100)
        if batch.advantages.any():
            gaps = {(row["pool"], row["matched"]): row["gap"] for row in gaps_after(policy, batch, pools, lr)}
            yield prompts if axis == MORE_PROMPTS else group_size, NOW, gaps[pool, matched]


def live_budget(policy, task) -> LiveStudy:
    """What grows, the prompts, what is alike, step and seed: steps on a copy of a policy, over the study's curve."""
    controls = {
        "axis": menu(GROWING, list(AXES), "what grows"),
        "pool": _menu("training", POOLS, "prompts"),
        "matched": _menu("position", MATCHED, "alike in"),
        "nats": log_slider(SMALL_NATS, -4, -0.5, "movement by a step (nats)"),
        "seed": slider(0, 0, 19, 1, SEED),
    }
    return live_curve(
        *(measure_budget, family_budget, controls, policy, task),
        x="size",
        x_title="rollouts per prompt, or prompts",
        y_title=GAP,
        title="What a larger sample buys",
        subtitle="band: 95 % t interval over ten policies; the paper: 1 to 8 rollouts per prompt, batches of 16 to 96",
        xs=[1, 2, 4, 8, 16, 32, 64],
        reference=[0.0],
        form="+.3f",
    )


# --- H9: repeated updates


def family_repeated(pool: str = "training", matched: str = "position") -> pd.DataFrame:
    """The study's gap after each update on one batch: columns series, step, mean, low, high, units."""
    rows = FAMILY["value_gap/repeated"].query("pool == @pool and matched == @matched and nats == @SMALL_NATS")
    return unit_curve(rows, "step", "gap").assign(series=FAMILY_NAME)


def measure_repeated(
    policy,
    task,
    prompts: int = 8,
    group_size: int = 8,
    steps: int = STEPS,
    nats: float = SMALL_NATS,
    pool: str = "training",
    matched: str = "position",
    seed: int = 0,
) -> Iterator[tuple[int, str, float]]:
    """Yield (update, name, gap in exact value) for the updates on one batch; nats: movement by the first one.

    Raises ValueError where no prompt of the batch has different rewards.
    """
    data, pools = _pools(policy, task, prompts, seed)
    batch = _pushing(_batch(policy, task, data, prompts, group_size, "grpo", seed + 100), prompts, seed)
    pools["training"] = exact_pool(policy, task, batch)
    table = repeated_gaps(policy, batch, {pool: pools[pool]}, matched_lr(policy, batch, "sgd", nats), steps)
    for row in table[table["matched"] == matched].itertuples():
        yield row.step, NOW, row.gap


def live_repeated(policy, task, prompts: int = 8) -> LiveStudy:
    """Prompts, rollouts, updates, their size, the tokens compared and the seed: updates of a copy of a policy."""
    controls = {
        "prompts": power_slider(prompts, MAX_PROMPTS, "prompts in the batch", least=2),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "steps": slider(STEPS, 2, 24, 1, "updates on the batch"),
        "nats": log_slider(SMALL_NATS, -4, -0.5, "movement by a step (nats)"),
        "pool": _menu("training", POOLS, "prompts"),
        "matched": _menu("position", MATCHED, "alike in"),
        "seed": slider(0, 0, 19, 1, SEED),
    }
    return live_curve(
        *(measure_repeated, family_repeated, controls, policy, task),
        x="step",
        x_title="updates on the same batch",
        y_title=GAP,
        title="Repeated updates on one batch",
        subtitle="gap in exact value, changes counted from the start; band: 95 % t interval over ten policies",
        log2=False,
        xs=[1, 8, 16, 24],
        reference=[0.0],
        form="+.4f",
    )


# --- exercises

VALUE, STANDARD_ERROR = 0.4, 0.05  # a token's value, and the standard error that is asked for
TOKENS = pd.DataFrame(  # two prompts of unequal difficulty and numbers of tokens: pooled, the gap has the wrong sign
    [(0, 0.2, 0.9), *[(0, -0.2, 0.8)] * 6, *[(1, 0.2, 0.2)] * 6, (1, -0.2, 0.1), (1, 0.001, 1.0)],
    columns=["group", "dlogp", "value"],
)


def check_continuations(answer: int | None) -> None:
    """Check the least number of continuations with a standard error of 0.05 at most; value 0.4, rewards 0 or 1.

    >>> check_continuations(5)
    Not quite: with 5 the standard error is 0.219; it falls with its root.
    """
    variance = VALUE * (1 - VALUE)
    right = math.ceil(variance / STANDARD_ERROR**2 - 1e-9)
    if answer is None:
        print(UNANSWERED)
    elif not isinstance(answer, int) or answer < 1:
        print(f"Not quite: {answer!r} is no number of continuations; give a whole number.")
    elif answer == right:
        print("Right: a reward of 0 or 1 has variance v (1 - v), and the mean of K of them one K-th of it.")
    elif answer < right:
        error = math.sqrt(variance / answer)
        print(f"Not quite: with {answer} the standard error is {error:.3f}; it falls with its root.")
    elif answer == math.ceil(VALUE / STANDARD_ERROR**2):
        print(f"Not quite: {answer} takes the variance for v; it is v (1 - v).")
    else:
        print(f"It suffices, but fewer do: with {answer} the error is {math.sqrt(variance / answer):.4f}.")


def check_gap(function) -> None:
    """Check a function (table with group, dlogp, value; eps) -> gap: mean over prompts of boosted minus suppressed.

    >>> check_gap(lambda table, eps: table["value"][table["dlogp"] > eps].mean())
    Not quite: this is the mean value of the boosted tokens alone; subtract that of the suppressed ones.
    """
    table, eps = TOKENS.copy(), 0.01
    boosted, suppressed = table[table["dlogp"] > eps], table[table["dlogp"] < -eps]

    def by_prompt(rows: pd.DataFrame) -> pd.Series:
        return rows.groupby("group")["value"].mean()

    within = by_prompt(boosted) - by_prompt(suppressed)
    alone = boosted["value"].mean()
    pooled = alone - suppressed["value"].mean()
    without_eps = by_prompt(table[table["dlogp"] > 0]) - by_prompt(suppressed)
    mistakes = {
        "the sign is turned round; it is boosted minus suppressed.": -within.mean(),
        "{got:+.2f} pools all prompts, and so measures which prompt was easy; go prompt by prompt.": pooled,
        "this is the mean value of the boosted tokens alone; subtract that of the suppressed ones.": alone,
        "a token that moved by less than eps counts as stable; leave it out.": without_eps.mean(),
    }
    grade(
        answer_of(function, table, eps),
        within.mean(),
        mistakes,
        f"Right: {within.mean():+.2f} within prompts. Pooled it is {pooled:+.2f}: prompts differ more than tokens.",
        otherwise=f"{{got:+.3f}}; the two prompts' gaps are {within[0]:+.2f} and {within[1]:+.2f}.",
    )
