"""Chapter 06: gaps in exact value against a regression, the whole study, its claims, live steps,
and exercises.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook import sample_rollouts
from workbook.chapters.credit import explore, repeated
from workbook.probes import value_gaps
from workbook.probes.value_gaps import movement_shares, step_gaps
from workbook.studies import StudyUnit, Tables, measurements
from workbook.studies.credit import study
from workbook.studies.credit.claims import MEASURES, exact_slope, widening
from workbook.studies.credit.study import (
    FIXED,
    GROWING,
    cell_gap,
    exact_pool,
    parts_of,
    value_gap_study,
)
from workbook.views.live_study import NOW


@pytest.fixture(scope="module")
def unit():
    return StudyUnit("tiny", 0)


def test_the_gap_is_the_slope_of_a_regression_with_a_constant_per_cell():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"group": rng.integers(4, size=300), "position": rng.integers(5, size=300)}
    )
    table["dlogp"] = rng.normal(size=300)
    table["value"] = (
        table["group"] + 0.2 * table["position"] + 0.3 * (table["dlogp"] > 0) + rng.normal(size=300)
    )
    eps = 0.5
    moved = table[table["dlogp"].abs() > eps]
    constants = pd.get_dummies(moved["group"].astype(str) + moved["position"].astype(str)).to_numpy(
        float
    )
    design = np.column_stack([(moved["dlogp"] > 0).astype(float), constants])
    slope = np.linalg.lstsq(design, moved["value"].to_numpy(), rcond=None)[0][0]
    assert cell_gap(table, ("group", "position"), eps=eps) == pytest.approx(slope, abs=1e-10)
    assert cell_gap(table.assign(dlogp=0.01 * table["dlogp"]), ("group",)) == cell_gap(
        table, ("group",)
    )


def test_repeated_updates_measure_with_a_readers_gap_and_leave_the_policy(policy, task):
    rollouts = sample_rollouts(policy, task, 2, 8, seed=1, max_new_tokens=48)
    weights = [part.clone() for part in policy.model.parameters()]
    seen = []

    def mine(tokens, limit):
        seen.append((tokens.groupby("cell")["reward"].nunique().max(), limit))
        return cell_gap(tokens, ("cell",), eps=limit) + 1

    table = repeated.repeat_updates(policy, task, rollouts, mine, updates=2)
    own = repeated.repeat_updates(policy, task, rollouts, lambda *_: None, updates=2)
    np.testing.assert_allclose(table["mean"], own["mean"] + 1, atol=1e-9)
    assert table["step"].tolist() == [1, 1, 2, 2]
    assert table["rule"].tolist() == repeated.RULES * 2
    assert {rewards for rewards, _ in seen} == {1}, "a cell has one reward"
    assert seen[0][1] == seen[2][1] == repeated.FIXED_NATS
    assert seen[1][1] < seen[3][1], "the limit grows with the movement"
    assert all(map(torch.equal, weights, policy.model.parameters()))
    assert repeated.repeated_chart(table).to_dict()


def test_parts_share_no_rollout_and_have_the_size_asked_for(unit):
    for prompts, group in ((2, 4), (3, 2), (6, 8), (1, 3)):
        parts = parts_of(unit.rollouts, prompts, group, 4, seed=1)
        assert 1 <= len(parts) <= 4
        for part in parts:
            assert part.group_ids.unique(return_counts=True)[1].tolist() == [group] * prompts
        taken = torch.cat([part.group_ids for part in parts])
        assert taken.unique(return_counts=True)[1].max() <= 8
    assert parts_of(unit.rollouts, 7, 1, 4, seed=1) == []


def test_the_study_has_every_cell_and_a_step_of_another_size_the_same_gaps(unit, monkeypatch):
    cells = {"few": ("reinforce", [(2, 1), (2, 8), (2, 12)]), "more": ("grpo", [(6, 8), (7, 8)])}
    for name, value in {
        "_AXES": cells,
        "_STEPS": 2,
        "DEEP": 12,
        "PARTS_OF_A_CELL": 1,
        "REPEATED": 24,
    }.items():
        monkeypatch.setattr(study, name, value)
    before = {name: p.clone() for name, p in unit.policy.model.state_dict().items()}
    tables = value_gap_study(unit)
    assert all(torch.equal(p, before[name]) for name, p in unit.policy.model.state_dict().items())
    gaps = tables["gaps"]
    assert len(gaps) == 2 * 2 * 3 * 3 * 2 == len(gaps.drop(columns="gap").drop_duplicates())
    assert (
        gaps.query("pool == 'training' and advantages == 'own' and matched == 'position'")["gap"]
        .notna()
        .any()
    )
    seen = tables["budget"][["axis", "prompts", "group_size"]].drop_duplicates().to_numpy().tolist()
    assert seen == [["few", 2, 1], ["few", 2, 8], ["few", 2, 12], ["more", 6, 8]]
    small = tables["repeated"].query("nats == 0.001 and matched == 'prompt' and pool == 'training'")
    assert small["step"].tolist() == [1, 2]
    assert small["weighted"].iloc[1] == pytest.approx(2 * small["weighted"].iloc[0], rel=0.1), (
        "linear in the steps"
    )
    pools = {"training": exact_pool(unit.policy, unit.task, unit.rollouts)}
    one, half = (
        step_gaps(unit.policy, unit.rollouts, pools, lr, 0).query("advantages == 'own'")["gap"]
        for lr in (0.02, 0.01)
    )
    assert np.allclose(one, half, atol=0.02, equal_nan=True)
    permuted = []
    for twins, seed in ((1, 0), (1, 1000), (2, 0)):
        monkeypatch.setattr(value_gaps, "_PERMUTED_STEPS", twins)
        table = step_gaps(unit.policy, unit.rollouts, pools, 0.02, seed)
        chosen = table.query(
            "advantages == 'permuted' and matched == 'position' and rollouts == 'all'"
        )
        permuted.append(chosen["gap"].to_numpy())
    assert permuted[2] == pytest.approx((permuted[0] + permuted[1]) / 2, nan_ok=True), (
        "a twin is the mean of its steps"
    )
    nothing = replace(unit.rollouts, advantages=torch.zeros(len(unit.rollouts)))
    with refused("rollouts"):
        step_gaps(unit.policy, nothing, {}, 0.1, 0)


def test_measures_of_units_by_hand():
    """A slope per doubling and a change over updates, in tables of two units."""
    tables = Tables("family")
    budget = [
        {
            "seed": seed,
            "axis": axis,
            "pool": "training",
            "matched": "position",
            "prompts": 16,
            "group_size": 2**place,
        }
        | {"gap": 0.1 + slope * place}
        for seed, slope in ((0, 0.02), (1, -0.01))
        for axis in (GROWING, FIXED)
        for place in range(5)
    ]
    tables._whole["value_gap/budget"] = pd.DataFrame(budget)
    assert exact_slope(tables, GROWING, "training").to_dict() == pytest.approx({0: 0.02, 1: -0.01})
    assert exact_slope(tables, GROWING, "held-out").empty
    steps = pd.DataFrame(
        {"step": [1, 2, 3] * 2, "seed": [0] * 3 + [1] * 3, "gap": [0.1, 0.9, 0.4, 0.3, 0.0, 0.2]}
    )
    tables._whole["value_gap/repeated"] = steps.assign(
        pool="training", nats=0.01, matched="position"
    )
    assert widening(tables, "training").to_dict() == pytest.approx({0: 0.3, 1: -0.1})


def test_a_gap_beyond_its_own_permuted_twin():
    """H7 and R4 of a table in which every step adds a known number to its twin's gap, and no twin
    is another's.
    """
    columns = ["seed", "pool", "rollouts", "matched", "of"]
    kinds = (
        ("training", "held-out"),
        ("all", "positive", "negative"),
        ("position", "prompt"),
        ("value", "credit"),
    )
    twins = pd.DataFrame(list(product((0, 1), *kinds)), columns=columns).assign(
        advantages="permuted"
    )
    twins["gap"] = np.random.default_rng(0).permutation(len(twins)) / 10
    added = {(pool, sign): 0.01 * 2**k for k, (pool, sign) in enumerate(product(*kinds[:2]))}
    own = twins.assign(advantages="own")
    own["gap"] += [(1 + row.seed) * added[row.pool, row.rollouts] for row in own.itertuples()]
    tables = {"value_gap/gaps": pd.concat([own, twins]).sample(frac=1, random_state=1)}
    for claim, pool in (("H7", "training"), ("R4", "held-out")):
        for sign, key in (
            ("all", claim),
            ("positive", f"{claim} positive"),
            ("negative", f"{claim} negative"),
        ):
            known = {seed: (1 + seed) * added[pool, sign] for seed in (0, 1)}
            assert MEASURES["value_gap"][key](tables).to_dict() == pytest.approx(known), key


def test_what_decides_rests_on_six_units():
    rows = measurements(["H7", "H8", "H9", "R4"], Tables("family"))
    primary = rows[(rows["role"] == "primary") & (rows["study"] == "value_gap")]
    assert sorted(primary["claim"]) == ["H7", "H8", "H9", "R4"]
    assert (primary["units"] >= 6).all()


def test_a_gap_is_measured_by_sign_and_pool_over_the_study(policy, task, monkeypatch):
    monkeypatch.setattr(explore, "_HELD_OUT_PROMPTS", 2)
    live = explore.live_value_gap(policy, task, prompts=4)
    assert (live.tables["gaps"]["units"] == 10).all()
    live.set(group_size=4)
    live.run().wait()
    gaps = live.tables["gaps"]
    names = [set(gaps.loc[gaps["series"] == name, "tokens"]) for name in (explore.FAMILY_NAME, NOW)]
    assert names[0] == names[1]
    assert len(names[0]) == 8
    assert "failing rollouts, prompts of the step" in names[0]
    live.close()
    with pytest.raises(ValueError, match="different rewards"):
        next(explore.measure_gap(policy, task, prompts=1, group_size=1))


def test_a_steps_movement_is_shared_out_among_classes(unit):
    shares = movement_shares(unit.policy, unit.rollouts)
    assert shares["mean"].sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="no categories"):
        movement_shares(unit.policy, replace(unit.rollouts, categories=None))
