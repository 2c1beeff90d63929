"""Curves over training, shares by backbone and the live gaps: numbers by hand, small runs, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.policies.load import load_policy
from workbook.probes.step import sign_agreement
from workbook.statistics import unit_curve
from workbook.studies.claim import Tables
from workbook.tasks import get_task
from workbook.topics.drift.charts import CURVE_OUTCOMES, curves_of
from workbook.topics.drift.claims import GROUPS, at_last, at_worst
from workbook.topics.drift.explore import ROLES, live_curves
from workbook.topics.drift.study import CURVES, PAIRS, StepReadings, training_curves


@pytest.fixture(scope="module")
def policy():
    return load_policy("bundled")


@pytest.fixture(scope="module")
def task():
    return get_task("chain")


def test_a_run_is_read_before_it_and_after_each_batch_and_leaves_the_policy(policy, task):
    before = [p.clone() for p in policy.model.parameters()]
    readings = StepReadings(policy, task, task.dataset(4, 5)["prompt"][:], seed=3)
    table = training_curves(policy, task, ["GSPO", "PPO"], batches=1, seed=8, readings=readings)
    assert all(torch.equal(p, old) for p, old in zip(policy.model.parameters(), before, strict=True))
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
    with pytest.raises(ValueError, match=rf"group_size={size} must divide 64, half of a batch's rollouts, and be 2"):
        training_curves(policy, task, group_size=size)


def test_agreement_counts_moved_tokens_apart():
    agree = sign_agreement([1.0, -1.0, 1e-3, 1e-3], [1.0, -1.0, -1.0, -1.0])
    assert agree == {"agreement, all": 0.5, "agreement, moved": 1.0}


def made_up(path) -> Tables:
    """A study of two units: unit 1's min-replace collapses in pairs; gaps are 0.1 times the batch."""
    for unit in (0, 1):
        rows = []
        for place in (GROUPS, PAIRS):
            for k, arm in enumerate(("PPO", "GSPO", "min-replace")):
                dead = unit == 1 and place == PAIRS and arm == "min-replace"
                for batch in (0, 2, 4, 6):
                    value = 0.1 if dead and batch == 2 else 0.4 + 0.01 * batch * (k + 1)
                    row = {"arm": arm, "group_size": place[0], "confidence": place[1], "batch": batch, "value": value}
                    row |= {"tax": 0.001 * batch * (k + unit), "style_entropy": 1.4 - 0.01 * batch * k}
                    row |= {"gap": 0.1 * batch, "agreement, moved": 0.9 - 0.1 * (batch == 2), "permuted": False}
                    rows.append(row)
        folder = path / CURVES / "family" / f"seed={unit}"
        folder.mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(folder / "curves.parquet")
        (folder / "manifest.json").write_text(f'{{"seed": {unit}}}')
    return Tables("family", path)


def test_rows_of_the_ledger_by_hand(tmp_path):
    tables = made_up(tmp_path)
    tax = at_last("GSPO", "min-replace", "tax")(tables)
    assert tax[0] == pytest.approx(6e-3 * (1 - 2))
    assert np.isnan(tax[1]), "a run that collapsed gives no number"
    assert at_last("GSPO", "min-replace", "tax", GROUPS)(tables).tolist() == pytest.approx([-6e-3, -6e-3])
    assert at_last("GSPO", "min-replace", "lost", GROUPS)(tables).tolist() == pytest.approx([-0.06, -0.06])
    assert at_last("PPO", None, "gap", GROUPS, 3)(tables).tolist() == pytest.approx([0.4, 0.4])
    assert at_worst("agreement, moved")(tables).tolist() == pytest.approx([0.8, 0.8])
    curve = curves_of(["tax"], GROUPS, tables)
    assert curve[(curve["arm"] == "PPO") & (curve["batch"] == 6)]["mean"].item() == pytest.approx(3e-3)


def test_curves_leave_out_what_was_not_read():
    table = pd.DataFrame({"batch": [0, 0, 2], "gap": [1.0, 3.0, np.nan], "seed": [0, 1, 0], "arm": "PPO"})
    curve = unit_curve(table.dropna(subset=["gap"]), "batch", "gap", by="arm")
    assert curve["mean"].tolist() == [2.0]


def test_two_objectives_live_over_the_measured_curves(policy, task):
    study = live_curves(policy, task, batches=1, group_size=8)
    study.set(twin=True)
    study.run().wait()
    live = study.tables["curves"].query("series in @ROLES")
    assert live["series"].unique().tolist() == ROLES
    assert len(live) == 3 * 2 * len(CURVE_OUTCOMES)
    assert "second objective (min-replace): value 0." in study.sentence.value
    assert f"{ROLES[2]}, six policies" in set(study.tables["curves"]["series"])
    study.close()
