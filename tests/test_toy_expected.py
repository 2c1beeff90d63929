"""What a toy group pushes in expectation and by chance: enumeration of all groups says the same."""

import itertools

import numpy as np
import pytest
import torch

from workbook.theory.advantages import group_advantages
from workbook.theory.decomposition import expected_gain
from workbook.topics.groups.expected import RULES, WEIGHTS, Word, compute_parts, push_moments, toy_words
from workbook.topics.groups.many_groups import describe_toy_parts, explore_parts
from workbook.topics.groups.toy import push_on_logits

P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.9, 0.2, 0.4])


@pytest.fixture
def odd_word():
    """A word that a sharper sampler draws, in rollouts whose weights know the word and the reward."""
    weight = np.array([[1.0, 0.5], [0.7, 0.9], [0.2, 1.0]])
    return Word(P, np.array([0.6, 0.3, 0.1]), Q, weight, weight**2)


def enumerated(word, size, rule):
    """Mean and covariance of the push over all groups of (word, reward)."""
    mean, square = 0.0, 0.0
    for group in itertools.product(itertools.product(range(3), (0, 1)), repeat=size):
        words, rewards = (list(column) for column in zip(*group, strict=True))
        odds = np.prod([word.sampler[y] * (word.chance[y] if r else 1 - word.chance[y]) for y, r in group])
        advantages = group_advantages(torch.tensor(rewards).double(), torch.zeros(size), rule).numpy()
        push = push_on_logits(words, advantages * word.weight[words, rewards], word.model).sum(0) / size
        mean, square = mean + odds * push, square + odds * np.outer(push, push)
    return mean, square - np.outer(mean, mean)


@pytest.mark.parametrize("rule", RULES)
def test_closed_form_is_the_sum_over_all_groups(rule, odd_word):
    for word in (Word.plain(P, Q), odd_word):
        for ours, brute in zip(push_moments(word, 3, rule), enumerated(word, 3, rule), strict=True):
            np.testing.assert_allclose(ours, brute, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_the_mean_push_is_the_policy_gradient_times_the_gain_of_the_rule(rule):
    word = Word.plain(P, Q)
    gain = float(expected_gain(rule, torch.tensor([word.model @ word.chance]), 5))
    np.testing.assert_allclose(push_moments(word, 5, rule)[0], gain * word.ideal, atol=1e-7)
    logits = torch.tensor(P).log().requires_grad_()
    (logits.softmax(0) @ torch.tensor(Q)).backward()
    np.testing.assert_allclose(word.ideal, logits.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "setting", [{}, {"prompts": 5, "cosine": 0.5, "temperature": 0.7, "weights": list(WEIGHTS)[2]}]
)
def test_parts_add_up_and_words_without_credit_have_no_signal(setting):
    table = compute_parts(**setting)
    np.testing.assert_allclose(table.groupby("category")["share"].sum(), 1)
    shares = table.pivot(index="category", columns="part", values="share")
    assert shares.loc["style", ["signal (credit)", "signal, by coupling"]].abs().max() == pytest.approx(0, abs=1e-12)
    assert describe_toy_parts(table).startswith("All: ")


def test_bias_needs_a_sampler_or_weights_that_know_word_and_reward():
    def bias(**setting):
        shares = compute_parts(**setting).query("category == 'style' and part == 'bias'")["share"]
        return float(shares.iloc[0])

    assert bias(estimator="positive_only") == pytest.approx(0, abs=1e-12)
    assert bias(temperature=0.7) == pytest.approx(0, abs=1e-12)
    assert bias(temperature=0.7, estimator="positive_only") > 0.01
    assert bias(weights="1/length, right and wrong alike") == pytest.approx(0, abs=1e-12)
    assert bias(weights="1/length, wrong twice as long") > 0.01


def test_settings_out_of_range_are_named():
    with pytest.raises(ValueError, match="cosine"):
        compute_parts(cosine=2)
    with pytest.raises(ValueError, match="weights"):
        toy_words(weights="other")
    explorer = explore_parts()
    explorer.set(prompts=8, group_size=2)
    assert explorer.tables["table"]["tokens"].iloc[0] == 16
    explorer.close()
