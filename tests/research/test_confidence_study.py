"""The study confidence: energy and residuals by hand, its arms and rates, numbers per unit, claims,
charts.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook.chapters.drift import charts
from workbook.chapters.drift.objectives import ARMS, FreeWords, run_arm
from workbook.probes.energy import (
    residual_by_energy,
    shared_gradient,
    token_energy,
    two_word_share,
)
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.states import output_states
from workbook.studies.drift import claims
from workbook.studies.drift.claims import MEASURES, at_value, value_jitter
from workbook.studies.drift.study import OBJECTIVES, objective_residuals
from workbook.studies.record import Tables
from workbook.studies.registration import read_registration
from workbook.tasks import get_task
from workbook.views import measured_table


@pytest.fixture(scope="module")
def rollouts(policy):
    sampled = sample_rollouts(policy, get_task("chain"), 6, 4, 3, 48, estimator="dr_grpo")
    assert sampled.advantages.any()
    return sampled


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
    assert float(expected[row, 0]) == pytest.approx(
        size * float(p[states.tokens[k]]) ** 3, rel=1e-4, abs=1e-9
    )
    assert not energy[~alive].any()


def test_residuals_are_weighted_by_energy(rollouts):
    two = replace(
        rollouts.select([0, 1]), advantages=torch.tensor([0.5, -0.5]), group_ids=torch.zeros(2)
    )
    weights, energy = torch.zeros_like(two.old_logps), torch.zeros_like(two.old_logps)
    weights[:, 0], weights[0, 1], weights[1, 1] = 1.0, 3.0, 1.0  # residuals 0 and 0.5
    energy[:, 0], energy[:, 1] = 1.0, 3.0
    shared = torch.zeros_like(weights, dtype=torch.bool)
    shared[:, :2] = True
    assert residual_by_energy(two, weights, energy, shared) == pytest.approx(0.5 * 6 / 8)
    assert np.isnan(residual_by_energy(two, weights, energy, shared & False))


def test_the_gradients_residual_is_that_of_whole_gradients(policy, rollouts):
    """Two copies with opposite advantages cancel; with weights 3 and 1 half remains."""
    twin = replace(
        rollouts.select([0, 0]), advantages=torch.tensor([0.5, -0.5]), group_ids=torch.zeros(2)
    )
    chosen = twin.completion_mask.bool()
    equal = torch.ones_like(twin.old_logps)
    assert shared_gradient(policy, twin, equal, chosen) < 1e-6
    assert shared_gradient(
        policy, twin, equal * torch.tensor([[3.0], [1.0]]), chosen
    ) == pytest.approx(0.5, rel=1e-5)
    assert all(p.grad is None for p in policy.model.parameters())


def test_repairs_cancel_and_the_policy_stays(policy, rollouts):
    before = [p.clone() for p in policy.model.parameters()]
    table = objective_residuals(policy, rollouts, epochs=1).set_index("objective")
    assert set(table.index) == {"equal weights", *OBJECTIVES}
    assert table.loc[["equal weights", "min-replace", "orthogonal"], "residual"].max() < 1e-5
    assert table.loc["sequence ratio", "residual"] > table.loc["token ratio", "residual"] > 0
    assert table.loc["equal weights", "gradient"] < 0.5
    assert all(
        torch.equal(p, old) for p, old in zip(policy.model.parameters(), before, strict=True)
    )


def test_a_run_has_the_arms_loop_and_its_own_columns(policy):
    task = get_task("chain")
    readings = FreeWords(policy, task, task.dataset(4, 5)["prompt"][:])
    assert readings.start["free_tax"] < 1e-6
    assert np.isnan(readings.start["template_tax"])  # no template word of this policy has a choice
    loop = ARMS["min-replace"].loop(8, 1e-3, 0.02, permuted=True)
    assert (loop.prompts, loop.clip, loop.transform, loop.transform_on) == (
        16,
        (0.02, 0.02),
        "min_replace",
        "clipped_weights",
    )
    assert ARMS["clip off"].loop(2, 1e-3, 0.02).clip is None
    with refused("arm", "DPO"):
        run_arm(policy, task, readings, "DPO", 2, 0)


def test_an_outcome_is_read_where_a_value_is_first_reached():
    values, outcome = np.array([0.4, 0.5, 0.8, 0.6]), np.array([0.0, 1.0, 4.0, 9.0])
    assert at_value(values, outcome, 0.6) == pytest.approx(2.0)
    assert at_value(values, outcome, 0.3) == 0.0
    assert np.isnan(at_value(values, outcome, 0.9))
    assert value_jitter(np.array([0.0, 1.0, 2.0, 1.0])) == pytest.approx(1.0)


# --- numbers per unit: the outcomes themselves are recomputed by the audit
def run(values, taxes) -> pd.DataFrame:
    return pd.DataFrame({"batch": range(len(values)), "value": values, "free_tax": taxes})


def test_a_number_is_read_at_equal_value_beyond_the_twins_and_not_of_a_collapsed_run():
    flat = run([0.4] * 3, [0.0, 0.01, 0.01])
    runs = {("GSPO", True): flat, ("min-replace", True): flat}
    runs |= {("GSPO", False): run([0.4, 0.6, 0.8], [0.0, 0.02, 0.05])}
    runs |= {("min-replace", False): run([0.4, 0.5, 0.6], [0.0, 0.03, 0.03])}
    path = claims._paths(runs)
    assert claims.number_of(claims.excess_at_end("GSPO"), path) == pytest.approx(0.04)
    assert claims.number_of(claims.gap_of_values("min-replace", "GSPO"), path) == pytest.approx(
        -0.2
    )
    assert claims.number_of(
        claims.gap_at_equal_value("GSPO", "min-replace"), path
    ) == pytest.approx(0.01 - 0.02)  # both at 0.6
    runs["GSPO", False] = run([0.4, 0.1, 0.8], [0.0, 0.02, 0.05])
    assert len(claims.living(runs["GSPO", False])) == 1
    assert np.isnan(
        claims.number_of(claims.gap_of_values("min-replace", "GSPO"), claims._paths(runs))
    )


def test_every_registered_outcome_is_measured():
    outcomes, tables = read_registration("confidence").outcomes, Tables("family")
    assert set(MEASURES["confidence"]) == set(outcomes)
    assert all(
        sorted(measure(tables).index) == list(range(6))
        for measure in MEASURES["confidence"].values()
    )


@pytest.mark.parametrize(
    ("draw", "table"),
    [
        (charts.energy_chart, "drift/energy"),
        (charts.weights_chart, "drift/equal_weights"),
        (charts.cosines_chart, "drift/noise_by_group_size"),
        (charts.group_sizes_chart, "drift/group_sizes"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_charts_draw_every_mean_of_their_tables(draw, table):
    spec = draw(measured_table(table)).to_dict()
    drawn = {row["mean"] for rows in spec["datasets"].values() for row in rows if "mean" in row}
    means = set(measured_table(table)["mean"])
    assert drawn
    assert drawn <= means
    assert spec["title"]["text"]


def test_gaps_are_to_pairs():
    gaps = measured_table("drift/group_sizes")
    assert gaps.query("group_size == 2")["mean"].eq(0).all()
    assert gaps.query("group_size > 2")["mean"].ne(0).all()
