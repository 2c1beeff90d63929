"""Who shares a step: which runs a unit has, what is read off a run, what pairs are left, and which rate is taken."""

import numpy as np
import pandas as pd
import pytest

from workbook.studies.bench import Bench
from workbook.studies.registration import read_registration
from workbook.topics.batching import composition
from workbook.topics.batching.claims import CLAIMS, ONE_PROMPT, STUDY, difference, opposition
from workbook.topics.batching.composition import Arm, against_shuffled, arms, ends, loop_of, rates, tuned_rates

VALUES = {  # order: exact values by batch, of two units
    "shuffled": ([0.4, 0.5, 0.6], [0.4, 0.3, 0.5]),
    "query_preserved": ([0.4, 0.6, 0.7], [0.4, 0.1, 0.8]),
}
READ = ("sign_cosine", "grad_norm", "moved", "reward", "tax", "style_entropy")


def run(values, **arm):
    table = pd.DataFrame({"batch": range(len(values)), "value": values, **dict.fromkeys(READ, 0.25)})
    return table.assign(**{"seed": 0, "level": 8, "order": "shuffled", "matched": True, "lr": 1e-4} | arm)


@pytest.fixture
def curves():
    parts = [run(v, seed=seed, order=order) for order, pair in VALUES.items() for seed, v in enumerate(pair)]
    return pd.concat(parts).sample(frac=1, random_state=0)  # in any order of rows


class Kept(dict):
    """Tables at hand."""


def test_what_is_read_off_a_run(curves):
    table = ends(curves).set_index(["order", "seed"])
    first = table.loc["query_preserved", 0]
    assert first["start"] == 0.4
    assert first["value"] == 0.7
    assert first["area"] == pytest.approx((0.5 + 0.65) / 2)  # two trapezoids
    assert first["jitter"] == pytest.approx(0.1)  # |0.7 - 2 * 0.6 + 0.4|
    assert table["collapsed"].to_dict() == {
        **{("shuffled", 0): 0, ("shuffled", 1): 0},
        **{("query_preserved", 0): 0, ("query_preserved", 1): 1},  # 0.1 is below half of 0.4
    }


def test_a_collapsed_run_is_counted_and_not_pooled(curves):
    tables = Kept({"batch_composition/curves": curves})
    gained = difference(tables, "query_preserved")
    assert gained[0] == pytest.approx(0.1)
    assert np.isnan(gained[1])
    assert difference(tables, "query_preserved", "collapsed").tolist() == [0.0, 1.0]
    assert against_shuffled(ends(curves))["difference"].tolist() == pytest.approx([0.1])
    assert opposition(tables).tolist() == [0.25, 0.25]
    assert difference(tables, "query_preserved", level=2).empty


@pytest.mark.parametrize("study", [STUDY, ONE_PROMPT])
def test_every_registered_outcome_is_measured(study):
    registered = {(outcome.claim, key) for key, outcome in read_registration(study).outcomes.items()}
    assert {(claim.id, row.key) for claim in CLAIMS for row in claim.rows if row.study == study} == registered


def test_the_rate_is_the_best_below_any_collapse():
    values = {(2, 1e-4): 0.5, (2, 2e-4): 0.6, (8, 1e-4): 0.5, (8, 4e-4): 0.1, (8, 8e-4): 0.9, (32, 4e-4): 0.5}
    table = pd.concat(run([0.4, value], level=level, lr=lr) for (level, lr), value in values.items())
    assert tuned_rates(table) == pytest.approx(
        {1: 2**0.5 * 1e-4, 2: 1e-4, 8: 5e-5, 32: 2e-4, 4: 0.5**0.5 * 1e-4, 16: 1e-4}
    )
    with pytest.raises(ValueError, match=r"lr=0.0004 collapsed at level 8: begin the grid lower"):
        tuned_rates(table[table["lr"] > 1e-4])


def test_the_committed_rates_are_of_the_grid():
    for level, grid in composition.RATES.items():
        assert rates()[level] in [composition.CALM * rate for rate in grid]


def test_every_run_of_a_unit_can_be_made():
    for unit, count in ((0, 24), (composition.FEW, 5)):
        assert len(set(arms(unit))) == count
        for arm in arms(unit):
            loop = loop_of(arm, 1e-4)
            assert loop.minibatches * arm.level == composition.PROMPTS
    assert loop_of(Arm(8, "shuffled", False), 1e-4).match is None


def test_the_study_at_a_small_size(monkeypatch):
    monkeypatch.setattr(composition, "arms", lambda unit: [Arm(2, "shuffled"), Arm(2, "query_preserved")])
    monkeypatch.setattr(composition, "rates", lambda: {2: 1e-4})
    monkeypatch.setattr(composition, "loop_of", lambda arm, lr: loop_of(arm, lr, prompts=4, batches=2))
    monkeypatch.setattr(composition, "HELD_OUT", 2)
    curves = composition.batch_composition_study(Bench("tiny", 0))["curves"]
    assert curves.groupby("order")["steps"].max().tolist() == [4, 4]
    assert curves["batch"].tolist() == [0, 2, 0, 2]
    runs = ends(curves.assign(seed=0))
    assert runs["start"].nunique() == 1
    assert runs["value"].nunique() == 2
