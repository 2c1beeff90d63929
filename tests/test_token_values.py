"""Token values: a brute force over every continuation, and exact values on the chain task."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from workbook.policies.load import Policy, load_policy
from workbook.probes import token_values
from workbook.probes.values import exact_pool
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.scoring import sequence_logps
from workbook.tasks import Task, get_task

WORDS = ["<pad>", "<eos>", "a", "b", "c"]
LIMIT = 4


class Counting(Task):
    """Pays a third for every `a`, nothing where `b` ends it; the answer is a factor."""

    name = "counting"

    def dataset(self, n, seed=0):
        rows = [
            {"prompt": "a b c"[: 1 + 2 * (i % 3)], "answer": str(1 + i % 2), "bonus": i % 2}
            for i in range(n)
        ]
        return rows

    def score(self, completion, answer, bonus=0, **row):
        words = completion.split()
        return 0.0 if words[-1:] == ["b"] else words.count("a") / (2 + int(answer)) / (1 + bonus)


def tiny():
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "vocab_size": len(WORDS),
        "initializer_range": 0.5,
    }
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
    config = LlamaConfig(**sizes, **heads, eos_token_id=1, pad_token_id=0)
    return Policy(LlamaForCausalLM(config).double().eval(), tokenizer, {})


def brute_force(policy, task, rollouts, rollout, length):
    """The value of a prefix by scoring every completion that begins with it."""
    prefix = rollouts.completion_ids[rollout, :length].tolist()
    wholes = []
    for more in range(LIMIT - length + 1):
        for new in itertools.product(range(len(WORDS)), repeat=more):
            whole = prefix + list(new)
            if 1 not in whole[:-1] and (whole[-1] == 1 or len(whole) == LIMIT):
                wholes.append(whole)
    expected = total = 0.0
    prompt, mask = (
        getattr(rollouts, name)[rollout : rollout + 1] for name in ("prompt_ids", "prompt_mask")
    )
    for whole in wholes:
        ids = torch.tensor([whole])
        with torch.no_grad():
            logps, _ = sequence_logps(policy.model, prompt, mask, ids, torch.ones_like(ids))
        p = float(logps[0, length:].sum().exp())
        text = policy.tokenizer.decode(whole, skip_special_tokens=True)
        reward = task.score(text, rollouts.answers[rollout], **rollouts.extras[rollout])
        expected, total = expected + p * reward, total + p
    assert total == pytest.approx(1)
    return expected


@pytest.fixture(scope="module")
def small():
    policy, task = tiny(), Counting()
    return (
        policy,
        task,
        sample_rollouts(policy, task, task.dataset(6), 3, seed=1, max_new_tokens=LIMIT),
    )


@pytest.fixture(scope="module")
def chain():
    policy, task = load_policy("bundled"), get_task("chain")
    return policy, task, sample_rollouts(policy, task, 16, 8, seed=0, max_new_tokens=48)


def test_sampled_values_agree_with_a_brute_force(small):
    policy, task, rollouts = small
    table = token_values(policy, task, rollouts, 200, tokens=None, seed=3, max_new_tokens=LIMIT)
    places = zip(table["rollout"], table["position"] + 1, strict=True)
    exact = pd.Series(
        [brute_force(policy, task, rollouts, *place) for place in places], table.index
    )
    sampled = table["value_se"] > 0
    z = ((table["value"] - exact) / table["value_se"])[sampled]
    assert z.abs().max() < 4.5
    assert abs(z.mean()) < 3 / len(z) ** 0.5 * 2  # prefixes of one prompt share continuations
    np.testing.assert_allclose(table["value"][~sampled], exact[~sampled], atol=0.02)
    whole = table.groupby("rollout").agg(
        {"credit_mc": "sum", "value_before": "first", "reward": "first"}
    )
    np.testing.assert_allclose(
        whole["value_before"] + whole["credit_mc"], whole["reward"], atol=1e-6
    )


def test_sampled_values_agree_with_exact_ones_on_the_chain(chain):
    policy, task, rollouts = chain
    _, table = exact_pool(policy, task, rollouts)
    picked = table[table["category"] == "result"].groupby("rollout").sample(1, random_state=0)
    places = rollouts.token_table().set_index(["rollout", "position"]).index
    chosen = places.isin(picked.set_index(["rollout", "position"]).index)
    continuations = 64
    sampled = token_values(policy, task, rollouts, continuations, chosen, seed=5, max_new_tokens=48)
    both = picked.merge(sampled, on=["rollout", "position"], suffixes=("", "_sampled"))
    se = (both["value"] * (1 - both["value"]) / continuations) ** 0.5
    z = ((both["value_sampled"] - both["value"]) / se)[both["value"].between(0.02, 0.98)]
    assert len(z) > 50
    assert abs(z.mean()) < 3 / len(z) ** 0.5
    assert 0.8 < z.std() < 1.2
    assert both["credit_mc"].corr(both["credit"].astype(float)) > 0.6


def test_what_has_ended_is_worth_its_reward_and_nothing_is_left_behind(chain):
    policy, task, rollouts = chain
    before = [p.clone() for p in policy.model.parameters()]
    state = torch.get_rng_state()
    table = rollouts.token_table()
    last = table.groupby("rollout").tail(1).index
    ended = token_values(policy, task, rollouts, tokens=last, max_new_tokens=48, credit=False)
    assert (ended["value"] == ended["reward"]).all()
    assert (ended["value_se"] == 0).all()
    again = [
        token_values(
            policy, task, rollouts.select(slice(0, 4)), tokens=2, seed=seed, max_new_tokens=48
        )
        for seed in (0, 0, 1)
    ]
    assert again[0].equals(again[1])
    assert not again[0].equals(again[2])
    assert again[0].groupby("rollout").size().eq(2).all()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before, strict=True))


def test_what_can_not_be_valued_is_refused(small):
    policy, task, rollouts = small
    with refused("continuations", 1):
        token_values(policy, task, rollouts, 1)
    with refused("max_new_tokens", 1):
        token_values(policy, task, rollouts, max_new_tokens=1)
    with refused("tokens", 999):
        token_values(policy, task, rollouts, tokens=[999])
