"""Curves of language models: who pushes in which block, prompts drawn once, spreads over prompts, rows by hand."""

from dataclasses import replace
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

from workbook.probes.dose import anchor_labels
from workbook.rollouts.sample import Rollouts
from workbook.studies import record
from workbook.studies.bench import Bench
from workbook.studies.registration import read_registration
from workbook.topics.flips import backbones, dose_llm, language_models
from workbook.topics.flips.claims import CLAIMS


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
    labels, measured = dose_llm.bundled_labels(rollouts, pushing=9, measured=2, bundle=2)
    assert measured == [0, 2]
    assert labels[:, 0].tolist() == [1, 0, -1, -1, 2, 3, 5, 4, 4, 5, -1, -1]
    assert torch.equal(labels[:, 0], labels[:, 1])
    assert dose_llm.bundled_labels(rollouts, 3, 1, 2)[0][-6:, 0].tolist() == [3, 2, -1, -1, -1, -1]
    with pytest.raises(ValueError, match="5 prompts push and 6 are wanted"):
        dose_llm.bundled_labels(rollouts, 9, 2, 4)


def test_tokens_that_push_alone_are_of_the_measured_prompts():
    rollouts = invented([[1, 0], [1, 1], [0, 1]])
    labels = anchor_labels(rollouts, [1, 2], n=3, seed=0)
    assert sorted(labels[labels >= 0].tolist()) == [0, 1, 2]
    assert (labels[:4] == -1).all(), "prompt 0 is not measured, prompt 1 pushes nothing"


def test_no_prompt_is_drawn_twice(monkeypatch):
    texts = ["a", "b", "a", "c", "b", "d", "e", "a"]
    task = SimpleNamespace(dataset=lambda n, seed: datasets.Dataset.from_dict({"prompt": texts[:n]}))
    scale = SimpleNamespace(prompts=4, group_size=2, max_new_tokens=3)
    monkeypatch.setattr(dose_llm, "sample_rollouts", lambda policy, task, prompts, *_: prompts["prompt"])
    monkeypatch.setattr(dose_llm, "categorized", lambda rollouts, tagger: list(rollouts))
    bench = SimpleNamespace(scale=scale, task=task, policy=None, data_seed=0)
    assert dose_llm.distinct_rollouts(bench) == ["a", "b", "c", "d"]


def test_the_study_at_its_smallest_is_of_the_blocks_it_names():
    bench = Bench("tiny", 100)
    bench.scale = replace(bench.scale, group_size=4)
    tables = dose_llm.dose_llm_study(bench)
    assert tables["blocks"]["error"].item() < 0.05
    assert tables["blocks"]["prompts"].item() == 4
    rates = tables["rates"].set_index(["tokens", "prompts"])
    assert set(rates.index.get_level_values("prompts")) == {1, 2, 4}
    assert rates.loc[("all", 1), "others"] == 0
    by_prompt = tables["by_prompt"].query("tokens == 'all' and prompts == 4")
    whole = np.average(by_prompt["own"] ** 2, weights=by_prompt["count"]) ** 0.5
    assert rates.loc[("all", 4), "own"] == pytest.approx(whole)
    assert tables["mass"].groupby("where")["mass"].sum().to_numpy() == pytest.approx(1)


def curve_of(seed, follows):
    rows = {"prompts": [1, 4], "tokens": "moved", "follows": follows, "own": 1.0, "others": [0.0, 3.0]}
    return pd.DataFrame(rows).assign(seed=seed)


class Kept(dict):
    """Tables in memory."""


@pytest.fixture
def tables():
    family = pd.concat([curve_of(seed, [0.8 + seed / 100, 0.6]) for seed in range(3)])
    model = curve_of(0, [0.9, 0.7])
    prompts = pd.concat([model.assign(follows=[0.8, 0.5]), model.assign(follows=[1.0, 0.75])])
    llm = Kept({"dose_llm/rates": model, "dose_llm/by_prompt": prompts})
    return {"family": Kept({"dose/rates": family}), "smollm2_plain": llm}


