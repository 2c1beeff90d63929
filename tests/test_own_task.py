"""A reader's own rows and reward: read as they are, or refused in a sentence that names line,
column and value.
"""

import json

import pandas as pd
import pytest
from refusals import refused

from workbook.tasks import BadRows, get_task, own_task
from workbook.tasks.own import read_rows

REWARDS = """
import math
from beside import bonus
def score(completion, answer, topic=None):
    return float(answer in completion) + bonus(topic)
def everything(completion, answer, **row):
    return len(row) + 100 * row["line"] + 10_000 * len(row["prompt"])
def raises(completion, answer): return 1 / (len(answer) - 1)
def nan(completion, answer): return math.nan
def several(completion, answer): return [1.0, 0.0]
def nothing(completion, answer): pass
def huge(completion, answer): return 1e39
def leaves(completion, answer): raise SystemError("no")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rows.csv").write_text(
        "prompt,answer,topic\n2 + 3 =,5,sums\n2 + 2 =,4,sums\n", encoding="utf-8"
    )
    (tmp_path / "reward.py").write_text(REWARDS)
    (tmp_path / "beside.py").write_text(
        "def bonus(topic): return 0.5 if topic == 'sums' else 0.0\n"
    )
    return tmp_path


def test_rows_of_a_csv_and_of_json_lines_are_the_same(folder):
    rows = read_rows(folder / "rows.csv")
    lines = [
        json.dumps({key: value for key, value in row.items() if key != "line"}) for row in rows
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    assert [{**row, "line": row["line"] + 1} for row in read_rows(folder / "rows.jsonl")] == rows
    assert rows[1] == {"prompt": "2 + 2 =", "answer": "4", "topic": "sums", "line": 3}
    assert read_rows([{"prompt": "a", "answer": 5.0}])[0]["answer"] == "5"


def test_cells_are_read_as_they_are_written(tmp_path):
    answers = ["None", "N/A", "007", "1e3", "true"]
    csv_text = "prompt,answer\n" + "".join(f'"of two\nlines",{answer}\n' for answer in answers)
    (tmp_path / "a.csv").write_text(csv_text)
    rows = read_rows(tmp_path / "a.csv")
    assert [row["answer"] for row in rows] == answers
    assert [row["line"] for row in rows] == [2, 4, 6, 8, 10]
    columns = {"prompt": ["of two\nlines"] * len(answers), "answer": answers}
    pd.DataFrame(columns).to_parquet(tmp_path / "a.parquet")
    assert read_rows(tmp_path / "a.parquet") == [
        {**row, "line": number} for number, row in enumerate(rows, 1)
    ]


def test_a_parquet_file_is_refused_by_row_or_as_a_whole(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"prompt": ["2 =", "3 ="], "answer": [2.0, None]}).to_parquet(path)
    with pytest.raises(BadRows) as raised:
        read_rows(path)
    assert [line for line, _ in raised.value.rows] == [2]
    path.write_text("prompt,answer\n")
    with pytest.raises(ValueError, match=r"a\.parquet is no Parquet file"):
        read_rows(path)


@pytest.mark.parametrize(
    ("name", "text", "bad"),
    [
        ("a.csv", "prompt,answer\n2 =,5\n3 =\n,1\n4 =,\n1, 2,3\n", [3, 4, 5, 6]),
        ("a.jsonl", '{"prompt": "2 =", "answer": 5}\n[1]\n{"prompt": "3"}\nnope\n', [2, 3, 4]),
        (
            "b.jsonl",
            '{"prompt": "2 =", "answer": NaN}\n{"prompt": "2 =", "answer": true}\n',
            [1, 2],
        ),
    ],
)
def test_bad_rows_are_named_by_line_and_nothing_is_loaded(tmp_path, name, text, bad):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadRows, match=name) as raised:
        read_rows(tmp_path / name)
    assert [line for line, _ in raised.value.rows] == bad


def test_a_function_gets_the_columns_it_takes_and_helpers_beside_it(folder):
    task = get_task(f"own:{folder}/rows.csv", reward=f"{folder}/reward.py:score")
    rows = task.dataset(2, seed=0)
    columns = {name: rows[name][:] for name in rows.column_names if name != "prompt"}
    assert task.reward(rows["prompt"][:], columns["answer"], **columns) == [1.5, 1.5]
    everything = own_task(folder / "rows.csv", f"{folder}/reward.py:everything")
    assert everything.reward(["2 + 3 ="], ["5"], ["5"], topic=["sums"], line=[2]) == [
        3 + 200 + 70_000
    ]


def test_several_functions_are_summed_by_weight_and_logged_one_by_one(folder):
    several, logged = {f"{folder}/reward.py:score": 2, f"{folder}/reward.py:everything": -0.5}, {}
    task, columns = own_task(folder / "rows.csv", several), {"topic": ["sums"], "line": [2]}
    total = task.reward(["2 + 3 ="], ["5"], ["5"], **columns, log_metric=logged.__setitem__)
    assert (
        total
        == [task.score("5", "5", topic="sums", line=2, prompt="2 + 3 =")]
        == [2 * 1.5 - 0.5 * 70_203]
    )
    assert logged == {"rewards/score": 1.5, "rewards/everything": 70_203}
    for wrong in ({}, dict.fromkeys(several, 0), dict.fromkeys(several, "1")):
        with refused("reward", wrong):
            own_task(folder / "rows.csv", wrong)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            "raises",
            (
                r"raises raised ZeroDivisionError: division by zero \(line 8 of reward.py\), at"
                r" line 2 of rows.csv"
            ),
        ),
        ("nan", "nan returned nan, not one finite number, at line 2"),
        ("several", r"several returned \[1.0, 0.0\], not one finite number"),
        ("nothing", "nothing returned None, not one finite number; does it lack a return?"),
        ("huge", "huge returned 1e\\+39"),
        ("leaves", "leaves raised SystemError: no"),
    ],
)
def test_what_a_function_does_wrong_is_said_with_its_row(folder, function, says):
    task = own_task(folder / "rows.csv", f"{folder}/reward.py:{function}")
    with pytest.raises(ValueError, match=says):
        task.reward(["2 + 3 ="], ["5"], ["5"], line=[2])


def test_the_sources_change_with_the_rows_and_the_reward(folder):
    def sources():
        return own_task(folder / "rows.csv", f"{folder}/reward.py:score").sources

    before = sources()
    assert set(before) == {"prompts rows.csv", "reward reward.py"}
    (folder / "reward.py").write_text(REWARDS + "# changed\n")
    assert sources()["reward reward.py"] != before["reward reward.py"]
    (folder / "rows.csv").write_text("prompt,answer,topic\n2 + 3 =,6,sums\n2 + 2 =,4,sums\n")
    assert sources()["prompts rows.csv"] != before["prompts rows.csv"]
    assert get_task("chain").sources == {}


def test_no_prompt_is_both_trained_on_and_held_out():
    rows = [{"prompt": f"{i % 9} =", "answer": i % 9} for i in range(18)]
    train, held_out = own_task(rows, max).split(8, 4, seed=1)
    assert not set(train["prompt"]) & set(held_out["prompt"])
    assert own_task(rows, max).split(8, 0, seed=1)[0]["prompt"] is not None
    with pytest.raises(ValueError, match="30 prompts"):
        own_task(rows, max).dataset(30)
