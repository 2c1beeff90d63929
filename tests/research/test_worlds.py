"""Worlds by name: their tasks, their committed policies, their units, and how both
are made.
"""

import json
import runpy
import shutil
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from workbook.places import data_path, file_hash
from workbook.policies import load_policy, worlds
from workbook.policies.small import from_int8
from workbook.policies.worlds import policy_folder, world_file, world_seeds
from workbook.probes import policy_report as start
from workbook.studies import StudyUnit
from workbook.tasks import get_task
from workbook.tasks import worlds as named

SCRIPT = data_path("worlds", "make_worlds.py")
MADE = [
    name
    for name, world in named.worlds().items()
    if (worlds.COMMITTED / name / "members.json").exists()
]
SMALL = {
    "little": {"options": {"operands": 3}, "sft_steps": 30, "width": 16},
    "deaf": {"options": {"operands": 3, "false_negative_rate": 0.5}, "policies": "little"},
    "hard": {"options": {"operands": 2}, "sft_steps": 2, "width": 8, "least_value": 0.9},
}


ONES = [(1, "tuning"), (2, "unit")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the worlds little and deaf, made by the script: a policy for tuning and a unit
    each.
    """
    folder = tmp_path_factory.mktemp("worlds")
    with pytest.MonkeyPatch.context() as patch:
        apart(patch, folder)
        make(patch, folder, "little", "deaf")
    return folder


@pytest.fixture
def small(made, monkeypatch, tmp_path):
    """A copy of it, in whose place and with whose levels worlds are looked for."""
    shutil.copytree(made / "data", tmp_path / "data")
    apart(monkeypatch, tmp_path)
    return tmp_path


def apart(patch, folder: Path) -> None:
    """Worlds of a few steps, in a folder and a cache apart, whose starts are described from few
    rollouts.
    """
    stated = {
        name: named.World(name, **{"policies": name, **deepcopy(levels)})
        for name, levels in SMALL.items()
    }
    patch.setattr(named, "worlds", lambda: stated)
    patch.setattr(worlds, "COMMITTED", folder / "data")
    patch.setattr(start, "START_PROMPTS", 8)
    patch.setattr(start, "START_GROUPS", 4)
    patch.setenv("WORKBOOK_CACHE", str(folder / "cache"))
    (folder / "data").mkdir(exist_ok=True)


def make(patch, folder: Path, *names: str) -> None:
    """Run the script's main for some worlds."""
    script = runpy.run_path(str(SCRIPT))
    script["main"].__globals__.update(
        HERE=folder / "data", ROLES=["tuning", "unit"], LESSON_STEPS=100
    )
    patch.setattr(sys, "argv", [str(SCRIPT), *names])
    threads = torch.get_num_threads()
    try:
        script["main"]()
    finally:
        torch.set_num_threads(threads)


def record(folder: Path, name: str) -> dict:
    return json.loads((folder / "data" / name / "members.json").read_text())


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "data").rglob("*.safetensors")}


def test_worlds_of_another_reward_share_policies_and_describe_them_anew(small):
    own, shared = (record(small, name)["members"] for name in ("little", "deaf"))
    assert (
        [(one["seed"], one["role"]) for one in own]
        == [(one["seed"], one["role"]) for one in shared]
        == ONES
    )
    assert [one["sha256"] for one in own] == [one["sha256"] for one in shared]
    assert sorted(files(small)) == ["seed=1.safetensors", "seed=2.safetensors"]
    for one, other in zip(own, shared, strict=True):
        assert other["start"]["value"] == pytest.approx(one["start"]["value"] / 2, rel=0.01)
        # .003 to .014 over seeds; below, six digits are too few for 1%
        assert one["start"]["value"] > 1e-4
    policy, stored = (
        load_policy("world:deaf,seed=2"),
        from_int8(load_file(small / "data/little/seed=2.safetensors")),
    )
    assert all(
        torch.equal(weights, stored[name]) for name, weights in policy.model.state_dict().items()
    )
    assert policy.provenance["source"] == "world:deaf,seed=2"
    assert policy.provenance["sha256"] == load_policy("world:little,seed=2").provenance["sha256"]
    assert (world_seeds("deaf", "unit"), world_seeds("deaf", "tuning")) == ((2,), (1,))


