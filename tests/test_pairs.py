"""Pairs of pushes: parts that sum to the whole change, whichever way they are computed, and
statistics that decide.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook.chapters.cancelled.toy import toy_contexts, toy_tokens
from workbook.probes.agreement import cell_correlation, falls, pushed_by
from workbook.probes.directions import Along
from workbook.probes.pairs import (
    OTHER_PROMPT_KINDS,
    OWN_KINDS,
    PromptPairs,
    cancellation_by_pair,
    prompt_pairs,
)
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.teaching import by_hand
from workbook.tasks import get_task
from workbook.theory.coupling import coupling_kernel

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def rollouts(policy):
    """Two prompts whose rewards differ."""
    drawn = sample_rollouts(policy, get_task("chain"), 12, 4, seed=3)
    mixed = [
        group
        for group in drawn.group_ids.unique()
        if drawn.advantages[drawn.group_ids == group].any()
    ]
    return drawn.select(torch.isin(drawn.group_ids, torch.stack(mixed[:2])))


def brute_force(tokens, gram, advantages, sign, word, context):
    """What one kind of pair does to each token, pair by pair."""
    changes = np.zeros(len(tokens))
    for i in range(len(tokens)):
        for j in range(len(tokens)):
            alike = {
                "sign": np.sign(advantages[i]) == np.sign(advantages[j]),
                "word": tokens["token_id"][i] == tokens["token_id"][j],
                "context": tokens["context"][i] == tokens["context"][j],
            }
            wanted = {"sign": sign == "same", "word": word == "same", "context": context == "same"}
            if i != j and alike == wanted:
                changes[i] += gram[i, j] * advantages[j]
    return changes


def test_pairs_of_the_toy_are_those_of_its_exact_kernel():
    hidden, logits = toy_contexts(1, p_right=0.6, cosine=0.2)
    tokens = toy_tokens(logits, rollouts=6, seed=1)
    places = torch.tensor(tokens["position"].to_numpy())
    gram = coupling_kernel(
        hidden[0][places], logits[0][places], torch.tensor(tokens["token_id"].to_numpy())
    ).numpy()
    tokens["context"] = tokens["position"]  # each place of the toy is a softmax of its own
    advantages = (tokens["reward"] - tokens["reward"].mean()).to_numpy()
    assert len(np.unique(np.sign(advantages))) == 2
    split = PromptPairs(tokens, gram).split(advantages)
    for name in OWN_KINDS[1:]:
        sign, _, word, _, context, _ = name.split("_")
        expected = brute_force(tokens, gram, advantages, sign, word, context)
        np.testing.assert_allclose(split[name], expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(split["self"], np.diag(gram) * advantages, rtol=0, atol=1e-10)
    np.testing.assert_allclose(split.sum(axis=1), gram @ advantages, rtol=0, atol=1e-10)


def test_streamed_pairs_are_those_of_all_gradients(policy, rollouts):
    one = rollouts.select(rollouts.group_ids == rollouts.group_ids[0]).select([0, 1])
    together, streamed = (next(prompt_pairs(policy, one, way)) for way in (False, True))
    alive, weights = one.completion_mask.bool(), list(policy.model.parameters())
    gradients = []
    with torch.enable_grad():
        scored = scores(policy.model, one)
        for rollout, position in alive.nonzero().tolist():
            slopes = torch.autograd.grad(scored[rollout, position], weights, retain_graph=True)
            gradients.append(torch.cat([slope.flatten() for slope in slopes]).double())
    expected = (torch.stack(gradients) @ torch.stack(gradients).T).numpy()
    for pairs in (together, streamed):
        assert np.abs(pairs.gram - expected).max() < 1e-5 * np.abs(expected).max()


def test_kinds_sum_to_the_change_by_the_whole_batch(policy, rollouts):
    table = cancellation_by_pair(policy, rollouts)
    along = Along(policy)
    pushes = torch.where(rollouts.completion_mask.bool(), rollouts.advantages[:, None], 0.0)
    change = along.change(rollouts, along.gradient_of(rollouts, pushes))
    expected = (
        change[tuple(torch.tensor(table[["rollout", "position"]].to_numpy()).T)].double().numpy()
    )
    assert np.abs(table["change"] - expected).max() < 1e-5 * np.abs(expected).max()
    assert (table[OTHER_PROMPT_KINDS].abs().sum() > 0).all()
    assert (table["logp"] < np.log(0.9)).all()


def test_what_cannot_be_split_is_refused(policy, rollouts):
    from dataclasses import replace

    idle = replace(rollouts, advantages=torch.zeros_like(rollouts.advantages))
    with refused("rollouts", idle):
        cancellation_by_pair(policy, idle)
    each = replace(rollouts, advantages=torch.ones_like(rollouts.old_logps))
    with refused("rollouts.advantages.shape", tuple(each.advantages.shape)):
        cancellation_by_pair(policy, each)


# --- the statistic, where its value is known


def test_credit_made_by_cancelling_pairs_is_all_of_the_correlation():
    table = by_hand.hand_built_arm()
    assert falls(table)["correlation"] == pytest.approx(1)
    assert by_hand.excess_share_by_hand(table) == pytest.approx(1)


def test_without_credit_nothing_falls_and_with_it_in_one_context_much():
    """numpy's own generator: the same numbers on every machine."""
    none, known = (falls(by_hand.bandit_pairs(10, 8, spread, steps=400)) for spread in (0.0, 0.25))
    assert abs(none["correlation"]) < 0.05
    assert abs(none["excess"]) < 0.05
    assert known["correlation"] > 0.2
    assert known["excess"] / known["correlation"] > 0.2


def test_with_two_words_the_rival_returns_what_is_taken():
    two = falls(by_hand.bandit_pairs(2, 8, 0.25, steps=400))
    assert abs(two["excess"] / two["correlation"]) < 0.05


def test_a_twin_is_scaled_down_to_the_size_of_what_cancels():
    table = by_hand.bandit_pairs(10, 8, 0.25, steps=50)
    numbers = falls(table)
    for name in ("same sign, same word", "other sign, other words", "same sign, other words"):
        ratio = pushed_by(table, "cancelling").abs().sum() / pushed_by(table, name).abs().sum()
        assert numbers[f"size of {name}"] == pytest.approx(min(1, ratio))


def test_cells_are_compared_about_their_own_means():
    cells = [pd.Series([0, 0, 1, 1])]
    change, credit = pd.Series([1.0, 2.0, 11.0, 12.0]), pd.Series([0.0, 1.0, -5.0, -4.0])
    assert cell_correlation(change, credit, cells) == pytest.approx(1)
    assert cell_correlation(change * 0, credit, cells) == 0
    assert np.isnan(cell_correlation(change, credit * 0, cells))


def test_masks_and_halves_gain_nothing_without_credit_and_differ_with_it():
    assert all(value == 0 for value in by_hand.gains(10, 8, 0.0, steps=20).values())
    gains = by_hand.gains(10, 8, 0.25, steps=200)
    assert gains["specific"] > gains["specific, permuted signs"]
    assert gains["shared"] < gains["shared, permuted signs"]
    assert gains["top"] > gains["bottom"] > 0
