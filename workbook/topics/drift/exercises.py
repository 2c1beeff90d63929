"""Exercises of chapter 09: a flaw in an argument, compute to a score, and step advantages where rollouts part."""

from __future__ import annotations

import torch
from torch import Tensor

from workbook.theory.advantages import group_advantages, prefix_credit
from workbook.topics.grading import UNANSWERED, answer_of, grade

BATCHES = {"used once": (12, 1), "used four times": (6, 4)}  # generation batches to a score, times each is used
IDS = torch.tensor([[5, 1, 9], [5, 1, 8], [5, 2, 8], [6, 2, 8]])
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0])


def check_compute(answer: dict | None) -> None:
    """Check the passes per rollout of two runs: 1 to sample a rollout, 3 for each time an optimizer step uses it.

    >>> check_compute({"used once": 12, "used four times": 6})
    used once: not quite: 12 counts batches; each also costs 1 pass to sample and 3 for each use.
    used four times: not quite: 6 counts batches; each also costs 1 pass to sample and 3 for each use.
    """
    if not isinstance(answer, dict) or all(answer.get(name) is None for name in BATCHES):
        print(UNANSWERED)
        return
    for name, (batches, uses) in BATCHES.items():
        passes = answer.get(name)
        mistakes = {
            batches: "counts batches; each also costs 1 pass to sample and 3 for each use.",
            batches * 3 * uses: "leaves out the pass that samples each rollout.",
            batches * (1 + uses): "counts a use as 1 pass; forward and backward together cost 3.",
        }
        if passes is None:
            print(f"{name}: not answered yet.")
        elif not isinstance(passes, int | float):
            print(f"{name}: not quite: {passes!r} is no number of passes.")
        elif passes == batches * (1 + 3 * uses):
            print(f"Right, {name}: {batches} batches of 1 + 3 × {uses} passes.")
        elif passes in mistakes:
            print(f"{name}: not quite: {passes:g} {mistakes[passes]}")
        else:
            print(f"{name}: not quite: {passes:g}; it is the number of batches times the passes of one rollout.")


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
