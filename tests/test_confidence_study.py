"""The study confidence: energy and residuals by hand, its arms and rates, numbers per unit, claims, charts."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.claims import measurements
from workbook.policies.load import load_policy
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.states import output_states
from workbook.studies.claim import Tables
from workbook.studies.registration import read_registration
from workbook.tasks import get_task
from workbook.topics.drift import charts
from workbook.topics.drift import claims as effects
from workbook.topics.drift.claims import CLAIMS, at_value, value_jitter
from workbook.topics.drift.explore import OUTCOMES, explore_training
from workbook.topics.drift.probe import (
    residual_by_energy,
    shared_gradient,
    token_energy,
    two_word_share,
)
from workbook.topics.drift.study import (
    ARMS,
    CONFIDENCES,
    GROUP_SIZES,
    OBJECTIVES,
    PLACES,
    POINT,
    TWINNED,
    FreeWords,
    best_rates,
    objective_residuals,
    run_arm,
)

UNITS = range(6)


@pytest.fixture(scope="module")
def policy():
    return load_policy("bundled")


@pytest.fixture(scope="module")
def rollouts(policy):
    sampled = sample_rollouts(policy, get_task("chain"), 6, 4, 3, 48, estimator="dr_grpo")
    assert sampled.advantages.any()
    return sampled


# --- energy


@pytest.mark.parametrize(("p", "size"), [(0.8, 2), (0.7, 3), (0.875, 8)])
def test_a_two_word_slots_share_is_the_expectation_over_all_groups(p, size):
    """Brute force: every group of two words, energy |e - p|^2 of those that all have the same."""
    energy = {0: 2 * (1 - p) ** 2, 1: 2 * p**2}
    shared = whole = 0.0
    for group in product((0, 1), repeat=size):
        chance = np.prod([p if word == 0 else 1 - p for word in group])
        total = sum(energy[word] for word in group)
        whole += chance * total
        shared += chance * total * (len(set(group)) == 1)
    assert two_word_share(p, size) == pytest.approx(shared / whole)


def test_the_energy_of_a_token_is_its_advantage_times_its_score_squared(policy, rollouts):
    energy, expected = token_energy(policy, rollouts)
    states, alive = output_states(policy, rollouts), rollouts.completion_mask.bool()
    row = int(rollouts.advantages.abs().argmax())
    rollout, position = alive.nonzero(as_tuple=True)
    k = int(((rollout == row) & (position == 0)).nonzero())
    p = states.logits[k].double().softmax(0)
    score = torch.nn.functional.one_hot(states.tokens[k], len(p)) - p
    size = float(score.square().sum()) * float(rollouts.advantages[row]) ** 2
    assert float(energy[row, 0]) == pytest.approx(size, rel=1e-4, abs=1e-9)
    assert float(expected[row, 0]) == pytest.approx(size * float(p[states.tokens[k]]) ** 3, rel=1e-4, abs=1e-9)
    assert not energy[~alive].any()


def test_residuals_are_weighted_by_energy(rollouts):
    two = replace(rollouts.select([0, 1]), advantages=torch.tensor([0.5, -0.5]), group_ids=torch.zeros(2))
    weights, energy = torch.zeros_like(two.old_logps), torch.zeros_like(two.old_logps)
    weights[:, 0], weights[0, 1], weights[1, 1] = 1.0, 3.0, 1.0  # residuals 0 and 0.5
    energy[:, 0], energy[:, 1] = 1.0, 3.0
    shared = torch.zeros_like(weights, dtype=torch.bool)
    shared[:, :2] = True
    assert residual_by_energy(two, weights, energy, shared) == pytest.approx(0.5 * 6 / 8)
    assert np.isnan(residual_by_energy(two, weights, energy, shared & False))


def test_the_gradients_residual_is_that_of_whole_gradients(policy, rollouts):
    """Two copies of one rollout with opposite advantages cancel; with weights 3 and 1 half remains."""
    twin = replace(rollouts.select([0, 0]), advantages=torch.tensor([0.5, -0.5]), group_ids=torch.zeros(2))
    chosen = twin.completion_mask.bool()
    equal = torch.ones_like(twin.old_logps)
    assert shared_gradient(policy, twin, equal, chosen) < 1e-6
    assert shared_gradient(policy, twin, equal * torch.tensor([[3.0], [1.0]]), chosen) == pytest.approx(0.5, rel=1e-5)
    assert all(p.grad is None for p in policy.model.parameters())


def test_repairs_cancel_and_the_policy_stays(policy, rollouts):
    before = [p.clone() for p in policy.model.parameters()]
    table = objective_residuals(policy, rollouts, epochs=1).set_index("objective")
    assert set(table.index) == {"equal weights", *OBJECTIVES}
    assert table.loc[["equal weights", "min-replace", "orthogonal"], "residual"].max() < 1e-5
    assert table.loc["sequence ratio", "residual"] > table.loc["token ratio", "residual"] > 0
    assert table.loc["equal weights", "gradient"] < 0.5
    assert all(torch.equal(p, old) for p, old in zip(policy.model.parameters(), before, strict=True))


# --- arms


def test_a_run_has_the_arms_loop_and_its_own_columns(policy):
    task = get_task("chain")
    readings = FreeWords(policy, task, task.dataset(4, 5)["prompt"][:])
    assert readings.start["free_tax"] < 1e-6
    assert np.isnan(readings.start["template_tax"])  # no template word of this policy has a choice
    loop = ARMS["min-replace"].loop(8, 1e-3, 0.02, permuted=True)
    assert (loop.prompts, loop.clip, loop.transform, loop.transform_on) == (16, (0.02, 0.02), "min_replace", "clipped")
    assert ARMS["clip off"].loop(2, 1e-3, 0.02).clip is None
    with pytest.raises(ValueError, match="arm 'DPO' is unknown; valid are GSPO"):
        run_arm(policy, task, readings, "DPO", 2, 0)


def test_an_outcome_is_read_where_a_value_is_first_reached():
    values, outcome = np.array([0.4, 0.5, 0.8, 0.6]), np.array([0.0, 1.0, 4.0, 9.0])
    assert at_value(values, outcome, 0.6) == pytest.approx(2.0)
    assert at_value(values, outcome, 0.3) == 0.0
    assert np.isnan(at_value(values, outcome, 0.9))
    assert value_jitter(np.array([0.0, 1.0, 2.0, 1.0])) == pytest.approx(1.0)


def test_the_rates_are_those_that_the_tuning_units_say():
    rates = Tables("family")["confidence_tuning/rates"]
    assert rates["seed"].unique().tolist() == [100]
    best = best_rates(rates)
    assert best == {name: (ARMS[name].lr, ARMS[name].epsilon) for name in best}
    assert set(best) == set(ARMS)
    with pytest.raises(ValueError, match="GSPO collapsed at every learning rate"):
        best_rates(rates.assign(lowest=np.where(rates["arm"] == "GSPO", 0.1, rates["lowest"])))


# --- numbers per unit: tables whose numbers are known

TAX = {"GSPO": 0.03, "min-replace": 0.05}  # at the end; others 0.04, twins 0.01 less


def _run(seed: int, confidence: float, size: int, arm: str, permuted: bool) -> pd.DataFrame:
    """Value rises by 0.1 a batch, tax to its end in proportion; twins stay."""
    tax = TAX.get(arm, 0.04) - 0.01 * permuted + 0.001 * seed * (not permuted)
    batch = np.arange(5)
    end = {"free_tax": tax, "tax": tax, "template_tax": tax, "odds": 10 * tax}
    table = pd.DataFrame({name: value * batch / 4 for name, value in end.items()}).assign(batch=batch)
    value = 0.4 + (0.0 if permuted else 0.1 + 0.01 * (arm == "min-replace") * np.log2(size)) * batch
    return table.assign(
        value=value, style_entropy=1.3 - table["tax"], seed=seed, confidence=confidence, group_size=size, arm=arm
    ).assign(permuted=permuted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All tables of six units, as `measure` writes them."""
    folder = tmp_path_factory.mktemp("results")
    for seed in UNITS:
        place = folder / "confidence" / "family" / f"seed={seed}"
        place.mkdir(parents=True)
        cells = [(*POINT[::-1], arm) for arm in ARMS]
        cells += [(confidence, size, arm) for size, confidence in PLACES for arm in ("GSPO", "min-replace")]
        twins = {cell: (False, True) if (cell[1], cell[0]) in TWINNED else (False,) for cell in cells}
        runs = [_run(seed, *cell, permuted) for cell in cells for permuted in twins[cell]]
        energy = [
            {"confidence": p, "group_size": size, "category": "all", "shared_energy": 0.5 / size + 0.001 * seed}
            for p in CONFIDENCES
            for size in GROUP_SIZES
        ]
        places = [(2, p) for p in CONFIDENCES] + [(size, 0.8) for size in GROUP_SIZES[1:]]
        residuals = [
            {"confidence": p, "group_size": size, "objective": name, "residual": 0.1 * k, "gradient": 0.01 * k + 0.05}
            for size, p in places
            for k, name in enumerate(("equal weights", *OBJECTIVES))
        ]
        tables = {"runs": pd.concat(runs), "energy": pd.DataFrame(energy)}
        tables["residuals"] = pd.DataFrame(residuals).assign(stopped=0.0)
        for name, table in tables.items():
            table.drop(columns="seed", errors="ignore").to_parquet(place / f"{name}.parquet", index=False)
        (place / "manifest.json").write_text(json.dumps({"seed": seed, "scale": {}, "git": {}}))
    return folder


