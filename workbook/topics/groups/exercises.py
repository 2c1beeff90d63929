"""Exercises of chapters 00, 02 and 04: net pushes, leave-one-out advantages, signs, and two arguments with a flaw."""

from __future__ import annotations

import numpy as np
import torch

from workbook.theory.advantages import group_advantages
from workbook.topics.grading import UNANSWERED, answer_of, grade
from workbook.topics.groups.toy import push_on_logits

OPENINGS = ["so", "then", "so", "so", "thus", "so", "then", "so"]  # of eight rollouts that all go on with `is`


def check_shared_push(answer: float | None) -> None:
    """Check the net push on a shared token of probability 0.5 from the advantages 1, -0.25, -0.25, -0.5.

    >>> check_shared_push(0.5)
    Not quite: 0.5 is what the first rollout pushes alone; add the other three.
    """
    pushes = push_on_logits([0] * 4, [1, -0.25, -0.25, -0.5], [0.5, 0.5])[:, 0]
    mistakes = {
        "{got:g} is what the first rollout pushes alone; add the other three.": pushes[0],
        "{got:g} adds sizes; a negative advantage pushes the other way.": np.abs(pushes).sum(),
    }
    praise = "Right: every rollout pushes by its advantage times the same (1 - p), and the advantages sum to 0."
    otherwise = "{got:g}. Each rollout pushes by its advantage times (1 - p); add the four."
    grade(answer_of(answer), pushes.sum(), mistakes, praise, otherwise=otherwise)


def check_rloo(function) -> None:
    """Check a function (rewards (B,), group_ids (B,)) -> leave-one-out advantages (B,).

    >>> check_rloo(lambda rewards, group_ids: rewards - rewards.mean())
    Not quite: a baseline must come from a rollout's own group; yours seems to look at the whole batch.
    """
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1])
    group_ids = torch.arange(12) // 4
    right, mean, scaled = (group_advantages(rewards, group_ids, name) for name in ("rloo", "dr_grpo", "grpo"))
    mistakes = {
        "a baseline must come from a rollout's own group; yours seems to look at the whole batch.": (
            rewards - rewards.mean()
        ),
        "this is the group's mean, the rollout's own reward included; leave it out.": mean,
        "this divides by the standard deviation, as GRPO does; leave-one-out does not.": scaled,
    }
    praise = "Right: the baseline of each rollout is the mean reward of the others in its group."
    grade(answer_of(function, rewards, group_ids), right, mistakes, praise, "rollout")


def check_net_push(function) -> None:
    """Check a function (tokens (G,), rewards (G,), p (V,)) -> net push (V,) with leave-one-out advantages.

    >>> check_net_push(lambda tokens, rewards, p: rewards.sum() * p)
    Not quite: your pushes sum to 4 over the words, while each (e - p) sums to 0.
    """
    tokens, rewards = np.array([0, 0, 1, 0, 2, 1]), np.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    p = np.array([0.5, 0.3, 0.2])

    def net(estimator: str) -> np.ndarray:
        return push_on_logits(tokens, group_advantages(torch.tensor(rewards), torch.zeros(6), estimator), p).sum(0)

    right, got = net("rloo"), answer_of(function, tokens, rewards, p)
    mistakes = {
        "this is the mean over the six rollouts; the net push is their sum.": right / 6,
        "every sign is turned round; a positive advantage pushes the drawn word up.": -right,
        "the baseline is the mean of the whole group; leave the rollout's own reward out of it.": net("dr_grpo"),
        "this divides by the standard deviation, as GRPO does; leave-one-out does not.": net("grpo"),
        "this pushes by the rewards themselves, with no baseline subtracted.": push_on_logits(tokens, rewards, p).sum(
            0
        ),
        f"your pushes sum to {0 if got is None else got.sum():.3g} over the words, while each (e - p) sums to 0.": (
            lambda got: abs(got.sum()) > 1e-6
        ),
    }
    praise = "Right: and since leave-one-out advantages sum to 0, the part with -p falls out of the sum."
    grade(got, right, mistakes, praise, "word")


def check_signs(signs) -> None:
    """Check eight signs, +1 or -1, that leave the word `is` of all eight rollouts alone and push `so` up the most.

    >>> check_signs([1] * 8)
    Not quite: `is` is in all eight rollouts and your signs sum to +8, so it is pushed up 8 times.
    """
    if signs is None:
        print(UNANSWERED)
        return
    signs, with_so = np.asarray(signs), np.array(OPENINGS) == "so"
    if signs.shape != (8,):
        print(f"Not quite: eight rollouts need eight signs; there are {signs.size}.")
    elif not np.isin(signs, (-1, 1)).all():
        print("Not quite: every sign must be +1 or -1, as R3 changes the signs and nothing else.")
    elif total := int(signs.sum()):
        pushed = f"it is pushed {'up' if total > 0 else 'down'} {abs(total)} times"
        print(f"Not quite: `is` is in all eight rollouts and your signs sum to {total:+d}, so {pushed}.")
    else:
        net, most = int(signs[with_so].sum()), 4 - (int(with_so.sum()) - 4)  # at most four signs are +1
        if net == most:
            print(f"Right: `is` stands still and `so` is pushed up by {net}, with the same words as before.")
        else:
            print(f"Not quite: `is` stands still, but `so` gets {net:+d}; {most:+d} can be had. Where are the four +1?")
