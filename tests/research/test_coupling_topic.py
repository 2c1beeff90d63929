"""Topic coupling: sums over all pairs against brute force, what registered outcomes read, charts,
live studies.
"""

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.chapters.coupling import charts, explore
from workbook.probes.blocks import block_coupling
from workbook.probes.pair_mass import opposed_signs, pair_sums
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.states import output_states
from workbook.studies import Tables, record
from workbook.studies.coupling import claims, figures, study
from workbook.views.live_study import NOW


@pytest.fixture(scope="module")
def sampled(policy, task):
    rollouts = sample_rollouts(policy, task, 3, 4, seed=0)
    return policy, rollouts.select(
        torch.isin(rollouts.group_ids, rollouts.group_ids[rollouts.advantages != 0])
    )


def test_sums_are_over_all_pairs_of_a_prompt(sampled):
    policy, rollouts = sampled
    table = pair_sums(policy, rollouts, 1, 2).query("weights == 'output layer'")
    pairs = net = size = top = 0.0
    for group in rollouts.group_ids.unique():
        part = rollouts.select(rollouts.group_ids == group)
        states = output_states(policy, part)
        kernel = states.kernel().double().triu(1)
        unsure = states.logits.double().softmax(-1).gather(1, states.tokens[:, None])[:, 0] < 0.5
        same = (states.tokens[:, None] == states.tokens) & unsure[:, None] & unsure
        pairs += len(kernel) * (len(kernel) - 1) / 2
        net, size, top = (
            net + kernel.sum(),
            size + kernel.abs().sum(),
            top + kernel.abs()[same].sum(),
        )
    assert table["pairs"].sum() == pairs
    assert table["net"].sum() == pytest.approx(float(net), rel=1e-4)
    assert table["size"].sum() == pytest.approx(float(size), rel=1e-4)
    assert table.query("same and unsure == 2")["size"].sum() == pytest.approx(float(top), rel=1e-4)


def test_opposed_gradients_of_the_output_layer_are_split_by_token(sampled):
    policy, rollouts = sampled
    row = opposed_signs(policy, rollouts, block_coupling(policy, rollouts, blocks="sign")).iloc[0]
    part = rollouts.select(rollouts.group_ids == int(row["group"]))
    states = output_states(policy, part)
    scores = -states.logits.double().softmax(-1)
    scores[torch.arange(len(scores)), states.tokens] += 1
    push = torch.tensor(part.token_table()["advantage"].to_numpy(dtype=float))
    gradient = {
        side: torch.einsum("n,nv,nd->vd", push.where(here, 0.0), scores, states.hidden.double())
        for side, here in (("up", push > 0), ("down", push < 0))
    }
    cosine = (
        (gradient["up"] * gradient["down"]).sum() / gradient["up"].norm() / gradient["down"].norm()
    )
    assert row["cosine"] == pytest.approx(float(cosine), abs=1e-4)
    assert row["same"] + row["different"] == pytest.approx(row["cosine"])
    assert row["same"] < 0 < row["different"], (
        "the same words oppose one another, the others push alike"
    )
    assert -1 <= row["cosine_all"] <= 1


def test_what_follows_a_pushing_token_is_in_its_own_units(sampled):
    table = study.spillover(*sampled, prompts=2).set_index("quantity")
    assert table.loc["pushing", "net"] == pytest.approx(1)
    assert table.loc["pushing", "size"] >= 1
    signs = study.proxy_signs(*sampled).set_index("quantity")
    assert signs.loc["agreement, all", "tokens"] == int(sampled[1].completion_mask.sum())
    assert signs.loc["agreement, moved", "size"] > signs.loc["agreement, all", "size"]


def test_measures_by_hand():
    cells = [  # same, where, signs, unsure, pairs, net, size
        (True, "across rollouts", "opposite", 2, 2, 8.0, 8.0),
        (True, "same context", "opposite", 2, 1, 4.0, 4.0),
        (False, "across rollouts", "opposite", 2, 4, -2.0, 4.0),
        (False, "across rollouts", "same", 0, 8, 0.0, 16.0),
    ]
    pairs = pd.DataFrame(
        cells, columns=["same", "where", "signs", "unsure", "pairs", "net", "size"]
    )
    tables = {"mass/pairs": pairs.assign(seed=0, weights="output layer")}
    assert claims.mass_share(tables).tolist() == [12 / 32]
    assert np.exp(claims.pair_ratio(tables)).tolist() == pytest.approx([4 / 2])
    assert np.exp(claims.pair_ratio(tables, opposite=True)).tolist() == pytest.approx([4 / 1])
    assert claims.mass_share(tables, opposite=True).tolist() == [8 / 12]
    assert claims.offset(tables).tolist() == [10 / 12]
    assert claims.pair_ratio(tables).attrs["log"]
    steps = [
        ("same token, unsure", 0, 8.0),
        ("different, unsure", 0, 2.0),
        ("different, sure", 0, 1.0),
    ]
    steps += [
        ("same token, unsure", 4, 2.0),
        ("different, unsure", 4, 1.0),
        ("agreement, moved", 4, 0.9),
    ]
    training = pd.DataFrame(steps, columns=["quantity", "step", "size"]).assign(
        seed=0, net=lambda t: t["size"]
    )
    assert np.exp(claims.spillover_ratio({"mass/training": training})).tolist() == pytest.approx(
        [8**0.5]
    )
    assert claims.least_agreement({"mass/training": training}, "moved").tolist() == [0.9]
    assert claims.follows_pushing({"mass/training": training}).tolist() == [5]
    sizes = [
        ("sgd", "unsure", 8.0),
        ("sgd", "sure", 1.0),
        ("adamw", "unsure", 2.0),
        ("adamw", "sure", 1.0),
    ]
    adam = pd.DataFrame(sizes, columns=["optimizer", "pushing", "size"]).assign(seed=0)
    assert np.exp(claims.hidden_fall({"mass/adam": adam})).tolist() == pytest.approx([4])


def test_the_study_measures_what_the_charts_draw(tmp_path, monkeypatch):
    sizes = {"prompts": 3, "products": (1, 2), "masked": 1, "training": (1, 1, 3, 1e-3)}
    monkeypatch.setitem(study.SIZES, "tiny", sizes)
    record.measure("mass", "tiny", seeds=[0, 1], folder=tmp_path)
    tables = Tables("tiny", tmp_path)
    drawn = charts.mass_shares(tables["mass/pairs"], "output layer", "any", same_context=True)
    drawn = {name: curve.assign(series=NOW) for name, curve in drawn.items()}
    shares = drawn["size"].set_index("kind")["mean"]
    assert shares.sum() == pytest.approx(1)
    assert shares["same token, both below one half"] == pytest.approx(
        claims.mass_share(tables).mean()
    )
    assert "both below one half" in charts.describe_mass(**drawn)
    assert "same token, both below one half" in charts.mass_chart(**drawn).to_dict()["description"]
    curves = figures.agreement_in_training(tables)
    for panel, curve in curves.groupby("panel"):
        assert set(curve["step"]) == {0, 1}, panel
    assert len(charts.training_chart(curves).to_dict()["hconcat"]) == 2


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (explore.live_mass, {"group_size": 4, "anchors": 1}, NOW),
        (explore.live_push, {"optimizer": "adamw"}, "(this policy): "),
    ],
)
def test_live_studies_say_what_they_measured(policy, task, make, settings, said):
    live = make(policy, task)
    live.set(prompts=2, **settings)
    live.run().wait()
    assert said in live.sentence.value, live.line.value
    live.close()
