"""Checks of chapter 09: compute to a score, and step advantages by comparing rollouts where they part."""

from __future__ import annotations

import torch

from workbook.grading import UNANSWERED, answer_of
from workbook.theory.advantages import counterfactual_advantages, group_advantages

BATCHES = {"used once": (12, 1), "used four times": (6, 4)}  # generation batches to a score, times each is used
IDS = torch.tensor([[5, 1, 9], [5, 1, 8], [5, 2, 8], [6, 2, 8]])
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0])


def check_compute(answer: dict | None) -> None:
    """Passes per rollout of two runs to a score: 1 to sample a rollout, 3 for each time an optimizer step uses it.

    >>> check_compute({"used once": 12, "used four times": 6})
    used once: not quite: 12 counts batches; each also costs 1 pass to sample and 3 for each use.
    used four times: not quite: 6 counts batches; each also costs 1 pass to sample and 3 for each use.
    """
    if not isinstance(answer, dict) or all(answer.get(name) is None for name in BATCHES):
        print(UNANSWERED)
        return
    for name, (batches, uses) in BATCHES.items():
        got, right = answer.get(name), batches * (1 + 3 * uses)
        if got is None:
            print(f"{name}: not answered yet.")
        elif not isinstance(got, int | float):
            print(f"{name}: not quite: {got!r} is no number of passes.")
        elif got == right:
            print(f"{name}: right: {batches} batches of 1 + 3 × {uses} passes.")
        elif got == batches:
            print(f"{name}: not quite: {got:g} counts batches; each also costs 1 pass to sample and 3 for each use.")
        elif got == batches * 3 * uses:
            print(f"{name}: not quite: {got:g} leaves out the pass that samples each rollout.")
        elif got == batches * (1 + uses):
            print(f"{name}: not quite: {got:g} counts a use as 1 pass; forward and backward together cost 3.")
        else:
            print(f"{name}: not quite: {got:g}; it is the number of batches times the passes of one rollout.")


def check_counterfactual(function) -> None:
    """A function (rewards (B,), ids (B, T)) of one group -> step advantages (B, T), `counterfactual_advantages`.

    >>> check_counterfactual(lambda rewards, ids: (rewards - rewards.mean())[:, None].expand(4, 3))
    Not quite: this is the group's advantage on every token; compare only with rollouts that stood in the same state.
    """
    got = answer_of(function, REWARDS.clone(), IDS.clone())
    if got is None:
        return
    got, group = got.double(), torch.zeros(len(IDS))
    right = counterfactual_advantages(REWARDS, IDS, torch.ones_like(IDS), group).double()
    flat = group_advantages(REWARDS, group, "dr_grpo").double()[:, None].expand(right.shape)
    token_alone = torch.stack(
        [
            torch.stack([REWARDS[IDS[:, t] == IDS[i, t]].mean() - REWARDS.mean() for t in range(IDS.shape[1])])
            for i in range(len(IDS))
        ]
    ).double()
    taken = torch.stack(
        [
            torch.stack([REWARDS[(IDS[:, : t + 1] == IDS[i, : t + 1]).all(1)].mean() for t in range(IDS.shape[1])])
            for i in range(len(IDS))
        ]
    ).double()
    alone = torch.tensor([[False] * 3, [False] * 3, [False, False, True], [False, True, True]])
    mistakes = {
        "this is the group's advantage on every token; compare only with rollouts that stood in the same state.": flat,
        "this looks at the token alone; the state is everything that stands before it.": token_alone,
        "this is the mean reward after the step; take off the mean reward of all that stood before it.": taken,
        "the baseline is the mean over those in the same state, not over the whole group.": taken - REWARDS.mean(),
        "a rollout that is alone in its state falls back to the group's advantage.": right.masked_fill(alone, 0.0),
        "the sign is turned round.": -right,
    }
    if got.shape != right.shape:
        print(f"Not quite: it returned the shape {tuple(got.shape)}; return one number for each token, (4, 3).")
    elif torch.allclose(got, right, atol=1e-5):
        print("Right: steps that all take are worth 0, and only where rollouts part is anything told apart.")
    else:
        for sentence, value in mistakes.items():
            if torch.allclose(got, value, atol=1e-5):
                print(f"Not quite: {sentence}")
                return
        row, column = divmod(int((got - right).abs().argmax()), right.shape[1])
        told = f"{right[row, column]:+.3f}, but yours has {got[row, column]:+.3f}"
        print(f"Not quite: rollout {row} should have {told} at position {column}.")
