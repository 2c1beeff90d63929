"""Exact values of the chain task: against enumeration where the policy is a Markov chain, else
against sampling.
"""

from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from torch import nn
from transformers import LlamaConfig

from workbook.policies.load import Policy
from workbook.policies.small import make_model, make_tokenizer
from workbook.probes.chain_values import prompt_slots
from workbook.probes.values import exact_values, expected_reward, value_error
from workbook.rollouts.sample import sample_rollouts, written_rollouts
from workbook.tasks import get_task
from workbook.tasks.chain import OPENINGS, RAMBLE, Chain

WORLDS = {  # task, prompt, and results of chains to look at
    "plain": (Chain(operands=2, modulus=3), "2 - 1 =", ([0], [1])),
    "ways": (Chain(operands=2, modulus=2, ways=4, forced_words=4), "1 - 1 =", ([0], [1])),
    "links": (Chain(operands=2, modulus=2, free_words=4, ramble=3), "1 + 1 =", ([0], [1])),
    "steps": (
        Chain(operands=3, modulus=2, free_words=0, reward_by="steps"),
        "1 + 1 - 1 =",
        ([0, 1], [1, 1]),
    ),
}


CLOSE = {"rtol": 1e-6, "atol": 1e-9}  # nine words in a row that say nothing are left out


class MarkovModel(nn.Module):
    """A policy for one prompt that looks at the slot, the running value, the way and whether it
    rambled alone.

    Before the first result it knows only distances from the running value; after it each has words
    of its own.
    """

    def __init__(self, task, prompt, tokenizer):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.task, self.tokenizer = task, tokenizer
        self.config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1)
        self.numbers, self.operators = task.parse_prompt(prompt)
        self.slots = task.slots(len(self.operators))
        self.first = next(t for t, slot in enumerate(self.slots) if slot.field == "result")
        shape = (len(self.slots), task.modulus, task.ways, 2, len(tokenizer))
        table = torch.randn(shape, generator=generator).double()
        for t, slot in enumerate(self.slots):  # it mostly keeps to the grammar
            table[t, ..., tokenizer.convert_tokens_to_ids(list(slot.words))] += 6
        self.table = nn.Parameter(table)

    device, dtype = torch.device("cpu"), torch.float64

    def logits(self, ids: tuple[int, ...]) -> torch.Tensor:
        """Logits of the word after these words of a completion."""
        t, value, way, rambled = self.place(ids)
        if t > self.first:
            return self.table[t, value, way, rambled]
        row, slot, m = self.table[t, 0, way, 0], self.slots[t], self.task.modulus
        if slot.field not in ("a", "result"):
            return row
        centre = (
            self.task.step_result(value, self.operators[0], self.numbers[1])
            if slot.field == "result"
            else value
        )
        digits = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(self.task._residues)))
        return row.index_copy(0, digits, row[digits[(torch.arange(m) - centre) % m]])

    def place(self, ids) -> tuple[int, int, int, int]:
        """The slot after these words, what the running value is or amounts to, the way, and whether
        some ramble.
        """
        t, value, way, step = 0, 0, 0, self.task.step_result
        words = self.tokenizer.convert_ids_to_tokens(list(ids))
        for word in words:
            if word in RAMBLE:
                continue
            slot = self.slots[min(t, len(self.slots) - 1)]
            right, number = self.operators[max(0, slot.step)], self.numbers[slot.step + 1]
            if self.task.ways > 1 and t == 0 and word in OPENINGS:
                way = OPENINGS.index(word)
            if word.isdigit() and slot.field in ("start", "a", "result", "final"):
                value = int(word)
            elif slot.field == "op" and word in "+-":
                value += step(0, word, number) - step(0, right, number)
            elif slot.field == "b" and word.isdigit():
                value += step(0, right, int(word)) - step(0, right, number)
            t += 1
        return (
            min(t, len(self.slots) - 1),
            value % self.task.modulus,
            way,
            int(not {*RAMBLE}.isdisjoint(words)),
        )

    def forward(self, input_ids, logits_to_keep, **_):
        start = input_ids.shape[1] - logits_to_keep + 1
        rows = [
            [self.logits(tuple(row[start : start + t].tolist())) for t in range(logits_to_keep)]
            for row in input_ids
        ]
        return SimpleNamespace(logits=torch.stack([torch.stack(row) for row in rows]))


