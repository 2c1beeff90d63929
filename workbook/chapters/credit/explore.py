"""Chapters 06, 10 and 14: gaps in value after one step, under sliders, their figures, and values
not known exactly.
"""

import math
from collections.abc import Callable, Iterator

import altair as alt
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.chapters.grading import UNANSWERED, answer_of
from workbook.probes.step import matched_lr
from workbook.probes.value_gaps import SMALL_NATS, step_gaps
from workbook.probes.values import exact_pool
from workbook.rollouts.example import ANSWER, PROMPT, TASK, example_policy, example_rollouts
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks.task import SEED_CLASSES
from workbook.views.explorer import Explorer, browse, log_slider, menu, power_slider, slider
from workbook.views.figures import bars, forest
from workbook.views.live_study import NOW, LiveStudy, live_tables
from workbook.views.measured import measured_table
from workbook.views.style import (
    NEUTRAL,
    SERIES,
    describe_rows,
    finish,
    require_columns,
    titled,
    visible,
)

MOVEMENT = "mean change of log-probability (nats)"


def shares_chart(
    table: pd.DataFrame, by: str = "estimator", names: list[str] | None = None
) -> alt.LayerChart:
    """Shares of a step's movement by category, a bar for each estimator; columns category, `by`,
    mean, low, high.
    """
    require_columns(table, ("category", by, "mean", "low", "high"), "shares_chart")
    share = alt.Y("mean:Q", title="share of the movement").scale(domainMin=0)
    look = {"shown": ["estimator"] if by != "estimator" else [], "names": names}
    return titled(
        bars(table, "category", share, by, vertical=True, number=".2f", form=".3f", **look),
        "At one learning rate, failing rollouts shift a step's movement towards results",
        "share of the sum of |change of log-probability|, mean over prompts; lines: 95 % intervals",
        describe_rows(table, "category", by, form=".2f"),
    )


def value_path(
    table: pd.DataFrame, title: str = "What reward to expect, token by token"
) -> alt.LayerChart:
    """The value along one rollout's tokens; columns position, token, value, value_se, and exact
    where it is known.

    The line is the exact value, else the sampled one; dots are sampled, with two standard errors.
    """
    require_columns(table, ("position", "token", "value", "value_se"), "value_path")
    rows = table.sort_values("position").assign(
        label=table["position"].astype(str) + "|" + table["token"].map(visible),
        low=lambda rows: (rows["value"] - 2 * rows["value_se"]).clip(lower=0),
        high=lambda rows: (rows["value"] + 2 * rows["value_se"]).clip(upper=1),
    )
    known = "exact" in rows
    text = "slice(datum.label, indexof(datum.label, '|') + 1)"
    x = alt.X("label:N", sort=None, title="token").axis(labelExpr=text, labelAngle=-60)
    base = alt.Chart(rows).encode(x=x)
    y = alt.Y("value:Q", title="value: expected reward").scale(domain=[0, 1])
    line = alt.Y(f"{'exact' if known else 'value'}:Q", title="value: expected reward")
    shown = ["token:N", "position:Q", alt.Tooltip("value:Q", format=".3f")]
    shown += [alt.Tooltip("exact:Q", format=".3f")] if known else []
    dots = base.mark_point(filled=True, size=70, opacity=1, color=SERIES[0])
    if "category" in rows and rows["category"].notna().all():
        dots = dots.encode(color=alt.Color("category:N", title=None).scale(range=SERIES))
    chart = alt.layer(
        base.mark_line(
            color="black" if known else "#bbbbbb", interpolate="step-after", strokeWidth=1.5
        ).encode(y=line),
        base.mark_rule(color=NEUTRAL, size=2).encode(
            y=alt.Y("low:Q", title="value: expected reward"), y2="high:Q"
        ),
        dots.encode(y=y, tooltip=shown),
    )
    first, last = rows["exact" if known else "value"].iloc[[0, -1]]
    return finish(
        chart,
        title,
        "dots: by sampled continuations, with two standard errors"
        + ("; line: exact" if known else ""),
        f"From {first:.2f} after the first token to {last:.2f} after the last.",
        height=220,
    )


def movement_by_class(
    summary: pd.DataFrame, title: str = "Which tokens training moved"
) -> alt.LayerChart:
    """Movement of each class of token, one line per class: columns kind, mean, low, high (nats),
    maybe training.
    """
    require_columns(summary, ("kind", "mean", "low", "high"), "movement_by_class")
    x = alt.X("mean:Q", title=MOVEMENT).scale(padding=36)
    several = (
        {"by": "training", "height": alt.Step(24)}
        if "training" in summary
        else {"height": alt.Step(44)}
    )
    number = "+.2f" if "training" in summary else "+.3f"
    return titled(
        forest(summary, "kind", x, number=number, zero=True, form="+.4f", **several),
        title,
        "dot: mean over prompts; bar: 95 % interval; right of 0: now more likely",
        describe_rows(
            summary, *(c for c in ("training", "kind") if c in summary), form="+.3f", interval=True
        ),
    )


