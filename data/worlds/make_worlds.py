"""Make the committed policies of the worlds, and describe their starts: three for tuning and ten
units each.

    python data/worlds/make_worlds.py              all worlds of worlds.yaml
    python data/worlds/make_worlds.py third walk   some

Per world, SFT seeds 1, 2, 3, ... are trained one after another (`workbook.studies.making`): on
right completions until the likeliest ones are right, then on the world's own demonstrations. They
are rounded to 8 bits and described as rounded (`workbook.probes.policy_report`). One whose value is
below the world's least_value, or whose likeliest completions' is below its least_greedy, has
learned too little and is passed over; the first three others serve tuning, the next ten are the
units. A world with another one's policies describes those. What is there is not made again.
"""

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from workbook.places import file_hash
from workbook.policies.family import committed_seeds
from workbook.policies.load import Policy, load_policy
from workbook.policies.models import seeded
from workbook.policies.small import from_int8, make_model, make_tokenizer, to_int8
from workbook.policies.worlds import world_file, world_seeds
from workbook.probes.policy_report import (
    START_GROUP_SIZE,
    START_GROUPS,
    START_PROMPTS,
    describe_start,
)
from workbook.studies.making import EVAL_SEED, learn, train_supervised
from workbook.tasks.worlds import World, world_of, worlds

HERE = Path(__file__).parent
# of `learn`, at most; of it and of `train`
LESSON_STEPS, BATCH_SIZE, LEARNING_RATE = 2400, 32, 3e-3
ROLES = ["tuning"] * 3 + ["unit"] * 10


def trained(world: World, seed: int) -> tuple[Policy, dict[str, torch.Tensor]]:
    """Train and round the policy of an SFT seed: the policy, and its weights as they are stored."""
    task = world.made()
    tokenizer = make_tokenizer(task)
    with seeded(seed, torch.device("cpu")):
        model = make_model(tokenizer, world.width, task.longest)
        learn(model, tokenizer, task, LESSON_STEPS, BATCH_SIZE, LEARNING_RATE, seed)
        train_supervised(
            model,
            tokenizer,
            task,
            world.sft_steps,
            BATCH_SIZE,
            LEARNING_RATE,
            seed,
            right_first=0.0,
        )
    stored = to_int8(model.state_dict())
    model.load_state_dict(from_int8(stored))
    return Policy(model.eval(), tokenizer, {}), stored


def made(world: World, seed: int, roles: list[str]) -> dict:
    """Train and describe the policy of an SFT seed; its file is written if it has learned enough
    for the next role.
    """
    policy, stored = trained(world, seed)
    start = describe_start(policy, world.made(), EVAL_SEED)
    if start["value"] < world.least_value or start["greedy"] < world.least_greedy:
        return {"seed": seed, "role": "passed over", "start": start}
    (path := world_file(world, seed)).parent.mkdir(exist_ok=True)
    save_file(stored, path)
    return {"seed": seed, "role": roles[0], "start": start, "sha256": file_hash(path)}


def described(world: World, seed: int, role: str) -> dict:
    """Describe the start, in this world, of a policy of another one."""
    policy = load_policy(
        f"family:seed={seed}"
        if world.policies == "family"
        else f"world:{world.policies},seed={seed}"
    )
    start = describe_start(policy, world.made(), EVAL_SEED)
    return {
        "seed": seed,
        "role": role,
        "start": start,
        "sha256": file_hash(world_file(world, seed)),
    }


def members_of(world: World, known: list[dict]):
    """Yield the members of a world after those that are known."""
    if world.policies == world.name:
        while left := ROLES[sum(member["role"] in ROLES for member in known) :]:
            yield made(world, len(known) + 1, left)
    else:
        seeds = (
            committed_seeds if world.policies == "family" else partial(world_seeds, world.policies)
        )
        pairs = [(seed, role) for role in dict.fromkeys(ROLES) for seed in seeds(role)]
        for pair in pairs[len(known) :]:
            yield described(world, *pair)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("world", nargs="*", help="by default all")
    torch.set_num_threads(1)  # sums in another order make other bytes
    for world in map(world_of, parser.parse_args().world or worlds()):
        path = HERE / world.name / "members.json"
        path.parent.mkdir(exist_ok=True)
        about = {"made_by": "data/worlds/make_worlds.py", "world": asdict(world)}
        about |= {"prompts": START_PROMPTS, "rollouts": [START_GROUPS, START_GROUP_SIZE]}
        there = json.loads(path.read_text()) if path.exists() else {**about, "members": []}
        if (members := there.pop("members")) and there != about:
            raise SystemExit(
                f"{path.parent} was made at other levels: delete it, and it is made anew."
            )
        for member in members_of(world, members):
            members.append(member)
            path.write_text(json.dumps({**about, "members": members}, indent=1) + "\n")
            print(world.name, member, flush=True)


if __name__ == "__main__":
    main()
