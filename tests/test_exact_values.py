"""Exact values of the chain task: against enumeration where the policy is a Markov chain, else against sampling."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from workbook.policies.load import Policy
from workbook.policies.sft import make_model, make_tokenizer
from workbook.probes.chain_values import slots_of
from workbook.probes.values import exact_values, expected_reward
from workbook.rollouts.sample import sample_rollouts, written_rollouts
from workbook.tasks import get_task
from workbook.tasks.chain import Chain

TASK = Chain(operands=2, modulus=3)
PROMPT = "2 - 1 ="
START, COPY, OPERATOR, OPERAND, RESULT, FINAL = 2, 5, 6, 7, 9, 15  # slots of a chain of one step


class MarkovModel(nn.Module):
    """A policy for PROMPT that looks at the slot and the running value alone.

    Before the result it knows only distances from the running value; after it each running value has words of its own.
    """

    def __init__(self, tokenizer):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tokenizer = tokenizer
        self.config = LlamaConfig(vocab_size=len(tokenizer))
        table = torch.randn(17, 3, len(tokenizer), generator=generator).double()
        for slot, admitted in enumerate(TASK._slots(1)):
            table[slot, :, tokenizer.convert_tokens_to_ids(list(admitted.words))] += 6  # it mostly keeps to the grammar
        self.table = nn.Parameter(table)

    device = torch.device("cpu")

    def logits(self, ids: tuple[int, ...]) -> torch.Tensor:
        """Logits of the word after these words of a completion."""
        slot, state = min(len(ids), 16), self.running_value(ids)
        if slot > RESULT:
            return self.table[slot, state]
        row = self.table[slot, 0]
        if slot not in (COPY, RESULT):
            return row
        digits = torch.tensor(self.tokenizer.convert_tokens_to_ids(["0", "1", "2"]))
        centre = state - 1 if slot == RESULT else state  # the prompt subtracts 1
        return row.index_copy(0, digits, row[digits[(torch.arange(3) - centre) % 3]])

    def running_value(self, ids) -> int:
        words = self.tokenizer.convert_ids_to_tokens(list(ids))
        if len(words) <= START:
            return 0
        if len(words) > RESULT:
            return int(words[FINAL if len(words) > FINAL else RESULT])
        value = int(words[COPY if len(words) > COPY else START])
        value += 2 * (words[OPERATOR : OPERATOR + 1] == ["+"])  # + 1 in place of - 1
        operand = int(words[OPERAND]) if len(words) > OPERAND else 1
        return (value - (operand - 1)) % 3

    def forward(self, input_ids, logits_to_keep, **_):
        start = input_ids.shape[1] - logits_to_keep + 1
        rows = [
            [self.logits(tuple(row[start : start + t].tolist())) for t in range(logits_to_keep)] for row in input_ids
        ]
        return SimpleNamespace(logits=torch.stack([torch.stack(row) for row in rows]))


@pytest.fixture(scope="module")
def markov(policy):
    return Policy(MarkovModel(policy.tokenizer), policy.tokenizer, {})


def enumerated(policy, ids: tuple[int, ...] = ()) -> torch.Tensor:
    """Expected reward after these words, by going through every well-formed completion."""
    if len(ids) == 16:
        text = policy.tokenizer.decode(list(ids))
        return torch.tensor(TASK.score(text, TASK.solve(PROMPT))).double()
    words = policy.tokenizer.convert_tokens_to_ids(list(TASK._slots(1)[len(ids)].words))
    probs = policy.model.logits(ids).softmax(-1)[words]
    if len(ids) in (0, 4, 11):  # style words, after which this policy goes on alike
        return probs.sum() * enumerated(policy, (*ids, words[0]))
    return sum(p * enumerated(policy, (*ids, word)) for p, word in zip(probs, words, strict=True))


def test_values_of_a_markov_policy_are_those_of_every_completion(markov):
    exact = enumerated(markov)
    assert 0.05 < exact < 0.95
    torch.testing.assert_close(expected_reward(markov, TASK, [PROMPT]), exact[None], rtol=1e-12, atol=0)
    rollouts = written_rollouts_of(markov)
    values = exact_values(markov, TASK, rollouts)
    dense = values.dense(len(markov.tokenizer))
    for row, ids in enumerate(rollouts.completion_ids.tolist()):
        for t in (0, START, COPY, OPERATOR, OPERAND, RESULT, 11, FINAL):
            before = enumerated(markov, tuple(ids[:t]))
            torch.testing.assert_close(values.before[row, t], before, rtol=1e-10, atol=1e-12)
            for word in TASK._slots(1)[t].words:
                token = markov.tokenizer.convert_tokens_to_ids(word)
                after = enumerated(markov, (*ids[:t], token))
                torch.testing.assert_close(dense[row, t, token], after, rtol=1e-10, atol=1e-12)
    assert (values.credit[:, 16] == 0).all()  # what ends the completion changes nothing


def written_rollouts_of(policy):
    texts = [TASK.render(PROMPT, results=[result]) for result in (0, 1)]
    rows = [{"prompt": PROMPT, "answer": TASK.solve(PROMPT)}]
    model = policy.model
    policy = Policy(Scored(model), policy.tokenizer, {})
    return written_rollouts(policy, TASK, rows, [texts])


class Scored(nn.Module):
    """What `written_rollouts` asks of a model, answered by the Markov policy."""

    def __init__(self, model):
        super().__init__()
        self.inner = model
        self.config = model.config

    device = torch.device("cpu")

    def forward(self, input_ids, logits_to_keep, **_):
        return self.inner(input_ids, logits_to_keep)


def test_the_gradient_is_that_of_the_enumerated_value(markov):
    model = markov.model
    (exact,) = torch.autograd.grad(enumerated(markov), model.table)
    (ours,) = torch.autograd.grad(expected_reward(markov, TASK, [PROMPT], differentiable=True).sum(), model.table)
    torch.testing.assert_close(ours, exact, rtol=1e-8, atol=1e-12)
    assert not expected_reward(markov, TASK, [PROMPT]).requires_grad


def test_values_of_the_bundled_policy_against_sampling(policy):
    task = get_task("chain")
    prompts, size = task.dataset(8, 5)["prompt"], 64
    rows = [{"prompt": prompt, "answer": task.solve(prompt)} for prompt in prompts]
    sampled = sample_rollouts(policy, task, rows, size, 0).rewards.view(8, size)
    gap, noise = expected_reward(policy, task, prompts) - sampled.mean(1), sampled.var(1) / size
    se = float(noise.mean().sqrt()) / 8**0.5
    assert se < 0.03
    assert abs(gap.mean()) < 3 * se + 0.01
    assert (gap.square() - noise).mean().clamp(min=0).sqrt() < 0.06


def test_words_of_a_private_alphabet_and_equivalents_are_admitted():
    task = Chain(alphabets=4, confidence=0.8)
    prompts = task.dataset(8, 5)["prompt"]
    prompt = next(prompt for prompt in prompts if "'" in prompt)
    slots = slots_of(task, prompt)
    mark = "'" + prompt.split()[0].partition("'")[2]
    assert all(word.endswith(mark) for slot in slots[:-1] for word in slot.words)
    assert next(slot.words for slot in slots if slot.field == "op") == ("+" + mark, "-" + mark)
    assert slots[1].words == ("with" + mark, "at" + mark)
    assert "<eos>" in slots[-1].words
    policy = Policy(untrained(task), make_tokenizer(task), {})
    values = expected_reward(policy, task, prompts)
    assert ((values >= 0) & (values < 1e-6)).all()  # 44 words in a row, of 120 that are all as likely


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
    with pytest.raises(ValueError, match="task is Gym; exact values are known for chain and walk"):
        expected_reward(policy, get_task("gym:chain_sum"), ["1 + 1"])
    with pytest.raises(ValueError, match=r"word '1\d' is 1 tokens of this tokenizer; exact values need one"):
        expected_reward(policy, Chain(modulus=12), ["5 - 6 ="])
    rollouts = sample_rollouts(policy, task, 1, 2)
    with pytest.raises(ValueError, match="rollouts have no prompts"):
        exact_values(policy, task, rollouts.__class__(**{**vars(rollouts), "prompts": None}))
