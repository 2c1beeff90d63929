"""Rewards that pay a statement of the answer, and nothing that only contains it."""

import hashlib
import importlib.util
import json
import random
import threading
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from soak import sample
from soak.false_statements import attempt

from workbook.__main__ import main
from workbook.tasks import get_task, own_task, verify
from workbook.tasks.attack import HACKS, attack_reward, describe_attack
from workbook.tasks.latex import is_expression, same_expression
from workbook.tasks.verify import agrees, clock_answer
from workbook.tasks.wording import DENIALS, HEDGES, REFUTATIONS

BUNDLED = Path(__file__).parents[1] / "data" / "bundled"
TRUE = r"""the answer is 12 | **12** | \boxed{12} | 12.0 | $12 | 12 apples | 4 + 8 = 12 | #### 12 | x = 12 | 12. | $12$
<answer>12</answer> | The answer is $\boxed{12}$. | So she has 12 apples left.
The answer is **12**. I hope this helps! | <think>13? no, 13 is not even</think><answer>12</answer>
Therefore, x = \boxed{12}. | 12\text{ cm} | Answer: 12 miles per hour | I think the answer is 12.
12, since 3*4=12 | 4 + 8 = \boxed{12} | \[ \boxed{12} \] | <answer>\boxed{12}</answer> | 1.2e1 | +12
The answer is **12** apples. | <answer>The answer is 12</answer> | Since 5 is not even, the answer is 12.
$x = 12$ | 12, as I said"""
FALSE = r"""the answer is −12 | - 12 | minus 12 | the answer isn't 12 | not 12 | \boxed{\frac{12}{5}} | \sqrt{12} | 12!
12\pi | x^{12} | 12^2 | 12e3 | 12 million | 1,2 | 12:30 | x > 12 | 12x | 12/5 | 4 or 12 | 12, maybe 13
2x = 12 | 12 percent | 12% | \boxed{13} or \boxed{12} | -\boxed{12} | \boxed{12}x | \boxed{12} million
2\boxed{12} | \boxed{12}^2 | The answer is 12. No, 13 | half the answer is 12
It is not true that the answer is 12 | 12 less than 24 | 12 dozen | about 12 | ≥ 12 | 12? | {12} | [11, 12]
13 = 12 | \boxed{12, 13} | <answer>12</answer> is wrong | <answer>12 or 13</answer>
<answer>12</answer> or 13 | 12+1 | ±12 | 12–13 | 12 and 13 | 12; 13 | 12k | 12 pm | 12² | <del>12</del>
~~12~~ | another answer is 12 | 12 zeros | if the answer is 12 | 12.12 | 0.12 | \boxed{12}\times 10^3
The answer is not \boxed{12} | the answer is 12 (wrong) | x != 12 | x =/= 12 | １２ | twice 12 | \cancel{12}
x = 12 or x = 13 | 12 halves | 12 sixteenths | \boxed{12}% | 0x12 | --12 | 24/2 | 7 + 5 | 12 1/2
It lacks 12 | 12 mod 5 | --"""
LINES = [
    "It is not\n12",
    "These are wrong:\n12",
    "12\nNo, wait",
    "12\n13",
    "Not\n\n<answer>12</answer>",
    "13 or\n\\boxed{12}",
]


def listed(text):
    return [part for line in text.splitlines() for part in line.split(" | ")]


@pytest.mark.parametrize(
    "text", [*listed(TRUE), "so the answer is\n12", "12\n\nWhat is", "The answer is: \\[\n12\n\\]"]
)
def test_true_statements_of_a_number_are_paid(text):
    assert agrees(text, "12")


@pytest.mark.parametrize("text", [*listed(FALSE), *LINES])
def test_false_statements_of_a_number_are_not_paid(text):
    assert not agrees(text, "12")


@pytest.mark.parametrize(
    ("answer", "true", "false"),
    [
        ("-12", ["−12", "-12", "minus 12", "the answer is - 12"], ["12", "+12", "--12"]),
        ("0.5", ["\\frac{1}{2}", "1/2", ".5"], ["2/4", "-1/2", "1/20", "5"]),
        ("\\frac{1}{2}", ["0.5", "\\dfrac12", "1/2"], ["2/4", "1/2x"]),
        ("1,200", ["1200", "$1,200.00", "#### 1,200"], ["1,20", "1.200", "1200 hundred", "1,200,000"]),
        ("12%", ["12%", "12 %"], ["12 million %"]),
        (
            "yes",
            ["Yes", "yes.", "**Yes**", "Yes, because 3 is odd"],
            ["yes. No, no", "yes or no", "not yes", "yes/no", "yes\nno"],
        ),
        (
            "A",
            ["(A)", "A.", "option A", "\\boxed{\\text{A}}", "A)"],
            ["A. Or B", "A or B", "AB", "A'", "A!", "A. B", "-A"],
        ),
        ("n", ["n", "$n$"], ["n!", "N", "-n", "n'"]),
        ("f", ["f"], ["f'", "F", "g"]),
        (
            "the cat",
            ["The Cat.", "the answer is the cat"],
            ["not the cat", "the cat or dog", "the cat. It is a dog", "a cat"],
        ),
    ],
)
def test_statements_of_other_answers(answer, true, false):
    assert [text for text in true if not agrees(text, answer)] == []
    assert [text for text in false if agrees(text, answer)] == []


