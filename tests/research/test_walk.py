"""Walks: their grammar and credit, and exact values against a walk through all words, one pass per
prefix.
"""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refused
from transformers import AutoConfig, AutoModelForCausalLM

from workbook.policies.load import Policy, load_policy
from workbook.policies.small import make_model, make_tokenizer
from workbook.probes.readings import Readings
from workbook.probes.values import exact_values, expected_reward
from workbook.rollouts.sample import sample_rollouts, written_rollouts
from workbook.tasks import Walk, get_task
from workbook.tasks.tree import END

TASK = Walk(nodes=5, words=4, dead_ends=1, least_ways=2)
KINDS = pytest.mark.parametrize("kind", ["untrained", "committed"])
PROMPT = "a > b c , b > a e , c > . . , d > b a , e > d c ; to d from a"


def ways_of(prompt: str, words: int) -> list[tuple[str, ...]]:
    """Every way from the start that ends where it first reaches the goal, as the prompt says it,
    without the task.
    """
    onward = {
        node: ways.replace(".", "").split()
        for node, ways in re.findall(r"(\w) > ([\w.]+(?: [\w.]+)*)", prompt)
    }
    goal, start = re.search(r"to (\w) from (\w)$", prompt).groups()
    ways, growing = [], [(start,)]
    while growing:
        way = growing.pop()
        if way[-1] == goal:
            ways.append(way[1:])
        elif len(way) <= words:
            growing += [(*way, node) for node in onward[way[-1]]]
    return ways


@pytest.fixture(scope="module")
def cases() -> dict[str, tuple[Policy, Walk]]:
    """An untrained policy of double precision and a committed one, each with its task."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(TASK)
    untrained = Policy(make_model(tokenizer, 16).double().eval(), tokenizer, {})
    return {
        "untrained": (untrained, TASK),
        "committed": (load_policy("world:walk,seed=1"), get_task("world:walk")),
    }


def test_a_walk_states_its_way():
    assert TASK.stated(" b  d ") == "b d"
    assert TASK.stated(" ") is None


def test_right_ways_are_all_of_them_and_only_they_pay():
    for task in (TASK, Walk(), Walk(nodes=9, out_degree=3, words=4, dead_ends=3)):
        for row in task.dataset(6, 2):
            prompt, answer = row["prompt"], row["answer"]
            ways = [" ".join(way) for way in ways_of(prompt, task.words)]
            assert sorted(ways) == sorted(task.equivalent_solutions(prompt))
            assert len(ways) >= task.least_ways
            assert task.reward([prompt] * len(ways), ways, [answer] * len(ways)) == [1.0] * len(
                ways
            )
            assert len(task.render(prompt)) == min(map(len, ways))
            assert len(task.prefixes(prompt)) <= 300
            assert set(f"{prompt} {answer}".split()) <= {*task.vocabulary, "|"}


def test_what_is_no_way_pays_nothing():
    texts = [
        "",
        "b",
        "b e",
        "b e d b",
        "b a",
        "b e d <eos>",
        "d",
        "b e d | b a b e d",
        "x" * 10**6,
        "\x00",
        None,
    ]
    answer = TASK.solve(PROMPT)
    assert TASK.reward([PROMPT] * 12, [*texts, "b e  d"], [answer] * 12) == [*[0.0] * 11, 1.0]


def test_prompts_repeat_by_seed_and_differ_between_classes():
    rows = [TASK.dataset(200, seed)["prompt"][:] for seed in (3, 3, 11, 4)]
    assert rows[0] == rows[1] != rows[2]
    assert len(set(rows[0])) == 200
    assert not set(rows[3]) & (set(rows[0]) | set(rows[2]))
    trained, held_out = Walk().split(50, 50)
    assert not set(trained["prompt"]) & set(held_out["prompt"])


def test_dials_and_prompts_out_of_range_are_named():
    for dial, value in (("out_degree", 8), ("words", 8), ("wrong_modes", 1)):
        with refused(dial, value):
            get_task("walk", **{dial: value})
    with pytest.raises(ValueError, match="out_degree, words, dead_ends"):
        get_task("walk", speed=1)
    for prompt in (
        "",
        None,
        "1 + 1 =",
        PROMPT.replace("e > d c ", ""),
        PROMPT.replace("from a", "from x"),
    ):
        with refused("prompt", prompt):
            TASK.next_words(prompt, ())


def test_credit_is_that_of_the_demonstrator():
    """Its share of right demonstrations is its value, and credits of each sum to reward minus
    value.
    """
    rng = random.Random(0)
    for task in (TASK, replace(TASK, wrong_modes=0.6)):
        for row in task.dataset(4, 1):
            prompt, answer, total = row["prompt"], row["answer"], 0.0
            for _ in range(400):
                text = task.demonstrate(prompt, rng)
                rows = task.annotate(prompt, answer, [*text.split(), END])
                reward = task.reward([prompt], [text], [answer])[0]
                assert sum(credit for _, credit in rows) == pytest.approx(
                    reward - task.value(prompt), abs=1e-12
                )
                total += reward / 400
            p = task.value(prompt)
            assert abs(total - p) < 3.5 * (p * (1 - p) / 400) ** 0.5 + 1e-9
    rows = TASK.annotate(PROMPT, TASK.solve(PROMPT), ["b", "e", "d", END])
    assert [category for category, _ in rows] == ["result", "result", "result", "eos"]
    assert TASK.annotate(PROMPT, "", ["c", "a"])[0] == ("result", -TASK.value(PROMPT))  # a dead end
    assert [category for category, _ in TASK.annotate(PROMPT, "", ["b", "d", "b"])] == [
        "result",
        "result",
        "other",
    ]


def test_wrong_modes_are_wrong_where_the_hash_says_so():
    """With a dial of w the likeliest word isn't best in about w of the differing places."""
    shares = []
    for wrong in (0.0, 0.5):
        task, modes = Walk(wrong_modes=wrong, error_rate=0.2), []
        best = replace(task, wrong_modes=0.0)
        for prompt in task.dataset(150, 0)["prompt"]:
            mine, right = task.preferences(prompt, ()), best.preferences(prompt, ())
            if len(set(right)) > 1:
                modes.append(mine.index(max(mine)) != right.index(max(right)))
        shares.append(sum(modes) / len(modes))
    assert shares[0] == 0
    assert 0.3 < shares[1] < 0.7


