"""The cancelled share: its ends, parts that add up to a step, sets of words, curves, claims and
charts.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook.chapters.cancelled import ceiling, ceiling_chart, toy_rows
from workbook.chapters.cancelled.toy import toy_contexts
from workbook.probes import cancellation as probe
from workbook.probes.blocks import Blocks, block_coupling
from workbook.probes.cancellation import (
    LATER_RESULT,
    MATCHED_STYLE,
    PUSHER_PARTS,
    REMOVAL_ORDERS,
    RIGHT_RESULT,
    WRONG_RESULT,
    PushRows,
    cancelled_shares,
    prompt_rows,
)
from workbook.rollouts.sample import sample_rollouts
from workbook.studies import CLAIMS
from workbook.studies.cancelled import claims
from workbook.studies.cancelled.study import BY, REWARDS, cancelled_study, powers
from workbook.studies.registration import read_registration
from workbook.studies.unit import StudyUnit
from workbook.theory.advantages import group_advantages


@pytest.fixture(scope="module")
def toy():
    return toy_rows(prompts=6, rollouts=8)


@pytest.fixture(scope="module")
def sampled(policy, task):
    rollouts = sample_rollouts(policy, task, 7, 8, seed=0, max_new_tokens=48)
    return policy, rollouts, prompt_rows(policy, rollouts, 3)


@pytest.fixture(scope="module")
def tables():
    return cancelled_study(StudyUnit("tiny", 0))


def test_the_parts_of_a_toy_step_are_what_autograd_makes_of_it():
    """In float64, to first order: what W does to a token when every rollout pushes by its
    advantage.
    """
    hidden, logits = (tensor.flatten(0, 1) for tensor in toy_contexts(3, 0.6, 0.3))
    rows = toy_rows(3, 6, 0.6, 0.3, seed=2)
    tokens = rows.blocks.tokens
    context = torch.tensor((tokens["group"] * 4 + tokens["position"]).to_numpy())
    ids = torch.tensor(tokens["token_id"].to_numpy())
    # W with logits W h in all contexts
    weight = (torch.linalg.pinv(hidden) @ logits).T.requires_grad_()
    logps = (hidden @ weight.T).log_softmax(-1)[context, ids]
    weights = rows.weights()
    rewards, groups = (
        torch.tensor(rows.blocks.blocks[name].to_numpy()) for name in ("reward", "group")
    )
    assert weights.tolist() == group_advantages(rewards, groups).tolist()
    pushes = torch.tensor(weights)[tokens["block"].tolist()]
    [step] = torch.autograd.grad((pushes * logps).sum(), weight, retain_graph=True)
    pushing = np.unique(groups[weights != 0])
    parts = rows.parts(weights, len(pushing))
    for at in parts.index[::7]:
        [own] = torch.autograd.grad(logps[at], weight, retain_graph=True)
        assert float((own * step).sum()) == pytest.approx(
            parts.loc[at, list(PUSHER_PARTS)].sum(), abs=1e-10
        )


def test_expected_pushes_of_good_and_bad_rollouts_are_parallel():
    """(1 - q) grad q and q grad q, summed over all words of each place of the toy with their
    chances.
    """
    p = toy_contexts(1, 0.7, 0.0)[1][0].softmax(-1)  # (4, V)
    best, first, second = p.argmax(1), p[2].max(), p[3].max()
    chance = (first * second).repeat(p.shape)  # of reward 1 after each word
    chance[2:] = 0.0
    chance[2, best[2]], chance[3, best[3]] = second, first

    def push(advantage, chances):  # E[A (e - p)] over rollouts of one reward
        return advantage * (p * chances - p * (p * chances).sum(1, keepdim=True))

    q = float(first * second)
    up, down = push(1 - q, chance), push(-q, 1 - chance)
    assert torch.allclose(up / (1 - q), down / q, atol=1e-12)
    assert float(up.abs().max()) > 0.01


def test_the_ends_of_the_share():
    own = np.array([1.0, -2.0, 0.5])
    for other, share in ((-own, 1), (own, -1), (0 * own, 0)):
        parts = pd.DataFrame(
            {
                "sign": [1, -1, 1],
                "same": own,
                "other": other,
                "others_same": 0.0,
                "others_other": 0.0,
            }
        )
        row = cancelled_shares(pd.DataFrame([probe.set_sums(parts, np.ones(3))]))
        assert row[["within", "batch"]].to_numpy().tolist() == [[share, share]]
        beside = parts.assign(
            same=parts["same"] / 2, others_same=own / 2, others_other=other / 2, other=other / 2
        )
        assert cancelled_shares(pd.DataFrame([probe.set_sums(beside, np.ones(3))]))[
            "batch"
        ].tolist() == [share]


def hand_made():
    """One prompt, four rollouts of two words and a fifth result: 7 in three of them, first wrong
    results in two.
    """
    columns = {"rollout": [0, 0, 1, 1, 2, 2, 3, 3, 3], "token_id": [7, 1, 7, 1, 7, 2, 9, 2, 1]}
    tokens = pd.DataFrame(columns).assign(group=0, push=1.0)
    tokens["logp"] = np.log([0.5, 0.8, 0.95, 0.8, 0.5, 0.1, 0.5, 0.1, 0.5])
    tokens["credit"] = [0, 0.4, 0, 0.4, 0, -0.6, 0, -0.6, 0.1]
    tokens["category"] = np.where(tokens["credit"] == 0, "style", "result")
    tokens = tokens.assign(block=tokens["rollout"], position=tokens.groupby("rollout").cumcount())
    rows = {
        "group": 0,
        "sign": 1,
        "prompts": 1,
        "reward": [1.0, 1, 0, 0],
        "rollouts": 1,
        "last": range(4),
    }
    return PushRows(Blocks(np.ones((4, 9)), pd.DataFrame(rows), tokens, tokens, 0.0))


def test_classes_states_and_shared_words_by_hand():
    rows = hand_made()
    results = [kind for kind in rows.tokens["kind"] if kind != "style"]
    assert results == [RIGHT_RESULT, RIGHT_RESULT, WRONG_RESULT, WRONG_RESULT, LATER_RESULT]
    assert rows.tokens["step"].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert rows.tokens["value"].tolist() == [-1] * 8 + [2]
    assert probe.kinds(rows.tokens.assign(credit=np.nan)).tolist().count(RIGHT_RESULT) == 5
    sets = rows.sets(rows.parts(rows.weights()))
    where = {
        name: np.flatnonzero(sets["word", name]).tolist()
        for name in ("style", RIGHT_RESULT, WRONG_RESULT, LATER_RESULT)
    }
    assert where == {
        "style": [0, 4],
        RIGHT_RESULT: [1, 3],
        WRONG_RESULT: [],
        LATER_RESULT: [8],
    }  # the sure 7 counts, and does not stand here
    assert (
        np.flatnonzero(sets["word and state", RIGHT_RESULT]).tolist() == []
    )  # after another value
    assert np.flatnonzero(sets["any word", "all"]).tolist() == [0, 1, 3, 4, 5, 6, 7, 8]
    # of results below 0.6 that share, one: its cell has both style words
    assert sets["word", MATCHED_STYLE].sum() == 1


def test_weights_are_advantages_of_the_first_rollouts_and_permuted_ones(toy):
    rows = hand_made()
    assert rows.weights(2).tolist() == [0, 0, 0, 0]  # two right ones push nothing
    three = group_advantages(torch.tensor([1.0, 1, 0]).double(), torch.zeros(3)).tolist()
    assert rows.weights(3).tolist() == [*three, 0]
    permuted = [tuple(toy.weights(permuted=seed)) for seed in range(4)]
    assert len(set(permuted)) > 1
    for at in toy.blocks.blocks.groupby("group").indices.values():
        assert sorted(np.array(permuted[0])[at]) == sorted(toy.weights()[at])
    with refused("prompts", 9):
        toy.parts(toy.weights(), 9)
    with pytest.raises(ValueError, match="different rewards"):
        toy.parts(toy.weights(1))


def test_a_prompt_alone_does_not_depend_on_the_others_and_circles_cover_them(toy):
    one, all_of_them = (toy.sums(toy.weights(), n) for n in (1, 4))
    assert np.allclose(one[["own2", "cross"]], all_of_them[["own2", "cross"]])
    assert (one["others2"] == 0).all()
    assert all_of_them["others2"].sum() > 0


def test_rows_and_real_steps_agree_in_the_bundled_policy(sampled):
    """Parts by leaving out add up to the step; the sum of rows misses it by less than 2 % at 0.01
    nats.
    """
    policy, rollouts, rows = sampled
    before = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    group, *beside = rows.groups
    made = probe.left_out(policy, rollouts, rows, group, beside, [1e-2])
    made = {order: table for (_, order), table in made.items()}
    assert tuple(made) == REMOVAL_ORDERS
    unsure = rows.tokens["unsure"].to_numpy()[made[REMOVAL_ORDERS[0]].index]
    for order, parts in made.items():
        miss, real = (
            (parts[list(PUSHER_PARTS)].sum(axis=1) - parts["real"])[unsure],
            parts["real"][unsure],
        )
        assert np.sqrt((miss**2).mean() / (real**2).mean()) < (
            2e-2 if order == REMOVAL_ORDERS[0] else 1e-6
        )
    assert made[REMOVAL_ORDERS[0]]["real"][unsure].abs().mean() == pytest.approx(1e-2, rel=0.1)
    within = [made[order].loc[unsure, "other"] for order in REMOVAL_ORDERS]
    assert np.corrcoef(within).min() > 0.98
    assert torch.equal(before, torch.cat([p.detach().flatten() for p in policy.model.parameters()]))


def test_doublings_stand_for_their_rollouts(sampled):
    """Rows by sign of the later rollouts make the same parts as a row for each."""
    policy, rollouts, rows = sampled
    one = rollouts.select(rollouts.group_ids == rows.groups[0])
    fine, coarse = (probe.rollout_rows(policy, one, 4, alone) for alone in (8, 4))
    assert coarse.blocks.blocks["rollouts"].tolist()[:4] == [1, 1, 1, 1]
    assert coarse.blocks.blocks["rollouts"].sum() == 8
    a, b = (one.parts(one.weights())[list(PUSHER_PARTS[:2])].to_numpy() for one in (fine, coarse))
    assert np.sqrt(((a - b) ** 2).mean() / (a**2).mean()) < 0.05
    signs = one.advantages > 0
    gram = block_coupling(
        policy, one, signs.long()[:, None].expand(one.completion_ids.shape)
    ).gram()
    products = probe.sign_products(policy, one, [4, 8]).iloc[-1]
    cosine = products["product"] / np.sqrt(products["up2"] * products["down2"])
    assert cosine == pytest.approx(gram[0, 1] / np.sqrt(gram[0, 0] * gram[1, 1]), abs=0.01)


def test_the_study_leaves_sums_from_which_claims_read(tables):
    sums = tables["sums"].assign(seed=0)
    assert not sums.duplicated(BY).any()
    assert set(sums["rewards"]) == set(REWARDS)
    assert set(sums.loc[sums["curve"] == "rollouts", "size"]) == {8, 16}
    single = tables["tokens"]
    unsure = single["logp"] < np.log(0.9)
    assert single.loc[unsure, list(PUSHER_PARTS)].notna().all(axis=None)
    assert len(single) < 3000
    assert claims.cancelled_share_at({"cancelled/sums": sums}).between(-3, 1.5).all()
    assert np.isfinite(
        claims.cancelled_share_at({"cancelled/sums": sums}, size=8, column="batch")
    ).all()
    assert np.isfinite(claims.beyond_permuted({"cancelled/sums": sums})).all()
    rows = {"cancelled/products": tables["products"].assign(seed=0)}
    assert claims.cosine(rows, 16).between(-1, 1).all()
    errors = (
        tables["steps"]
        .query("order == @REMOVAL_ORDERS[0]")
        .groupby("nats")[["miss2", "real2"]]
        .first()
    )
    assert np.sqrt(errors["miss2"] / errors["real2"])[[1e-3, 1e-2]].max() < 2e-2


def test_every_registered_outcome_has_its_measure():
    assert set(claims.MEASURES["cancelled"]) == set(read_registration("cancelled").outcomes)
    assert [name for name in CLAIMS if name[0] == "C"] == ["C1", "C2", "C3", "C4"]
    assert powers(64, 8) == [8, 16, 32, 64]


def test_the_share_of_words_without_credit_falls_whatever_cancels():
    """Pushes on one context cancel exactly here: with two rollouts all of it, with 32 hardly any of
    a style word.
    """
    table = ceiling((2, 32), seeds=3)
    shares = table.set_index(["rollouts", "kind", "rewards"])["share"]
    assert shares.loc[2, "style"].tolist() == pytest.approx([1.0, 1.0]), "by reward, permuted"
    assert shares.loc[32, "style"].abs().max() < 0.2
    assert (
        shares.loc[32, RIGHT_RESULT, "by reward"]
        < -0.4
        < shares.loc[32, RIGHT_RESULT, "permuted"] - 0.2
    ), "credit shows below 0"
    assert "style, permuted, 32" in ceiling_chart(table).to_dict()["description"]


def test_on_words_that_both_signs_say_their_pushes_oppose_without_any_credit():
    """One context, three equally likely words, coin flips as rewards: mean cosine of the two signs
    on shared words.
    """
    rng, cosines = np.random.default_rng(0), []
    for _ in range(500):
        words, good = rng.integers(3, size=8), rng.random(8) < 0.5
        shared = np.isin(words, np.intersect1d(words[good], words[~good]))
        pushes = (good - good.mean())[:, None] * (np.eye(3)[words] - 1 / 3)
        up, down = pushes[shared & good].sum(0), pushes[shared & ~good].sum(0)
        if up @ up > 1e-9 and down @ down > 1e-9:
            cosines.append(up @ down / np.sqrt((up @ up) * (down @ down)))
    assert np.mean(cosines) < -0.5