def test_making_goes_on_where_it_stopped(small, monkeypatch):
    whole, first = record(small, "little"), files(small)["seed=1.safetensors"]
    path = small / "data" / "little" / "members.json"
    path.write_text(json.dumps({**whole, "members": whole["members"][:1]}))
    make(monkeypatch, small, "little")
    assert record(small, "little") == whole, "the same machine makes the same bytes"
    assert files(small)["seed=1.safetensors"] == first < files(small)["seed=2.safetensors"]
    named.worlds()["little"].options["error_rate"] = 0.3
    with pytest.raises(SystemExit, match="was made at other levels: delete it"):
        make(monkeypatch, small, "little")


def test_a_policy_that_learned_too_little_is_passed_over(small):
    script = runpy.run_path(str(SCRIPT))
    script["made"].__globals__.update(LESSON_STEPS=2)
    member = script["made"](named.worlds()["hard"], 1, ["tuning"])
    assert member["role"] == "passed over"
    assert member["start"]["value"] < 0.9
    assert not (small / "data" / "hard").exists()


def test_what_is_not_there_is_said_in_a_sentence(small):
    world_file(named.worlds()["little"], 1).unlink()
    with pytest.raises(ValueError, match=r"seed=1\.safetensors is missing"):
        load_policy("world:little,seed=1")
    with refused("seed", 3):
        load_policy("world:little,seed=3")
    with pytest.raises(ValueError, match="hard has no policies yet"):
        load_policy("world:hard,seed=1")
    for name in ("world:little", "world:little,seed=x", "world:little,seed=1,width=3"):
        with refused("name", name):
            policy_folder(name)


def test_an_unpacked_policy_is_renewed_with_its_file(small):
    first = load_policy("world:little,seed=1").provenance["sha256"]
    file = world_file(named.worlds()["little"], 1)
    file.write_bytes(world_file(named.worlds()["little"], 2).read_bytes())
    assert load_policy("world:little,seed=1").provenance["sha256"] != first


@pytest.mark.parametrize("name", named.worlds())
def test_a_world_is_a_task_at_fixed_levels(name):
    world, task = named.worlds()[name], get_task(f"world:{name}")
    assert task == get_task(world.task, **world.options) == world.made()
    assert world.policies in {"family", *named.worlds()}
    with refused("operands", 3):
        get_task(f"world:{name}", operands=3)


def test_an_unknown_world_is_refused_with_the_names_of_all():
    for call in (get_task, load_policy):
        with refused("world", "sunny", tuple(named.worlds())):
            call("world:sunny" + (",seed=1" if call is load_policy else ""))


@pytest.mark.parametrize("name", MADE)
def test_committed_policies_are_the_recorded_ones_and_have_learned_enough(name):
    world, kept = (
        named.worlds()[name],
        json.loads((worlds.COMMITTED / name / "members.json").read_text()),
    )
    assert kept["world"]["options"] == world.options
    assert [len(world_seeds(name, role)) for role in ("tuning", "unit")] == [3, 10]
    for member in kept["members"]:
        if member["role"] != "passed over":
            assert file_hash(world_file(world, member["seed"])) == member["sha256"]
            assert member["start"]["value"] >= world.least_value
            assert member["start"]["greedy"] >= world.least_greedy


def test_tuning_and_units_share_no_prompt():
    """Ten units and three for tuning, each on prompts of its own; no trained prompt is held out by
    any.
    """
    world = MADE[0]
    units = [StudyUnit(f"world:{world}", k) for k in range(10)]
    units += [StudyUnit(f"world:{world}", k, role="tuning") for k in range(3)]
    train = [set(unit.task.dataset(20, unit.data_seed)["prompt"]) for unit in units]
    held = [set(unit.task.dataset(20, unit.held_out_seed)["prompt"]) for unit in units]
    assert not set.union(*train) & set.union(*held)
    assert not set.union(*train[:10], *held[:10]) & set.union(*train[10:], *held[10:])
    assert len({unit.setting.policy for unit in units}) == 13
    assert units[0].setting.max_new_tokens == units[0].task.longest
    with refused("role", "tuning", ("unit",)):
        StudyUnit("family", 0, role="tuning")


def test_a_start_is_described_by_what_it_earns_and_where_it_is_wrong():
    """The bundled policy's likeliest words are right, so its greedy answers are; of its errors most
    are by chance.
    """
    told = start.describe_start(load_policy("bundled"), get_task("chain"), seed=6)
    assert told["greedy"] > 0.95 > 0.6 > told["value"] > 0.2
    assert told["reward"] == pytest.approx(told["value"], abs=0.08)
    assert told["wrong_modes"] < 0.02
    assert told["mixed"] > 0.8 < told["well_formed"]