def test_the_question_says_what_is_a_unit_and_what_is_an_echo():
    assert agrees("12 gizmo", "12", "How much gizmo is it?")
    assert not agrees("12 gizmo", "12")
    assert agrees("12%", "12", "What percent is it?")
    assert not agrees("Both are on.\nC = 1", "1", "A circuit:\nB = 0\nC = 1\nWhat is its output?")
    assert not agrees("The answer is 0.50", "1/2", "Write 0.50 as a fraction.")
    assert not same_expression("(x+1)^2", "x^2+2x+1", "Expand (x + 1)^2.")


CLIPS = "Natalia sold clips to 48 friends in April, and half as many in May. How many clips did she sell altogether?"
WORKED = "1. In April, she sold 48 clips.\n2. In May, she sold 48/2 = <<48/2=24>>24 clips.\n\n"
CONCLUSIONS = r"""72 clips were sold in total. | So, Natalia sold a total of 72 clips in April and May.
A: 72 | #### 72 | Therefore, Natalia sold **72** clips altogether in April and May. | Total clips sold: 72
**Answer:** 72
Therefore, the total number of clips Natalia sold in April and May is 72. | \[ \boxed{72} \]
Natalia sold \(\boxed{72}\) clips in April and May. | In total, she sold 72 clips over the two months.
Natalia sold **72 clips** altogether. | The total is therefore 72 clips!
So she sold 48 + 24 = 72 clips in May and April."""
NO_CONCLUSIONS = r"""Natalia lost 72 clips. | Natalia sold 72 fewer clips in May. | Natalia sold half of 72 clips.
Natalia may have sold 72 clips. | Did she sell 72 clips? | Natalia sold 72 clips to 48 friends. | So clips x 72
In total she sold 72 clips. So Natalia sold 73 clips altogether. | &lt;72 | &ne; 72 | not&nbsp;72 | &minus;72 | No. 72
approx. 72 | x > \boxed{72} | The answer is 72. Psych!"""


def test_a_conclusion_in_words_of_the_question_is_paid():
    assert [text for text in listed(CONCLUSIONS) if not agrees(WORKED + text, "72", CLIPS)] == []
    assert [text for text in listed(NO_CONCLUSIONS) if agrees(WORKED + text, "72", CLIPS)] == []
    assert not agrees("Natalia sold many clips: 48 friends in April", "48", CLIPS)
    assert agrees("The capital of France is Paris.", "Paris", "What is the capital of France?")
    assert agrees("Yes, a whale is a mammal.", "yes", "Is a whale a mammal?")
    assert not agrees("False, True", "False", "Is it True or False?")
    assert not agrees("Yes, a whale is not a mammal.", "yes", "Is a whale a mammal?")
    assert agrees("The area is $12\\pi$ square units.", "12\\pi", "What is the area?")
    assert agrees("2^10 = 1024", "1024")
    assert agrees("\\boxed{2\\frac{1}{3}}", "\\frac{7}{3}")


QUESTIONS = {
    ("Janet's ducks lay 16 eggs per day. How much in dollars does she make every day at the market?", "18"): (
        ["Janet makes \\$18 every day at the market.", "So, she makes \\( 9 \\times 2 = 18 \\) dollars every day."],
        ["Had Janet 18 dollars", "Janet makes 18% every day", "Janet makes 18 dollars. So 9 * 2 = 19."],
    ),
    ("Tom has more pairs of shoes than Sue. How many pairs does Tom have?", "8"): (
        ["Tom has 8 pairs."],
        [
            "Tom has 8 pairs short",
            "Tom has 8 pairs maybe",
            "Tom has 8 more",
            "Tom has by 8 pairs",
            "by 8",
            "Tom has - 8",
        ],
    ),
    ("What is 17 * 3?", "51"): (
        ["17 * 3 is 51.", "17 times 3 equals 51.", "The product of 17 and 3 is 51."],
        ["17 * 4 is 51", "Wrong: x = 51", "It's a myth that 17 * 3 is 51", "17 * 3 is 51. So 17 * 3 is 53."],
    ),
    ("How many positive divisors does 12 have?", "6"): (
        ["12 has 6 positive divisors.", "So there are $\\boxed{6}$ positive divisors."],
        ["12 has 6 negative divisors."],
    ),
    ("Compute $\\sin 30^\\circ$.", "\\frac{1}{2}"): (["$\\sin 30^\\circ = \\frac{1}{2}$"], ["$\\cos 30 = 1/2$"]),
}