def walked(policy: Policy, task: Walk, prompt: str) -> dict[tuple[str, ...], torch.Tensor]:
    """Value of every prefix of a right way, the model called once for each, and any word tried
    after it.
    """
    model, tokenizer, right = policy.model, policy.tokenizer, ways_of(prompt, task.words)
    words, values = tokenizer.convert_ids_to_tokens(range(len(tokenizer))), {}

    def value(prefix):
        ids = tokenizer(" ".join([prompt, *prefix]), return_tensors="pt").input_ids
        probs = model(input_ids=ids).logits[0, -1].softmax(-1)
        total = 0.0
        for p, word in zip(probs, words, strict=True):
            if any(way[: len(prefix) + 1] == (*prefix, word) for way in right):
                total = total + p * value((*prefix, word))
            elif word == END and prefix in right:
                total = total + p
        values[prefix] = total
        return total

    value(())
    return values


@KINDS
def test_values_are_those_of_a_walk_through_all_words(cases, kind):
    (policy, task), rows = cases[kind], cases[kind][1].dataset(3, 6)
    prompts = rows["prompt"][:]
    values, weight = (
        expected_reward(policy, task, prompts, differentiable=True),
        policy.model.lm_head.weight,
    )
    walks = [walked(policy, task, prompt) for prompt in prompts]
    brute = torch.stack([walk[()] for walk in walks])
    torch.testing.assert_close(values, brute, atol=1e-6, rtol=1e-5)
    slopes = [torch.autograd.grad(part.mean(), weight)[0] for part in (values, brute)]
    torch.testing.assert_close(*slopes, atol=1e-6, rtol=1e-4)
    rollouts = sample_rollouts(policy, task, rows, 8, 0, max_new_tokens=task.longest)
    exact, seen = exact_values(policy, task, rollouts), 0
    for b, (prompt, tokens) in enumerate(zip(rollouts.prompts, rollouts.tokens, strict=True)):
        walk = {
            prefix: float(value.detach()) for prefix, value in walks[prompts.index(prompt)].items()
        }
        for t in range(len(tokens)):
            assert float(exact.before[b, t]) == pytest.approx(walk.get(tokens[:t], 0.0), abs=1e-6)
            seen += tokens[:t] in walk
    assert seen > 24  # more contexts than the prompts alone
    gap = exact.credit.sum(1) - (rollouts.rewards - exact.prompt)
    assert gap.abs().max() < 1e-6  # on every rollout


@KINDS
def test_values_are_what_sampling_finds(cases, kind):
    """Of 20,000 continuations."""
    (policy, task), size = cases[kind], 5000
    rows = task.dataset(4, 6)
    inputs = policy.tokenizer(
        [prompt for prompt in rows["prompt"] for _ in range(size)], return_tensors="pt"
    )
    torch.manual_seed(1)
    ids = policy.model.generate(**inputs, max_new_tokens=task.longest)[
        :, inputs.input_ids.shape[1] :
    ]
    texts = policy.tokenizer.batch_decode(ids, skip_special_tokens=True)
    answers = [answer for answer in rows["answer"] for _ in range(size)]
    rewards = torch.tensor(task.reward([""] * len(texts), texts, answers)).view(4, size)
    values = expected_reward(policy, task, rows["prompt"][:])
    assert (values - rewards.mean(1)).abs().lt(3.5 * (rewards.var(1) / size).sqrt() + 1e-3).all()
    assert kind == "untrained" or values.min() > 0.05  # those of committed weights