FAMILY_NAME = "ten policies"
_LENGTH = 48  # new tokens at most
_HELD_OUT_PROMPTS, HELD_OUT_SIZE = 16, 4  # prompts that a step is judged by, rollouts of each
HELD_OUT_CLASS = 5  # a residue class of seeds that no study trains on
MAX_PROMPTS = 32
_GAP = "boosted − suppressed (reward)"
POOLS = {"training": "prompts of the step", "held-out": "held-out prompts"}
_MATCHED = {"position": "prompt and position", "prompt": "prompt"}
SEED = "seed of prompts, rollouts"


def _menu(value, words: dict, label: str):
    return menu(value, [(text, name) for name, text in words.items()], label)


# --- H7: one step


def family_gaps(matched: str = "position", of: str = "value") -> dict[str, pd.DataFrame]:
    """The study's gaps after one step: {"gaps": tokens (which are compared), mean, low, high,
    units, series}.
    """
    rows = measured_table("credit/gaps").query("matched == @matched and of == @of")
    return {"gaps": rows.drop(columns=["matched", "of"]).assign(series=FAMILY_NAME)}


def named_comparisons(table: pd.DataFrame, matched: str, of: str) -> pd.DataFrame:
    """Rows of one comparison, by sign, with the name that the chart shows."""
    signs = {"positive": "right rollouts", "negative": "failing rollouts"}
    rows = table[
        (table["matched"] == matched) & (table["of"] == of) & table["rollouts"].isin(list(signs))
    ]
    chance = rows["advantages"].map({"own": "", "permuted": ", advantages permuted"})
    names = rows["rollouts"].map(signs) + ", " + rows["pool"].map(POOLS) + chance
    return rows.assign(tokens=names).sort_values(
        ["rollouts", "pool", "advantages"], ascending=[False, False, True]
    )


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
    """Yield the table of `family_gaps` after one real step, and after one whose advantages are
    permuted.

    nats: root mean square movement of the batch's tokens.  matched: what is alike in tokens that
    are compared.
    of: value or credit.  Raises ValueError where no group has different rewards.
    """
    # seeds whose prompts differ
    own, other = SEED_CLASSES * seed, SEED_CLASSES * seed + HELD_OUT_CLASS
    rollouts = sample_rollouts(
        policy, task, prompts, group_size, seed=own, max_new_tokens=_LENGTH, estimator=rule
    )
    if not rollouts.advantages.any():
        raise ValueError(
            f"No prompt has different rewards with seed={seed} and prompts={prompts}; take others."
        )
    held_out = sample_rollouts(
        policy, task, _HELD_OUT_PROMPTS, HELD_OUT_SIZE, seed=other, max_new_tokens=_LENGTH
    )
    pools = {
        "training": exact_pool(policy, task, rollouts),
        "held-out": exact_pool(policy, task, held_out),
    }
    lr = matched_lr(policy, rollouts, optimizer, nats)
    rows = named_comparisons(step_gaps(policy, rollouts, pools, lr, seed, optimizer), matched, of)
    yield {
        "gaps": (
            rows[["tokens"]].assign(mean=rows["gap"], low=rows["gap"], high=rows["gap"], units=1)
        )
    }


def gap_chart(gaps: pd.DataFrame) -> alt.LayerChart:
    """Gaps by sign of the rollout, prompts and advantages: intervals of ten policies, and what was
    measured now.
    """
    return titled(
        forest(gaps, "tokens", _GAP, "series", names=[FAMILY_NAME, NOW], zero=True, form="+.4f"),
        "A step boosts tokens that are worth more, in failing rollouts, too",
        "ten policies: mean and 95 % t interval; now: one step of this policy",
        describe_rows(gaps, "series", "tokens", form="+.3f", interval=True),
    )


def live_value_gap(policy, task, prompts: int = 16) -> LiveStudy:
    """Sizes, rule, optimizer, size of the step, matching and seed of one real step of a copy of a
    policy.
    """
    matched = _MATCHED | {"token": "prompt and word frequency"}
    rules = {
        "grpo": "grpo",
        "dr_grpo": "dr_grpo",
        "positive_only": "positive only",
        "reinforce": "reinforce",
    }
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


def explore_budget() -> Explorer:
    """Menus over the study's gaps by the size of the sample: what grows, whose tokens, what is
    alike in them.
    """
    rows = measured_table("credit/budget")
    axes = rows["axis"].unique().tolist()
    controls = {
        "axis": menu(axes[0], axes, "what grows"),
        "pool": _menu("training", POOLS, "prompts"),
        "matched": _menu("position", _MATCHED, "alike in"),
    }
    return browse(
        rows,
        "size",
        "gap",
        controls,
        x_title="what grows (first menu): rollouts per prompt, or prompts",
        y_title=_GAP,
        title="More rollouts widen the gap in value",
        subtitle=(
            "band: 95 % t interval over ten policies; the paper: 1 to 8 rollouts per prompt,"
            " batches of 16 to 96"
        ),
        reference=[0.0],
        form="+.3f",
    )