@pytest.fixture(scope="module")
def tables(folder):
    return Tables("family", folder)


def test_numbers_per_unit_by_hand(tables):
    beyond = effects.per_unit(tables, effects.excess_at_end("GSPO"))
    assert beyond.tolist() == pytest.approx([0.01 + 0.001 * seed for seed in UNITS])
    gap = effects.per_unit(tables, effects.gap_at_end("min-replace", "GSPO"))
    assert gap.tolist() == pytest.approx([0.04] * 6)
    # GSPO ends at 0.8, which min-replace reaches at batch 4 / 1.1: its excess there is 1 / 1.1 of the end's
    equal = effects.per_unit(tables, effects.gap_at_equal_value("GSPO", "min-replace"))
    assert equal.tolist() == pytest.approx([(0.01 + 0.001 * seed) * (1 - 1 / 1.1) for seed in UNITS])
    batches = effects.per_unit(tables, effects.batches_to_equal_value("min-replace", "GSPO"))
    assert batches.tolist() == pytest.approx([3.6 / 1.1 - 3.6] * 6)
    slope = effects.slope_by_group(tables, effects.gap_at_end("min-replace", "GSPO"))
    assert slope.tolist() == pytest.approx([0.04] * 6)


def test_a_collapsed_arm_gives_no_number(tables):
    runs = tables["confidence/runs"]
    dead = (runs["arm"] == "GSPO") & ~runs["permuted"] & (runs["seed"] == 2) & (runs["batch"] == 3)
    broken = Tables("family", tables.folder)
    broken._whole["confidence/runs"] = runs.assign(value=runs["value"].where(~dead, 0.1))
    gap = effects.per_unit(broken, effects.gap_at_end("min-replace", "GSPO"))
    assert gap.isna().tolist() == [seed == 2 for seed in UNITS]


