"""Toy groups: pushes are gradients, controls do what they say, charts tell the truth."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.chapters.grading import yours_or_ours
from workbook.chapters.groups import charts
from workbook.chapters.groups.exercises import four_rules
from workbook.chapters.groups.expected import (
    RULES,
    WEIGHTS,
    Word,
    compute_mixed,
    compute_parts,
    push_moments,
)
from workbook.chapters.groups.explore import (
    draw_word_pushes,
    explore_growing,
    explore_parts,
)
from workbook.chapters.groups.toy import (
    CLASSES,
    COMPARED,
    assign_signs,
    compute_growing,
    draw_groups,
    make_policy,
    push_on_logits,
    push_on_word,
    sum_pushes,
)
from workbook.theory.advantages import group_advantages
from workbook.theory.decomposition import expected_gain

TWO = pd.DataFrame(
    {
        "group": 0,
        "rollout": [0, 0, 0, 1, 1, 1],
        "position": [0, 1, 2] * 2,
        "token": ["start", "9", "now", "start", "8", "now"],
        "advantage": [1.0] * 3 + [-1.0] * 3,
        "logp": np.log([0.25, 0.7, 0.25, 0.25, 0.1, 0.25]),
    }
)


def test_pushes_add_up_in_a_context_and_two_groups_share_none():
    net = [0, 1, 0.75, 0, -1, -0.75]  # `start` cancels; behind `9` and `8` `now` stands alone
    np.testing.assert_allclose(sum_pushes(TWO, push_on_word), net, atol=1e-12)
    both = pd.concat([TWO, TWO.assign(group=1)], ignore_index=True)
    np.testing.assert_allclose(sum_pushes(both, push_on_word), net * 2, atol=1e-12)


@pytest.mark.parametrize(
    ("mine", "whose", "first"),
    [
        (None, "the workbook's", "A, 0, start: +0.00"),
        (lambda *_: None, "the workbook's", "A, 0, start: +0.00"),
        (lambda *_: 1 / 0, "the workbook's", "A, 0, start: +0.00"),
        (lambda *_: 0.5, "your function", "A, 0, start: +0.50"),
    ],
)
def test_a_readers_function_draws_or_the_workbooks_does(mine, whose, first, capsys):
    chart = draw_word_pushes(mine).to_dict()
    assert f"Drawn with {whose}" in capsys.readouterr().out
    assert first in chart["description"]


ZERO_SUM = ["grpo", "dr_grpo", "rloo"]


@pytest.fixture(scope="module")
def groups():
    return draw_groups(make_policy(64, spread=0.3), group_size=8, noise=0.1, seed=3)


@pytest.mark.parametrize("estimator", [*COMPARED, "negative_only"])
def test_net_push_equals_autograd(groups, estimator):
    advantages = groups.advantages(estimator)
    for name, push in groups.net_push(advantages).items():
        logits = torch.tensor(groups.probabilities[name]).log().requires_grad_()
        logps = logits.log_softmax(-1).gather(-1, torch.tensor(groups.tokens[name]))
        (torch.tensor(advantages) * logps).sum().backward()
        np.testing.assert_allclose(push, logits.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("estimator", ZERO_SUM)
def test_push_is_mass_times_difference_in_occurrence(groups, estimator):
    advantages = groups.advantages(estimator)
    mass = advantages.clip(min=0).sum(1, keepdims=True)
    alive = mass[:, 0] > 0
    assert 10 < alive.sum() <= 64
    for name, push in groups.net_push(advantages).items():
        plus, minus = groups.rates(advantages, name)
        np.testing.assert_allclose(push[alive], (mass * (plus - minus))[alive], atol=1e-9)
        assert np.abs(push[~alive]).max(initial=0) == 0
        everybody = (groups.tokens[name] == 0).all(1)
        assert np.abs(push[everybody]).max(initial=0) < 1e-9


@pytest.mark.parametrize("estimator", ZERO_SUM)
def test_matched_frequencies_are_equal_and_leave_nothing(groups, estimator):
    advantages = groups.advantages(estimator)
    weights = groups.match_frequencies(advantages)
    pushes = groups.net_push(advantages, weights)
    for name in CLASSES:
        assert (weights[name] >= 0).all()
        assert (weights[name] <= 1 + 1e-12).all()
        assert weights[name].max() > 0.5
        assert np.abs(pushes[name]).max() < 1e-9
        drawn = (
            np.eye(groups.probabilities[name].shape[-1])[groups.tokens[name]]
            * weights[name][..., None]
        )
        sides = [(drawn * (sign * advantages).clip(min=0)[..., None]).sum(1) for sign in (1, -1)]
        np.testing.assert_allclose(*sides, atol=1e-9)


@pytest.mark.parametrize("rule", ZERO_SUM)
def test_the_plain_rules_are_the_trainers(groups, rule):
    np.testing.assert_allclose(
        four_rules(torch.tensor(groups.rewards), rule), groups.advantages(rule), atol=1e-12
    )


def test_the_chapter_goes_on_with_an_answer_that_is_right(groups, capsys):
    trials = [(torch.tensor(groups.rewards), rule) for rule in ZERO_SUM]

    def mine(rewards, rule):
        return four_rules(rewards, rule)

    assert yours_or_ours(mine, four_rules, *trials, tolerance=1e-12) is mine
    for wrong in (
        lambda rewards, rule: None,
        lambda rewards, rule: rewards / 0,
        lambda rewards, rule: rewards.nothing,
        lambda rewards, rule: four_rules(rewards, "rloo"),
        lambda rewards, rule: four_rules(rewards, rule).float() + 1e-7,
    ):
        assert yours_or_ours(wrong, four_rules, *trials, tolerance=1e-12) is four_rules
    assert capsys.readouterr().out.count("own version") == 5


def test_the_chapter_goes_on_with_what_an_answer_returns(capsys):
    answers = iter([7, None, 8])
    either = yours_or_ours(lambda x: next(answers), lambda x: 2 * x)
    assert [either(3), either(3), either(3)] == [7, 6, 6]
    assert yours_or_ours(lambda x: 1 / x, lambda x: 2 * x)(0) == 0
    printed = capsys.readouterr().out
    assert printed.count("own version") == 2
    assert "ZeroDivisionError" in printed


def test_signs_are_permuted_among_the_same_sizes(groups):
    advantages = groups.advantages("grpo")
    shuffled = assign_signs(advantages, "shuffled", seed=1)
    assert (shuffled != advantages).any()
    np.testing.assert_array_equal(np.sort(shuffled, 1), np.sort(advantages, 1))
    np.testing.assert_array_equal(assign_signs(advantages, "all positive"), abs(advantages))
    np.testing.assert_array_equal(assign_signs(advantages, "by reward"), advantages)


def test_growing_ends_at_the_net_push_and_stops_at_the_group():
    tables = compute_growing(so_far=32, group_size=8, estimator="rloo", draw=2)
    bars, path, rollouts = tables["net"], tables["path"], tables["rollouts"]
    drawn = draw_groups(make_policy(8, 0.5), 8, seed=2)
    for name, push in drawn.net_push(drawn.advantages("rloo")).items():
        np.testing.assert_allclose(bars.loc[bars["class"] == name, "push"], push[0] / 8)
    assert bars["rollouts"].eq(8).all()
    assert (path.loc[path["rollouts"] == 0, "push"] == 0).all()
    assert len(rollouts) == 8
    assert rollouts["reward"].eq(rollouts["text"].str.endswith("9")).all()
    three = compute_growing(so_far=3)
    assert three["rollouts"]["seen"].sum() == 3
    assert three["path"].groupby("word")["seen"].sum().eq(4).all()  # the start and three rollouts
    assert compute_growing(so_far=0)["net"]["push"].eq(0).all()


POINTS = pd.DataFrame(
    {"series": "a", "group_size": [2, 4], "rms": [0.2, 0.1], "low": [0.1, 0.05], "high": [0.3, 0.2]}
)
MARKS = pd.DataFrame(
    {"estimator": "grpo", "class": CLASSES, "difference": [0, 0.1, 1], "push": [0, 0.1, 1]}
)


def test_charts_draw():
    for chart in (
        charts.frequency_chart(MARKS),
        charts.group_size_chart(POINTS),
        charts.baseline_chart(
            pd.DataFrame({"baseline": [0, 1], "noise": [0.5, 0.7]}), {"none": (0.0, 0.5)}
        ),
        charts.difficulty_chart(pd.DataFrame({"rule": "grpo", "success": [0, 1], "k": [2.4, 2.3]})),
    ):
        spec = chart.to_dict()
        assert spec["description"].startswith(spec["title"]["text"])


@pytest.mark.parametrize("explore", [explore_growing, explore_parts])
def test_explorers_reach_every_end_of_their_controls(explore):
    explorer = explore()
    first = explorer.sentence.value
    for name, control in explorer.controls.items():
        ends = (
            [control.min, control.max]
            if hasattr(control, "min")
            else getattr(control, "options", [True, False])
        )
        for end in ends:
            explorer.set(**{name: end})
            assert "color: inherit" in explorer.sentence.value, (name, end)
            for table in explorer.tables.values():
                assert np.isfinite(table.select_dtypes("number").to_numpy()).all()
        explorer.reset()
    assert explorer.sentence.value == first


def test_groups_that_hold_both_rewards_are_as_many_as_drawn_ones():
    rng = np.random.default_rng(0)
    table = compute_mixed(success=0.3, spread=0.25, rollouts=64)
    rows = table[table["series"] == "groups that hold both rewards"].set_index("group_size")
    q = rng.beta(0.3 * 3, 0.7 * 3, 200_000)
    for size in (2, 8):
        right = rng.binomial(size, q)
        assert ((right > 0) & (right < size)).mean() == pytest.approx(
            rows.loc[size, "mean"], abs=0.005
        )
    assert rows.loc[2, "prompts"] == 32
    assert rows.loc[8, "teaching"] == pytest.approx(8 * rows.loc[8, "mean"])


P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.9, 0.2, 0.4])


@pytest.fixture
def odd_word():
    """A sharper sampler's word, in rollouts whose weights know the word and the reward."""
    weight = np.array([[1.0, 0.5], [0.7, 0.9], [0.2, 1.0]])
    return Word(P, np.array([0.6, 0.3, 0.1]), Q, weight, weight**2)


