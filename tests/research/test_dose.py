"""Curves over prompts per step: bundles join whole, shares by hand, and the measures that
registered outcomes read.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook.probes.blocks import Blocks, block_coupling, step_changes
from workbook.probes.dose import (
    dose_blocks,
    flip_rates,
    matched_weights,
    permuted_signs,
    real_step_changes,
    sharing_flags,
)
from workbook.rollouts.sample import sample_rollouts


@pytest.fixture(scope="module")
def sampled(policy, task):
    return policy, sample_rollouts(policy, task, 7, 4, seed=0)


def hand_made(changes, groups, prompts, tokens):
    """Blocks of given changes, each of a group and of a number of prompts, pushing up."""
    about = pd.DataFrame(
        {"group": groups, "sign": 1, "tokens": 1, "prompts": prompts, "norm": 1.0, "rms": 1.0}
    )
    pushing = pd.DataFrame({"block": range(len(groups)), "push": 1.0})
    return Blocks(np.array(changes, dtype=np.float32), about, pd.DataFrame(tokens), pushing, 0.0)


def test_bundles_join_whole_and_single_prompts_fill_the_rest():
    """Prompts 0 and 1 are measured; bundle 2 stands for three prompts, and moves both tokens by
    100.
    """
    tokens = {"group": [0, 1], "logp": [-1.0, -1.0], "push": [1.0, 1.0]}
    blocks = hand_made([[1, 10], [20, 2], [100, 100]], [0, 1, 2], [1, 1, 3], tokens)
    assert blocks.prompts == 5
    changes = {
        size: step_changes(blocks, size, draws=1)["change"].tolist() for size in (1, 2, 4, 5)
    }
    assert changes == {1: [1, 2], 2: [21, 12], 4: [101, 102], 5: [121, 112]}
    assert step_changes(blocks, 5, draws=1)["own"].tolist() == [1, 2]
    with refused("prompts_per_step", 3):
        step_changes(blocks, 3)


def test_rollouts_of_a_prompt_add_up_to_the_prompt(sampled):
    policy, rollouts = sampled
    blocks = dose_blocks(policy, rollouts, measured=3, bundle=2)
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()
    whole = block_coupling(policy, rollouts, measured=pushing[:3].tolist())
    assert blocks.prompts == 3 + (len(pushing) - 3) // 2 * 2
    assert blocks.error < 0.05
    for group in pushing[:3].tolist():
        parts = blocks.changes[blocks.blocks["group"] == group].sum(0)
        row = whole.changes[whole.blocks["group"] == group][0]
        assert np.sqrt(np.mean((parts - row) ** 2) / np.mean(row**2)) < 0.03
    bundles = blocks.blocks[blocks.blocks["prompts"] > 1]
    assert set(bundles["sign"]) <= {-1, 1}
    assert (bundles["prompts"] == 2).all()


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"measured": 99, "bundle": 1}, "measured"), ({"measured": 2, "bundle": 3}, "bundle")],
)
def test_too_few_prompts_are_refused(sampled, wrong, field):
    with refused(field, wrong[field]):
        dose_blocks(*sampled, **wrong)


def test_rates_by_hand():
    """Prompt 0 follows everywhere; in prompt 1 all go up. Forced tokens hardly move."""
    rows = [  # group, push, change, p
        *((0, 1, 1.0, 0.5), (0, -1, -1.0, 0.5), (0, -1, -0.001, 0.99)),
        *((1, 1, 1.0, 0.5), (1, -1, 1.0, 0.5), (1, 0, 9.0, 0.5)),  # the last does not push
    ]
    table = pd.DataFrame(rows, columns=["group", "push", "change", "p"]).assign(
        logp=lambda t: np.log(t["p"])
    )
    rates = flip_rates(table.assign(own=table["change"] / 4)).set_index("tokens")
    assert rates.loc["unsure", "follows"] == 0.75  # prompt 0: 1, prompt 1: (1 + 0) / 2
    # boosted among positive and negative: 1 and 0; 1 and 1; means differ by 1/2, suppressed by 1/2,
    # stable by 0
    assert rates.loc["unsure", "distance"] == 0.5
    # all: prompt 0's negative tokens are half suppressed, half stable: 1/2 (1/2 + 1/4 + 1/4)
    assert rates.loc["all", "distance"] == 0.5
    # crossed: prompt 0 differs by (1, -1, 0), prompt 1 not at all: signs of one times sizes of the
    # other
    assert rates.loc["unsure", "crossed"] == 0
    assert rates.loc["moved", "share"] == 1
    assert rates.loc["all", "share"] == pytest.approx(4 / 5)
    assert rates.loc["unsure", ["own", "others"]].tolist() == pytest.approx([0.25, 0.75])


def test_words_are_matched_and_shared_by_hand():
    """One prompt: word 7 twice in positive rollout 0 and once in negative rollout 1; word 8 in
    rollout 0 alone.
    """
    tokens = pd.DataFrame(
        {
            "group": 0,
            "rollout": [0, 0, 0, 1, 1],
            "token_id": [7, 7, 8, 7, 9],
            "position": [0, 2, 1, 0, 1],
            "push": [1.0, 1.0, 1.0, -1.0, -1.0],
            "logp": np.log([0.5, 0.5, 0.5, 0.5, 0.95]),
        }
    )
    assert matched_weights(tokens).tolist() == [0.5, 0.5, 0, 1, 0]
    assert matched_weights(tokens, ["token_id", "position"]).tolist() == [1, 0, 0, 1, 0]
    shared = {name: flags.tolist()[:3] for name, flags in sharing_flags(tokens).items()}
    assert shared["word-shared"] == shared["sign-shared"] == [True, True, False]
    assert shared["sign- and place-shared"] == shared["position-shared"] == [True, False, False]


def test_permuted_signs_by_hand():
    """Rollouts 0 and 1 share word 7 at one place; a unit of advantage moves the own token by 2, the
    other's by 1.
    """
    tokens = pd.DataFrame(
        {"group": 0, "token_id": [7, 7, 8], "position": 0, "logp": -1.0, "block": [0, 1, 2]}
    )
    blocks = hand_made([[2, 1, -1], [2, 4, -2], [-1, -1, 2]], [0, 0, 0], 1, tokens)
    blocks = replace(blocks, pushing=pd.DataFrame({"block": [0, 1, 2], "push": [1.0, 2.0, -1.0]}))
    # per unit: rollout 0 -> 2, 1, -1; rollout 1 -> 1, 2, -1; rollout 2 -> 1, 1, -2. Own: (2 + 2 -
    # 2) / 3
    table = permuted_signs(blocks).set_index("rollout")
    own = 2 / 3
    assert table["effect"]["same word and place"] == pytest.approx(1 / own)
    assert table["effect"]["no such word"] == pytest.approx((-1 - 1 + 1 + 1) / 4 / own)
    assert table["pairs"].fillna(0).tolist() == [3, 2, 0, 4]


def test_a_real_step_has_the_length_of_the_studies(sampled):
    policy, rollouts = sampled
    weights = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    for optimizer in ("sgd", "adamw"):
        table = real_step_changes(policy, rollouts, rollouts.select([0, 1, 2, 3]), optimizer)
        assert np.sqrt((table["change"] ** 2).mean()) == pytest.approx(0.1, rel=0.06)
    assert torch.equal(
        weights, torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    )
