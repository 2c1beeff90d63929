"""The chain: its grammar, its verifier, its equivalent solutions, and credit against brute force
over all chains.
"""

import itertools
import random

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from workbook.tasks import Chain, Task
from workbook.tasks.chain import CLOSINGS, LINKS, OPENINGS, TEMPLATE
from workbook.tasks.task import HELD_OUT_SEED

CATEGORIES = {"result", "style", "template", "copy", "eos", "other"}
SMALL = Chain(operands=4, modulus=3, error_rate=0.3)
SMALL_PROMPT = "1 - 2 + 2 - 1 ="


def credits(task: Chain, prompt: str, text: str) -> list[float]:
    return [credit for _, credit in task.annotate(prompt, task.solve(prompt), text.split())]


def every_chain(task: Chain, prompt: str) -> list[tuple[float, tuple[int, ...]]]:
    """Enumerate (probability, results) under the policy model that credit is defined by."""
    numbers, operators = task.parse_prompt(prompt)
    chains = [(1.0, ())]
    for operator, number in zip(operators, numbers[1:], strict=True):
        grown = []
        for p, results in chains:
            value = results[-1] if results else numbers[0]
            right = (value + number if operator == "+" else value - number) % task.modulus
            for result in range(task.modulus):
                step = (
                    1 - task.error_rate if result == right else task.error_rate / (task.modulus - 1)
                )
                grown.append((p * step, (*results, result)))
        chains = grown
    return chains


def test_value_is_the_expected_reward_over_all_chains():
    """V after each prefix of results equals the probability, by enumeration, that the last result
    is the answer.
    """
    chains, answer = every_chain(SMALL, SMALL_PROMPT), int(SMALL.solve(SMALL_PROMPT))
    assert sum(p for p, _ in chains) == pytest.approx(1)
    for _, results in chains:
        running = SMALL.value(True, 3)
        gained = credits(SMALL, SMALL_PROMPT, SMALL.render(SMALL_PROMPT, results=list(results)))
        at = [9, 16, 23]  # where the results stand
        for k in range(1, 4):
            running += gained[at[k - 1]]
            like = [(p, r[-1] == answer) for p, r in chains if r[:k] == results[:k]]
            assert running == pytest.approx(
                sum(p * right for p, right in like) / sum(p for p, _ in like), abs=1e-12
            )
        assert all(credit == 0 for i, credit in enumerate(gained) if i not in at)


def test_credit_is_a_martingale_and_the_last_step_has_its_closed_form():
    """Before each result the mean credit is zero; on track the last step's credit is e if right, e
    - 1 if wrong.
    """
    mean = [0.0, 0.0, 0.0]
    for p, results in every_chain(SMALL, SMALL_PROMPT):
        gained = credits(SMALL, SMALL_PROMPT, SMALL.render(SMALL_PROMPT, results=list(results)))
        mean = [m + p * c for m, c in zip(mean, (gained[9], gained[16], gained[23]), strict=True)]
    assert mean == pytest.approx([0, 0, 0], abs=1e-12)
    task = Chain(operands=2, error_rate=0.2)
    assert credits(task, "3 + 4 =", task.render("3 + 4 ="))[9] == pytest.approx(0.2)
    assert credits(task, "3 + 4 =", task.render("3 + 4 =", results=[8]))[9] == pytest.approx(-0.8)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(2, 13), st.floats(0, 0.9), st.integers(0, 10**6))
def test_credits_of_a_demonstration_sum_to_reward_minus_value(operands, modulus, error_rate, seed):
    task = Chain(operands=operands, modulus=modulus, error_rate=error_rate)
    prompt = task._prompt(random.Random(seed).randrange(modulus**operands * 2 ** (operands - 1)))
    text = task.demonstrate(prompt, random.Random(seed))
    rows = task.annotate(prompt, task.solve(prompt), [*text.split(), "<eos>"])
    reward = task.reward([prompt], [text], [task.solve(prompt)])[0]
    assert sum(credit for _, credit in rows) == pytest.approx(
        reward - task.value(True, operands - 1), abs=1e-9
    )
    assert all(credit == 0 for category, credit in rows if category != "result")
    assert task.style_key(text) is not None


def test_an_error_spoils_the_answer_and_a_second_may_repair_it():
    task, prompt = Chain(operands=3), "5 - 6 + 3 ="
    once, twice = task.render(prompt, results=[3, 6]), task.render(prompt, results=[3, 2])
    assert task.reward([prompt] * 2, [once, twice], ["2", "2"]) == [0.0, 1.0]
    assert credits(task, prompt, once)[9] < 0 < credits(task, prompt, twice)[16]
    assert twice not in task.equivalent_solutions(prompt)