def test_values_of_written_ways(cases):
    policy, task = cases["untrained"]
    rows = [{"prompt": PROMPT, "answer": task.solve(PROMPT)}]
    rollouts = written_rollouts(policy, task, rows, [["b e d", "b a c", "b x d", "e d"]])
    values = exact_values(policy, task, rollouts)
    # a dead end, and words that aren't admitted, end it
    assert values.inside.sum(1).tolist() == [4, 3, 2, 1]
    assert values.after[:, 3].tolist() == [1, 0, 0, 0]


def test_what_has_no_exact_values_is_refused(cases):
    policy, _ = cases["untrained"]
    with refused("word", "f"):
        expected_reward(policy, Walk(), Walk().dataset(1)["prompt"])
    config = AutoConfig.for_model(
        "gpt2", n_embd=8, n_layer=1, n_head=2, vocab_size=len(policy.tokenizer)
    )
    with pytest.raises(ValueError, match="gpt2"):
        expected_reward(
            Policy(AutoModelForCausalLM.from_config(config), policy.tokenizer, {}), TASK, [PROMPT]
        )
    policy, task = cases["committed"]
    rollouts = sample_rollouts(policy, task, 8, 8, max_new_tokens=2)
    with refused("max_new_tokens", 2, "6 or more"):
        exact_values(policy, task, rollouts)


@pytest.fixture(scope="module")
def shown() -> dict:
    """What the page for contributors makes, in fewer steps."""
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = page.partition("## A world of your own")[2].split("```python\n")[1:]
    code = "".join(block.partition("```")[0] for block in blocks)
    code = (
        code.replace("task, 1000)", "task, 150)")
        .replace("task, 150,", "task, 20,")
        .replace("batches=8", "batches=2")
    )
    exec(compile(code, "CONTRIBUTING.md", "exec"), names := {"__name__": "sorting"})  # noqa: S102
    return names


def test_the_world_that_contributors_are_shown_runs(shown):
    """Its value is the sum of the probabilities of its right completions, and credit sums to what
    it should.
    """
    task, policy, tokens = shown["task"], shown["policy"], shown["tokens"]
    assert abs(shown["error"]["bias"]) < 4 * shown["error"]["noise"]
    assert shown["curve"]["value"][0] > 1e-3  # 0.09 to 0.13 over seeds, and below 1e-6 untrained
    assert shown["curve"]["value"].nunique() == 3
    sums = (
        tokens.groupby("rollout")["credit"].sum()
        + tokens.groupby("rollout")["value_before"].first()
    )
    assert sums.to_list() == pytest.approx(shown["rollouts"].rewards.tolist(), abs=1e-5)
    for row in task.dataset(3, 5):
        rights = list(task.equivalent_solutions(row["prompt"]))
        rollouts = written_rollouts(policy, task, [row], [rights])
        assert rollouts.rewards.eq(1).all()
        value = expected_reward(policy, task, [row["prompt"]])
        torch.testing.assert_close(
            value[0], rollouts.old_logps.sum(1).exp().sum(), rtol=1e-4, atol=0
        )
        assert replace(task, error_rate=0.0).value(row["prompt"]) == 1
        text = task.demonstrate(row["prompt"], random.Random(1))
        credit = sum(
            credit
            for _, credit in task.annotate(row["prompt"], row["answer"], [*text.split(), END])
        )
        assert credit == pytest.approx(task.score(text, row["answer"]) - task.value(row["prompt"]))


def test_a_world_with_a_mistake_is_refused(shown):
    numbers = tuple(map(str, range(30)))
    repeated = ("=", *numbers, "sort", "=")
    for member, mistaken, value in (
        ("vocabulary", ("=", *numbers), ["sort"]),
        ("vocabulary", repeated, repeated),
        ("longest", property(lambda self: 4, lambda *_: None), 4),
        ("preferences", lambda *_: (0.5,), (0.5,)),
    ):
        with refused(member, value):
            type("Mistaken", (shown["Sorting"],), {member: mistaken})().dataset(1)
    endless = {"next_words": lambda *_: (END,)}
    with pytest.raises(ValueError, match="4,096 prefixes"):
        type("Mistaken", (shown["Sorting"],), endless)().dataset(1)


def test_a_world_may_forget_whose_a_prompt_is_and_name_its_classes(shown):
    own = {
        "draw": lambda self, rng, mine: shown["Sorting"].draw(self, rng, lambda prompt: True),
        "category": lambda self, prompt, prefix: "template" if prefix else "style",
    }
    task, asked = type("Own", (shown["Sorting"],), own)(), shown["task"].dataset(20, 3)
    assert task.dataset(20, 3)["prompt"][:] == asked["prompt"][:]
    found = task.annotate(*asked[0].values(), [*asked[0]["answer"].split(), END])
    assert [category for category, _ in found] == ["style", *["template"] * 3, "eos"]
    readings = Readings(shown["policy"], task, asked["prompt"][:])
    assert readings.start["tax"] == 0 < readings.start["style_entropy"]
