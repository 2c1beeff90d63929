"""Worlds by name: tasks whose exact values are known, at fixed levels of their dials.

data/worlds/worlds.yaml states the levels.

    get_task("world:third")             the task of a world, whose options are fixed
    worlds()["third"].options           its dials
    load_policy("world:third,seed=3")   one of its committed policies (`workbook.policies.worlds`)
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from workbook.messages import InvalidValue, require_one_of
from workbook.places import data_path
from workbook.tasks.task import Task, get_task

WORLD = "world:"  # how names of worlds, and of their policies, begin


@dataclass(frozen=True)
class World:
    """A task at levels of its dials, in which policies are measured.

    task, options: as `get_task` takes them.
    policies: the world whose policies are taken (worlds that differ in the reward alone share
    them), or "family".
    sft_steps: on the task's own demonstrations, after right ones were learned.
    width: of the policies.
    least_value, least_greedy: expected reward, sampled and greedy, below which a policy has learned
    too little to be a unit.
    held_out: whether what comes there is predicted before any arm is trained.
    """

    name: str
    task: str = "chain"
    options: dict[str, Any] = field(default_factory=dict)
    policies: str = ""
    sft_steps: int = 150
    width: int = 48
    least_value: float = 0.0
    least_greedy: float = 0.0
    held_out: bool = False

    def made(self) -> Task:
        """Return the task itself."""
        return get_task(self.task, **self.options)


@cache
def worlds() -> dict[str, World]:
    """Return {name: world}, in the order of data/worlds/worlds.yaml.

    >>> worlds()["low"].made().error_rate > worlds()["plain"].made().error_rate
    True
    """
    # {name: levels of dials that differ from the defaults}
    text = data_path("worlds", "worlds.yaml").read_text(encoding="utf-8")
    by_name = {}
    for name, levels in yaml.safe_load(text).items():
        # by default a world has policies of its own
        by_name[name] = World(name, **{"policies": name, **levels})
    return by_name


def world_of(name: str) -> World:
    """Return the world of a name; ValueError, with the names that there are, for any other."""
    require_one_of("world", name, tuple(worlds()))
    return worlds()[name]


def world_task(name: str, **options: Any) -> Task:
    """Return the task of a world, for `get_task`; its options are fixed, so any is refused."""
    for option, value in options.items():
        raise InvalidValue(
            option,
            value,
            "left out",
            f"world:{name} has fixed levels, so it takes no {option}: ask for its task,"
            " e.g. chain.",
        )
    return world_of(name).made()