# --- H9: repeated updates


def explore_repeated() -> Explorer:
    """Menus over the study's gaps after each update on one batch: whose tokens, what is alike, the
    first one's size.
    """
    rows = measured_table("credit/repeated")
    sizes = sorted(rows["nats"].unique().tolist(), reverse=True)
    return browse(
        rows,
        "step",
        "gap",
        {
            "pool": _menu("training", POOLS, "prompts"),
            "matched": _menu("position", _MATCHED, "alike in"),
            "nats": menu(sizes[0], sizes, "movement by a step (nats)"),
        },
        presets={
            "steps a tenth as long": {"nats": sizes[-1]},
            "held-out prompts": {"pool": "held-out"},
        },
        log2=False,
        x_title="updates on the same batch",
        y_title=_GAP,
        title="Repeated updates on one batch are not seen to widen the gap in value",
        subtitle=(
            "gap in exact value, changes counted from the start; band: 95 % t interval over ten"
            " policies"
        ),
        reference=[0.0],
        form="+.4f",
    )


# --- exercises

_CONTINUATIONS = 64  # of a token, in the check


def continued_rewards(
    policy, prompt_ids: Int[Tensor, " P"], written: Int[Tensor, " T"], continuations: int
) -> Float[Tensor, " K"]:
    """Rewards of answers to the example's prompt that a policy continues after `written`.

    prompt_ids, written: token ids of the prompt, and of the answer so far. K continuations, whole
    answers of 48 tokens at most.
    """
    start = torch.cat([prompt_ids, written]).repeat(continuations, 1)  # (K, P + T)
    limit = _LENGTH - len(written)
    ids = policy.model.generate(start, do_sample=True, top_k=0, max_new_tokens=limit)
    texts = policy.tokenizer.batch_decode(ids[:, len(prompt_ids) :], skip_special_tokens=True)
    paid = TASK.reward([PROMPT] * continuations, texts, [ANSWER] * continuations)
    return torch.tensor(paid)


def check_continued(function: Callable) -> None:
    """Check a function of the arguments of `continued_rewards` that returns rewards (K,).

    It is tried after three tokens of rollouts A and B, whose values are known exactly.

    >>> check_continued(lambda *arguments: torch.ones(64))
    Not quite: after '8' of B hardly any reward is left, and yours pays 1.00: keep what was written.
    """
    policy = example_policy()
    pair = example_rollouts(policy)
    _, known = exact_pool(policy, TASK, pair)
    prompt_ids = pair.prompt_ids[0][pair.prompt_mask[0].bool()]
    # B up to its error, A up to its answer, and its first word
    for row, position in ((1, 9), (0, 21), (0, 0)):
        written = pair.completion_ids[row, : position + 1]
        got = answer_of(function, policy, prompt_ids, written, _CONTINUATIONS)
        if got is None:
            return
        if got.shape != (_CONTINUATIONS,):
            print(f"Not quite: its shape is {tuple(got.shape)}; return each reward, (K,).")
            return
        if not ((got == 0) | (got == 1)).all():
            print("Not quite: rewards are 0 or 1; return them as they are, without a mean.")
            return
        token = known.query("rollout == @row and position == @position").iloc[0]
        mean, exact = float(got.double().mean()), float(token["value"])
        error = max((exact * (1 - exact) / _CONTINUATIONS) ** 0.5, 0.02)
        if abs(mean - exact) < 5 * error:
            continue
        if row == 1:
            print(
                f"Not quite: after {token['token']!r} of B hardly any reward is left, and yours"
                f" pays {mean:.2f}: keep what was written."
            )
        elif mean == 0:
            print(
                "Not quite: no continuation is paid. Decode what was written with what follows, and"
                " leave the prompt out."
            )
        else:
            print(
                f"Not quite: after {token['token']!r} of A the value is {exact:.2f}, and yours is"
                f" {mean:.2f}. Sample (do_sample=True) from all words (top_k=0)."
            )
        return
    print("Right: cut, continued, paid. The mean of the rewards is the token's value.")


VALUE, STANDARD_ERROR = 0.4, 0.05  # a token's value, and the standard error that is asked for


def check_continuations(answer: int | None) -> None:
    """Check the least number of continuations with a standard error of 0.05 at most; value 0.4,
    rewards 0 or 1.

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
        print(
            "Right: a reward of 0 or 1 has variance v (1 - v), and the mean of K of them one K-th"
            " of it."
        )
    elif answer < right:
        error = math.sqrt(variance / answer)
        print(
            f"Not quite: with {answer} the standard error is {error:.3f}; it falls with its root."
        )
    elif answer == math.ceil(VALUE / STANDARD_ERROR**2):
        print(f"Not quite: {answer} takes the variance for v; it is v (1 - v).")
    else:
        print(
            f"It suffices, but fewer do: with {answer} the error is"
            f" {math.sqrt(variance / answer):.4f}."
        )
