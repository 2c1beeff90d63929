"""Checks of the exercises: each takes a reader's answer and prints whether it is right, or what went wrong.

Nothing here raises on a wrong or missing answer, so that a chapter runs to its end with its exercises unanswered.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

UNANSWERED = "Not answered yet: put your answer in place of None and run the cell again."


def answer_of(function: Callable, *arguments) -> torch.Tensor | None:
    """What a reader's function returns, as a tensor; None, and a sentence, if it raises or answers nothing yet.

    >>> answer_of(lambda x: 1 / x, 0)
    Not quite: it raised ZeroDivisionError: division by zero
    """
    try:
        got = function(*arguments)
        if got is not None:
            return torch.as_tensor(got).detach()
        print(UNANSWERED)
    except Exception as error:
        print(f"Not quite: it raised {type(error).__name__}: {error}")
    return None


def check_shared_push(answer: float | None) -> None:
    """Chapter 00: the net push on a shared token of probability 0.5 from advantages 1, -0.25, -0.25, -0.5 (a sum of 0).

    >>> check_shared_push(0.5)
    Not quite: 0.5 is what the first rollout pushes alone; add the other three.
    """
    from workbook.topics.groups.gradients import compute_push

    pushes = compute_push([0] * 4, [1, -0.25, -0.25, -0.5], [0.5, 0.5])[:, 0]
    right = float(pushes.sum())
    if answer is None:
        print(UNANSWERED)
    elif abs(answer - right) < 1e-6:
        print("Right: every rollout pushes by its advantage times the same (1 - p), and the advantages sum to 0.")
    elif abs(answer - pushes[0]) < 1e-6:
        print(f"Not quite: {answer:g} is what the first rollout pushes alone; add the other three.")
    elif abs(answer - abs(pushes).sum()) < 1e-6:
        print(f"Not quite: {answer:g} adds sizes; a negative advantage pushes the other way.")
    else:
        print(f"Not quite: {answer:g}. Each rollout pushes by its advantage times (1 - p); add the four.")


def check_rloo(function) -> None:
    """Chapter 04: a function (rewards (B,), group_ids (B,)) -> leave-one-out advantages (B,).

    >>> check_rloo(lambda rewards, group_ids: rewards - rewards.mean())
    Not quite: a baseline must come from a rollout's own group; yours seems to look at the whole batch.
    """
    from workbook.theory.advantages import group_advantages

    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1])
    group_ids = torch.arange(12) // 4
    expected = group_advantages(rewards, group_ids, "rloo")
    got = answer_of(function, rewards, group_ids)
    if got is None:
        return
    got = got.float()
    guesses = {
        "a baseline must come from a rollout's own group; yours seems to look at the whole batch.": "batch",
        "this is the group's mean, the rollout's own reward included; leave it out.": "dr_grpo",
        "this divides by the standard deviation, as GRPO does; leave-one-out does not.": "grpo",
    }
    if got.shape != expected.shape:
        print(f"Not quite: it returned the shape {tuple(got.shape)} for 12 rollouts; return one number for each.")
    elif torch.allclose(got, expected, atol=1e-5):
        print("Right: the baseline of each rollout is the mean reward of the others in its group.")
    else:
        for sentence, guess in guesses.items():
            value = rewards - rewards.mean() if guess == "batch" else group_advantages(rewards, group_ids, guess)
            if torch.allclose(got, value, atol=1e-3):
                print(f"Not quite: {sentence}")
                return
        worst = int((got - expected).abs().argmax())
        print(f"Not quite: rollout {worst} should have {expected[worst]:.3f}, but yours has {got[worst]:.3f}.")


def check_fits(settings: dict | None, limit_gib: float = 15.0) -> None:
    """Chapter 11: settings with which a model of 7B parameters trains on a card of 15 GiB, in micro-batches of 8.

    >>> check_fits({"quantization": "nf4", "lora": 16, "microbatch": 8})
    Not quite: 24 GiB, most of it kept for backward; what else can be recomputed instead of kept?
    """
    from workbook.training.memory import at_peak, memory_forecast
    from workbook.training.shapes import QWEN_7B, WORKLOAD

    if settings is None:
        print(UNANSWERED)
        return
    try:
        table = at_peak(memory_forecast(QWEN_7B, **WORKLOAD | settings))
    except (TypeError, ValueError) as error:
        print(f"Not quite: {error}")
        return
    peak, most = table["mib"].sum() / 1024, table.loc[table["mib"].idxmax(), "part"]
    hints = {
        "weights": "the frozen weights need fewer bits.",
        "Adam's moments": "they exist for trained weights only; train fewer.",
        "gradients": "they exist for trained weights only; train fewer.",
        "kept for backward": "what else can be recomputed instead of kept?",
    }
    if peak > limit_gib:
        print(f"Not quite: {peak:.0f} GiB, most of it {most}; {hints.get(most, 'make that smaller.')}")
    elif settings.get("microbatch", 1) < 8:
        print(f"It fits with {peak:.1f} GiB, but in micro-batches of {settings.get('microbatch', 1)}; 8 is the aim.")
    else:
        print(f"Right: {peak:.1f} GiB of {limit_gib:g}, most of it {most}.")
