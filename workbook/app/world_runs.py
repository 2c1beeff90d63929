"""A unit of a world, one of its committed policies with prompts of its own, and a run of one credit
rule on it: what the arena, chapter 06 and the studies of worlds train.

    run_rule(WorldUnit("third", 0), "dr_grpo", lr=1e-3)

A run is 32 generation batches of 8 prompts x 8 rollouts, one AdamW step each, on-policy; it is read
every fourth batch. The same unit gives every rule the same prompts and random numbers.
"""

from functools import cached_property

import pandas as pd

from workbook.policies.load import load_policy
from workbook.policies.worlds import world_seeds
from workbook.probes.readings import Readings
from workbook.probes.values import exact_credit
from workbook.tasks import get_task
from workbook.tasks.task import SEED_CLASSES
from workbook.tasks.worlds import WORLD
from workbook.training.loop import LoopConfig, train

PROMPTS, GROUP_SIZE = 8, 8  # of a batch
BATCHES, EVERY, HELD_OUT_PROMPTS = 32, 4, 32
KEPT = [
    "batch",
    "value",
    "reward",
    "grad_norm",
    "moved",
    "tax",
    "style_entropy",
    "pass_at_8",
    "logp_right",
    "sampled_tokens",
    "seconds",
]
# residue classes of the chain's prompts, 0 to 3, that units train on
TRAINING_CLASSES = 4
# residue class of all held-out prompts, and where the training prompts are of that class
HELD_OUT, OTHERWISE = 5, 6
# residue class that policies kept for tuning train on; they hold out OTHERWISE, as no unit does
TUNING_CLASS = 4
HELD_OUT_FROM = 1000  # added to a unit's number for its held-out prompts


def unit_seeds(number: int, role: str = "unit") -> tuple[int, int]:
    """Seeds of a unit's training prompts and of its held-out ones, which have no prompt in common.

    role: "unit", or "tuning", of policies whose prompts no unit has.

    >>> unit_seeds(12), unit_seeds(2, "tuning")
    ((96, 8101), (20, 8022))
    """
    own = number % TRAINING_CLASSES if role == "unit" else TUNING_CLASS
    other = HELD_OUT if role == "unit" else OTHERWISE
    return SEED_CLASSES * number + own, SEED_CLASSES * (HELD_OUT_FROM + number) + other


class WorldUnit:
    """A policy of a world, by its number, and its prompts; it is loaded when first asked for.

    Raises ValueError for an unknown world, and for one without policies.
    """

    def __init__(self, world: str, number: int = 0):
        seeds = world_seeds(world, "unit")
        self.world, self.policy_name = world, f"{WORLD}{world},seed={seeds[number % len(seeds)]}"
        self.data_seed, self.held_out_seed = unit_seeds(number)
        self.task = get_task(f"{WORLD}{world}")
        self.max_new_tokens = self.task.longest
        self._readings: dict[int, Readings] = {}

    @cached_property
    def policy(self):
        """The policy at the start, every weight trainable."""
        return load_policy(self.policy_name)

    def readings(self, prompts: int) -> Readings:
        """What runs are read on: so many held-out prompts. Made once, for all of them."""
        if prompts not in self._readings:
            held_out = self.task.dataset(prompts, self.held_out_seed)["prompt"]
            self._readings[prompts] = Readings(self.policy, self.task, held_out)
        return self._readings[prompts]


def run_rule(
    unit,
    rule: str,
    lr: float,
    batches: int = BATCHES,
    every: int = EVERY,
    held_out: int = HELD_OUT_PROMPTS,
) -> pd.DataFrame:
    """Train a unit's policy by a credit rule at a rate: a row per reading, of KEPT, world, arm, lr.

    unit: a `WorldUnit`, or what has its policy, task, data_seed, readings, max_new_tokens, world.
    """
    loop = LoopConfig(
        prompts=PROMPTS,
        group_size=GROUP_SIZE,
        batches=batches,
        lr=lr,
        rule=rule,
        known_credit=exact_credit,
        max_new_tokens=unit.max_new_tokens,
    )
    readings = unit.readings(held_out)
    run = train(unit.policy, unit.task, loop, unit.data_seed, readings, every)
    return run[KEPT].assign(world=unit.world, arm=rule, lr=lr)