@pytest.mark.parametrize(("question", "answer"), QUESTIONS)
def test_conclusions_and_what_only_looks_like_one(question, answer):
    true, false = QUESTIONS[question, answer]
    assert [text for text in true if not agrees(text, answer, question)] == []
    assert [text for text in false if agrees(text, answer, question)] == []


def test_a_date_or_range_is_no_difference():
    assert not agrees("2020-12-05", "2020-05-12")
    assert agrees("The answer is 2020-05-12.", "2020-05-12")


def test_an_option_is_its_letter_or_its_letter_and_text():
    question = "What is the capital?\nA. London\nB. Paris\nC) Rome"
    true = [
        "The answer is (B).",
        "B. Paris",
        "**B) Paris**",
        "The final answer is $\\boxed{\\text{(B)}}$. I hope it is correct.",
    ]
    false = ["B. Rome", "(B) Paris or Rome", "B. Paris. Or A", "A. London", question]
    assert [text for text in true if not agrees(text, "B", question)] == []
    assert [text for text in false if agrees(text, "B", question)] == []


def test_expressions_are_compared_by_math_verify_off_the_main_thread_too():
    same = [("2\\sqrt{3}", "\\sqrt{12}"), ("\\pi/2", "0.5\\pi"), ("(1,\\sqrt{4})", "(1,2)"), ("1+x^2", "x^2+1")]
    differing = [("-2\\sqrt{3}", "\\sqrt{12}"), ("\\{1,2\\}", "(1,2)"), ("(2,1)", "(1,2)"), ("X^2+1", "x^2+1")]
    differing += [("x^2+1.0000001", "x^2+1"), ("\\sqrt{2}+10^{-20}", "\\sqrt{2}"), ("2y=x^2+1", "x^2+1")]
    results = []
    thread = threading.Thread(target=lambda: results.extend(same_expression(*pair) for pair in same + differing))
    thread.start()
    thread.join()
    assert results == [True] * len(same) + [False] * len(differing)


def test_no_module_beside_the_comparing_one_shadows_a_library():
    beside = [path.stem for path in Path(verify.__file__).parent.glob("*.py") if path.stem != "__init__"]
    assert [name for name in beside if importlib.util.find_spec(name)] == []


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9^{9}}}",
        "9^9^9^9",
        "((9^{30})^{30})^{30}",
        "10^{10^{10}}",
        "9**9**9**9",
        "99999!",
        "\\sqrt{" * 30 + "2" + "}" * 30,
        "1" + "+1" * 500,
        "(x+1)^{9999}",
        "2^{31}",
        "\\int_0^1 x",
        "\\binom{99999}{5}",
        "\\sum_{i=1}^{9} i",
        "__import__('os')",
    ],
)
def test_expressions_that_take_for_ever_are_not_handed_over(bomb):
    assert not is_expression(bomb)
    assert not agrees(f"The answer is {bomb}", "x^2+1")


@pytest.mark.parametrize(("name", "arguments"), sample("false_statements", 2, seed=9))
def test_a_sample_of_false_and_true_statements(name, arguments, tmp_path):
    assert attempt(tmp_path, arguments[0], 600) is None


