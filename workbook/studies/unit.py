"""A unit of a study: a policy, its task, rollouts of training prompts and of held-out prompts.

    unit = StudyUnit("family", 3)
    unit.policy, unit.rollouts, unit.held_out

The same number at the same scale gives the same rollouts to every study, so what one study measures
of a token can be laid beside what another does.

At the scale "family" a unit is a policy of the family with prompts of its own. The ten policies are
those that data/family holds, one after another; `dialled` gives the same unit on a member with
other dials. At the scale of a world, "world:<name>", or of a tuned model, "smollm2:<task>", units
are its policies in the same way, and those of the role "tuning" its others. Elsewhere all units
have one policy, and the number chooses prompts alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from workbook.app.world_runs import HELD_OUT, HELD_OUT_FROM, OTHERWISE, unit_seeds
from workbook.files import write_parquet
from workbook.messages import InvalidValue, require_one_of
from workbook.policies.family import Member, committed_seeds, member_of
from workbook.policies.load import load_policy
from workbook.policies.tuned import tuned_seeds
from workbook.policies.worlds import world_seeds
from workbook.probes.categories import categorized
from workbook.probes.readings import Readings
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.making import make_member
from workbook.studies.registration import (
    ALL_WORLDS,
    POLICY_SCALES,
    SCALES,
    WORLD_SCALES,
    Setting,
    check_scale,
)
from workbook.tasks import get_task
from workbook.tasks.task import SEED_CLASSES
from workbook.tasks.worlds import WORLD

UNITS = committed_seeds("unit")  # SFT seeds of the family's policies
# prompts drawn from the task for each that is wanted, since one-digit sums repeat
DRAWS_PER_PROMPT = 4


class StudyUnit:
    """One unit of one scale; policy and rollouts are made when first asked for.

    scale: a name of SCALES.  number: of the unit, from 0; tables call it seed.
    role: "unit", or at a scale with policies of its own "tuning": one of the others, on prompts
    that no unit has.
    dials: of `Member`, at the scale "family" alone.

    setting: the scale's `Setting`, with the unit's own policy.
    data_seed, held_out_seed: of the training prompts and of the held-out ones. Those differ modulo
    8, so on the chain task no prompt is in both, whichever units are compared.
    loaded: {name: SHA-256 of the weights} of every policy of the unit that was loaded, here or by a
    dialled unit.
    results: folder of results that the unit is measured for.
    parts: folder for tables of an unfinished unit (`cached_table`), if it keeps any.

    Raises ValueError for a scale that is not in SCALES, a world without policies, and roles and
    dials elsewhere.

    >>> unit = StudyUnit("family", 12)
    >>> unit.setting.policy, unit.data_seed, unit.held_out_seed
    ('family:seed=3', 96, 8101)
    >>> unit.dialled(alphabets=4).setting.policy
    'family:seed=3,alphabets=4'
    """

    def __init__(self, scale: str, number: int = 0, role: str = "unit", **dials):
        check_scale(scale)
        if scale == ALL_WORLDS:
            raise InvalidValue(
                "scale", scale, f"one of {', '.join(WORLD_SCALES)}, which it puts side by side"
            )
        require_one_of("role", role, ("unit", "tuning") if scale in POLICY_SCALES else ("unit",))
        if dials and scale != "family":
            raise InvalidValue(
                "dials",
                dials,
                f"left out with scale {scale!r}, whose policy is one; 'family' has dials",
            )
        self.number = number
        self.dials = dials
        self.loaded: dict[str, str | None] = {}
        self.results: str | Path | None = None
        self.parts: Path | None = None
        self._readings: dict[int, Readings] = {}

        if scale == "family":
            self.setting = _family_setting(number, dials)
            self.data_seed, self.held_out_seed = unit_seeds(number)
        elif scale in POLICY_SCALES:
            self.setting = _policy_setting(scale, number, role)
            self.data_seed, self.held_out_seed = unit_seeds(number, role)
        else:
            self.setting = SCALES[scale]
            # held-out prompts are of a residue class that the training prompts are not of
            held_out_class = OTHERWISE if number % SEED_CLASSES == HELD_OUT else HELD_OUT
            self.data_seed = number
            self.held_out_seed = SEED_CLASSES * (HELD_OUT_FROM + number) + held_out_class
        self.world = scale.removeprefix(WORLD)
        self.max_new_tokens = self.setting.max_new_tokens

    def dialled(self, **dials) -> StudyUnit:
        """The same unit on the member of its SFT seed that has these dials, too; same prompts."""
        known = [dial for dial in Member.__dataclass_fields__ if dial != "seed"]
        for dial in dials:
            require_one_of("dial", dial, known)
        other = StudyUnit(self.setting.name, self.number, **{**self.dials, **dials})
        other.loaded = self.loaded
        return other

    @cached_property
    def policy(self):
        """The policy at the start, every weight trainable.

        A member with dials that nobody has made here is made first, in minutes.
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
        """A part of a unit's table, read from `parts` where an interrupted unit has made it.

        Else it is made, and written there at once.
        """
        if self.parts is None:
            return make()
        path = self.parts / f"{name}.parquet"
        if not path.exists():
            write_parquet(path, make())
        return pd.read_parquet(path)

    def sample(self, prompts: int, seed: int) -> Rollouts:
        """Fresh rollouts of the policy as it is now, with each token's class.

        Group size and length are those of the setting.
        """
        setting = self.setting
        rollouts = sample_rollouts(
            self.policy, self.task, prompts, setting.group_size, seed, setting.max_new_tokens
        )
        return categorized(rollouts)


def _family_setting(number: int, dials: dict) -> Setting:
    """The setting of a unit of the family, on the member that has these dials."""
    member = Member(UNITS[number % len(UNITS)], **dials)
    # of the task's options, those alone that differ from an undialled member's
    plain = Member(0)
    options = {
        name: value for name, value in member.task_options.items() if value != getattr(plain, name)
    }
    return replace(
        SCALES["family"],
        policy=member.name,
        task_options=options,
        max_new_tokens=member.task.longest,
    )


def _policy_setting(scale: str, number: int, role: str) -> Setting:
    """The setting of a unit of a world, or of a tuned model: one of the scale's own policies."""
    name = scale.partition(":")[2]
    own_seeds = world_seeds if scale in WORLD_SCALES else tuned_seeds
    seeds = own_seeds(name, role)
    setting = SCALES[scale]
    return replace(
        setting,
        policy=f"{scale},seed={seeds[number % len(seeds)]}",
        max_new_tokens=get_task(setting.task, **setting.task_options).longest,
    )


def distinct_rollouts(unit: StudyUnit, kept: int, drawn: int | None = None) -> Rollouts:
    """Rollouts of the first `kept` different prompts among those drawn from the task."""
    rows = unit.task.dataset(drawn or DRAWS_PER_PROMPT * kept, unit.data_seed)
    places = pd.Series(map(str, rows["prompt"])).drop_duplicates().index[:kept]
    return sample_rollouts(
        unit.policy,
        unit.task,
        rows.select(places.tolist()),
        unit.setting.group_size,
        unit.data_seed,
        unit.setting.max_new_tokens,
    )
