"""Credit recovered: against every completion of a tiny chain, a real small step, and explicit
Jacobians.
"""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from workbook.policies.load import Policy, load_policy
from workbook.policies.models import private_copy
from workbook.probes.recovered import (
    PUSH_PARTS,
    SIX_PARTS,
    Pushes,
    credit_recovered,
    exact_gradient,
)
from workbook.probes.values import TokenValues, expected_reward
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.tasks import get_task
from workbook.theory.advantages import group_advantages
from workbook.theory.choices import ESTIMATORS
from workbook.theory.decomposition import (
    context_index,
    expected_gain,
    ideal_pushes,
    realised_pushes,
    split_pushes,
)

WORDS, LENGTH = 2, 3
COMPLETIONS = torch.tensor(list(itertools.product(range(WORDS), repeat=LENGTH)))  # (8, 3)
REWARDS = torch.tensor([0.0, 1, 1, 0, 0, 0, 1, 0])  # of each completion


@pytest.fixture(scope="module")
def tiny():
    """A Llama of two words in double precision, with what it thinks of every completion."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = LlamaConfig(
        vocab_size=WORDS, initializer_range=0.8, eos_token_id=None, pad_token_id=None, **sizes
    )
    policy = Policy(LlamaForCausalLM(config).double().eval(), None, {})
    every = logps(policy, batch(COMPLETIONS, 8))  # (8, 3)
    return SimpleNamespace(policy=policy, chances=every.sum(1).exp(), steps=every.exp())


def batch(completions, group_size, rewards=None):
    """Rollouts of one prompt per group."""
    count, ones = len(completions), torch.ones(len(completions), LENGTH)
    return Rollouts(
        prompt_ids=torch.zeros(count, 1, dtype=torch.long),
        prompt_mask=torch.ones(count, 1, dtype=torch.long),
        completion_ids=completions,
        completion_mask=ones.long(),
        group_ids=torch.arange(count) // group_size,
        rewards=torch.zeros(count).double() if rewards is None else rewards.double(),
        advantages=torch.ones(count),
        old_logps=0 * ones,
        entropies=0 * ones,
    )


def value_after(chances, prefix) -> float:
    """Expected reward of the completions that begin with a prefix."""
    begins = (COMPLETIONS[:, : len(prefix)] == torch.tensor(prefix, dtype=torch.long)).all(1)
    return float((chances * REWARDS)[begins].sum() / chances[begins].sum())


def values_of(tiny, completions) -> TokenValues:
    q = torch.tensor(
        [
            [
                [value_after(tiny.chances, [*row[:t], word]) for word in range(WORDS)]
                for t in range(LENGTH)
            ]
            for row in completions.tolist()
        ]
    ).double()
    after = q.gather(2, completions.unsqueeze(2)).squeeze(2)
    before = torch.tensor(
        [
            [value_after(tiny.chances, row[:t]) for t in range(LENGTH)]
            for row in completions.tolist()
        ]
    )
    ids = torch.arange(WORDS).expand(*completions.shape, WORDS)
    prompt = torch.full((len(completions),), value_after(tiny.chances, [])).double()
    return TokenValues(q, ids, 0 * after, before.double(), after, after > -1, prompt)


def groups_of(tiny, size):
    """Every multiset of completions of this size, with its probability."""
    for rows in itertools.combinations_with_replacement(range(len(COMPLETIONS)), size):
        orders = math.factorial(size) / math.prod(
            math.factorial(rows.count(row)) for row in set(rows)
        )
        yield list(rows), orders * float(tiny.chances[list(rows)].prod())


def exact(tiny):
    """Gradient of the enumerated expected reward."""
    model = tiny.policy.model
    logits = model(torch.cat([torch.zeros(8, 1, dtype=torch.long), COMPLETIONS], dim=1)).logits[
        :, :-1
    ]
    chosen = logits.log_softmax(-1).gather(2, COMPLETIONS.unsqueeze(2)).sum((1, 2))
    parts = torch.autograd.grad((chosen.exp() * REWARDS).sum(), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize(
    ("size", "rules"), [(2, ["dr_grpo", "known_credit", "positive_only"]), (3, ["grpo"])]
)
def test_expectation_over_every_completion_of_a_tiny_chain(tiny, size, rules):
    sums = {rule: torch.zeros(3, len(exact(tiny))).double() for rule in rules}
    expected = {rule: torch.zeros(len(exact(tiny))).double() for rule in rules}
    for rows, chance in groups_of(tiny, size):
        rollouts = batch(COMPLETIONS[rows], size, REWARDS[rows])
        pushes = Pushes(tiny.policy, rollouts, values_of(tiny, rollouts.completion_ids))
        for rule in rules:
            parts = pushes.split(rule, 0)
            # the same for every group
            constant = split_pushes(pushes.realised, pushes.ideal, pushes.gain, scale=1.0)
            signal, noise, total = pushes.directions([constant.signal, parts.noise, parts.total])
            sums[rule] += chance * torch.stack([signal, noise, total])
            expected[rule] += chance * float(pushes.gain[0]) * signal
    for rule, (signal, noise, total) in sums.items():
        size_of = exact(tiny).norm()
        # the signal is the exact policy gradient
        assert float((signal - exact(tiny)).norm() / size_of) < 1e-6
        assert float(noise.norm() / size_of) < 1e-6
        assert float((total - expected[rule]).norm() / size_of) < 1e-6
        assert float((total - brute_force(tiny, rule, size)).norm() / size_of) < 1e-6
    if "known_credit" in rules:
        cosine = torch.nn.functional.cosine_similarity(sums["known_credit"][2], exact(tiny), dim=0)
        assert abs(float(cosine) - 1) < 1e-5


def brute_force(tiny, rule, size):
    """Expected update by E[A | completion] over all groups in order, one backward pass, and no
    context anywhere.
    """
    model = tiny.policy.model
    logits = model(torch.cat([torch.zeros(8, 1, dtype=torch.long), COMPLETIONS], dim=1)).logits[
        :, :-1
    ]
    scored = logits.log_softmax(-1).gather(2, COMPLETIONS.unsqueeze(2)).squeeze(2)
    if rule == "known_credit":
        advantages = values_of(tiny, COMPLETIONS).credit
    else:
        orders = torch.tensor(list(itertools.product(range(8), repeat=size)))  # (8^G, G)
        groups = torch.arange(len(orders)).repeat_interleave(size)
        given = group_advantages(REWARDS[orders].flatten().double(), groups, rule).view_as(orders)[
            :, 0
        ]
        others = tiny.chances[orders[:, 1:]].prod(1)
        advantages = torch.zeros(8).double().index_add(0, orders[:, 0], others * given).unsqueeze(1)
    parts = torch.autograd.grad(
        (tiny.chances.unsqueeze(1) * advantages * scored).sum(), list(model.parameters())
    )
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("rule", ESTIMATORS)
def test_gain_against_every_batch_of_two_prompts(rule):
    chances = torch.tensor(
        [[0.4, 0.1, 0.3, 0.2], [0.05, 0.6, 0.15, 0.2]], dtype=torch.float64
    )  # of 4 completions, per prompt
    rewards = torch.tensor([[1.0, 0, 0, 1], [0, 1, 0, 1]]).double()
    picks = torch.tensor(list(itertools.product(range(4), repeat=4)))  # two rollouts of each prompt
    prompt = torch.tensor([0, 0, 1, 1])
    weight = chances[prompt, picks].prod(1)
    given = torch.stack([group_advantages(rewards[prompt, row], prompt, rule) for row in picks])
    values = (chances * rewards).sum(1)
    gains = expected_gain(rule, values, 2)
    for first in (0, 2):  # a rollout of each prompt
        reward = rewards[prompt[first], picks[:, first]]
        means = [
            (weight * given[:, first])[reward == r].sum() / weight[reward == r].sum()
            for r in (0, 1)
        ]
        torch.testing.assert_close(gains[first // 2], means[1] - means[0], rtol=1e-10, atol=1e-12)


def test_pushes_worked_by_hand():
    context = context_index(torch.zeros(2), torch.tensor([[0, 1], [1, 1]]), torch.ones(2, 2))
    assert context.tolist() == [[0, 1], [0, 2]]
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])
    pushes = realised_pushes(
        torch.tensor([1.0, 1, -1, -1]), torch.tensor([0, 1, 1, 1]), context.flatten(), probs
    )
    assert pushes.tolist() == [[1.0, -1.0], [-0.5, 0.5], [1.0, -1.0]]
    ideal = ideal_pushes(
        torch.tensor([2, 1, 1]), probs, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.3, 0.9]])
    )
    torch.testing.assert_close(ideal, torch.tensor([[0.375, -0.375], [-0.25, 0.25], [0.0, 0.0]]))
    parts = split_pushes(pushes, ideal, torch.tensor([1.0, 0.5, 0.5]))
    squares = [2 * 0.375**2, 2 * 0.25**2]
    assert parts.scale == pytest.approx((squares[0] + 0.5 * squares[1]) / sum(squares))
    torch.testing.assert_close(parts.total, pushes)
    torch.testing.assert_close(
        parts.signal + parts.bias, torch.tensor([[1.0], [0.5], [0.5]]) * ideal
    )


@pytest.fixture(scope="module")
def double(task):
    """The bundled policy in double precision and a batch in which groups share contexts."""
    policy = load_policy("bundled")
    policy.model.double()
    rollouts = sample_rollouts(policy, task, 2, 4, seed=100)
    return SimpleNamespace(
        policy=policy, task=task, rollouts=replace(rollouts, rewards=rollouts.rewards.double())
    )


def test_six_parts_add_up_to_a_real_small_step(double):
    recovered = credit_recovered(double.policy, double.rollouts, "grpo", double.task, tokens=8)
    tokens, lr = recovered.tokens, 1e-4  # Llama's norms compute in single precision
    assert set(tokens["category"]) == {"copy", "eos", "result", "style", "template"}
    assert tokens["weight"].sum() == pytest.approx(int(double.rollouts.completion_mask.sum()))
    rows = torch.tensor(tokens[["rollout", "position"]].to_numpy()).T
    rollouts = double.rollouts
    moved = []
    for sign in (1, -1):
        mine = private_copy(double.policy)
        weights = list(mine.model.parameters())
        advantages = group_advantages(rollouts.rewards, rollouts.group_ids).unsqueeze(1)
        scored = double_logps(mine, rollouts)
        gradient = torch.autograd.grad((advantages * scored).sum() / len(rollouts), weights)
        with torch.no_grad():
            for weight, g in zip(weights, gradient, strict=True):
                weight += sign * lr * g
        moved.append(logps(mine, rollouts)[tuple(rows)])
    real = (moved[0] - moved[1]) / (2 * lr)
    torch.testing.assert_close(
        torch.tensor(tokens["change"].to_numpy()), real, rtol=2e-3, atol=5e-3
    )
    torch.testing.assert_close(
        tokens[list(SIX_PARTS)].sum(axis=1).to_numpy(), tokens["change"].to_numpy()
    )
    shares = recovered.shares.set_index("category")
    assert (shares[list(PUSH_PARTS)].sum(axis=1) - 1).abs().max() < 1e-9
    assert shares.loc["all", "coupling"] == pytest.approx(
        shares.loc["all", [f"coupled_{p}" for p in PUSH_PARTS]].sum()
    )
    assert "of the squared movement is signal of the step's own prompts" in str(recovered)


def double_logps(policy, rollouts):
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], dim=1)
    mask = torch.cat([rollouts.prompt_mask, rollouts.completion_mask], dim=1)
    logits = policy.model(input_ids=ids, attention_mask=mask).logits[
        :, rollouts.prompt_ids.shape[1] - 1 : -1
    ]
    scored = logits.log_softmax(-1).gather(2, rollouts.completion_ids.unsqueeze(2)).squeeze(2)
    return scored * rollouts.completion_mask


def test_own_changes_against_explicit_jacobians(tiny):
    rows = [1, 1, 2, 6]  # two of them are the same, and all share the first context
    rollouts = batch(COMPLETIONS[rows], 4, REWARDS[rows])
    recovered = credit_recovered(
        tiny.policy, rollouts, "grpo", values=values_of(tiny, rollouts.completion_ids), tokens=None
    )
    pushes = Pushes(tiny.policy, rollouts, values_of(tiny, rollouts.completion_ids))
    parts = pushes.split("grpo", 0)
    logits = pushes._logits(torch.arange(4))
    for i, t in itertools.product(range(4), range(LENGTH)):
        jacobian = []
        for word in range(WORDS):
            gradient = torch.autograd.grad(
                logits[i, t, word], list(tiny.policy.model.parameters()), retain_graph=True
            )
            jacobian.append(torch.cat([g.flatten() for g in gradient]))
        jacobian = torch.stack(jacobian)  # (V, D)
        c = pushes.context[i, t]
        score = torch.eye(WORDS).double()[rollouts.completion_ids[i, t]] - pushes.probs[c]
        row = recovered.tokens.query("rollout == @i and position == @t")
        for part in PUSH_PARTS:
            own = score @ jacobian @ jacobian.T @ getattr(parts, part)[c]
            assert row[f"own_{part}"].item() == pytest.approx(float(own), rel=1e-5, abs=1e-8)
    assert math.isnan(recovered.update["cosine"])  # no exact gradient was given


def test_the_exact_gradient_is_the_slope_of_the_exact_value(policy):
    task, step, values = get_task("chain"), 1e-3, []
    prompts = task.dataset(2, 3)["prompt"]
    gradient, mine = exact_gradient(policy, task, prompts), private_copy(policy)
    trained = [p for p in mine.model.parameters() if p.requires_grad]
    for length in (step, -2 * step):  # from where it was to one side, and from there to the other
        for p, move in zip(
            trained, (gradient / gradient.norm()).split([p.numel() for p in trained]), strict=True
        ):
            p.data += length * move.view_as(p)
        values.append(float(expected_reward(mine, task, prompts).double().mean()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(gradient.norm()), rel=1e-2)


def test_the_oracle_and_permuted_advantages_are_the_bounds(double):
    rules = {
        rule: credit_recovered(double.policy, double.rollouts, rule, double.task, tokens=2)
        for rule in ("known_credit", "permuted")
    }
    assert rules["known_credit"].scale == 1
    assert rules["known_credit"].update["bias"] == 0
    assert rules["known_credit"].update["oracle_rollouts"] == pytest.approx(len(double.rollouts))
    assert rules["permuted"].update["noise"] == pytest.approx(1)
    assert rules["permuted"].update["oracle_rollouts"] == 0
    # the contexts that were visited stand for all
    assert rules["known_credit"].update["expected_cosine"] > 0.9


def test_a_batch_that_pushes_nothing_recovers_nothing(double):
    alike = replace(double.rollouts, rewards=torch.ones(len(double.rollouts)).double())
    recovered = credit_recovered(double.policy, alike, "grpo", double.task, tokens=2)
    assert recovered.shares[[*PUSH_PARTS, "coupling"]].isna().all(axis=None)
    assert math.isnan(recovered.update["signal"])
