"""Readings of a policy while it is trained: exact value and what the reward did not ask for.

    readings = Readings(policy, task, held_out)
    table = train(policy, task, config, seed=0, callback=readings)

A training loop (`training.loop`) knows the rewards of what it samples, and those are noisy and of
prompts that it trains on. These readings say, on held-out prompts, what the policy is worth,
exactly, and what else has moved: the words of style, which no reward asks for, and the policy's
entropy there.
"""

from __future__ import annotations

import itertools

from jaxtyping import Float
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.probes.drift import DriftFrom, learning_tax
from workbook.probes.values import expected_reward

# held-out prompts whose right solutions are read, at most, and solutions of each
STYLE_PROMPTS = 16
SOLUTIONS = 4
PASS_TRIES = 8  # of pass@8
_READINGS = ("value", "tax", "style_entropy", "pass_at_8", "logp_right")


class Readings:
    """Readings of a policy on held-out prompts, by name: a callback of `training.loop.train`.

    value: exact expected reward.  pass_at_8: mean over prompts of 1 - (1 - v)^8, v a prompt's exact
    value: where rewards are 0 or 1, the chance that one of eight independent samples is right.

    The others are of the right solutions of the first prompts, which stay the same.  logp_right:
    mean over solutions of their log-probability, the sum over their tokens, nats.  tax: mean KL of
    style words from the start; style_entropy: their entropy; both nats per word, and NaN where the
    task has no style words.

    All are NaN for a task without exact values.

    start: the readings of the policy as it was when this was made, from which its style words
    drift. Runs from one policy share one of these.
    """

    def __init__(self, policy, task, held_out: list[str]):
        self.task = task
        self.held_out = list(held_out)
        self.drift = None
        if not self.held_out:
            raise InvalidValue("held_out", [], "at least one prompt")
        if hasattr(task, "equivalent_solutions"):
            rows = [
                {"prompt": prompt, "answer": task.solve(prompt)}
                for prompt in self.held_out[:STYLE_PROMPTS]
            ]
            # as many solutions of each prompt as the prompt with the fewest has
            counts = [_solutions(task, row["prompt"]) for row in rows]
            self.drift = DriftFrom(policy, task, rows, max(1, min(counts)))
        self.start = self.now(policy)

    def __call__(self, policy, batch: int) -> dict[str, float]:
        """The readings after a generation batch; before the first, those of the start."""
        return self.start if batch == 0 else self.now(policy)

    def now(self, policy) -> dict[str, float]:
        """The readings of a later policy."""
        if self.drift is None:
            return dict.fromkeys(_READINGS, float("nan"))
        values = self.values(policy)
        report = self.drift.report(policy)
        style = learning_tax(report).mean()
        solutions = report.groupby(["group", "solution"])["logp_after"].sum()
        return {
            "value": float(values.mean()),
            "tax": float(style["tax"]),
            "style_entropy": float(style["style_entropy"]),
            "pass_at_8": float((1 - (1 - values) ** PASS_TRIES).mean()),
            "logp_right": float(solutions.mean()),
        }

    def values(self, policy) -> Float[Tensor, " P"]:
        """The value of each held-out prompt."""
        return expected_reward(policy, self.task, self.held_out)


def _solutions(task, prompt: str) -> int:
    """Right solutions of a prompt, at most SOLUTIONS."""
    return len(list(itertools.islice(task.equivalent_solutions(prompt), SOLUTIONS)))