@pytest.fixture(scope="module", params=WORLDS)
def world(request):
    """Task, prompt, the Markov policy of it, and chains of that prompt."""
    task, prompt, results = WORLDS[request.param]
    tokenizer = make_tokenizer(task)
    model = MarkovModel(task, prompt, tokenizer)
    rambles = [("hm", "er")] * len(results[0]) if task.ramble else None
    texts = [
        task.render(prompt, results=row, rambles=None if i else rambles)
        for i, row in enumerate(results)
    ]
    return task, prompt, Policy(model, tokenizer, {}), texts


def enumerated(task, prompt, policy, ids: tuple[int, ...] = (), rambled: int = 0) -> torch.Tensor:
    """Expected reward after these words, over every completion in the words of a chain."""
    t = policy.model.place(ids)[0]
    slot, p = policy.model.slots[t], policy.model.logits(ids).softmax(-1)
    score = torch.tensor(
        task.score(policy.tokenizer.decode(list(ids)), task.solve(prompt))
    ).double()
    if slot.category == "eos":
        return score
    words, rambles = (
        policy.tokenizer.convert_tokens_to_ids(list(these)) for these in (slot.words, slot.before)
    )
    # what was earned before it stays
    value = (1 - p[words + rambles].sum()) * score * (task.reward_by == "steps")
    # after which this policy goes on alike
    if slot.category == "style" and (t > 0 or task.ways == 1):
        value = value + p[words].sum() * enumerated(task, prompt, policy, (*ids, words[0]))
    else:
        value = value + sum(
            p[word] * enumerated(task, prompt, policy, (*ids, word)) for word in words
        )
    if rambles and rambled < 8:  # more of them are too rare to matter
        value = value + p[rambles].sum() * enumerated(
            task, prompt, policy, (*ids, rambles[0]), rambled + 1
        )
    return value


@torch.no_grad()
def test_values_of_a_markov_policy_are_those_of_every_completion(world):
    task, prompt, policy, texts = world
    exact = enumerated(task, prompt, policy)
    assert 0.01 < exact < 0.95
    torch.testing.assert_close(expected_reward(policy, task, [prompt]), exact[None], **CLOSE)
    rollouts = written_rollouts(
        policy, task, [{"prompt": prompt, "answer": task.solve(prompt)}], [texts]
    )
    values = exact_values(policy, task, rollouts)
    dense = values.dense(len(policy.tokenizer))
    assert values.inside.eq(rollouts.completion_mask.bool()).all()
    for row, (ids, mask) in enumerate(
        zip(rollouts.completion_ids, rollouts.completion_mask, strict=True)
    ):
        ids = ids[: mask.sum()].tolist()
        for t in range(len(ids) - 1):
            if t % 8:  # every eighth is enough
                continue
            before = enumerated(task, prompt, policy, tuple(ids[:t]))
            torch.testing.assert_close(values.before[row, t], before, **CLOSE)
            slot = policy.model.slots[policy.model.place(ids[:t])[0]]
            for word in (*slot.words[:3], *slot.before[:1]):
                token = policy.tokenizer.convert_tokens_to_ids(word)
                after = enumerated(task, prompt, policy, (*ids[:t], token))
                torch.testing.assert_close(dense[row, t, token], after, **CLOSE)
        # what ends the completion changes nothing
        assert abs(values.credit[row, len(ids) - 1]) < 1e-12


def test_the_gradient_is_that_of_the_enumerated_value(world):
    task, prompt, policy, _ = world
    (exact,) = torch.autograd.grad(enumerated(task, prompt, policy), policy.model.table)
    value = expected_reward(policy, task, [prompt], differentiable=True)
    (ours,) = torch.autograd.grad(value.sum(), policy.model.table)
    torch.testing.assert_close(ours, exact, **CLOSE)
    assert not expected_reward(policy, task, [prompt]).requires_grad


def test_values_of_the_bundled_policy_against_sampling(policy):
    error = value_error(policy, get_task("chain"), 8, 64, seed=5)
    assert error["noise"] < 0.03
    assert abs(error["bias"]) < 3 * error["noise"] + 0.01
    assert error["rms"] < 0.06


