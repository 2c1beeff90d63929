"""Probes on the bundled policy: what they measure is what a real step does, and the policy is left
as it was.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.policies.models import private_copy
from workbook.probes import (
    cancellation_index,
    choose_tokens,
    flip_distance,
    flip_shares,
    frequency_matched,
    masked_update,
    predicts,
    token_flips,
    update,
)
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import sample_rollouts


@pytest.fixture(scope="module")
def sampled(policy, task):
    return policy, sample_rollouts(policy, task, 8, 8, seed=0)


@pytest.fixture(autouse=True)
def unchanged(sampled):
    """Every probe leaves every weight as it was."""
    policy, _ = sampled
    before = {name: p.detach().clone() for name, p in policy.model.state_dict().items()}
    yield
    for name, p in policy.model.state_dict().items():
        assert torch.equal(p, before[name]), name


def flips(rows):
    """A table of (group, advantage, dlogp, token_id)."""
    return pd.DataFrame(rows, columns=["group", "advantage", "dlogp", "token_id"])


def test_dlogp_is_what_the_step_did(sampled):
    policy, rollouts = sampled
    table = token_flips(policy, rollouts, "sgd", lr=0.5)
    mine = private_copy(policy)
    update(mine, rollouts, "sgd", lr=0.5)
    after = logps(mine, rollouts)
    alive = rollouts.completion_mask.bool()
    np.testing.assert_allclose(table["dlogp"], (after - logps(policy, rollouts))[alive], atol=1e-6)
    assert table["dlogp"].abs().max() > 0.01


def test_shares_are_counted_prompt_by_prompt():
    table = flips(
        [
            (0, 1, 0.5, 1),
            (0, 1, -0.5, 2),
            (0, -1, 0.5, 1),
            (1, 1, 0.0, 1),
            (1, -1, -0.5, 2),
            (2, 1, 9, 1),
        ]
    )
    shares = flip_shares(table, eps=0.1).set_index(["change", "quantity"])["mean"]
    assert shares["boosted", "positive"] == pytest.approx(0.25)  # prompt 2 has no negative rollout
    assert shares["stable", "positive"] == pytest.approx(0.5)
    assert shares["suppressed", "negative"] == pytest.approx(0.5)
    assert shares["boosted", "difference"] == pytest.approx(0.25 - 0.5)
    with pytest.raises(ValueError, match="no prompt"):
        flip_shares(table[table["group"] == 2])


def test_distance_tells_followers_from_the_indifferent():
    rng = np.random.default_rng(0)
    groups, signs = np.repeat(np.arange(40), 50), np.tile([1, -1], 1000)
    follow = pd.DataFrame(
        {"group": groups, "advantage": signs, "dlogp": 0.5 * signs, "token_id": 0}
    )
    assert flip_distance(follow).mean == 1
    alike = follow.assign(dlogp=rng.normal(size=len(groups)))
    assert flip_distance(alike).low < 0.05


def test_matched_tokens_occur_equally_often_on_both_sides(sampled):
    policy, rollouts = sampled
    table = token_flips(policy, rollouts, "sgd", lr=0.1)
    matched = frequency_matched(table)
    counts = matched.groupby(["group", "token_id"])["advantage"].agg(
        [lambda a: (a > 0).sum(), lambda a: (a < 0).sum()]
    )
    assert (counts.iloc[:, 0] == counts.iloc[:, 1]).all()
    both = table[table["advantage"] != 0].groupby(["group", "token_id"])["advantage"]
    most = (
        2 * np.minimum((both.agg(lambda a: (a > 0).sum())), both.agg(lambda a: (a < 0).sum())).sum()
    )
    assert len(matched) == most
    assert list(matched.columns) == list(table.columns)


def test_an_unchosen_token_pushes_nothing(sampled):
    policy, rollouts = sampled
    results = rollouts.completion_mask.bool().clone()
    for row, names in enumerate(rollouts.categories):
        results[row, : len(names)] &= torch.tensor([name == "result" for name in names])
    table = masked_update(policy, rollouts, results, lr=0.5)
    assert set(table.loc[table["chosen"], "category"]) == {"result"}
    mine = private_copy(policy)
    advantages = torch.where(results, rollouts.advantages[:, None], 0.0)
    update(mine, replace(rollouts, advantages=advantages), "sgd", lr=0.5)
    after = logps(mine, rollouts)
    change = (after - logps(policy, rollouts))[rollouts.completion_mask.bool()]
    np.testing.assert_allclose(table["dlogp"], change, atol=1e-5)


def test_tokens_are_chosen_by_every_condition(sampled):
    _, rollouts = sampled
    token = int(rollouts.completion_ids[0, 0])
    chosen = choose_tokens(rollouts, token_id=token, confidence=(0.0, 0.5), sign=1)
    assert (rollouts.completion_ids[chosen] == token).all()
    assert (rollouts.old_logps[chosen].exp() <= 0.5).all()
    assert (rollouts.advantages[chosen.any(1)] > 0).all()
    with pytest.raises(ValueError, match="token_id=-1"):
        choose_tokens(rollouts, -1, sign=1)


def test_the_index_is_net_over_absolute_signal(sampled):
    policy, rollouts = sampled
    table = cancellation_index(policy, rollouts)
    group = table[table["group"] == 1]
    token = group["token_id"].iloc[0]
    own = group.loc[group["token_id"] == token, "advantage"].astype(float)
    expected = own.sum() / own.abs().sum() if own.abs().sum() else 0.0
    assert group["type_index"].iloc[0] == pytest.approx(expected, abs=1e-9)
    assert table[["type_index", "coupled_index"]].abs().max().max() <= 1 + 1e-9
    assert (
        table.groupby("group")
        .apply(
            lambda g: (g["frequency"] / g.groupby("token_id")["frequency"].transform("size")).sum()
        )
        .round(9)
        .eq(1)
        .all()
    )
    neutral = table.groupby("group")["advantage"].transform(lambda a: a.abs().max()) == 0
    assert (table.loc[neutral, "coupled_index"] == 0).all()


def test_the_coupled_push_foretells_a_step_better_than_the_own_advantage(sampled):
    policy, rollouts = sampled
    table = cancellation_index(policy, rollouts)
    table["dlogp"] = token_flips(policy, rollouts, "sgd", lr=0.1)["dlogp"]
    means = predicts(table, ["coupled_push", "advantage", "group"]).set_index(
        ["predictor", "measure"]
    )["mean"]
    assert "group" not in means.index.get_level_values(0)  # it varies in no prompt
    assert means["coupled_push", "rank correlation"] > means["advantage", "rank correlation"]
    assert means["coupled_push", "AUROC"] > 0.6
