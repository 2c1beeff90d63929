"""Policies of the worlds: committed in 8 bits, the same weights on every machine.

    load_policy("world:third,seed=3")

data/worlds/<world> holds seed=K.safetensors, the rounded weights that are the policy, and
members.json: which are units, which serve tuning, and the start of each. The weights are no part of
a wheel. What was loaded lies, with a tokenizer, in the user's cache folder, below worlds/.
"""

import json
import re
from pathlib import Path

from workbook.messages import InvalidValue
from workbook.places import cache_folder, data_path
from workbook.policies.family import Member, committed_file, member_folder
from workbook.policies.small import unpack_policy
from workbook.tasks.worlds import WORLD, World, world_of

# per world: seed=K.safetensors, and members.json: what each is
COMMITTED = data_path("worlds")
NAME = re.compile(rf"{WORLD}(\w+),seed=([0-9]{{1,9}})")


def source_of(world: World) -> World:
    """The world that a world's policies were trained in: mostly itself."""
    return world if world.policies == "family" else world_of(world.policies)


def world_file(world: World, seed: int) -> Path:
    """Where the policy of an SFT seed lies, if it is committed."""
    source = source_of(world)
    if source.policies == "family":
        return committed_file(Member(seed))
    return COMMITTED / source.name / f"seed={seed}.safetensors"


def world_seeds(name: str, role: str) -> tuple[int, ...]:
    """The SFT seeds of a world's policies of a role, "unit" or "tuning", in order.

    Raises ValueError for an unknown world, and for one without policies.
    """
    path = COMMITTED / world_of(name).name / "members.json"
    if not path.exists():
        raise ValueError(
            f"world {name} has no policies yet: python data/worlds/make_worlds.py {name} makes"
            " them."
        )
    members = json.loads(path.read_text())["members"]
    return tuple(member["seed"] for member in members if member["role"] == role)


def policy_folder(name: str) -> Path:
    """The folder of the policy of a name, unpacked as `unpack_policy` does.

    Raises ValueError for a name of none, and where its file is missing.
    """
    match = NAME.fullmatch(name)
    if not match:
        raise InvalidValue("name", name, "that of a world's policy, e.g. world:third,seed=3")
    world = world_of(match[1])
    seed = int(match[2])
    seeds = [*world_seeds(world.name, "tuning"), *world_seeds(world.name, "unit")]
    if seed not in seeds:
        raise InvalidValue(
            "seed", seed, f"that of a policy of world {world.name}: {', '.join(map(str, seeds))}"
        )
    source = source_of(world)
    file = world_file(world, seed)
    if not file.exists():
        raise ValueError(
            f"the policies of world {world.name} come with a clone of the repository and not with"
            f" an installed wheel: data/worlds/{source.name}/{file.name} is missing."
        )

    # a world of the family's own task has the family's policies
    if source.policies == "family":
        return member_folder(Member(seed))
    task = source.made()
    target = cache_folder() / "worlds" / file.parent.name / file.stem
    facts = {"made_by": "data/worlds/make_worlds.py", "world": source.name}
    return unpack_policy(file, target, task, source.width, task.longest, facts)