def enumerated(word, size, rule):
    """Mean and covariance of the push over all groups of (word, reward)."""
    mean, square = 0.0, 0.0
    for group in itertools.product(itertools.product(range(3), (0, 1)), repeat=size):
        words, rewards = (list(column) for column in zip(*group, strict=True))
        odds = np.prod(
            [word.sampler[y] * (word.chance[y] if r else 1 - word.chance[y]) for y, r in group]
        )
        advantages = group_advantages(
            torch.tensor(rewards).double(), torch.zeros(size), rule
        ).numpy()
        push = (
            push_on_logits(words, advantages * word.weight[words, rewards], word.model).sum(0)
            / size
        )
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
    assert shares.loc[
        "style", ["signal (credit)", "signal, by coupling"]
    ].abs().max() == pytest.approx(0, abs=1e-12)


def test_bias_needs_a_sampler_or_weights_that_know_word_and_reward():
    def bias(**setting):
        shares = compute_parts(**setting).query("category == 'style' and part == 'bias'")["share"]
        return float(shares.iloc[0])

    assert bias(estimator="positive_only") == pytest.approx(0, abs=1e-12)
    assert bias(temperature=0.7) == pytest.approx(0, abs=1e-12)
    assert bias(temperature=0.7, estimator="positive_only") > 0.01
    assert bias(weights="1/length, right and wrong alike") == pytest.approx(0, abs=1e-12)
    assert bias(weights="1/length, wrong twice as long") > 0.01
