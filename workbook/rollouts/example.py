"""The one prompt that the book carries from chapter to chapter: `5 - 6 + 3 =`, with a right rollout
A and a wrong B.

A policy of chains of three operands answers it (data/family); B errs at its first step, all that
follows is right.
"""

import re

import pandas as pd

from workbook.rollouts.sample import Rollouts, sample_rollouts, written_rollouts
from workbook.tasks.chain import Chain

PROMPT, ANSWER = "5 - 6 + 3 =", "2"
ROLLOUTS = {
    "A": "start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2",
    "B": "start with 5 ; then 5 - 6 is 8 ; now 8 + 3 is 1 ; so the answer is 1",
}
POLICY = "family:seed=0,operands=3"
TASK = Chain(operands=3)


def example_policy():
    """The committed policy of the example's world, chains of three operands."""
    from workbook.policies.load import load_policy

    return load_policy(POLICY)


def example_rollouts(policy=None) -> Rollouts:
    """A and B as a group of two, as if `policy` (by default the example's own) had sampled them."""
    return written_rollouts(policy or example_policy(), TASK, _prompts(), [[*ROLLOUTS.values()]])


def example_group(policy, group_size: int, seed: int = 0) -> Rollouts:
    """A group that a policy samples for the example's prompt."""
    return sample_rollouts(policy, TASK, _prompts(), group_size, seed, max_new_tokens=32)


def _prompts():
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [PROMPT], "answer": [ANSWER]})


def running_values(rollouts: Rollouts) -> pd.DataFrame:
    """The running value before and after each step of rollouts: columns rollout, step (from 0),
    value, reward.
    """
    rows = [
        (rollout, step, int(value), float(rollouts.rewards[rollout]))
        for rollout, text in enumerate(rollouts.completions)
        for step, value in enumerate([PROMPT.split()[0], *re.findall(r"\bis (\d+) ;", text)])
    ]
    return pd.DataFrame(rows, columns=["rollout", "step", "value", "reward"])
