"""The one prompt that the book carries from chapter to chapter: `5 - 6 + 3 =`.

It has a right rollout A and a wrong B. A policy of chains of three operands answers it
(data/family). B errs at its first step, and all that follows is right: its one reward calls every
token wrong, and one of them decided it.
"""

import re

import pandas as pd

from workbook.rollouts.sample import Rollouts, sample_rollouts, written_rollouts
from workbook.tasks.chain import Chain

PROMPT = "5 - 6 + 3 ="
ANSWER = "2"
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
    policy = policy or example_policy()
    return written_rollouts(policy, TASK, _prompts(), [list(ROLLOUTS.values())])


def example_group(policy, group_size: int, seed: int = 0) -> Rollouts:
    """A group that a policy samples for the example's prompt."""
    return sample_rollouts(policy, TASK, _prompts(), group_size, seed, max_new_tokens=32)


def _prompts():
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [PROMPT], "answer": [ANSWER]})


def running_values(rollouts: Rollouts) -> pd.DataFrame:
    """The running value of each rollout from step to step: columns rollout, step, value, reward.

    Step 0 has the value that the prompt starts with.
    """
    start = PROMPT.split()[0]
    rows = []
    for rollout, text in enumerate(rollouts.completions):
        # "then 5 - 6 is 9 ;" states a step's value; the answer is no step
        values = [start, *re.findall(r"\bis (\d+) ;", text)]
        reward = float(rollouts.rewards[rollout])
        rows += [(rollout, step, int(value), reward) for step, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["rollout", "step", "value", "reward"])