def test_values_are_off_by_what_the_sampled_rewards_say(policy):
    """Against the definition, on the same completions."""
    task = get_task("chain")
    rewards = sample_rollouts(policy, task, 4, 32, 2, task.longest).rewards.view(4, 32)
    gap = expected_reward(policy, task, task.dataset(4, 2)["prompt"]) - rewards.mean(1)
    error = value_error(policy, task, 4, 32, seed=2)
    assert error["bias"] == pytest.approx(float(gap.mean()), abs=1e-6)
    noise = rewards.var(1) / 32
    assert error["noise"] == pytest.approx(float(noise.mean().sqrt()) / 2, abs=1e-6)
    assert error["rms"] ** 2 == pytest.approx(
        max(0.0, float((gap.square() - noise).mean())), abs=1e-6
    )


def test_false_negatives_scale_values(policy):
    task, plain = Chain(false_negative_rate=0.25), get_task("chain")
    prompts = plain.dataset(3)["prompt"]
    torch.testing.assert_close(
        expected_reward(policy, task, prompts), 0.75 * expected_reward(policy, plain, prompts)
    )


def test_more_words_that_say_nothing_change_no_value_and_each_right_step_is_paid():
    task, prompt = Chain(operands=3, ramble=5, reward_by="steps"), "5 - 6 + 3 ="
    policy, row = (
        Policy(untrained(task), make_tokenizer(task), {}),
        {"prompt": prompt, "answer": "9 2"},
    )
    text = task.render(prompt, rambles=[("hm", "er", "hm"), ("um",)])
    rollouts = written_rollouts(policy, task, [row], [[text]])
    values, words = exact_values(policy, task, rollouts), rollouts.tokens[0]
    assert values.inside.all()
    # but the first, after which it may differ
    for t in (words.index("er"), len(words) - 1 - words[::-1].index("hm")):
        assert values.after[0, t] == values.after[0, t - 1]
    paid = [word for t, word in enumerate(words) if values.credit[0, t] > 0.4]
    assert paid == ["9", "2"], "half of the reward each"
    assert values.after[0, -1] == 1


def test_words_of_a_private_alphabet_and_equivalents_are_admitted():
    task = Chain(alphabets=4, confidence=0.8)
    prompts = task.dataset(8, 5)["prompt"]
    prompt = next(prompt for prompt in prompts if "'" in prompt)
    slots = prompt_slots(task, prompt)
    mark = "'" + prompt.split()[0].partition("'")[2]
    assert all(word.endswith(mark) for slot in slots[:-1] for word in slot.words)
    assert next(slot.words for slot in slots if slot.field == "op") == ("+" + mark, "-" + mark)
    assert slots[1].words == ("with" + mark, "at" + mark)
    assert "<eos>" in slots[-1].words
    policy = Policy(untrained(task), make_tokenizer(task), {})
    values = expected_reward(policy, task, prompts)
    # 44 words in a row, of 120 that are all as likely
    assert ((values >= 0) & (values < 1e-6)).all()


def untrained(task):
    tokenizer = make_tokenizer(task)
    return make_model(tokenizer, 8, max_new_tokens=48)


def test_a_token_off_the_grammar_takes_all_value_away(policy):
    task = get_task("chain")
    prompt = "5 - 6 + 3 + 1 - 7 ="
    text = task.render(prompt)
    rows = [{"prompt": prompt, "answer": task.solve(prompt)}]
    words = text.split()
    stray, copied = [*words[:11], ";", *words[11:]], [*words[:12], "8", *words[13:]]
    rollouts = written_rollouts(policy, task, rows, [[text, " ".join(stray), " ".join(copied)]])
    values = exact_values(policy, task, rollouts)
    assert values.inside[1].sum() == 12  # up to the second ";" and no further
    assert values.after[1, 11:].eq(0).all()
    assert values.credit[1, 12:].eq(0).all()
    assert values.credit[2, 12] < -0.3  # a false copy
    torch.testing.assert_close(values.credit[1, 11], -values.before[1, 11])


def test_what_has_no_exact_values_is_refused(policy):
    task = get_task("chain")
    with refused("task", "Gym"):
        expected_reward(policy, get_task("gym:chain_sum"), ["1 + 1"])
    with refused("word"):
        expected_reward(policy, Chain(modulus=12), ["5 - 6 ="])
    rollouts = sample_rollouts(policy, task, 1, 2)
    with refused("rollouts.prompts", None):
        exact_values(policy, task, rollouts.__class__(**{**vars(rollouts), "prompts": None}))
