"""The study loss_types: its weights are those of TRL's losses, its residuals right by hand, its
tables as stated.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.policies.load import load_policy
from workbook.rollouts.sample import Rollouts
from workbook.studies.drift import loss_types
from workbook.studies.drift.figures import loss_verdicts
from workbook.studies.drift.loss_types import (
    ARMS,
    UNCLIPPED,
    arm_pushes,
    group_residuals,
    loss_type_residuals,
    mixed_groups,
)
from workbook.studies.record import Tables
from workbook.studies.registration import SCALES, read_registration
from workbook.tasks import get_task
from workbook.theory.weights import update_weights

BY_NAME = {arm.name: arm for arm in ARMS}
ON_POLICY = {
    "dapo",
    "bnpo",
    "dr_grpo",
    "cispo",
    "vespo",
    "luspo",
    "sequence ratio alone",
    "delta 4",
}
ON_POLICY |= {"symmetric clipping", "min_replace", "advantage_orthogonal", "equal weights"}


@pytest.fixture(scope="module")
def unit():
    """The bundled policy, its task, groups of 8 with one rollout cut short, and scores before and
    after a movement.
    """
    policy, task = load_policy("bundled"), get_task("chain")
    rollouts = mixed_groups(loss_types.half_precision_rollouts(policy, task, 3, 8, 0, 48))
    torch.manual_seed(0)
    mask = rollouts.completion_mask.clone()
    cut = int((rollouts.rewards == 0).nonzero()[0])  # a wrong one: its reward stays 0
    mask[cut, 20:] = 0
    rollouts = replace(rollouts, completion_mask=mask, old_logps=rollouts.old_logps * mask)
    start = loss_types.moved_scores(policy, rollouts, 1e-3, (1,))[1]
    moved = (start[0] + 0.1 * torch.randn(mask.shape)) * mask
    return policy, task, rollouts, {1: start, 2: (moved, start[1])}, cut


def pushes_of(unit, name):
    advantages, pushes = arm_pushes(*unit[:3], BY_NAME[name], unit[3])
    return advantages, pushes[2]


@pytest.mark.parametrize(
    ("name", "level", "clip", "aggregate"),
    [
        ("dr_grpo", "token", (0.2, 0.2), "dr_grpo"),
        ("dapo", "token", (0.2, 0.2), "dapo"),
        ("grpo", "token", (0.2, 0.2), "grpo"),
        ("gspo, epsilon 0.03", "sequence", (0.03, 0.03), "grpo"),
        ("sequence ratio alone", "sequence", (UNCLIPPED - 1, UNCLIPPED), "dr_grpo"),
    ],
)
def test_pushes_are_the_objectives_own(unit, name, level, clip, aggregate):
    """TRL's slope is the weight by formula, times the advantage; TRL spreads a sequence's ratio
    over its tokens.
    """
    advantages, pushes = pushes_of(unit, name)
    rollouts, now, old = unit[2], unit[3][2][0], unit[3][1][0]
    mask = rollouts.completion_mask
    weights = update_weights(now, old, mask, advantages[:, 0], level, clip, aggregate=aggregate)
    torch.testing.assert_close(pushes, (weights * advantages).to(pushes), rtol=1e-4, atol=1e-8)
    assert (pushes[:, :20] != 0).any()
    assert (pushes[mask == 0] == 0).all()


def test_masks_take_away_whole_rollouts_and_sure_tokens(unit):
    (_, truncated), (_, unsure), (_, base) = (
        pushes_of(unit, name) for name in ("truncation mask", "entropy mask 0.2", "dr_grpo")
    )
    assert (truncated == 0).all(1).nonzero().flatten().tolist() == [unit[4]]
    entropies = unit[3][2][1]
    assert entropies[(base != 0) & (unsure == 0)].max() <= entropies[unsure != 0].min()


def test_every_arm_cancels_before_the_first_step_but_for_lengths_masks_and_samplers(unit):
    policy, task, rollouts, path, _ = unit
    before = {name: dict(module.__dict__) for name, module in policy.model.named_modules()}
    config = policy.model.config.to_dict()
    table = loss_type_residuals(policy, task, rollouts, path)
    assert {name: dict(module.__dict__) for name, module in policy.model.named_modules()} == before
    # TRL patches the model that it trains, and this is the reader's
    assert policy.model.config.to_dict() == config
    assert set(table["arm"]) == set(BY_NAME)
    assert set(table["reuse"]) == {1, 2}
    first = table.query("reuse == 1").groupby("arm")["every"].max()
    assert first[list(ON_POLICY)].max() < 1e-5
    others = first.drop([*ON_POLICY, "off-policy mask 0.5", "off-policy mask 0.02"])
    assert (
        others[["grpo", "gmpo", "truncation mask", "entropy mask 0.2", "vLLM sequence_mask"]].min()
        > 1e-3
    )
    assert table[table["arm"] == "equal weights"]["every"].max() < 1e-5
    assert table[table["arm"] == "dr_grpo"].query("reuse == 2")["every"].min() > 0.01


def made(pushes, ids):
    """The residuals of one group of rollouts with these tokens and pushes."""
    pushes, ids = torch.tensor(pushes), torch.tensor(ids)
    mask, size = (ids > 0).long(), len(ids)
    one_group, unknown = torch.zeros(size, dtype=torch.long), torch.zeros(size)
    rollouts = Rollouts(ids, mask, ids, mask, one_group, unknown, unknown, pushes, pushes)
    return group_residuals(rollouts, pushes).iloc[0]


def test_residuals_by_hand():
    row = made([[1.0, 2.0, 0.5], [-1.0, -1.0, 0.0]], [[5, 6, 7], [5, 8, 0]])
    assert row["shared"] == 0
    assert row["every"] == pytest.approx((0 + 1 / 3) / 2)  # the third place has one rollout only
    assert row["silent"] == 0
    idle = made([[0.0, 2.0, 0.0], [0.0, -2.0, 0.0]], [[5, 6, 7], [5, 8, 0]])
    assert np.isnan(idle["shared"])
    assert idle["every"] == 0
    assert idle["silent"] == pytest.approx(3 / 5)


def invented(units):
    """A study's table in which arm x leaves 0.3 more than dr_grpo, y a little more, z leaves
    nothing, up to noise.
    """
    noise, rows = np.random.default_rng(0).normal(0, 1e-3, (units, 4)), []
    for seed in range(units):
        levels = {"dr_grpo": 0.1, "x": 0.4, "y": 0.101, "z": 0.0}
        for k, (arm, level) in enumerate(levels.items()):
            rows.append(
                {
                    "arm": arm,
                    "kind": "loss type",
                    "reuse": 4,
                    "seed": seed,
                    "every": level + noise[seed, k],
                }
            )
    return {"loss_types/residuals": pd.DataFrame(rows)}


def test_verdicts_follow_the_registration():
    verdicts = loss_verdicts(invented(8)).set_index("arm")["verdict"].to_dict()
    same = "no difference of interest"
    assert verdicts == {"dr_grpo": same, "x": "adds", "y": same, "z": "takes away"}
    few = loss_verdicts(invented(5))
    assert few["verdict"].eq("too few units").all()
    assert few["mean"].isna().all()


@pytest.mark.parametrize("scale", ["bundled", "smollm2_chat"])
def test_the_committed_tables_are_what_was_registered(scale):
    stated = read_registration("loss_types").notes["sizes"]
    stated = stated[scale.removesuffix("_chat")]  # registered before the scale was given its name
    table, drift = (Tables(scale)[f"loss_types/{name}"] for name in ("residuals", "drift"))
    assert set(table["arm"]) == set(BY_NAME)
    assert set(table["reuse"]) == set(loss_types.REUSE)
    assert table["seed"].nunique() >= int(str(stated["units"]).split()[0])
    assert drift["lr"].eq(stated["learning_rate"]).all()
    assert loss_types.PROMPTS[scale] == stated["prompts"]
    assert (
        table.groupby("seed")["group"].nunique().max()
        <= stated["groups_at_most"]
        == loss_types.GROUPS[scale]
    )
    assert loss_types.NEW_TOKENS.get(scale, SCALES[scale].max_new_tokens) == stated["new_tokens"]
    checked = table[
        (table["reuse"] == 1) & table["arm"].isin(ON_POLICY) | (table["arm"] == "equal weights")
    ]
    assert checked["every"].max() < 1e-5  # the instrument's own zero
