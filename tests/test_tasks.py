"""Tasks by name, and verifiers that nothing a model writes can surprise."""

import math
import time

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoning_gym.factory import DATASETS
from refusals import refused

from workbook.tasks import get_task
from workbook.tasks.gym import allowed_datasets

BIG = 10**6
HOSTILE = {
    "empty": "",
    "blank": " \n\t ",
    "a megabyte": "x" * BIG,
    "a megabyte of markers": "answer is " * (BIG // 10),
    "a megabyte of digits": "9" * BIG,
    "a megabyte of commas": "1," * (BIG // 2),
    "a megabyte of spaces": "the answer is" + " " * BIG,
    "open brackets": "the answer is " + "(" * 5000,
    "nested brackets": "[" * 5000 + "1" + "]" * 5000,
    "nested boxes": "\\boxed{" * 1000 + "4" + "}" * 1000,
    "control characters": "\x00\x07\x1b[31m the \x08answer\x00 is \x9f",
    "unicode digits": "the answer is ٤ ４ ④ ⁴",
    "combining marks": "the answer is " + "́" * 3000,
    "surrogate": "the answer is \ud800",
    "html": "<script>alert(document.cookie)</script><answer>",
    "code": "the answer is __import__('os').abort()",
    "power": "the answer is 9**9**9**9",
    "nan": "the answer is NaN",
    "infinity": "the answer is -inf",
    "huge exponent": "the answer is 1e999999999",
    "fraction bomb": "the answer is 1/0",
    "surplus digits": "the answer is " + "4" * 400,
}
ALIEN = [None, 7, [], {}, [None], [{"role": "assistant"}], [{"role": "assistant", "content": None}]]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qa")
    Dataset.from_dict({"q": ["2 + 2?", "3 + 1?"], "a": ["so #### 4", "4"]}).to_parquet(
        str(folder / "train.parquet")
    )
    hub = get_task(f"hub:{folder}", prompt_column="q", answer_column="a")
    return {
        "chain": get_task("chain"),
        "gym": get_task("gym:chain_sum", min_terms=2, max_terms=2),
        "hub": hub,
    }


def graded(task, completions, answer="4"):
    return task.reward([""] * len(completions), completions, [answer] * len(completions))


@pytest.mark.parametrize("family", ["chain", "gym", "hub"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_completions_are_cheap_and_pay_nothing(tasks, family, kind):
    for completion in (HOSTILE[kind], [{"role": "assistant", "content": HOSTILE[kind]}]):
        best = math.inf
        for _ in range(5):
            start = time.perf_counter()
            reward = graded(tasks[family], [completion])
            best = min(best, time.perf_counter() - start)
        assert best < 0.010
        assert len(reward) == 1
        assert isinstance(reward[0], float)
        assert reward[0] == 0.0


@pytest.mark.parametrize("family", ["chain", "gym", "hub"])
@settings(max_examples=150, deadline=None)
@given(
    text=st.one_of(
        st.text(), st.text("0123456789.,-+=eE/ \nanswer:is<>{}#\\boxd$*[]()"), st.binary().map(repr)
    )
)
def test_any_text_gives_a_number_in_the_unit_interval(tasks, family, text):
    for completion in (text, "the answer is " + text, [{"role": "assistant", "content": text}]):
        assert 0.0 <= graded(tasks[family], [completion])[0] <= 1.0


def test_gym_rows_survive_storage_and_pay_their_own_answers():
    task = get_task("gym:chain_sum", max_terms=3, instruction="Say: the answer is X.")
    rows = task.dataset(20, seed=4)
    assert rows[:] == task.dataset(20, seed=4)[:]
    assert rows.column_names == ["prompt", "answer"]
    assert rows["prompt"][0][0]["role"] == "user"
    assert rows["prompt"][0][0]["content"].endswith("Say: the answer is X.")
    replies = [
        [{"role": "assistant", "content": f"I think the answer is {answer}."}]
        for answer in rows["answer"]
    ]
    assert task.reward(rows["prompt"][:], replies, rows["answer"][:]) == [1.0] * 20
    half = [{"role": "assistant", "content": "The answer is 14."}]
    assert task.reward([""], [half], ["4"]) == [0.0]
    assert task.annotate(rows["prompt"][0], rows["answer"][0], ["4"]) is None


def test_gym_refuses_questions_of_several_right_answers():
    several = {
        "countdown",
        "n_queens",
        "propositional_logic",
        "puzzle24",
        "simple_integration",
        "codeio",
        "composite",
    }
    assert not several & set(allowed_datasets())
    assert {"chain_sum", "gsm_symbolic", "basic_arithmetic", "leg_counting", "sudoku"} <= set(
        allowed_datasets()
    )
    for name in ("countdown", "rubiks_cube", "ransom_note"):
        with refused("dataset", name):
            get_task(f"gym:{name}")


@pytest.mark.parametrize("name", ["chain_sum", "polynomial_multiplication", "string_insertion"])
def test_no_verifier_of_gym_sees_a_completion(monkeypatch, name):
    """Some of reasoning-gym's verifiers evaluate the text that they are given."""

    def forbidden(*args, **kwargs):
        raise AssertionError("evaluated")

    task = get_task(f"gym:{name}")
    answer = task.dataset(1)["answer"][0]
    for function in ("eval", "exec", "compile"):
        monkeypatch.setattr(f"builtins.{function}", forbidden)
    monkeypatch.setattr(DATASETS[name][0], "score_answer", forbidden)
    scores = [task.score(text, answer) for text in (f"the answer is {answer}", *HOSTILE.values())]
    monkeypatch.undo()
    assert scores == [1.0, *[0.0] * len(HOSTILE)]


def test_hub_reads_a_local_folder(tmp_path):
    Dataset.from_dict(
        {
            "question": [f"{i}?" for i in range(30)],
            "answer": [f"It is {i}.\n#### {i}" for i in range(30)],
        }
    ).to_json(str(tmp_path / "train.jsonl"))
    task = get_task(f"hub:{tmp_path}", chat=False)
    rows = task.dataset(10, seed=1)
    assert rows[:] == task.dataset(10, seed=1)[:] != task.dataset(10, seed=2)[:]
    assert [f"{answer}?" for answer in rows["answer"]] == rows["prompt"][:]
    assert task.reward([""], ["So \\boxed{1,000.0}"], ["1000"]) == [1.0]
    assert task.reward([""] * 2, ["The answer is The Cat.", "a cat"], ["the cat"] * 2) == [1.0, 0.0]
    for options, match in [
        ({"prompt_column": "q"}, "question, answer"),
        ({"split": "test"}, "test"),
        ({"color": 1}, "color"),
    ]:
        with pytest.raises(ValueError, match=match):
            get_task(f"hub:{tmp_path}", **options)
    with pytest.raises(ValueError, match="31 prompts"):
        task.dataset(31)


def test_rewards_are_what_trl_asks_for(tasks):
    reward = tasks["chain"].reward
    assert reward.__name__ == "reward"
    extra = {
        "completion_ids": [[1], [2]],
        "trainer_state": object(),
        "log_metric": print,
        "environments": None,
    }
    assert reward(
        prompts=["", ""], completions=["so the answer is 4", ""], answer=["4", "4"], **extra
    ) == [1.0, 0.0]
