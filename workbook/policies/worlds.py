"""Policies of the worlds: committed in 8 bits, the same weights on every machine.

    load_policy("world:third,seed=3")

data/worlds/<world> holds seed=K.safetensors, the rounded weights that are the policy, and
members.json: which are units, which serve tuning, and the start of each. The weights are no part of
a wheel. What was loaded lies, with a tokenizer, in the user's cache folder, below worlds/.
"""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from workbook.places import cache_folder, data_path, file_hash
from workbook.policies.family import Member, committed_file, member_folder, unpacked
from workbook.policies.models import seeded
from workbook.policies.packaged import RECORD, is_whole, kept, write_record
from workbook.policies.sft import make_model, make_tokenizer
from workbook.tasks.task import short
from workbook.tasks.worlds import WORLD, World, world_of

COMMITTED = data_path("worlds")
NAME = re.compile(rf"{WORLD}(\w+),seed=([0-9]{{1,9}})")


def source_of(world: World) -> World:
    """The world that its policies were trained in: mostly itself."""
    return world if world.policies == "family" else world_of(world.policies)


def world_file(world: World, seed: int) -> Path:
    """Where the policy of an SFT seed lies, if it is committed."""
    own = source_of(world)
    return (
        committed_file(Member(seed))
        if own.policies == "family"
        else COMMITTED / own.name / f"seed={seed}.safetensors"
    )


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
    return tuple(
        member["seed"]
        for member in json.loads(path.read_text())["members"]
        if member["role"] == role
    )


def policy_folder(name: str) -> Path:
    """Return the folder of the policy of a name, which is unpacked if it is not there, torn, or of
    another file.

    Raises ValueError for a name of none, and where its file is not there.
    """
    match = NAME.fullmatch(name)
    if not match:
        raise ValueError(
            f"{short(name, 90)} names no policy of a world: write e.g. world:third,seed=3."
        )
    world, seed = world_of(match[1]), int(match[2])
    seeds = [seed for role in ("tuning", "unit") for seed in world_seeds(world.name, role)]
    if seed not in seeds:
        raise ValueError(
            f"world {world.name} has no policy of seed {seed}: take one of"
            f" {', '.join(map(str, seeds))}."
        )
    if not (file := world_file(world, seed)).exists():
        raise ValueError(
            f"the policies of world {world.name} come with a clone of the repository and not with"
            f" an installed wheel: data/worlds/{source_of(world).name}/{file.name} is missing."
        )
    if source_of(world).policies == "family":
        return member_folder(Member(seed))
    digest = file_hash(file)
    target = cache_folder() / "worlds" / file.parent.name / file.stem
    return kept(
        target,
        lambda folder: _unpack(source_of(world), file, folder),
        lambda folder: (
            is_whole(folder) and json.loads((folder / RECORD).read_text()).get("unpacked") == digest
        ),
    )


def _unpack(world: World, file: Path, folder: Path) -> None:
    """Write the policy in a committed file, with its tokenizer and a record of both, into a folder."""
    task = world.made()
    tokenizer = make_tokenizer(task)
    with seeded(0, torch.device("cpu")):
        model = make_model(tokenizer, world.width, task.longest)
    model.load_state_dict(unpacked(load_file(file)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_record(
        folder,
        {"made_by": "workbook.policies.worlds", "world": world.name, "unpacked": file_hash(file)},
    )
