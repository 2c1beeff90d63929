"""Advantages against their definitions written out rollout by rollout, and the properties every
estimator must have.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from workbook.theory import ESTIMATORS, group_advantages, prefix_advantages

batches = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.integers(-3, 3)), min_size=1, max_size=24
)


def unzip(batch):
    rewards, groups = zip(*batch, strict=True)
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)


def by_hand(rewards, groups, estimator):
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        own = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        mean = math.fsum(own) / len(own)
        others = len(own) - 1
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in own) / others) if others else 0.0
        grpo = (reward - mean) / (std + 1e-4)
        out.append(
            {
                "grpo": grpo,
                "dr_grpo": reward - mean,
                "rloo": reward - (math.fsum(own) - reward) / others if others else 0.0,
                "reinforce": (
                    reward - math.fsum(rewards) / len(rewards) if len(set(own)) > 1 else 0.0
                ),
                "positive_only": max(grpo, 0.0),
                "negative_only": min(grpo, 0.0),
            }[estimator]
        )
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=60, deadline=None)
@given(batch=batches)
def test_equals_the_definition(estimator, batch):
    rewards, groups = unzip(batch)
    advantages = group_advantages(rewards, groups, estimator)
    assert advantages.dtype == torch.float64
    torch.testing.assert_close(
        advantages, by_hand(rewards.tolist(), groups.tolist(), estimator), rtol=1e-9, atol=1e-11
    )


def test_grpo_is_trl():
    """TRL's own lines for scale_rewards="group": equal groups, in order."""
    rewards = torch.rand(24, generator=torch.Generator().manual_seed(0))
    rows = rewards.view(-1, 8)
    expected = (rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-4)
    advantages = group_advantages(rewards, torch.arange(3).repeat_interleave(8))
    torch.testing.assert_close(advantages, expected.flatten(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=40, deadline=None)
@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 13), other=st.floats(-1e6, 1e6))
def test_groups_of_equal_rewards_are_exactly_neutral(estimator, dtype, value, size, other):
    rewards = torch.tensor([value] * size + [other, value], dtype=dtype)
    groups = torch.tensor([5] * size + [-1, -1])
    advantages = group_advantages(rewards, groups, estimator)
    assert advantages.isfinite().all()
    assert (advantages[:size] == 0).all()


def test_reinforce_has_the_batch_as_baseline():
    rewards, groups = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1])
    assert group_advantages(rewards, groups, "reinforce").tolist() == [0.25, -0.75, 0.0, 0.0]


@settings(max_examples=40, deadline=None)
@given(batch=batches, seed=st.integers(0, 99), estimator=st.sampled_from(ESTIMATORS))
def test_order_and_labels_do_not_matter(batch, seed, estimator):
    rewards, groups = unzip(batch)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(seed))
    advantages = group_advantages(rewards, groups, estimator)
    moved = group_advantages(rewards[order], (groups * -1000 + 7)[order], estimator)
    torch.testing.assert_close(moved, advantages[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("rewards", "groups", "estimator", "field", "value"),
    [
        ([0.0, math.nan], [0, 0], "grpo", "rewards[1]", math.nan),
        ([math.inf, 0.0], [0, 0], "rloo", "rewards[0]", math.inf),
        ([0.0, 1e30], [0, 0], "grpo", "rewards[1]", float(torch.tensor(1e30))),
        ([0.0, 1.0], [0], "grpo", "group_ids.shape", (1,)),
        ([[0.0, 1.0]], [0, 0], "grpo", "rewards.shape", (1, 2)),
        ([0.0, 1.0], [0, 0], "gae", "estimator", "gae"),
    ],
)
def test_refusals_say_what_is_wrong(rewards, groups, estimator, field, value):
    with refused(field, value):
        group_advantages(torch.tensor(rewards), torch.tensor(groups), estimator)


def prefix_credit_by_hand(rewards, ids, mask, groups, i, t):
    def alive(prefix):
        return [
            j
            for j in range(len(rewards))
            if groups[j] == groups[i] and mask[j][t] and ids[j][: len(prefix)] == prefix
        ]

    if not mask[i][t]:
        return 0.0
    here, then = alive(ids[i][:t]), alive(ids[i][: t + 1])
    if len(here) == 1:
        own = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
        return rewards[i] - sum(own) / len(own)
    return sum(rewards[j] for j in then) / len(then) - sum(rewards[j] for j in here) / len(here)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(1, 10), width=st.integers(1, 5))
def test_prefix_credit_equals_the_definition(data, size, width):
    ids = data.draw(
        st.lists(
            st.lists(st.integers(0, 1), min_size=width, max_size=width),
            min_size=size,
            max_size=size,
        )
    )
    lengths = data.draw(st.lists(st.integers(0, width), min_size=size, max_size=size))
    groups = data.draw(st.lists(st.sampled_from([9, -4]), min_size=size, max_size=size))
    rewards = data.draw(st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=size, max_size=size))
    mask = [[int(t < length) for t in range(width)] for length in lengths]
    advantages = prefix_advantages(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(ids),
        torch.tensor(mask),
        torch.tensor(groups),
    )
    expected = [
        [prefix_credit_by_hand(rewards, ids, mask, groups, i, t) for t in range(width)]
        for i in range(size)
    ]
    torch.testing.assert_close(
        advantages, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )
