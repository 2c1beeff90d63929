"""Credit rules against numbers worked by hand, and what every rule must do at the edges and under
permutation.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from small_run import SMALL, bundled_trainer

from workbook.messages import InvalidValue
from workbook.theory import coupling_kernel
from workbook.theory.credit import LAZY, CreditBatch
from workbook.theory.credit_controls import REWARD_FREE, majority_vote, worst_token_reset
from workbook.theory.credit_edits import aligned, edit_mask, ibpo
from workbook.theory.credit_rules import CREDIT_RULES, RULES, check_estimator, credit_table
from workbook.training import CancellationConfig, CancellationTrainer

# give credit in groups of equal rewards, and say so
OFF_GROUP = (*REWARD_FREE, "entropy_penalty", "known_credit", "worst_token_reset")
RANDOM = ("coin_reward", "permuted")  # permuting rollouts gives them other draws


@dataclass(frozen=True)
class States:
    """What a rule may ask of batch.states."""

    hidden: torch.Tensor
    logits: torch.Tensor
    tokens: torch.Tensor

    def select(self, index):
        return States(self.hidden[index], self.logits[index], self.tokens[index])

    def kernel(self):
        return coupling_kernel(self.hidden, self.logits, self.tokens)


def continued(rollouts, prefixes):
    """A policy that ends every completion at once and is right after an even sum."""
    return [float(sum(prefix) % 2 == 0) for prefix in prefixes], len(prefixes)


def known(ids, mask, seed=0):
    """Log-probabilities, states and credit that depend on each row alone, so that they move with
    it.
    """
    mask, dtype = mask.bool(), torch.float64
    place = torch.arange(ids.shape[1])
    noise = torch.sin(ids * 12.9 + place * 78.2 + ids[:, :1] + seed).to(dtype)  # (B, T)
    logps = (-noise.abs() - 0.01).masked_fill(~mask, 0.0)
    vectors = torch.stack([torch.cos(noise[mask] * k) for k in range(1, 11)], dim=1)  # (N, 10)
    states = States(vectors[:, :3], vectors, ids[mask])
    scores = {"old_logps": logps, "logps": logps, "entropies": -2 * logps, "known_credit": logps}
    return scores | {"states": states, "answers": [str(int(row[0])) for row in ids]}


def make(rewards, ids, mask=None, groups=None, step=0, continuation=continued, **lazy):
    ids = torch.as_tensor(ids)
    mask = torch.ones_like(ids) if mask is None else torch.as_tensor(mask)
    groups = torch.zeros(len(ids)) if groups is None else torch.as_tensor(groups)
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    return CreditBatch(
        rewards, groups, ids, mask, step=step, continuation=continuation, **known(ids, mask) | lazy
    )


def spread(advantages, batch):
    return (
        advantages.unsqueeze(1) * batch.mask
        if advantages.ndim == 1
        else advantages.masked_fill(~batch.mask, 0.0)
    )


# --- numbers worked by hand
IDS = [[1, 2, 3, 9], [1, 2, 4, 9], [1, 5, 6, 9]]
CENTRED = "dr_grpo"


def rule(name, batch, **settings):
    return CREDIT_RULES[name].function(batch, **settings)


A, B = 2 / 3, -1 / 3
FILTERED = torch.tensor(
    [[-1.0, -2, -3, -4], [-1, -3, -2, -1], [-2, -1, -0.5, 0]], dtype=torch.float64
)
BY_HAND = [
    # three rollouts share token 1, two of them token 2; all else stands alone, the common end too
    ("lambda_grpo", {}, {}, [[A / 3, A / 2, A, A], [B / 3, B / 2, B, B], [B / 3, B, B, B]]),
    # token 1 and the end stand in rollouts of both signs; 2 of rollout 1 too, and 5 does not
    ("gtpo", {}, {}, [[2 * A, 2 * A, A, 2 * A], [0, 0, B, 0], [0, B, B, 0]]),
    # of four tokens, a quarter is one: the least probable
    (
        "negative_token_filtering",
        {"keep": 0.25},
        {"old_logps": FILTERED},
        [[A] * 4, [0, B, 0, 0], [B, 0, 0, 0]],
    ),
]


@pytest.mark.parametrize(("name", "settings", "known", "expected"), BY_HAND, ids=lambda value: None)
def test_rules_by_hand(name, settings, known, expected):
    advantages = rule(name, make([1, 0, 0], IDS, **known), advantages=CENTRED, **settings)
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64))


def test_advantage_reweighting_by_hand():
    logps = torch.tensor([[math.log(0.5), 0.0], [math.log(0.25), 0.0]], dtype=torch.float64)
    advantages = rule(
        "advantage_reweighting", make([1, 0], [[1, 2], [1, 3]], logps=logps), advantages=CENTRED
    )
    expected = [[0.5 * 0.9, 0.5], [-0.5 * 0.85, -0.5]]
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64))


def test_balanced_aggregation_is_the_papers_objective_under_a_mean_over_tokens():
    """Two groups of unequal lengths: the batch's mean over tokens = mean of both groups' BA
    objectives.
    """
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]])
    batch = make([1, 0, 0, 1, 0], torch.arange(20).view(5, 4), mask, groups=[0, 0, 0, 1, 1])
    weights = spread(rule("balanced_aggregation", batch), batch)
    plain, value = (
        spread(batch.group_advantages("grpo"), batch),
        torch.sin(batch.completion_ids.double()),
    )
    aggregated = 0.0
    for rows in ([0, 1, 2], [3, 4]):
        for side in (
            [row for row in rows if plain[row, 0] > 0],
            [row for row in rows if plain[row, 0] < 0],
        ):
            tokens = batch.mask[side]
            aggregated += len(side) * (plain[side] * value[side])[tokens].mean() / 5
    assert float((weights * value).sum() / mask.sum()) == pytest.approx(
        float(aggregated), rel=1e-12
    )


def test_coupling_rules_by_hand():
    """The rules against the whole kernel, and scores worked by hand in orthogonal contexts.

    Rollouts [a, b] right, [a, c] wrong; the first tokens' contexts are equal, all others
    orthogonal. p is uniform over 4 words, so K of the two a is (3/4)^2 + 3/16 = 3/4, and 0 between
    contexts.
    """
    hidden = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    states = States(hidden, torch.zeros(4, 4, dtype=torch.float64), torch.tensor([0, 1, 0, 2]))
    batch = make([1, 0], [[0, 1], [0, 2]], states=states)
    # s of the wrong rollout: 3/4 and 0; the right one's mean: 3/4, which nothing exceeds with beta
    # = 1
    assert rule("nthr", batch, advantages=CENTRED).tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    # p = 1/2 gives eta = 0: the shared token of the wrong rollout is spared
    assert rule("nthr", batch, beta=0.9, advantages=CENTRED).tolist() == [[0.5, 0.5], [0.0, -0.5]]
    # THR of the wrong rollout's first token is -3/4: it makes the right one less likely; the last
    # token's is 0
    hidden_reward = rule("token_hidden_reward", batch, p=0.2, dominant=False, advantages=CENTRED)
    torch.testing.assert_close(
        hidden_reward, torch.tensor([[0.6, 0.6], [-0.4, -0.5]], dtype=torch.float64)
    )


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_influence_is_the_kernels_sum_over_right_tokens(seed):
    draws = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 5, (6, 4), generator=draws)
    mask = torch.tensor(
        [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    )
    states = States(
        *(torch.randn(int(mask.sum()), width, generator=draws).double() for width in (3, 5)),
        ids[mask > 0],
    )
    batch = make([1, 0, 0, 1, 0, 1], ids, mask, groups=[0, 0, 0, 0, 0, 0], states=states)
    kernel, right = (
        states.kernel(),
        (batch.rewards == 1).unsqueeze(1).expand_as(batch.mask)[batch.mask],
    )
    influence = torch.zeros(ids.shape, dtype=torch.float64)
    influence[batch.mask] = kernel[:, right].sum(1)
    threshold = min(float(influence[row][batch.mask[row]].mean()) for row in (0, 3))
    plain = spread(batch.group_advantages("grpo"), batch)
    spared = (plain < 0) & (influence > threshold)
    torch.testing.assert_close(
        rule("nthr", batch, eta=0.25), torch.where(spared, 0.25 * plain, plain)
    )
    weights = torch.where(
        right, 1 / batch.mask.sum(1).unsqueeze(1).expand_as(batch.mask)[batch.mask], 0.0
    )
    influence[batch.mask] = kernel @ weights.double()
    threshold = min(float(influence[row][batch.mask[row]].mean()) for row in (0, 3))
    dominant = (influence.abs() > threshold) & batch.mask
    expected = plain * (1 + 0.1 * (influence * plain).sign()) * dominant
    torch.testing.assert_close(rule("token_hidden_reward", batch), expected)
    assert spared.any()
    assert dominant.any()
    assert not dominant[batch.mask].all()


# --- edits
sequences = st.lists(st.integers(0, 3), max_size=8)


def distance(first, second):
    """Levenshtein's recursion, as it is written."""
    if not first or not second:
        return len(first) + len(second)
    if first[0] == second[0]:
        return distance(first[1:], second[1:])
    return 1 + min(
        distance(first[1:], second[1:]), distance(first[1:], second), distance(first, second[1:])
    )


@settings(max_examples=200, deadline=None)
@given(first=sequences, second=sequences)
def test_alignments_are_levenshteins(first, second):
    shortest = distance(first, second)
    kept = aligned(first, second)
    pairs = [(i, place) for i, place in enumerate(kept) if place is not None]
    assert len(kept) == len(first)
    assert all(first[i] == second[place] for i, place in pairs)
    stops = [(-1, -1), *pairs, (len(first), len(second))]
    edits = [
        max(i - before_i, j - before_j) - 1 for (before_i, before_j), (i, j) in pairwise(stops)
    ]
    assert min(edits) >= 0  # in order: between two kept tokens an edit costs the longer side
    assert sum(edits) == shortest


def test_edit_mask_by_hand():
    """The nearest correct sibling of [1, 5, 3, 9] is [1, 2, 3, 9], one substitution away, not [1,
    7, 8, 9].
    """
    batch = make([1, 0, 1], [[1, 7, 8, 9], [1, 5, 3, 9], [1, 2, 3, 9]])
    third = 1 / 3
    expected = [[third] * 4, [0, -2 * third, 0, 0], [third] * 4]
    torch.testing.assert_close(
        edit_mask(batch, "dr_grpo"), torch.tensor(expected, dtype=torch.float64)
    )


def test_ibpo_by_hand():
    """Two failing rollouts; the correction [1, 3] of the first is right, [1, 2, 4] of the second is
    not.

    R' = 1, 0.3, 0: mean 13/30.
    """
    asked = []

    def continuation(rollouts, prefixes):
        asked.extend(zip(rollouts.tolist(), prefixes, strict=True))
        return [1.0, 0.0], 11

    batch = make([1, 0, 0], [[1, 2, 4], [1, 5, 4], [1, 2, 6]], continuation=continuation)
    advantages = ibpo(batch, estimator="dr_grpo")
    assert asked == [(1, [1, 2]), (2, [1, 2, 4])]
    assert batch.sampled_tokens == 11
    mean = 1.3 / 3
    expected = [[1 - mean] * 3, [0, 0.3 - mean, 0], [0, 0, -mean]]
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64))


# --- controls
def test_permuted_gives_each_group_its_own_advantages():
    batch = make(
        [1, 0, 0, 0.5, 1, 0, 0, 1], torch.arange(8).view(8, 1), groups=[0, 1, 0, 1, 0, 1, 0, 1]
    )
    plain, shuffled = batch.group_advantages("grpo"), rule("permuted", batch)
    for rows in batch.groups():
        assert torch.equal(plain[rows].sort().values, shuffled[rows].sort().values)
    assert not torch.equal(plain, shuffled)


def test_entropy_minimization_is_the_gradient_of_minus_the_entropy():
    """In expectation over the words of one context, as autograd has it."""
    logits = torch.randn(
        5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    logps = logits.log_softmax(0)
    entropy = -(logps.exp() * logps).sum()
    (expected,) = torch.autograd.grad(-entropy, logits, retain_graph=True)
    words, each = torch.arange(5)[:, None], torch.ones(5, 1)
    batch = make(
        torch.zeros(5),
        words,
        each,
        logps=logps.detach()[:, None],
        entropies=entropy.detach() * each,
    )
    # each word as often as it is drawn
    pushes = rule("entropy_minimization", batch).squeeze(1) * logps.exp().detach()
    (given,) = torch.autograd.grad((pushes * logps).sum(), logits)
    torch.testing.assert_close(given, expected)
    assert expected.abs().max() > 0.01


def test_an_entropy_penalty_is_plain_minus_a_tenth_of_the_entropys_gradient():
    """One context, every word drawn as often as it is likely: E[A grad log p] of plain, and - 0.1
    grad H.
    """
    logits = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    logps = logits.log_softmax(0)
    entropy, p = -(logps.exp() * logps).sum(), logps.exp().detach()
    rewards = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    (expected,) = torch.autograd.grad(
        (p * (rewards - 1 / 3) * logps).sum() - 0.1 * entropy, logits, retain_graph=True
    )
    known = {"logps": logps.detach()[:, None], "entropies": entropy.detach() * torch.ones(3, 1)}
    batch = make(rewards, torch.arange(3)[:, None], **known)
    (given,) = torch.autograd.grad(
        (rule("entropy_penalty", batch).squeeze(1) * p * logps).sum(), logits
    )
    torch.testing.assert_close(given, expected)
    assert "entropy_penalty" not in REWARD_FREE
    plain = batch.group_advantages(CENTRED)
    torch.testing.assert_close(
        rule("entropy_penalty", batch, share=0.0).squeeze(1), plain, rtol=0, atol=0
    )


def test_sequence_logp_centres_the_sum_over_tokens():
    old = torch.tensor([[-1.0, -2.0], [-0.5, -0.5], [-1.0, 0.0]], dtype=torch.float64)
    given = rule("sequence_logp", make([0, 0, 0], [[1, 2], [1, 3], [1, 4]], old_logps=old))
    assert given.tolist() == pytest.approx([-4 / 3, 2 / 3, 2 / 3])


def test_a_majority_needs_answers_and_ties_count():
    ids = [[1], [2], [3], [4], [5]]
    given = majority_vote(make([1, 0, 0, 0, 0], ids, answers=["7", "4", "4", None, "7"]), CENTRED)
    assert given.tolist() == pytest.approx([0.2, 0.2, 0.2, -0.8, 0.2])
    assert majority_vote(make([1, 0, 0, 0, 0], ids, answers=[None] * 5)).abs().sum() == 0


def test_worst_token_reset_by_hand():
    """A failing rollout is pushed on its worst token alone, by its reward less that of what is
    written there anew.
    """
    asked = []

    def continuation(rollouts, prefixes):
        asked.extend(zip(rollouts.tolist(), prefixes, strict=True))
        return [1.0, 0.0, 1.0, 1.0], 9

    credit = torch.tensor([[0.5, 0, 0], [0.25, -0.5, -0.25], [-1.0, 0, 0]], dtype=torch.float64)
    batch = make(
        [1, 0, 0.5],
        [[1, 2, 4], [1, 5, 4], [3, 2, 6]],
        continuation=continuation,
        known_credit=credit,
    )
    given = worst_token_reset(batch, samples=2)
    assert asked == [(1, [1]), (1, [1]), (2, []), (2, [])]
    assert batch.sampled_tokens == 9
    assert given.tolist() == [[0.5] * 3, [0, -0.5, 0], [-0.5, 0, 0]]
    nothing = worst_token_reset(
        make([1, 1], [[1], [2]], known_credit=torch.zeros(2, 1, dtype=torch.float64))
    )
    assert nothing.abs().sum() == 0


# --- what holds for every rule
def mixed():
    """Groups of both signs, of one sign, of one rollout; completions of several lengths, one with a
    hole, one empty.
    """
    draws = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 4, (11, 6), generator=draws)
    ids[:, 0] = 1
    lengths = torch.tensor([6, 4, 5, 6, 0, 3, 3, 6, 2, 6, 5])
    mask = (torch.arange(6) < lengths[:, None]).long()
    mask[2, 2] = 0
    rewards = [1, 0, 0.5, 0, 0, 1, 1, 0, 0, 0.1, 1]
    groups = [7, 7, 7, 7, 7, 2, 2, 0, 0, 5, 7]
    return rewards, ids, mask, torch.tensor(groups)


@pytest.mark.parametrize("name", [name for name in RULES if name not in OFF_GROUP])
@pytest.mark.parametrize("rewards", [[0, 0, 0], [1, 1, 1], [0.1, 0.1, 0.1]])
def test_groups_of_equal_rewards_and_of_one_give_exactly_zero(name, rewards):
    """All wrong, all right, a reward that a plain mean would round; beside them a group that has
    signal.
    """
    ids = [[1, 2], [1, 3], [2, 3], [3, 3], [1, 2], [1, 4]]
    advantages = rule(name, make([*rewards, 1, 1, 0], ids, groups=[0, 0, 0, 1, 2, 2]))
    assert advantages[:4].abs().sum() == 0
    assert advantages[4:].abs().sum() > 0


@pytest.mark.parametrize("name", [name for name in RULES if name not in RANDOM])
def test_permuting_rollouts_permutes_the_result_and_padding_changes_nothing(name):
    rewards, ids, mask, groups = mixed()
    order = torch.randperm(11, generator=torch.Generator().manual_seed(1))
    plain = make(rewards, ids, mask, groups)
    wider = (
        torch.cat([ids, ids[:, :2]], 1)[order],
        torch.cat([mask, torch.zeros(11, 2).long()], 1)[order],
    )
    moved = make(torch.tensor(rewards, dtype=torch.float64)[order], *wider, groups[order])
    expected, padded = (spread(rule(name, batch), batch) for batch in (plain, moved))
    torch.testing.assert_close(padded[:, :6], expected[order], rtol=1e-9, atol=1e-12)
    assert padded[:, 6:].abs().sum() == 0


