"""Block coupling: rows are inner products of gradients, their sum is a real step."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook.policies.load import load_policy
from workbook.probes.blocks import (
    PAIR_KINDS,
    Blocks,
    block_coupling,
    category_shift,
    coupling_by_mass,
    equal_energy_prompts,
    step_changes,
)
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.scoring import rollout_logps

FIELDS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


@pytest.fixture(scope="module")
def sampled(policy, task):
    return policy, sample_rollouts(policy, task, 5, 4, seed=0)


@pytest.fixture(scope="module")
def by_sign(sampled):
    return block_coupling(*sampled, blocks="sign")


def test_the_sum_of_rows_is_a_real_step_of_all(sampled, by_sign):
    weights = torch.cat([p.detach().flatten() for p in sampled[0].model.parameters()])
    by_prompt = block_coupling(*sampled)
    assert torch.equal(
        weights, torch.cat([p.detach().flatten() for p in sampled[0].model.parameters()])
    )
    for blocks in (by_sign, by_prompt):
        assert 0 < blocks.error < 0.02
        assert f"{blocks.error:.2%}" in str(blocks)
    assert (by_sign.blocks["sign"] != 0).all()
    assert (by_prompt.blocks["sign"] == 0).all()
    difference = by_sign.changes.sum(0) - by_prompt.changes.sum(0)
    assert np.sqrt(np.mean(difference**2) / np.mean(by_prompt.changes.sum(0) ** 2)) < 0.03


def test_a_row_is_the_inner_product_of_gradients(sampled):
    """Token by token against autograd: lr <grad log pi(i), gradient of the block>."""
    policy, rollouts = sampled
    rollouts = rollouts.select(
        rollouts.group_ids == int(rollouts.group_ids[rollouts.advantages != 0][0])
    )
    blocks = block_coupling(policy, rollouts, blocks="rollout")
    weights = list(policy.model.parameters())
    logps = rollout_logps(policy.model, *(getattr(rollouts, name) for name in FIELDS))
    scale = rollouts.completion_ids.numel()
    (first, *_), alive = blocks.blocks["block"], rollouts.completion_mask.bool()
    objective = (rollouts.advantages[:, None] * logps * alive / scale)[first].sum()
    step = torch.autograd.grad(objective, weights, retain_graph=True)
    assert blocks.blocks["norm"][0] == pytest.approx(
        float(torch.stack([g.norm() for g in step]).norm()), rel=1e-4
    )
    table = blocks.tokens.assign(change=blocks.changes[0])
    for row in table[table["logp"] < np.log(0.7)].iloc[::5].itertuples():
        own = torch.autograd.grad(logps[row.rollout, row.position], weights, retain_graph=True)
        expected = float(sum((a * b).sum() for a, b in zip(own, step, strict=True)))
        assert row.change == pytest.approx(
            expected, rel=0.03, abs=0.002 * float(table["change"].abs().max())
        )


def test_the_gram_matrix_is_symmetric_with_squared_norms(by_sign):
    gram = by_sign.gram()
    assert np.diag(gram) == pytest.approx(by_sign.blocks["norm"] ** 2, rel=0.06)
    assert np.abs(gram - gram.T).max() < 0.05 * np.abs(gram).max()


def test_few_prompts_can_be_measured(sampled, by_sign):
    pushing = sorted(set(by_sign.blocks["group"]))
    few = block_coupling(*sampled, blocks="sign", measured=pushing[:2])
    assert set(few.tokens["group"]) == set(pushing[:2])
    assert len(few.blocks) == len(by_sign.blocks)
    same = by_sign.tokens["group"].isin(pushing[:2]).to_numpy()
    assert (
        np.abs(few.changes - by_sign.changes[:, same]).max() < 0.05 * np.abs(by_sign.changes).max()
    )
    assert np.isnan(few.gram()).any()
    assert 1 <= equal_energy_prompts(few, 2) <= 2


@pytest.mark.parametrize(
    ("wrong", "field", "value"),
    [
        ({"blocks": "batch"}, "blocks", "batch"),
        ({"blocks": torch.zeros(2, 2)}, "blocks.shape", (2, 2)),
        ({"measured": [99]}, "measured", [99]),
    ],
    ids=str,
)
def test_what_makes_no_blocks_is_refused(sampled, wrong, field, value):
    with refused(field, value):
        block_coupling(*sampled, **wrong)


def test_half_precision_is_refused(sampled):
    _, rollouts = sampled
    with refused("dtype", "bfloat16"):
        block_coupling(load_policy("bundled", dtype="bfloat16"), rollouts)


@pytest.fixture
def by_hand():
    """Two prompts; a rollout of either sign in each, of one token: prompt 0's tokens are the same
    word, unsure.
    """
    tokens = pd.DataFrame(
        {
            "group": [0, 0, 1, 1],
            "position": [0, 0, 0, 0],
            "token_id": [7, 7, 7, 8],
            "logp": np.log([0.4, 0.4, 0.6, 0.4]),
            "category": ["a", "a", "a", "b"],
            "block": [0, 1, 2, 3],
            "push": [1.0, -1.0, 1.0, -1.0],
        }
    )
    about = pd.DataFrame({"group": [0, 0, 1, 1], "sign": [1, -1, 1, -1], "block": [0, 1, 2, 3]})
    about = about.assign(tokens=1, prompts=1)
    changes = np.array(
        [[4, 3, 1, 0], [-3, -4, -1, 0], [1, 1, 2, -1], [0, 0, 1, -2]], dtype=np.float32
    )
    pushing = tokens[["block", "group", "token_id", "logp", "push"]]
    return Blocks(changes, about.assign(norm=2.0, rms=0.01), tokens, pushing, 0.0)


def test_steps_and_categories_by_hand(by_hand):
    # one prompt alone moves its own tokens by 1, -1; and 3, -3: all four follow
    assert step_changes(by_hand, 1, draws=1)["change"].tolist() == [1, -1, 3, -3]
    # both prompts: 2, 0; and 3, -3: the zero does not follow
    assert step_changes(by_hand, 2, draws=1)["change"].tolist() == [2, 0, 3, -3]
    # the positive blocks alone: 4, 3; 2, -1; with the other prompt's 5, 4; 3, -1
    assert step_changes(by_hand, 1, draws=1, positive_only=True)["change"].tolist() == [4, 3, 2, -1]
    assert step_changes(by_hand, 2, draws=1, positive_only=True)["change"].tolist() == [5, 4, 3, -1]
    # prompt 1: of both signs 3 and 3, so a has 1/2; of positive blocks 2 and 1, so 2/3
    shift = category_shift(by_hand, 1, draws=1).set_index(["group", "category"])["shift"]
    assert shift[1, "a"] == pytest.approx(1 / 2 - 2 / 3)
    assert shift[0, "a"] == 0


def test_energy_and_mass_by_hand(by_hand):
    # gram = changes x push: a prompt's own energy is 4-3-3+4 = 2 and 2+1+1+2 = 6, positive ones' 4
    # and 2
    gram = by_hand.gram()
    assert np.array_equal(gram, by_hand.changes * [1, -1, 1, -1])
    # both: e = 4, c = ((1-0-1+0) + (1-1-0+0)) / 2 = 0; positive only: e = 3, c = 1, so its 2
    # prompts have 8, as both's
    assert equal_energy_prompts(by_hand, 2) == 2
    assert equal_energy_prompts(by_hand, 1) == 1
    table = coupling_by_mass(by_hand).set_index(["where", "kind"])
    own = table.loc["own prompt"]
    # blocks 0 and 1 move one another by 3 and -3 (net 3 and 3); block 2 moves word 8 by -1, block 3
    # word 7 by 1
    both_unsure, _, unsure, sure = PAIR_KINDS
    assert own["mass"].to_dict() == {both_unsure: 6 / 8, unsure: 1 / 8, sure: 1 / 8}
    assert own["pairs"].to_dict() == {both_unsure: 1 / 2, unsure: 1 / 4, sure: 1 / 4}
    assert own.loc[both_unsure, "net"] == 1
    assert own.loc[unsure, "net"] == -1
    assert table.loc["other prompts"]["mass"].sum() == pytest.approx(1)


def test_tables_refuse_what_they_cannot_tell(by_hand):
    with refused("prompts_per_step", 3):
        step_changes(by_hand, 3)
    mixed = replace(by_hand, blocks=by_hand.blocks.assign(sign=0))
    with refused("positive_only", True):
        category_shift(mixed, 1)
    with pytest.raises(ValueError, match="no categories"):
        category_shift(replace(by_hand, tokens=by_hand.tokens.assign(category=None)), 1)
