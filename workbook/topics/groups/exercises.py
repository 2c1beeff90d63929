"""Checks of chapter 02: a group's net push by hand, and signs that push what no reward asked for."""

from __future__ import annotations

import numpy as np
import torch

from workbook.grading import UNANSWERED, answer_of

OPENINGS = ["so", "then", "so", "so", "thus", "so", "then", "so"]  # of eight rollouts that all go on with `is`


def check_net_push(function) -> None:
    """A function (tokens (G,), rewards (G,), p (V,)) -> net push (V,) with leave-one-out advantages.

    >>> check_net_push(lambda tokens, rewards, p: rewards.sum() * p)
    Not quite: your pushes sum to 4 over the words, while each (e - p) sums to 0.
    """
    from workbook.theory.advantages import group_advantages
    from workbook.topics.groups.toy import compute_push

    tokens, rewards = np.array([0, 0, 1, 0, 2, 1]), np.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    p = np.array([0.5, 0.3, 0.2])

    def expected(estimator: str) -> np.ndarray:
        advantages = group_advantages(torch.tensor(rewards), torch.zeros(6), estimator).numpy()
        return compute_push(tokens, advantages, p).sum(0)

    got = answer_of(function, tokens, rewards, p)
    if got is None:
        return
    got, right = got.double().numpy(), expected("rloo")
    if got.shape != right.shape:
        print(f"Not quite: it returned the shape {got.shape} for a softmax of 3 words; return one number a word.")
    elif np.allclose(got, right, atol=1e-6):
        print("Right: and since leave-one-out advantages sum to 0, the part with -p falls out of the sum.")
    elif np.allclose(got, right / 6, atol=1e-6):
        print("Not quite: this is the mean over the six rollouts; the net push is their sum.")
    elif np.allclose(got, -right, atol=1e-6):
        print("Not quite: every sign is turned round; a positive advantage pushes the drawn word up.")
    elif np.allclose(got, expected("dr_grpo"), atol=1e-6):
        print("Not quite: the baseline is the mean of the whole group; leave the rollout's own reward out of it.")
    elif np.allclose(got, expected("grpo"), atol=1e-2):
        print("Not quite: this divides by the standard deviation, as GRPO does; leave-one-out does not.")
    elif np.allclose(got, compute_push(tokens, rewards, p).sum(0), atol=1e-6):
        print("Not quite: this pushes by the rewards themselves, with no baseline taken off.")
    elif abs(got.sum()) > 1e-6:
        print(f"Not quite: your pushes sum to {got.sum():.3g} over the words, while each (e - p) sums to 0.")
    else:
        print(f"Not quite: the first word should get {right[0]:+.3f}, but yours gets {got[0]:+.3f}.")


def check_signs(signs) -> None:
    """Eight signs, +1 or -1, that leave the word `is` of all eight rollouts alone and push `so` up as far as can be.

    >>> check_signs([1] * 8)
    Not quite: `is` is in all eight rollouts and your signs sum to +8, so it is pushed up 8 times.
    """
    if signs is None:
        print(UNANSWERED)
        return
    signs = np.asarray(signs)
    said = np.array(OPENINGS) == "so"
    if signs.shape != (8,):
        print(f"Not quite: eight rollouts need eight signs; there are {signs.size}.")
    elif not np.isin(signs, (-1, 1)).all():
        print("Not quite: every sign must be +1 or -1, as R3 changes the signs and nothing else.")
    elif signs.sum() != 0:
        way = "up" if signs.sum() > 0 else "down"
        print(
            f"Not quite: `is` is in all eight rollouts and your signs sum to {signs.sum():+d}, "
            f"so it is pushed {way} {abs(signs.sum())} times."
        )
    else:
        net, most = int(signs[said].sum()), 4 - (int(said.sum()) - 4)
        if net == most:
            print(f"Right: `is` stands still and `so` is pushed up by {net}, with the same words as before.")
        else:
            print(f"Not quite: `is` stands still, but `so` gets {net:+d}; {most:+d} can be had. Where are the four +1?")