def test_a_models_band_is_its_prompts_and_the_familys_an_interval(tables):
    curve = backbones.compute_backbones(tables=tables)["curve"].set_index(["series", "prompts"])
    assert curve.loc[("SmolLM2-135M", 4), ["mean", "low", "high"]].tolist() == [0.7, 0.5, 0.75]
    family = curve.loc[("bundled family", 1)]
    assert family["mean"] == pytest.approx(0.81)
    assert family["high"] - family["mean"] == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-4)
    tables["smollm2_plain"]["dose_llm/rates"] = pd.concat([curve_of(seed, [0.9, 0.6 + seed / 50]) for seed in range(6)])
    six = backbones.compute_backbones(tables=tables)["curve"].set_index(["series", "prompts"])
    assert six.loc[("SmolLM2-135M", 4), ["mean", "low"]].tolist() == pytest.approx(
        [0.65, 0.65 - 2.5706 * 0.0374166 / 6**0.5]
    )
    tables["smollm2_plain"]["dose_llm/rates"] = curve_of(0, [0.9, 0.7])
    share = backbones.compute_backbones(quantity="own share", tables=tables)["curve"]
    assert share.set_index(["series", "prompts"]).loc[("SmolLM2-135M", 4), "mean"] == 0.25
    assert "SmolLM2-135M: 0.900 at 1, 0.700 at 4" in backbones.describe_backbones(curve.reset_index())
    spec = str(backbones.backbones_chart(curve.reset_index()).to_dict())
    assert "our guess of the paper's" in spec
    with pytest.raises(ValueError, match="tokens='some' is unknown: choose one of all, unsure, moved"):
        backbones.compute_backbones(tokens="some")


def test_the_ledgers_numbers_by_hand():
    mass = {"where": ["other prompts", "own prompt"], "kind": "same token, both unsure", "mass": [0.25, 0.9], "seed": 0}
    shift = {"category": "Template", "equal_energy": [True, False], "prompts": 128, "shift": [0.125, 0.5], "seed": 0}
    net = {"identity": "sign-shared", "prompts": 128, "band": 0, "kind": ["shared", "specific"], "net": [1.0, 2.0]}
    net = pd.DataFrame(net).assign(own=0.0, size=1.0, tokens=1, seed=0)
    kept = Kept({"dose_llm/rates": curve_of(0, [0.9, 0.7]).replace({"prompts": {4: 128}}), "dose_llm/net": net})
    kept |= {"dose_llm/mass": pd.DataFrame(mass), "dose_llm/shift": pd.DataFrame(shift)}
    with pytest.raises(ValueError, match=r"no step on 256 prompts could be made.*ends at 128"):
        language_models.net_ratio(kept, 256)
    whole = curve_of(0, [0.9, 0.7]).replace({"prompts": {4: 128}}).assign(crossed=0.3)
    more = kept | {"dose_llm/rates": pd.concat([whole, whole.assign(tokens="all")])}
    expected = language_models.llm_expectations({"smollm2_plain": more, "gemma3_plain": kept})["measured"]
    assert expected["SmolLM2: moved tokens follow their own sign, 128 prompts"] == 0.7
    assert expected["SmolLM2: H6's shift to Template, equal prompts"] == 0.5
    assert expected["Gemma: change of follows from one prompt to the most"] == pytest.approx(-0.2)
    rows = [row for rows in language_models.LANGUAGE_MODELS.values() for row in rows if "64" not in row.key]
    numbers = {row.key: row.measure(kept)[0] for row in rows}
    expected = {"H1 SmolLM2": -0.2, "H1 Gemma": -0.2, "H2 SmolLM2": 0.25, "H5 SmolLM2": 0.5, "H6 SmolLM2": 0.125}
    assert numbers == pytest.approx(expected)
    smaller = Kept(
        {name: table.replace({"prompts": {128: 64}}) for name, table in kept.items() if name != "dose_llm/mass"}
    )
    reached = {
        row.key: row.measure for rows in language_models.LANGUAGE_MODELS.values() for row in rows if "64" in row.key
    }
    assert {key: measure(smaller)[0] for key, measure in reached.items()} == pytest.approx(
        {f"{claim} SmolLM2, 64 prompts": expected[f"{claim} SmolLM2"] for claim in ("H1", "H5", "H6")}
    )


def test_every_row_is_registered_and_decides_nothing():
    registered = read_registration("dose_llm").outcomes
    rows = {row.key: claim for claim, rows in language_models.LANGUAGE_MODELS.items() for row in rows}
    assert {key: outcome.claim for key, outcome in registered.items()} == rows
    assert {outcome.role for outcome in registered.values()} == {"described"}
    listed = {row.key: claim.id for claim in CLAIMS for row in claim.rows if row.study == "dose_llm"}
    assert listed == rows, "the ledger has them"
    assert "dose_llm" in record.STUDIES
