"""Topic flips: curves over prompts per step, language models, shares by sign, live studies and
exercises.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook.chapters.flips import charts, explore
from workbook.probes.dose import anchor_labels, dose_blocks
from workbook.probes.step import permuted_advantages, pushing_prompts
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies import Tables, record
from workbook.studies.flips import claims, figures, study
from workbook.studies.registration import read_registration
from workbook.studies.unit import StudyUnit
from workbook.views.live_study import NOW


def curve_of(seed, follows, prompts=(1, 4), tokens="moved"):
    rows = {
        "prompts": prompts,
        "tokens": tokens,
        "follows": follows,
        "own": 1.0,
        "others": [0.0, 3.0],
    }
    return pd.DataFrame(rows).assign(seed=seed)


def test_contrast_and_prediction_by_hand():
    keys = {"seed": 0, "identity": "sign-shared", "prompts": 1}
    cells = [("shared", 0, 1.0, 2.0, 1), ("shared", 1, 3.0, 4.0, 3), ("specific", 0, 8.0, 8.0, 4)]
    net = pd.DataFrame(cells, columns=["kind", "band", "net", "size", "tokens"]).assign(**keys)
    # shared: (1 + 3 * 3) / 4 = 2.5; specific 8; mean |change| (2 + 12 + 32) / 8
    row = claims.contrasts(net).iloc[0]
    assert row["contrast"] == pytest.approx((2.5 - 4) / (46 / 8))
    assert row["ratio"] == 2.5 / 8
    # at the specific tokens' confidence, all of band 0: 1 against 8, |change| (2 * 4 + 8 * 4) / 8
    assert claims.contrasts(net, kept=1, matched=True)["contrast"].item() == pytest.approx(
        (1 - 8) / 5
    )
    rates = pd.DataFrame(
        {"seed": 0, "tokens": "unsure", "prompts": [1, 4], "own": 3.0, "others": [0.0, 1.0]}
    )
    predicted = claims.predicted_follows(rates.assign(follows=[0.7, 0.6]))["predicted"]
    assert predicted.tolist() == pytest.approx([0.7, 0.5 + 0.2 * 3 / 4])


def test_the_policy_in_hand_stands_beside_the_backbones(policy, task):
    rollouts = sample_rollouts(policy, task, 4, 4, seed=0)
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique().tolist()
    rows = charts.own_sign_now(policy, rollouts, measured=pushing[:1])
    assert rows["prompts"].tolist() == sorted({1, len(pushing)})
    assert set(rows["series"]) == {NOW}
    assert rows["mean"].between(0, 1).all()
    drawn = charts.backbones_chart(rows).to_dict()
    assert NOW in drawn["description"]


def test_units_of_one_language_model_decide_nothing():
    roles = {outcome.role for outcome in read_registration("dose_llm").outcomes.values()}
    assert roles == {"described"}


def test_the_numbers_of_language_models_are_of_the_step_that_was_registered():
    tables = {"dose_llm/rates": curve_of(0, [0.9, 0.7], (1, 128))}
    assert claims.MEASURES["dose_llm@smollm2_plain"]["H1 SmolLM2"](tables)[0] == pytest.approx(-0.2)
    with pytest.raises(ValueError, match="no step on 64 prompts"):
        claims.change_of_follows({"dose_llm/rates": curve_of(0, [0.9, 0.8])}, 64)


def test_the_study_measures_what_the_claims_read(tmp_path, monkeypatch):
    monkeypatch.setitem(study.SIZES, "tiny", (8, 4, 1, 3, (2,)))
    record.measure("dose", "tiny", seeds=[0], folder=tmp_path)
    tables = Tables("tiny", tmp_path)
    assert claims.own_vs_others_contrast(tables).index.tolist() == [0]
    assert 0 < claims.rate(tables, "follows", "moved", prompts=1)[0] <= 1
    assert np.isfinite(claims.contrast_at(tables, prompts=2)[0])
    assert np.isfinite(claims.permuted_sign_effect(tables, claims.SAME_WORD)[0])
    assert claims.optimizer_distance(tables, "sgd").index.tolist() == [0]


def invented(rewards):
    """Rollouts of two tokens, two a prompt; a prompt's rewards alike push nothing."""
    rewards = torch.tensor(rewards, dtype=torch.float32)  # (P, 2)
    ids = torch.arange(4 * len(rewards)).view(-1, 2)
    alive = torch.ones_like(ids)
    advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()
    groups = torch.arange(len(rewards)).repeat_interleave(2)
    zeros = torch.zeros(ids.shape)
    return Rollouts(ids, alive, ids, alive, groups, rewards.flatten(), advantages, zeros, zeros)


def test_each_sign_of_a_measured_prompt_and_of_a_bundle_is_a_block():
    """Prompts 0, 2, 3, 4, 5 push; 0 and 2 are measured, 3 with 4 is a bundle, 5 fills none."""
    rollouts = invented([[1, 0], [1, 1], [0, 1], [1, 0], [0, 1], [1, 0]])
    labels, measured = study.bundled_labels(rollouts, pushing=9, measured=2, bundle=2)
    assert measured == [0, 2]
    assert labels[:, 0].tolist() == [1, 0, -1, -1, 2, 3, 5, 4, 4, 5, -1, -1]
    assert torch.equal(labels[:, 0], labels[:, 1])
    with pytest.raises(ValueError, match="5 prompts push"):
        study.bundled_labels(rollouts, 9, 2, 4)
    alone = anchor_labels(rollouts, [1, 2], n=3, seed=0)
    assert sorted(alone[alone >= 0].tolist()) == [0, 1, 2]
    assert (alone[:4] == -1).all(), "prompt 0 is not measured, prompt 1 pushes nothing"