def test_twins_that_collapse_are_counted_and_end_there(tables):
    counts = charts.collapses(tables).set_index("arm")
    assert (counts == 0).all(axis=None)
    runs = tables["confidence/runs"]
    dead = (runs["arm"] == "PPO") & runs["permuted"] & (runs["seed"] == 2) & (runs["batch"] >= 3)
    broken = Tables("family", tables.folder)
    broken._whole["confidence/runs"] = runs.assign(value=runs["value"].where(~dead, 0.1))
    assert charts.collapses(broken).set_index("arm").loc["PPO"].tolist() == [0, 1]
    path = effects.runs_by_place(broken)[effects.G, effects.P][2]
    assert [path(*key)["batch"].max() for key in (("PPO", True), ("PPO", False), ("GSPO", True))] == [2, 4, 4]


def test_every_registered_outcome_is_measured(tables):
    outcomes, rows = read_registration("confidence").outcomes, []
    for claim in CLAIMS:
        for row in (row for row in claim.rows if row.study == "confidence"):
            assert outcomes[row.key].claim == claim.id
            rows.append(row.key)
            assert sorted(row.measure(tables).index) == list(UNITS)
    assert set(rows) == set(outcomes)
    rows = measurements(CLAIMS, tables).set_index("key")
    assert rows.loc[["D6", "D7"], "testable"].str.startswith("no: identity").all()
    assert rows.loc["D8", "outcome"] == "supported"
    assert rows.loc["D4", "mean"] == pytest.approx(0.0125 * (1 - 1 / 1.1))


# --- charts


def test_charts_draw_the_tables(tables):
    now = pd.DataFrame({"group": ["G = 2"], "confidence": [0.9], "mean": [0.2]})
    for chart in (charts.energy_chart(now, tables), charts.residual_chart(tables), charts.arms_chart(tables)):
        assert chart.to_dict()
    explorer = explore_training(tables)
    here = explorer.tables["curve"].query("place == 0.8").set_index("arm")["mean"]
    assert here["GSPO"] == pytest.approx(0.0325)
    explorer.set(value=OUTCOMES["odds"])
    here = explorer.tables["curve"].query("place == 0.8").set_index("arm")["mean"]
    assert here["GSPO, permuted"] == pytest.approx(0.2)
    explorer.close()
