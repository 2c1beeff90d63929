"""The bench that studies work at: a policy, its task, rollouts of training prompts and of prompts nobody trains on.

The same seed at the same scale gives the same rollouts to every study, so what one study measures of a token can be
laid beside what another does.
"""

from __future__ import annotations

from functools import cached_property

from workbook.policies.load import load_policy
from workbook.probes.categories import categorized
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.scales import SCALES, check_scale
from workbook.tasks import get_task

HELD_OUT = 4  # added to a seed for its held-out prompts; seeds that differ modulo 8 share no prompt of the chain task


class Bench:
    """One seed of one scale; policy and rollouts are made when first asked for.

    Raises ValueError for a scale that is not in SCALES.
    """

    def __init__(self, scale: str, seed: int = 0):
        check_scale(scale)
        self.scale, self.seed = SCALES[scale], seed

    @cached_property
    def policy(self):
        """The policy at the start, every weight trainable."""
        return load_policy(self.scale.policy)

    @cached_property
    def task(self):
        return get_task(self.scale.task, **self.scale.task_options)

    @cached_property
    def rollouts(self) -> Rollouts:
        """Rollouts of the training prompts."""
        return self.sample(self.scale.prompts, self.seed)

    @cached_property
    def held_out(self) -> Rollouts:
        """Rollouts of other prompts, for no step to be taken on."""
        return self.sample(self.scale.held_out, self.seed + HELD_OUT)

    def sample(self, prompts: int, seed: int) -> Rollouts:
        """Fresh rollouts of the policy as it is now, in this scale's group size and length, with each token's class."""
        scale = self.scale
        rollouts = sample_rollouts(self.policy, self.task, prompts, scale.group_size, seed, scale.max_new_tokens)
        return categorized(rollouts, tagger="rules")  # the same classes on every machine
