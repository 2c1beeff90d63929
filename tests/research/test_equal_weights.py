"""The study equal_weights: a group's mean weight by hand, whole runs against the projection,
numbers per unit.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.policies.family import committed_seeds
from workbook.probes.readings import Readings
from workbook.rollouts import credit_batch, sample_rollouts
from workbook.studies.drift.claims import tax_at_equal_value
from workbook.studies.drift.equal_weights import LR, OBJECTIVES, arm_loop, taxes
from workbook.studies.record import load_measured
from workbook.tasks import get_task
from workbook.theory.credit_controls import EqualWeights
from workbook.theory.weights import objective_weights
from workbook.training.loop import train


@pytest.mark.parametrize("objective", ["GSPO", "PPO, 0.2 and 0.28", "GSPO, no clip"])
def test_equal_weights_are_their_groups_mean(policy, objective):
    level, clip = OBJECTIVES[objective]
    rollouts = sample_rollouts(policy, get_task("chain"), 3, 4, 3, 48, estimator="dr_grpo")
    alive = rollouts.completion_mask.bool()
    noise = 0.3 * torch.randn(alive.shape, generator=torch.Generator().manual_seed(0))
    now = rollouts.old_logps + noise * alive
    given = (now, rollouts.old_logps, alive, rollouts.advantages, rollouts.group_ids)
    unequal, ratios = objective_weights(*given, level, clip), objective_weights(*given)
    pushes = EqualWeights(level, clip)(credit_batch(policy, rollouts, logps=now)) * ratios
    for group in rollouts.group_ids.unique():
        rows = rollouts.group_ids == group
        if level == "token":
            mean = unequal[rows].sum(0) / alive[rows].sum(0).clamp(min=1)
        else:
            mean = unequal[rows].amax(1).mean()
        expected = (mean * rollouts.advantages[rows][:, None]) * alive[rows]
        assert torch.allclose(pushes[rows], expected, atol=1e-5)
    assert (unequal[alive] == 0).any() == (clip is not None)


@pytest.mark.parametrize("permuted", [False, True])
def test_in_pairs_equal_weights_train_as_weights_projected_off_the_advantages_do(
    policy, task, permuted
):
    """Two roads to one run: a rule called at every step, and a transform; with permuted rewards,
    too.
    """
    equal, other = (
        replace(arm_loop("GSPO", name, 2, 1, permuted), prompts=16) for name in ("equal", "unequal")
    )
    projected = replace(other, transform="advantage_orthogonal", transform_on="clipped_weights")
    readings = Readings(policy, task, task.dataset(2, 5)["prompt"][:])
    runs = [train(policy, task, loop, 5, readings).iloc[-1] for loop in (equal, projected, other)]
    for column in ("value", "moved", "tax"):
        own, same, unequal = (run[column] for run in runs)
        assert abs(own - same) < 0.02 * abs(own - unequal)


def test_ratios_of_tax_by_hand():
    """At equal value: unequal reaches 0.6 half-way to its end, at tax 0.03; least at its end, at
    0.02.
    """
    rows = [("unequal", 0, 0.4, 0.0), ("unequal", 6, 0.5, 0.01), ("unequal", 60, 0.7, 0.05)]
    rows += [("least", 0, 0.4, 0.0), ("least", 6, 0.5, 0.01), ("least", 60, 0.6, 0.02)]
    table = pd.DataFrame(rows, columns=["weights", "batch", "value", "tax"])
    table = table.assign(objective="GSPO", group_size=2, permuted=False, seed=0)
    tables = {
        "equal_weights/runs": pd.concat(
            [table, table.assign(seed=1, value=table["value"] - (table["batch"] > 6))]
        )
    }
    measured = taxes("unequal", "least")(tables)
    assert measured.attrs["log"]
    assert measured.tolist() == pytest.approx([np.log(2.5), np.nan], nan_ok=True), (
        "the second unit's runs collapsed"
    )
    assert tax_at_equal_value(tables)[0] == pytest.approx(np.log(1.5))


def test_the_rate_is_what_tuning_chose_on_policies_that_are_no_units():
    rates = load_measured("equal_weights_tuning", "family", "rates").query(
        "batch == 12 and weights != 'one sign'"
    )
    value = rates.groupby("lr")["value"].mean()
    assert value.index[value >= value.max() - 0.01][0] == LR
    names = {f"family:seed={seed}" for seed in committed_seeds("tuning")}
    assert set(rates["policy"]) == names
