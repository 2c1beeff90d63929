"""The gap by exact values: cells against a regression, parts that share nothing, dealt advantages, the whole study."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.studies import Bench
from workbook.topics.credit import exact_gaps
from workbook.topics.credit.exact_gaps import cell_gap, exact_pool, parts_of, permuted, value_gap_study
from workbook.topics.credit.values import token_values


@pytest.fixture(scope="module")
def bench():
    return Bench("tiny", 0)


def test_the_gap_is_the_slope_of_a_regression_with_a_constant_per_cell():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"group": rng.integers(4, size=300), "position": rng.integers(5, size=300)})
    table["dlogp"] = rng.normal(size=300)
    table["value"] = table["group"] + 0.2 * table["position"] + 0.3 * (table["dlogp"] > 0) + rng.normal(size=300)
    eps = 0.5
    moved = table[table["dlogp"].abs() > eps]
    constants = pd.get_dummies(moved["group"].astype(str) + moved["position"].astype(str)).to_numpy(float)
    design = np.column_stack([(moved["dlogp"] > 0).astype(float), constants])
    slope = np.linalg.lstsq(design, moved["value"].to_numpy(), rcond=None)[0][0]
    assert cell_gap(table, ("group", "position"), eps=eps) == pytest.approx(slope, abs=1e-10)
    assert cell_gap(table.assign(dlogp=0.01 * table["dlogp"]), ("group",)) == cell_gap(table, ("group",))


def test_cells_that_hold_one_side_do_not_count():
    table = pd.DataFrame({"group": [0, 0, 1], "dlogp": [1.0, -1.0, 1.0], "value": [0.5, 0.25, 9.0]})
    assert cell_gap(table, ("group",)) == 0.25
    assert np.isnan(cell_gap(table, ("group", "value")))


def test_parts_share_no_rollout_and_have_the_size_asked_for(bench):
    for prompts, group in ((2, 4), (3, 2), (6, 8), (1, 3)):
        parts = parts_of(bench.rollouts, prompts, group, 4, seed=1)
        assert 1 <= len(parts) <= 4
        taken = torch.cat([part.completion_ids[:, 0] * 0 + part.group_ids for part in parts])
        for part in parts:
            assert part.group_ids.unique(return_counts=True)[1].tolist() == [group] * prompts
        assert taken.unique(return_counts=True)[1].max() <= 8
    assert parts_of(bench.rollouts, 7, 1, 4, seed=1) == []
    texts = [" ".join(part.completions) for part in parts_of(bench.rollouts, 6, 2, 4, seed=1)]
    assert len(set(texts)) == 4


def test_permuted_advantages_are_the_same_ones_within_each_prompt(bench):
    rollouts = bench.rollouts
    dealt = permuted(rollouts, 0)
    for group in rollouts.group_ids.unique():
        own = rollouts.group_ids == group
        assert torch.equal(dealt.advantages[own].sort().values, rollouts.advantages[own].sort().values)
    assert not torch.equal(dealt.advantages, rollouts.advantages)
    assert torch.equal(dealt.rewards, rollouts.rewards)


def test_exact_values_of_a_pool_agree_with_sampled_ones(bench):
    _, table = exact_pool(bench.policy, bench.task, bench.rollouts)
    whole = bench.rollouts.token_table()
    assert set(zip(table["rollout"], table["position"], strict=True)) <= set(
        zip(whole["rollout"], whole["position"], strict=True)
    )
    picked = table[table["category"] == "result"].sample(40, random_state=0)
    keys = picked.set_index(["rollout", "position"]).index
    chosen = whole.set_index(["rollout", "position"]).index.isin(keys)
    sampled = token_values(bench.policy, bench.task, bench.rollouts, 32, pd.Series(chosen), seed=3, credit=False)
    both = picked.merge(sampled, on=["rollout", "position"], suffixes=("", "_sampled"))
    error = (both["value"] - both["value_sampled"]).to_numpy()
    assert abs(error.mean()) < 0.05
    assert (table["credit"] == table["value"] - table["value_before"]).all()


def test_the_study_has_every_cell_and_a_step_of_another_size_the_same_gaps(bench, monkeypatch):
    cells = {"few": ("reinforce", [(2, 1), (2, 8), (2, 12)]), "more": ("grpo", [(6, 8), (7, 8)])}
    for name, value in {"AXES": cells, "STEPS": 2, "DEEP": 12, "PARTS_OF_A_CELL": 1, "REPEATED": 24}.items():
        monkeypatch.setattr(exact_gaps, name, value)
    before = {name: p.clone() for name, p in bench.policy.model.state_dict().items()}
    tables = value_gap_study(bench)
    assert all(torch.equal(p, before[name]) for name, p in bench.policy.model.state_dict().items())
    gaps = tables["gaps"]
    assert len(gaps) == 2 * 2 * 3 * 3 * 2 == len(gaps.drop(columns="gap").drop_duplicates())
    assert gaps.query("pool == 'training' and advantages == 'own' and matched == 'position'")["gap"].notna().any()
    seen = tables["budget"][["axis", "prompts", "group_size"]].drop_duplicates().to_numpy().tolist()
    assert seen == [["few", 2, 1], ["few", 2, 8], ["few", 2, 12], ["more", 6, 8]]
    assert set(tables["repeated"]["step"]) == {1, 2}
    small = tables["repeated"].query("nats == 0.001 and matched == 'prompt' and pool == 'training'")
    assert small["weighted"].iloc[1] == pytest.approx(2 * small["weighted"].iloc[0], rel=0.1), "linear in the steps"

    pools = {"training": exact_pool(bench.policy, bench.task, bench.rollouts)}
    one, half = (
        exact_gaps.step_gaps(bench.policy, bench.rollouts, pools, lr, 0).query("advantages == 'own'")["gap"]
        for lr in (0.02, 0.01)
    )
    assert np.allclose(one, half, atol=0.02, equal_nan=True)


def test_advantages_of_zero_push_nothing(bench):
    nothing = replace(bench.rollouts, advantages=torch.zeros(len(bench.rollouts)))
    with pytest.raises(ValueError, match="push nothing"):
        exact_gaps.step_gaps(bench.policy, nothing, {}, 0.1, 0)
