"""Rewards that pay a statement of the answer in its prescribed place, and nothing that only
contains it.
"""

import csv
import json
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from workbook.tasks import get_task, own_task
from workbook.tasks.attack import attack_reward, describe_attack
from workbook.tasks.chain import clock_answer
from workbook.tasks.denials import SPOILING
from workbook.tasks.verify import agrees, equal_expressions, stated_answer

ROOT = Path(__file__).parents[1]
with (ROOT / "tests/data/answers.csv").open(encoding="utf-8", newline="") as file:
    # made by hand: forms that people and models write, and texts made to fool
    ANSWERS = list(csv.DictReader(file))
IN_PLACE = ("<answer>", "\\boxed{", "####", "answer is")


def test_at_least_120_of_146_answers_are_judged_rightly_and_nothing_false_is_paid():
    paid = [agrees(row["completion"], row["answer"]) for row in ANSWERS]
    right = [row["paid"] == "true" for row in ANSWERS]
    assert len(ANSWERS) == 146
    assert sum(a == b for a, b in zip(paid, right, strict=True)) >= 136
    assert [
        row["completion"] for row, a, b in zip(ANSWERS, paid, right, strict=True) if a and not b
    ] == []
    unpaid = [
        row["completion"] for row, a, b in zip(ANSWERS, paid, right, strict=True) if b and not a
    ]
    assert [text for text in unpaid if any(place in text for place in IN_PLACE)] == []


@pytest.mark.parametrize(
    ("answer", "true", "false"),
    [
        ("-12", ["−12", "-12", "minus 12", "the answer is - 12"], ["12", "+12", "--12"]),
        ("0.5", ["\\frac{1}{2}", "1/2", ".5"], ["2/4", "-1/2", "1/20", "5"]),
        ("\\frac{1}{2}", ["0.5", "\\dfrac12", "1/2"], ["2/4", "1/2x"]),
        (
            "1,200",
            ["1200", "$1,200.00", "#### 1,200"],
            ["1,20", "1.200", "1200 hundred", "1,200,000"],
        ),
        ("12%", ["12%", "12 %"], ["12 million %"]),
        (
            "yes",
            ["Yes", "yes.", "Yes, because 3 is odd"],
            ["yes. No, no", "yes or no", "not yes", "yes\nno"],
        ),
        (
            "A",
            ["(A)", "A.", "option A", "\\boxed{\\text{A}}"],
            ["A. Or B", "A or B", "AB", "A'", "A!", "A. B", "-A"],
        ),
        (
            "the cat",
            ["The Cat.", "the answer is the cat"],
            ["not the cat", "the cat. A dog", "a cat"],
        ),
        (
            "2\\sqrt{3}",
            ["\\sqrt{12}", "x = 2\\sqrt{3}", "\\boxed{\\sqrt{12}}"],
            ["-2\\sqrt{3}", "\\sqrt{13}"],
        ),
        ("x^2+1", ["1+x^2", "$x^{2} + 1$"], ["x^2+1.0000001", "y^2+1", "x^2-1"]),
    ],
)
def test_statements_of_other_answers(answer, true, false):
    assert [text for text in true if not agrees(text, answer)] == []
    assert [text for text in false if agrees(text, answer)] == []


def test_a_comparison_is_ended_in_time_in_any_thread(monkeypatch):
    """Such a power is never handed over; if it were, its process is ended and the next comparison
    is answered.
    """
    monkeypatch.setattr("workbook.tasks.verify.TIME_LIMIT_S", 0.5)
    equal_expressions("x", "x+1")  # the process has started
    results, began = [], time.monotonic()
    thread = threading.Thread(target=lambda: results.append(equal_expressions("9^{9^{9}}", "1")))
    thread.start()
    thread.join(120)
    assert results == [False]
    assert time.monotonic() - began < 100
    monkeypatch.setattr("workbook.tasks.verify.TIME_LIMIT_S", 60)
    assert equal_expressions("\\sqrt{8}", "2\\sqrt{2}")


@pytest.mark.parametrize(
    "text", ["\\boxed{" * 500, "<answer>" * 300, "#" * 2000, "answer is " * 400, "$" * 2000]
)
def test_hostile_completions_are_read_quickly(text):
    assert stated_answer(text) in (None, "") or len(stated_answer(text)) <= 2000


def test_a_chain_answer_is_denied_only_by_words_that_its_policy_does_not_know():
    texts = ["the answer is 4 or 5", "it is false that the answer is 4", "the answer is 4 million"]
    assert [clock_answer(text) for text in texts] == [None] * 3
    vocabulary = json.loads((ROOT / "data/bundled/tokenizer.json").read_text(encoding="utf-8"))[
        "model"
    ]["vocab"]
    assert not set(vocabulary) & SPOILING
    known = " ".join(word for word in vocabulary if word.isalpha() and word != "answer")
    assert clock_answer(f"{known} the answer is 4 ; {known}") == 4


@pytest.mark.parametrize("name", ["coin_flip", "gsm_symbolic", "knights_knaves", "word_sorting"])
def test_gym_pays_its_own_answers_and_no_hack(name):
    table = attack_reward(get_task(f"gym:{name}"), n=3)
    assert table[table["false"]].query("paid > 0")["hack"].tolist() == []
    assert (table[~table["false"]]["paid"] == 1).any()


def test_gym_neither_reads_nor_moves_the_global_generators():
    rows = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        rows.append(get_task("gym:pool_matrix").dataset(5, seed=3)[:])
        after = random.random(), np.random.rand()
        random.seed(seed)
        np.random.seed(seed)
        assert after == (random.random(), np.random.rand())
    assert rows[0] == rows[1]


def test_an_attack_finds_what_a_lenient_reward_pays():
    rows = [{"prompt": f"2 + {i} =", "answer": 2 + i} for i in range(20)]
    table = attack_reward(own_task(rows, lambda completion, answer: answer in completion), n=32)
    assert set(table.columns) == {"hack", "example", "paid", "mean_reward", "false", "error"}
    assert len(table) >= 30
    paid = set(table[table["false"]].query("paid == 1")["hack"])
    assert {"not X", "X or Y", "all answers in a list", "the other sign", "X, taken back"} <= paid
    assert "empty" not in paid
    assert "hacks are paid: " in describe_attack(table)


def test_an_attack_goes_on_where_a_reward_fails():
    rows = [{"prompt": "2 + 3 =", "answer": 5}]
    table = attack_reward(own_task(rows, lambda completion, answer: float(completion)), n=1)
    errors = table.set_index("hack")["error"]
    assert "ValueError" in errors["empty"]
    assert errors["X"] == ""
    assert "the reward fails on" in describe_attack(table)