@pytest.mark.parametrize("name", RULES)
def test_a_rule_asks_for_nothing_but_its_needs(name):
    """It runs on a batch that knows its needs alone, and says what is missing on one that knows
    nothing.
    """
    needs = CREDIT_RULES[name].needs
    full = make([1, 0, 0], IDS)
    bare = (full.rewards, full.group_ids, full.completion_ids, full.mask)
    lazy = {
        key: value for key, value in known(full.completion_ids, full.mask).items() if key in needs
    }
    batch = CreditBatch(*bare, continuation=continued if "continue_from" in needs else None, **lazy)
    expected = rule(name, full)
    assert CREDIT_RULES[name].applies(batch)
    assert torch.equal(rule(name, batch), expected)
    assert set(needs) <= {*LAZY, "continue_from"}
    if needs:
        assert not CREDIT_RULES[name].applies(CreditBatch(*bare))
        with pytest.raises(InvalidValue, match=r"^batch\."):
            rule(name, CreditBatch(*bare))


# --- the registry
def test_a_former_name_is_valid_and_not_offered():
    """Registrations, committed tables and older configs say oracle."""
    check_estimator("oracle")
    assert CREDIT_RULES["oracle"] is CREDIT_RULES["known_credit"]
    assert "known_credit" in RULES
    assert "oracle" not in RULES


def test_the_table_evaluates_each_rule_as_if_alone():
    batch = make(*mixed())
    table = credit_table(batch)
    assert tuple(table) == RULES
    for name in RULES:
        alone = make(*mixed())
        torch.testing.assert_close(table[name], spread(rule(name, alone), alone), rtol=0, atol=0)
    two = credit_table(
        batch, {"twice": lambda batch: 2 * batch.rewards, "plain": lambda batch: batch.rewards}
    )
    assert torch.equal(two["twice"], 2 * two["plain"])
    assert tuple(credit_table(batch, ["rloo", "gtpo"])) == ("rloo", "gtpo")
    with refused("rule", "best"):
        credit_table(batch, ["best"])


# --- on the bundled policy
def test_lopti_trains_low_probability_first_and_the_others_next_on_the_same_rollouts(tmp_path):
    """Two optimizer steps on one generation batch: every token that has an advantage is pushed in
    one of them.
    """
    twice = {
        "max_steps": 2,
        "num_iterations": 2,
        "per_device_train_batch_size": 8,
        "steps_per_generation": 1,
    }
    args = CancellationConfig(
        str(tmp_path), advantage_estimator="lopti", record_tokens=1, **SMALL | twice
    )
    bundled_trainer(CancellationTrainer, args, prompts=2).train()
    first, second = (pd.read_parquet(path) for path in sorted(tmp_path.glob("tokens/*.parquet")))
    assert first["token_id"].equals(second["token_id"])
    signal = first.groupby("group")["reward"].transform("nunique") > 1
    low = first["old_logp"] < math.log(0.5)
    assert (first["advantage"] != 0).equals(signal & low)
    assert (second["advantage"] != 0).equals(signal & ~low)
    assert (signal & low).any()
    assert (first["push"] != 0).equals(signal & low)  # on the first step nothing is clipped
