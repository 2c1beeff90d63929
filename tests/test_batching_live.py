"""Chapter 08, live: the parts of each cut's steps, two ways through a batch, orders trained now; chapter 07's gap."""

from itertools import product

import pytest
import torch

from workbook.policies.load import load_policy
from workbook.probes.recovered import credit_recovered
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task
from workbook.theory.advantages import group_advantages
from workbook.theory.decomposition import expected_advantages
from workbook.topics.batching import live, parts, walks
from workbook.topics.credit import live_step


@pytest.fixture(scope="module")
def policy():
    return load_policy("bundled")


@pytest.fixture(scope="module")
def task():
    return get_task("chain")


def test_rollouts_of_one_sign_push_at_credit():
    """Against every group of three of three words: what rollouts of either sign push, on average."""
    p, q, size = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.9, 0.4, 0.1]).double(), 3
    value = float(p @ q)
    pushed = {1.0: torch.zeros(3).double(), 0.0: torch.zeros(3).double()}
    for group in product(product(range(3), (0.0, 1.0)), repeat=size):
        words, rewards = (torch.tensor(column) for column in zip(*group, strict=True))
        right = rewards.double()
        chance = (p[words] * torch.where(right > 0, q[words], 1 - q[words])).prod()
        advantages = group_advantages(right, torch.zeros(size), "grpo")
        for reward, total in pushed.items():
            chosen = right == reward
            scores = torch.eye(3).double()[words] - p
            total += chance * (advantages[:, None] * scores)[chosen].sum(0)
    high, low = expected_advantages("grpo", torch.tensor([value]).double(), size)
    credit = p * (q - value)
    assert torch.allclose(pushed[1.0], size * value * float(high) * credit / value, atol=1e-6)
    assert torch.allclose(pushed[0.0], -size * (1 - value) * float(low) * credit / (1 - value), atol=1e-6)


def test_parts_of_every_cut_add_up(policy, task):
    table = parts.compute_parts(policy, task, prompts=4, group_size=4, minibatches=2)["table"]
    shares = table.groupby("category", sort=False)["share"].sum()
    assert shares.index.tolist() == parts.CUTS
    assert shares.tolist() == pytest.approx([1.0] * len(parts.CUTS))
    rollouts = sample_rollouts(policy, task, 4, 4, seed=0, max_new_tokens=48)
    whole = credit_recovered(policy, rollouts, "grpo", task, tokens=1).update
    first = table[table["category"] == parts.WHOLE].set_index("part")
    assert first.loc[parts.PART_OF["signal"], "share"] == pytest.approx(whole["signal"], abs=1e-3)
    assert first["size"].iloc[0] == pytest.approx(whole["cosine"], abs=1e-3)
    assert f"{parts.WHOLE} " in parts.describe_cut_parts(table)
    with pytest.raises(ValueError, match="num_minibatches is 3"):
        parts.compute_parts(policy, task, prompts=4, group_size=4, minibatches=3)


def test_sgd_forgets_the_order_to_first_order_and_leaves_the_policy_as_it_was(policy, task, monkeypatch):
    monkeypatch.setattr(walks, "FACTORS", (1 / 16, 1 / 4))
    rollouts = sample_rollouts(policy, task, 4, 4, seed=0, max_new_tokens=48)
    before = [p.detach().clone() for p in policy.model.parameters()]
    tables = walks.compute_walks(policy, rollouts, minibatches=2, clip=1e-3)
    slopes = {name: table.groupby("optimizer")["slope"].first() for name, table in tables.items()}
    assert slopes["same"]["SGD"] == pytest.approx(2, abs=0.3)
    assert slopes["same"]["SGD, norm clipped"] == pytest.approx(2, abs=0.3)
    assert slopes["other"]["AdamW"] == pytest.approx(1, abs=0.3)
    assert slopes["other"]["SGD, norm clipped"] == pytest.approx(1, abs=0.3)
    assert tables["same"].query("optimizer == 'SGD, norm clipped'")["bound"].eq(1).all()
    assert "Clipping binds in 100% of its steps" in walks.describe_walks(**tables)
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before, strict=True))


def test_pairs_are_trained_from_the_same_rollouts(policy, task, monkeypatch):
    monkeypatch.setattr(live, "READ_PROMPTS", 2)
    setting = {"prompts": 2, "group_size": 4, "batches": 1, "minibatches": 1, "units": 1, "seed": 1}
    tables = live.compute_orders(policy, task, "reward_balanced", **setting)
    row = tables["live"].iloc[0]
    assert row["mean"] == pytest.approx(0, abs=1e-6), "one step on the whole batch is the same in any order"
    assert row["shuffled"] != 0
    assert "Reward-balanced minus shuffled, now:" in live.describe_orders(**tables)
    with pytest.raises(ValueError, match="must divide prompts=2"):
        live.compute_orders(policy, task, "query_preserved", **setting | {"minibatches": 4})


def test_a_gap_is_measured_by_sign_and_pool_over_the_study(policy, task, monkeypatch):
    monkeypatch.setattr(live_step, "HELD_OUT", 2)
    tables = live_step.compute_live_gap(policy, task, prompts=4, group_size=4)
    keys = live_step.KEYS
    assert (
        tables["study"].set_index(keys).index.sort_values().equals(tables["live"].set_index(keys).index.sort_values())
    )
    assert (tables["study"]["units"] == 10).all()
    assert "failing rollouts" in live_step.describe_live_gap(**tables)
    with pytest.raises(ValueError, match="1 prompts have no group of different rewards with seed=0"):
        live_step.compute_live_gap(policy, task, prompts=1, group_size=1)


def test_shells_stand_before_they_run(policy, task):
    rollouts = sample_rollouts(policy, task, 2, 2, seed=0, max_new_tokens=48)
    for shell in (
        parts.live_parts(policy, task),
        walks.live_walks(policy, rollouts),
        live.live_orders(policy, task),
        live_step.live_value_gap(policy, task),
    ):
        assert shell.drawn is None
        assert "Press Run" in shell.line.value
        shell.close()