def test_a_false_copy_is_charged_and_a_derailment_ends_the_value():
    task, prompt = Chain(operands=3), "5 - 6 + 3 ="
    right = [*task.render(prompt).split(), "<eos>"]
    # the running value 5 copied as 4, results kept: the result repairs it
    false_copy = [*right[:5], "4", *right[6:]]
    gained = [credit for _, credit in task.annotate(prompt, "2", false_copy)]
    assert gained[5] == pytest.approx(task.value(False, 2) - task.value(True, 2))
    assert sum(gained) == pytest.approx(1 - task.value(True, 2))
    derailed = task.annotate(prompt, "2", [*right[:6], "banana", *right[6:], "5"])
    assert derailed[6] == ("other", pytest.approx(-task.value(True, 2)))
    assert [credit for _, credit in derailed[7:]] == [0.0] * len(derailed[7:])
    roles = [category for category, _ in task.annotate(prompt, "2", right)]
    assert [category for category, _ in derailed[7:]] == [*roles[6:], "other"]
    early = task.annotate(prompt, "2", [*right[:4], "<eos>"])
    assert early[-1] == ("eos", pytest.approx(-task.value(True, 2)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from([*OPENINGS, *LINKS, *CLOSINGS, *TEMPLATE, *"0123456789+-", "<eos>"]),
            st.text(max_size=5),
        )
    )
)
def test_annotation_is_total(tokens):
    rows = Chain(operands=3).annotate("5 - 6 + 3 =", "2", tokens)
    assert len(rows) == len(tokens)
    assert {category for category, _ in rows} <= CATEGORIES
    assert all(-1 <= credit <= 1 for _, credit in rows)


def test_equivalent_solutions_are_all_of_them_and_only_them():
    task, prompt = Chain(operands=3), "5 - 6 + 3 ="
    texts = list(task.equivalent_solutions(prompt))
    assert len(texts) == len(set(texts)) == len(OPENINGS) * len(LINKS) ** 2 * len(CLOSINGS)
    assert set(task.reward([prompt] * len(texts), texts, ["2"] * len(texts))) == {1.0}
    assert [task.style_key(text) for text in texts] == list(
        itertools.product(OPENINGS, LINKS, LINKS, CLOSINGS)
    )
    others = [
        task.render(prompt, results=[3, 6]),
        texts[0] + " ;",
        "",
        Chain(operands=2).render("1 + 1 ="),
    ]
    assert not any(other in texts for other in others)
    assert task.style_key(others[1]) is None


def test_data_sets_are_reproducible_distinct_and_disjoint_across_seeds():
    task = Chain()
    assert task.dataset(50, seed=3)[:] == task.dataset(50, seed=3)[:]
    prompts = [set(task.dataset(300, seed=seed)["prompt"]) for seed in range(8)]
    assert all(len(rows) == 300 for rows in prompts)
    assert not any(a & b for a, b in itertools.combinations(prompts, 2))
    assert set(task.dataset(300, seed=8)["prompt"]) != prompts[0]
    rows = task.dataset(20, seed=1)
    # Python's own arithmetic is the oracle
    for prompt, answer in zip(rows["prompt"], rows["answer"], strict=True):
        numbers = prompt.replace(" - ", " +-").removesuffix(" =").split(" +")
        assert int(answer) == sum(int(number.replace(" ", "")) for number in numbers) % 10
    tiny = Chain(operands=2, modulus=3).dataset(40, seed=0)  # 18 prompts in all: they repeat
    assert len(tiny) == 40


def test_held_out_prompts_are_another_stream_and_share_none_with_training():
    task = Chain()
    trained, held = task.split(200, 16, seed=5)
    assert trained[:] == task.dataset(200, 5)[:]
    assert held[:] == task.dataset(16, 5 + HELD_OUT_SEED)[:]
    assert len(task.split(4, 0)[1]) == 0
    tiny = Chain(operands=2, modulus=2)  # 8 prompts in all: they repeat, and some streams have none
    trained, held = tiny.split(10, 4, seed=2)
    assert not set(trained["prompt"]) & set(held["prompt"])
    with refused("operands", 2):
        tiny.split(10, 4, seed=3)


class Repeats(Task):
    """Seed s starts at prompt s of `space` many, and goes round."""

    name = "repeats"

    def __init__(self, space):
        self.space = space

    def dataset(self, n, seed=0):
        prompts = [[{"role": "user", "content": f"p{(seed + i) % self.space}"}] for i in range(n)]
        return Dataset.from_dict({"prompt": prompts, "answer": ["1"] * n})

    def score(self, completion, answer, **row):
        return 1.0


def test_held_out_rows_that_repeat_training_prompts_are_replaced_or_refused():
    task = Repeats(200)
    # 1,000,003 % 200 = 3: the stream begins among what is trained on
    trained, held = task.split(150, 20, seed=0)
    texts = [prompt[0]["content"] for prompt in held["prompt"]]
    assert texts == [f"p{i}" for i in range(150, 170)]
    assert len(trained) == 150
    with refused("held_out", 60):
        task.split(150, 60)


def test_false_negatives_are_a_share_of_right_completions_always_the_same_ones():
    rate, plain = 0.3, Chain()
    task, missing_more = Chain(false_negative_rate=rate), Chain(false_negative_rate=0.6)
    prompt = "5 - 6 + 3 - 1 + 2 ="
    answer, rights = plain.solve(prompt), list(plain.equivalent_solutions(prompt))
    scores = [task.score(text, answer) for text in rights]
    assert all(plain.score(text, answer) == 1 for text in rights)
    assert (
        abs(sum(scores) / len(rights) - (1 - rate)) < 4 * (rate * (1 - rate) / len(rights)) ** 0.5
    )
    # the same text is judged the same
    assert [task.score(f"  {text} ", answer) for text in rights] == scores
    more = [missing_more.score(text, answer) for text in rights]
    assert all(
        kept <= before for kept, before in zip(more, scores, strict=True)
    )  # a higher rate rejects these and more
    wrong = plain.render(prompt, results=[(int(answer) + 1) % 10] * 4)
    assert task.score(wrong, answer) == 0
    assert task.value(True, 2) == pytest.approx((1 - rate) * plain.value(True, 2))