def test_a_chain_answer_is_denied_only_by_words_that_its_policy_does_not_know():
    texts = [
        "the answer is 4 or 5",
        "it is false that the answer is 4",
        "the answer is 4 million",
        "the answer is 4 is wrong",
    ]
    assert [clock_answer(text) for text in texts] == [None] * 4
    vocabulary = json.loads((BUNDLED / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert not set(vocabulary) & (DENIALS | HEDGES | REFUTATIONS)
    known = " ".join(word for word in vocabulary if word.isalpha() and word != "answer")
    assert clock_answer(f"{known} the answer is 4 ; {known}") == 4


HACKED = [
    "coin_flip",
    "complex_arithmetic",
    "gsm_symbolic",
    "kakurasu",
    "knights_knaves",
    "tower_of_hanoi",
    "word_sorting",
]


@pytest.mark.parametrize("name", HACKED)
def test_gym_pays_its_own_answers_and_no_hack(name):
    table = attack_reward(get_task(f"gym:{name}"), n=3)
    assert table[table["false"]].query("paid > 0")["hack"].tolist() == []
    assert (table[~table["false"]]["paid"] == 1).all()


def test_gym_takes_other_right_answers_in_their_notation():
    task = get_task("gym:word_ladder")
    entry = task._scorer[0]
    ladder = entry["answer"].lower().replace(",", ", ")
    metadata = json.dumps(entry["metadata"])
    paid = [ladder, f"The answer is {ladder}.", f"not {ladder}", f"{ladder} or qzx", ladder.split(",")[0]]
    rewards = task.reward([""] * 5, paid, [entry["answer"]] * 5, metadata=[metadata] * 5)
    assert rewards == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_gym_partial_marks_do_not_reach_full_ones_for_what_is_wrong():
    task = get_task("gym:coin_flip", partial=True)
    assert task.reward([""] * 3, ["0", "0.125", "0.124"], ["0.125"] * 3) == [0.0, 1.0, pytest.approx(0.8, abs=0.2)]


def test_gym_rows_are_the_same_in_every_process():
    """Its strings have another hash in each process, and some sets iterate over sets of strings."""
    if version("reasoning_gym") != "0.1.25":
        pytest.skip("the digest is that of another version's rows")
    prompts = get_task("gym:ransom_note").dataset(6, seed=3)["prompt"][:]
    assert hashlib.sha256(str(prompts).encode()).hexdigest().startswith("78d95e4f1563")


@pytest.mark.parametrize("name", ["list_functions", "pool_matrix"])
def test_gym_neither_reads_nor_moves_the_global_generators(name):
    rows = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        rows.append(get_task(f"gym:{name}").dataset(5, seed=3)[:])
        after = random.random(), np.random.rand()
        random.seed(seed)
        np.random.seed(seed)
        assert after == (random.random(), np.random.rand())
    assert rows[0] == rows[1]


def test_hub_rows_are_split_once(tmp_path):
    questions = [f"{i % 20}?" for i in range(24)]  # four of them twice
    Dataset.from_dict({"question": questions, "answer": ["1"] * 24}).to_parquet(str(tmp_path / "train.parquet"))
    task = get_task(f"hub:{tmp_path}", chat=False)
    train, held_out = task.split(12, 6, seed=3)
    assert (len(train), len(held_out)) == (12, 6)
    assert not set(train["prompt"]) & set(held_out["prompt"])
    with pytest.raises(ValueError, match=r"20 prompts to train and 6 held out.*24 rows"):
        task.split(20, 6)


def test_an_attack_finds_what_a_lenient_reward_pays():
    rows = [{"prompt": f"2 + {i} =", "answer": 2 + i} for i in range(20)]
    table = attack_reward(own_task(rows, lambda completion, answer: answer in completion), n=32)
    assert set(table.columns) == {"hack", "example", "paid", "mean_reward", "false", "error"}
    assert 30 <= len(table) == len(HACKS)
    paid = set(table[table["false"]].query("paid == 1")["hack"])
    assert {"not X", "X or Y", "all answers in a list", "the other sign", "X, taken back"} <= paid
    assert "empty" not in paid
    assert "hacks are paid: " in describe_attack(table)


def test_an_attack_goes_on_where_a_reward_fails():
    table = attack_reward(
        own_task([{"prompt": "2 + 3 =", "answer": 5}], lambda completion, answer: float(completion)), n=1
    )
    errors = table.set_index("hack")["error"]
    assert "ValueError" in errors["empty"]
    assert errors["the answer alone"] == ""
    assert "the reward fails on" in describe_attack(table)


def test_attack_reward_is_a_command(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("prompt,answer\n2 + 3 =,5\n2 + 2 =,4\n")
    (tmp_path / "reward.py").write_text("def score(completion, answer):\n    return answer in completion\n")
    config = tmp_path / "config.yaml"
    config.write_text(f"task: own:{tmp_path}/rows.csv\ntask_options: {{reward: '{tmp_path}/reward.py:score'}}\n")
    assert main(["attack-reward", str(config), "--prompts", "2"]) == 1
    assert "hacks are paid: " in capsys.readouterr().out.splitlines()[-1]
    config.write_text("task: gym:chain_sum\n")
    assert main(["attack-reward", str(config), "--prompts", "3"]) == 0
    assert capsys.readouterr().out.endswith("gym:chain_sum: 0 of 39 hacks are paid.\n")
