"""Advantages permuted within groups: tokens and frequencies stay, a planted cause is found, brute force agrees."""

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.policies.load import load_policy
from workbook.probes import composition_effects, sign_composition
from workbook.probes.step import logps
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task


@pytest.fixture(scope="module")
def permuted():
    policy = load_policy("bundled")
    rollouts = sample_rollouts(policy, get_task("chain"), 4, 4, seed=0)
    before = [p.detach().clone() for p in policy.model.parameters()]
    table = sign_composition(policy, rollouts, permutations=3, lr=0.5)
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before, strict=True))
    return policy, rollouts, table


def test_every_permutation_has_the_same_tokens_and_the_same_advantages_in_each_group(permuted):
    _, rollouts, table = permuted
    original = rollouts.token_table()
    orders = set()
    for _, one in table.groupby("permutation"):
        places = ["group", "rollout", "position", "token_id"]
        pd.testing.assert_frame_equal(one[places].reset_index(drop=True), original[places])
        for group, rows in one.groupby("group"):
            given = rows.groupby("rollout")["advantage"].first().to_numpy()
            expected = rollouts.advantages[rollouts.group_ids == group].numpy()
            assert sorted(given) == pytest.approx(sorted(expected))
        orders.add(tuple(one.groupby("rollout")["advantage"].first()))
    assert len(orders) == 3


def test_others_and_balance_are_sums_over_the_same_token_in_its_group(permuted):
    _, _, table = permuted
    one = table[table["permutation"] == 1]
    for _, row in one.sample(25, random_state=0).iterrows():
        same = one[(one["group"] == row["group"]) & (one["token_id"] == row["token_id"])]
        elsewhere = same[same["rollout"] != row["rollout"]]
        assert row["others"] == pytest.approx(elsewhere["advantage"].sum(), abs=1e-6)
        size = same["advantage"].abs().sum()
        assert row["balance"] == pytest.approx(same["advantage"].sum() / size if size else 0.0, abs=1e-6)


def test_the_change_is_that_of_a_step_on_the_permuted_advantages(permuted):
    policy, rollouts, table = permuted
    from dataclasses import replace

    from workbook.probes.step import untouched, update

    one = table[table["permutation"] == 2]
    advantages = torch.tensor(one.groupby("rollout")["advantage"].first().to_numpy())
    with untouched(policy):
        update(policy, replace(rollouts, advantages=advantages), "sgd", lr=0.5)
        change = logps(policy, rollouts) - rollouts.old_logps
    np.testing.assert_allclose(one["dlogp"], change[rollouts.completion_mask.bool()], atol=1e-5)


def test_planted_effects_are_found(permuted):
    _, _, table = permuted
    offset = 3.0 * table["position"]
    planted = table.assign(dlogp=0.3 * table["advantage"] + 0.1 * table["others"] + offset)
    effects = composition_effects(planted)
    assert len(effects) > 0
    np.testing.assert_allclose(effects["own"], 0.3, atol=1e-5)
    np.testing.assert_allclose(effects["others"], 0.1, atol=1e-5)


def test_one_permutation_is_refused(permuted):
    policy, rollouts, _ = permuted
    with pytest.raises(ValueError, match="permutations=1 must be 2 or more"):
        sign_composition(policy, rollouts, permutations=1)
