"""Curves over training, shares by backbone and the live gaps: numbers by hand, small runs, and what
is refused.
"""

import json

import pytest
import torch
from refusals import refused

from workbook.chapters.drift.charts import CURVE_OUTCOMES
from workbook.chapters.drift.explore import MEASURED, live_curves, run_names
from workbook.chapters.drift.objectives import ARMS, training_curves
from workbook.studies.drift.study import StepReadings


def test_a_run_is_read_before_it_and_after_each_batch_and_leaves_the_policy(policy, task):
    before = [p.clone() for p in policy.model.parameters()]
    readings = StepReadings(policy, task, task.dataset(4, 5)["prompt"][:], seed=3)
    table = training_curves(policy, task, ["GSPO", "PPO"], batches=1, seed=8, readings=readings)
    assert all(
        torch.equal(p, old) for p, old in zip(policy.model.parameters(), before, strict=True)
    )
    assert table["batch"].tolist() == [0, 1, 0, 1]
    assert table["steps"].tolist() == [0, 4, 0, 4]
    start, end = table[table["batch"] == 0], table[table["batch"] == 1]
    for name in ("value", "style_entropy", "gap", "agreement, moved"):
        assert start[name].nunique() == 1, "arms start from one policy"
    assert (start[["tax", "odds"]].abs() < 1e-6).all(axis=None)
    assert (end[["tax", "odds"]] > 1e-5).all(axis=None)
    assert end["tax"].nunique() == 2
    assert table["agreement, moved"].between(0.5, 1).all()
    assert table["epsilon"].unique().tolist() == [0.01, 0.2]


@pytest.mark.parametrize("size", [0, 1, 3, 128])
def test_groups_that_fill_no_mini_batch_are_refused(policy, task, size):
    with refused("group_size", size):
        training_curves(policy, task, group_size=size)


def test_two_objectives_live_over_the_measured_curves(policy, task):
    study = live_curves(policy, task, batches=1, group_size=8)
    study.set(twin=True)
    study.run().wait()
    names = run_names("GSPO", "min-replace", twin=True)
    live = study.tables["curves"].query("series in @names")
    assert live["series"].unique().tolist() == names
    assert len(live) == 3 * 2 * len(CURVE_OUTCOMES)
    assert "min-replace: value 0." in study.sentence.value
    assert names[2] + MEASURED in set(study.tables["curves"]["series"])
    spec = json.dumps(study.chart.spec)
    undrawn = {*ARMS} - {*names}
    assert not any(f'"{name}"' in spec for name in undrawn), "the legend has what is drawn"
    study.close()