def test_the_study_of_language_models_at_its_smallest_is_of_the_blocks_it_names():
    unit = StudyUnit("tiny", 100)
    unit.setting = replace(unit.setting, group_size=4)
    tables = study.dose_llm_study(unit)
    assert tables["blocks"]["error"].item() < 0.05
    assert tables["blocks"]["prompts"].item() == 4
    rates = tables["rates"].set_index(["tokens", "prompts"])
    assert set(rates.index.get_level_values("prompts")) == {1, 2, 4}
    assert rates.loc[("all", 1), "others"] == 0
    by_prompt = tables["by_prompt"].query("tokens == 'all' and prompts == 4")
    whole = np.average(by_prompt["own"] ** 2, weights=by_prompt["count"]) ** 0.5
    assert rates.loc[("all", 4), "own"] == pytest.approx(whole)
    assert tables["mass"].groupby("where")["mass"].sum().to_numpy() == pytest.approx(1)


def test_a_models_band_is_its_prompts_and_the_familys_an_interval():
    family = pd.concat([curve_of(seed, [0.8 + seed / 100, 0.6]) for seed in range(3)])
    model = curve_of(0, [0.9, 0.7])
    prompts = pd.concat([model.assign(follows=[0.8, 0.5]), model.assign(follows=[1.0, 0.75])])
    smollm2 = {"dose_llm/rates": model, "dose_llm/by_prompt": prompts}
    tuned = {
        "smollm2_probes/rates": pd.concat(
            [curve_of(seed, [0.8, 0.6 + seed / 100]) for seed in range(6)]
        )
    }
    tables = {"family": {"dose/rates": family}, "smollm2_plain": smollm2, "smollm2:sums": tuned}
    curve = figures.backbone_flips(tables).query("quantity == 'own sign'")
    curve = curve.set_index(["series", "prompts"])
    assert curve.loc[("SmolLM2-135M", 4), ["mean", "low", "high"]].tolist() == [0.7, 0.5, 0.75]
    six = curve.loc[("SmolLM2, six fine-tunes", 4)]
    assert six["high"] - six["mean"] == pytest.approx(
        2.5706 * np.std(np.arange(6) / 100, ddof=1) / 6**0.5, rel=1e-4
    )
    first = curve.loc[("bundled family", 1)]
    assert first["high"] - first["mean"] == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)


def test_permuted_advantages_stay_in_their_group_and_routes_add_up_to_the_step(policy, task):
    rollouts = pushing_prompts(sample_rollouts(policy, task, 8, 4, seed=0), 2)
    permuted = permuted_advantages(rollouts, seed=1)
    assert (
        permuted.advantages.view(2, 4)
        .sort()
        .values.equal(rollouts.advantages.view(2, 4).sort().values)
    )
    assert not torch.equal(permuted.advantages, rollouts.advantages)
    blocks = dose_blocks(policy, rollouts, 2, 1)
    routes = charts.movement_by_route(blocks)
    assert routes["mean"].max() == 1
    assert set(routes["route"]) == set(charts.ROUTES)
    assert routes["follows"].between(0, 1).all()
    own, _, others = (routes[routes["route"] == route] for route in charts.ROUTES)
    assert own["follows"].min() > others["follows"].max(), "its own push goes its own way"
    # a prompt alone leaves the other prompts' route empty
    alone = blocks.blocks["group"] == blocks.blocks["group"].iloc[0]
    of_one = replace(
        blocks,
        changes=blocks.changes * alone.to_numpy()[:, None],
        tokens=blocks.tokens.assign(
            advantage=blocks.tokens["advantage"].where(blocks.tokens["group"] == 0, 0.0)
        ),
    )
    left = charts.movement_by_route(of_one).set_index("route")
    assert (left.loc[charts.ROUTES[2], "mean"] == 0).all()
    assert "other prompts" in charts.routes_chart(routes).to_dict()["description"]


def test_one_step_at_any_setting_stands_beside_the_models_measured_before(policy, task):
    live = explore.live_flips(policy, task, prompts=4)
    live.set(seed=1, optimizer="sgd")
    live.run().wait()
    table = live.tables["table"]
    sums = table[table["model"] == NOW].groupby("column")["share"].sum()
    assert sums.to_numpy() == pytest.approx(1)
    assert {NOW, "bundled family"} <= set(table["model"])
    assert NOW in live.sentence.value
    assert "bundled family" in charts.flips_chart(table).to_dict()["description"]
    live.close()


def test_rollouts_that_push_nothing_are_refused(policy, task):
    alike = sample_rollouts(policy, task, 2, 2, seed=0, max_new_tokens=1)
    with pytest.raises(ValueError, match="different rewards"):
        pushing_prompts(alike, 2)
    with refused("signs", "left"):
        explore.measure_flips(policy, task, prompts=2, signs="left")
