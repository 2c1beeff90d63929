"""Each strategy's guarantee on arbitrary batches, the best balance by brute force, and what is refused."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbook.theory import STRATEGIES, group_advantages, minibatch_order

signs = st.sampled_from([-1.0, 0.0, 2.5])


@st.composite
def batches(draw, max_groups=12):
    """Equal groups of any labels in any order, with any signs, that fill some number of mini-batches whole."""
    parts, per_part, size = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    groups = min(parts * per_part, max_groups // parts * parts or parts)
    labels = draw(st.permutations([17 * g - 40 for g in range(groups) for _ in range(size)]))
    advantages = draw(st.lists(signs, min_size=len(labels), max_size=len(labels)))
    return torch.tensor(labels), torch.tensor(advantages), parts


def counts(order, advantages, parts, sign):
    return (advantages[order].reshape(parts, -1).sign() == sign).sum(1)


def spread(values):
    return int(values.max() - values.min())


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=50, deadline=None)
@given(batch=batches(), seed=st.integers(0, 9))
def test_is_a_reproducible_permutation(strategy, batch, seed):
    groups, advantages, parts = batch
    order = minibatch_order(strategy, groups, advantages, parts, seeded(seed))
    assert order.dtype == torch.long
    assert torch.equal(order.sort().values, torch.arange(len(groups)))
    assert torch.equal(order, minibatch_order(strategy, groups, advantages, parts, seeded(seed)))


def test_shuffled_is_randperm():
    groups, advantages = torch.zeros(12), torch.ones(12)
    order = minibatch_order("shuffled", groups, advantages, 3, seeded(3))
    assert torch.equal(order, torch.randperm(12, generator=seeded(3)))
    torch.manual_seed(4)
    order = minibatch_order("shuffled", groups, advantages, 3)
    torch.manual_seed(4)
    assert torch.equal(order, torch.randperm(12))


@pytest.mark.parametrize("strategy", ["query_preserved", "query_preserved_reward_balanced"])
@settings(max_examples=60, deadline=None)
@given(batch=batches(), seed=st.integers(0, 9))
def test_groups_stay_whole(strategy, batch, seed):
    groups, advantages, parts = batch
    ordered = groups[minibatch_order(strategy, groups, advantages, parts, seeded(seed))]
    size = int((groups == groups[0]).sum())
    rows = ordered.reshape(-1, size)
    assert (rows == rows[:, :1]).all()  # contiguous, and parts are whole numbers of rows
    assert len(rows) % parts == 0


@settings(max_examples=100, deadline=None)
@given(data=st.data(), parts=st.integers(1, 6), per_part=st.integers(1, 6), seed=st.integers(0, 9))
def test_reward_balanced_and_sign_partitioned(data, parts, per_part, seed):
    """Ragged groups do not matter to either."""
    size = parts * per_part
    groups = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    advantages = torch.tensor(data.draw(st.lists(signs, min_size=size, max_size=size)))
    balanced = minibatch_order("reward_balanced", groups, advantages, parts, seeded(seed))
    for sign in (1, -1, 0):
        assert spread(counts(balanced, advantages, parts, sign)) <= 1
    partitioned = minibatch_order("sign_partitioned", groups, advantages, parts, seeded(seed))
    positive, negative = (counts(partitioned, advantages, parts, sign) for sign in (1, -1))
    mixed = int(((positive > 0) & (negative > 0)).sum())
    room = sum(-(-int(side.sum()) // per_part) for side in (positive, negative)) <= parts
    assert mixed <= (0 if room else 1)


def best_by_brute_force(loads, parts):
    """Least range of positives plus range of negatives over all ways to share the groups out."""

    def ways(rest):
        if not rest:
            yield []
            return
        for others in combinations(rest[1:], len(loads) // parts - 1):
            part = (rest[0], *others)
            for more in ways([g for g in rest if g not in part]):
                yield [part, *more]

    return min(
        sum(spread(torch.tensor([sum(loads[g][side] for g in part) for part in way])) for side in (0, 1))
        for way in ways(list(range(len(loads))))
    )


@settings(max_examples=40, deadline=None)
@given(batch=batches(max_groups=8), seed=st.integers(0, 9))
def test_whole_groups_are_balanced_as_well_as_can_be(batch, seed):
    groups, advantages, parts = batch
    order = minibatch_order("query_preserved_reward_balanced", groups, advantages, parts, seeded(seed))
    reached = sum(spread(counts(order, advantages, parts, sign)) for sign in (1, -1))
    loads = [[int((advantages[groups == g].sign() == s).sum()) for s in (1, -1)] for g in groups.unique()]
    assert reached == best_by_brute_force(loads, parts)


@pytest.mark.parametrize(("groups", "size", "parts"), [(32, 8, 4), (64, 8, 8), (128, 16, 4), (60, 4, 10)])
def test_many_groups_come_near_the_floor(groups, size, parts):
    """Binary rewards: a group is neutral or full, so the number of live groups per part sets a floor of 0 or G."""
    for seed in range(3):
        generator = seeded(seed)
        rewards = (torch.rand(groups, size, generator=generator) < torch.rand(groups, 1, generator=generator)).float()
        labels = torch.arange(groups).repeat_interleave(size)
        advantages = group_advantages(rewards.flatten(), labels)
        live = int(advantages.reshape(groups, size).ne(0).any(1).sum())
        order = minibatch_order("query_preserved_reward_balanced", labels, advantages, parts, generator)
        reached = sum(spread(counts(order, advantages, parts, sign)) for sign in (1, -1))
        assert reached <= (size if live % parts else 0) + 3
        shuffled = minibatch_order("query_preserved", labels, advantages, parts, generator)
        assert reached < sum(spread(counts(shuffled, advantages, parts, sign)) for sign in (1, -1))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_free_is_random(strategy):
    """Over seeds every rollout comes to lie in every mini-batch, and the orders differ."""
    groups = torch.arange(8).repeat_interleave(2)
    advantages = torch.tensor([1.0, -1.0]).repeat(8)
    orders = [minibatch_order(strategy, groups, advantages, 4, seeded(seed)) for seed in range(200)]
    assert len({tuple(order.tolist()) for order in orders}) > 190
    part = torch.stack([order.argsort() // 4 for order in orders])
    seen = torch.stack([(part == p).sum(0) for p in range(4)])
    assert (seen >= 25).all()  # 50 expected, standard deviation 6.1


@pytest.mark.parametrize(
    ("strategy", "groups", "advantages", "parts", "words"),
    [
        ("balanced", [0, 0], [1.0, -1.0], 1, "strategy 'balanced' is unknown; valid are shuffled, query_preserved"),
        ("shuffled", [0, 0, 1], [1.0, -1.0, 0.0], 2, "num_minibatches is 2; .* divide the 3 rollouts"),
        ("shuffled", [0, 0], [1.0, -1.0], 0, "num_minibatches is 0"),
        ("shuffled", [0, 0], [1.0], 1, "group_ids has shape"),
        ("shuffled", [0, 0], [[1.0, 1.0]], 1, "advantages has shape"),
        ("reward_balanced", [0, 0], [1.0, float("nan")], 1, "advantages holds NaN"),
        ("query_preserved", [0, 0, 0, 1], [1.0, -1.0, 0.0, 0.0], 2, "groups of 1 to 3 rollouts"),
        ("query_preserved", [0] * 4, [1.0] * 4, 2, "multiple of the group size 4"),
        ("query_preserved_reward_balanced", [0, 0, 1, 1, 2, 2], [1.0] * 6, 2, "multiple of the group size 2"),
    ],
)
def test_impossible_requests_are_refused(strategy, groups, advantages, parts, words):
    with pytest.raises(ValueError, match=words):
        minibatch_order(strategy, torch.tensor(groups), torch.tensor(advantages), parts)
