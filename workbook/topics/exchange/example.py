"""Two rollouts of one prompt, one right and one wrong, and what a few steps on them do to the ratio of every word.

A tabular policy: each context (the words before) has a softmax of its own over ten words, so nothing couples contexts.
A step adds lr * sum_i A_i (e_y - p) to the logits of a context, all weights 1; advantages are +1 and -1.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from workbook.theory import surrogate_weights
from workbook.theory.choices import check_range

PROMPT = "5 - 6 + 3 ="
TEXTS = (
    "start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2",
    "start with 5 ; then 5 - 6 is 8 ; now 8 + 3 is 1 ; so the answer is 1",
)
RIGHT, WRONG = (text.split() for text in TEXTS)
STYLE = ("start", "then", "now", "so")  # free choices of about four words
RESULTS = (9, 16)  # positions of the steps' results
CHOICES, OTHERS = 4, 9  # words of a free choice; words besides the one that is said
P_RIGHT, P_WRONG, P_FORCED = 0.6, 0.1, 0.98  # of a step's right result, of a wrong one, of a word that must follow


def two_rollouts(lr: float = 0.5, steps: int = 1, clip_range: float = 0.2) -> pd.DataFrame:
    """Token table of the two rollouts after `steps` steps on them: probability, ratio, and what PPO's clip stops.

    Columns group, rollout, position, token, advantage, reward, p (before), ratio (new p over old p), weight (of PPO's
    clipped objective, 1 +- clip_range) and stopped ("clip high", "clip low" or "").
    Raises ValueError for a negative learning rate or clip_range, or a number of steps below 0.
    """
    check_range(0, float("inf"), lr=lr, steps=steps, clip_range=clip_range)
    rows = []
    for rollout, (words, advantage) in enumerate(((RIGHT, 1.0), (WRONG, -1.0))):
        for position, word in enumerate(words):
            before, now = _log_probabilities(position, word, advantage, lr, steps)
            rows.append(
                (0, rollout, position, word, advantage, float(advantage > 0), before.exp(), (now - before).exp())
            )
    table = pd.DataFrame(rows, columns=["group", "rollout", "position", "token", "advantage", "reward", "p", "ratio"])
    table[["p", "ratio"]] = table[["p", "ratio"]].astype(float).round(12)  # what cancels is 1, not 1 + 1e-16
    ratio, advantages = (torch.tensor(table[name].to_numpy())[:, None] for name in ("ratio", "advantage"))
    weights = surrogate_weights(
        ratio.log(), torch.zeros_like(ratio), torch.ones_like(ratio), advantages, clip=(clip_range, clip_range)
    )
    table["weight"] = weights[:, 0].numpy()
    stopped = table["weight"] == 0
    side = (table["ratio"] > 1).map({True: "clip high", False: "clip low"})
    return table.assign(stopped=side.where(stopped, ""))


def _log_probabilities(position: int, word: str, advantage: float, lr: float, steps: int) -> tuple[Tensor, Tensor]:
    """The word's log-probability before and after steps on its context's softmax; both rollouts push a shared one."""
    shared = RIGHT[:position] == WRONG[:position]
    drawn = (RIGHT[position], WRONG[position]) if shared else (word,)
    signs = (1.0, -1.0) if shared else (advantage,)
    names = list(dict.fromkeys(drawn))
    p = torch.tensor([_probability(position, name, shared) for name in names], dtype=torch.float64)
    rest = 3 if names[0] in STYLE else OTHERS - len(names) + 1
    logits = torch.cat([p, ((1 - p.sum()) / rest).repeat(rest)]).log()
    before = logits[names.index(word)]
    for _ in range(steps):
        push = -sum(signs) * logits.softmax(0)
        for name, sign in zip(drawn, signs, strict=True):
            push[names.index(name)] += sign
        logits = logits + lr * push
    return before, logits.log_softmax(0)[names.index(word)]


def _probability(position: int, word: str, shared: bool) -> float:
    """How likely the policy that sampled is to say the word there."""
    if word in STYLE:
        return 1 / CHOICES
    if position in RESULTS:
        return P_WRONG if shared and word == WRONG[position] else P_RIGHT
    return P_FORCED
