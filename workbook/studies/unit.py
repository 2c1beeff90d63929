"""The bench that studies work at: a policy, its task, rollouts of training prompts and of prompts
nobody trains on.

The same seed at the same scale gives the same rollouts to every study, so what one study measures
of a token can be laid beside what another does.

At the scale "family" a seed is a unit: a policy of the family and prompts of its own. The ten
policies are those that data/family holds, one after another; `dialled` gives the same unit on a
member with other dials. At the scale of a world, "world:<name>", or of a tuned model,
"smollm2:<task>", units are its policies in the same way, and those of the role "tuning" its others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path

import pandas as pd

from workbook.app.world_runs import HELD_OUT, HELD_OUT_FROM, OTHERWISE, unit_seeds
from workbook.files import write_parquet
from workbook.messages import InvalidValue, require_one_of
from workbook.policies.family import Member, committed_seeds, member_of
from workbook.policies.load import load_policy
from workbook.probes.categories import categorized
from workbook.probes.readings import Readings
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.making import make_member
from workbook.studies.registration import (
    ALL_WORLDS,
    POLICY_SCALES,
    SCALES,
    WORLD_SCALES,
    check_scale,
)
from workbook.tasks import get_task
from workbook.tasks.task import SEED_CLASSES
from workbook.tasks.worlds import WORLD

UNITS = committed_seeds("unit")  # SFT seeds of the family's policies
# prompts drawn from the task for each that is wanted, since one-digit sums repeat
DRAWS_PER_PROMPT = 4


class StudyUnit:
    """One seed of one scale; policy and rollouts are made when first asked for.

    data_seed, held_out_seed: of the training prompts and of the held-out ones. Those differ modulo
    8, so on the chain task no prompt is in both, whichever seeds are compared. role: "unit", or at
    a scale with policies of its own "tuning": one of the others, on prompts that no unit has.
    dials: of `Member`, at the scale "family" alone.
    loaded: {name: SHA-256 of the weights} of every policy of the unit that was loaded, here or on a
    dialled bench.
    results: folder of results that the unit is measured for; parts: where it keeps what is done of
    it (`kept`), if any.

    Raises ValueError for a scale that is not in SCALES, a world without policies, and roles and
    dials elsewhere.

    >>> bench = Bench("family", 12)
    >>> bench.scale.policy, bench.data_seed, bench.held_out_seed
    ('family:seed=3', 96, 8101)
    >>> bench.dialled(alphabets=4).scale.policy
    'family:seed=3,alphabets=4'
    """

    def __init__(self, scale: str, seed: int = 0, role: str = "unit", **dials):
        check_scale(scale)
        if scale == ALL_WORLDS:
            raise InvalidValue(
                "scale", scale, f"one of {', '.join(WORLD_SCALES)}, which it puts side by side"
            )
        require_one_of("role", role, ("unit", "tuning") if scale in POLICY_SCALES else ("unit",))
        self.setting, self.number, self.data_seed, self.dials = SCALES[scale], seed, seed, dials
        self.held_out_seed = SEED_CLASSES * (HELD_OUT_FROM + seed) + (
            OTHERWISE if seed % SEED_CLASSES == HELD_OUT else HELD_OUT
        )
        self.loaded: dict[str, str | None] = {}
        self._readings: dict[int, Readings] = {}
        self.results: str | Path | None = None
        self.parts: Path | None = None
        if scale == "family":
            member = Member(UNITS[seed % len(UNITS)], **dials)
            length = member.task.longest
            options = {
                name: value
                for name, value in member.task_options.items()
                if value != getattr(Member(0), name)
            }
            self.setting = replace(
                self.setting, policy=member.name, task_options=options, max_new_tokens=length
            )
            self.data_seed, self.held_out_seed = unit_seeds(seed)
        elif scale in POLICY_SCALES and not dials:
            world, name = scale in WORLD_SCALES, scale.partition(":")[2]
            policies = import_module(f"workbook.policies.{'worlds' if world else 'tuned'}")
            own = (policies.world_seeds if world else policies.tuned_seeds)(name, role)
            longest = get_task(self.setting.task, **self.setting.task_options).longest
            self.setting = replace(
                self.setting, policy=f"{scale},seed={own[seed % len(own)]}", max_new_tokens=longest
            )
            self.data_seed, self.held_out_seed = unit_seeds(seed, role)
        elif dials:
            raise InvalidValue(
                "dials",
                dials,
                f"left out with scale {scale!r}, whose policy is one; 'family' has dials",
            )
        self.world, self.max_new_tokens = scale.removeprefix(WORLD), self.setting.max_new_tokens

    def dialled(self, **dials) -> StudyUnit:
        """The same unit, with the same prompts, on the member of the same SFT seed that has these
        dials, too.
        """
        known = [dial for dial in Member.__dataclass_fields__ if dial != "seed"]
        for dial in dials:
            require_one_of("dial", dial, known)
        other = StudyUnit(self.setting.name, self.number, **{**self.dials, **dials})
        other.loaded = self.loaded
        return other

    @cached_property
    def policy(self):
        """The policy at the start, every weight trainable; a member with dials is made first, in
        minutes, where nobody has made it here.
        """
        if self.dials:
            make_member(member_of(self.setting.policy))
        policy = load_policy(self.setting.policy)
        self.loaded[self.setting.policy] = policy.provenance["sha256"]
        return policy

    @cached_property
    def task(self):
        return get_task(self.setting.task, **self.setting.task_options)

    @cached_property
    def rollouts(self) -> Rollouts:
        """Rollouts of the training prompts."""
        return self.sample(self.setting.prompts, self.data_seed)

    @cached_property
    def held_out(self) -> Rollouts:
        """Rollouts of other prompts, for no step to be taken on."""
        return self.sample(self.setting.held_out, self.held_out_seed)

    def readings(self, prompts: int) -> Readings:
        """Readings on so many held-out prompts, made once for all runs of the unit."""
        if prompts not in self._readings:
            held_out = self.task.dataset(prompts, self.held_out_seed)["prompt"]
            self._readings[prompts] = Readings(self.policy, self.task, held_out)
        return self._readings[prompts]

    def cached_table(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A part of a unit's table, written as soon as it is made, and read where an interrupted
        unit has made it.
        """
        if self.parts is None:
            return make()
        path = self.parts / f"{name}.parquet"
        if not path.exists():
            write_parquet(path, make())
        return pd.read_parquet(path)

    def sample(self, prompts: int, seed: int) -> Rollouts:
        """Fresh rollouts of the policy as it is now, in this scale's group size and length, with
        each token's class.
        """
        scale = self.setting
        rollouts = sample_rollouts(
            self.policy, self.task, prompts, scale.group_size, seed, scale.max_new_tokens
        )
        return categorized(rollouts)


def distinct_rollouts(unit: StudyUnit, kept: int, drawn: int | None = None) -> Rollouts:
    """Rollouts of the first `kept` different prompts among those drawn from the task."""
    rows = unit.task.dataset(drawn or DRAWS_PER_PROMPT * kept, unit.data_seed)
    places = pd.Series(map(str, rows["prompt"])).drop_duplicates().index[:kept]
    sampled = (unit.task, rows.select(places.tolist()), unit.setting.group_size, unit.data_seed)
    return sample_rollouts(unit.policy, *sampled, unit.setting.max_new_tokens)
