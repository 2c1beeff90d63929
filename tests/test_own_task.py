"""A reader's own prompts and reward: bad rows are named by line, a failing function by what it did and where."""

import _thread
import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import campaign, sample

from workbook.tasks import Chain, get_task, own_task, reward_server
from workbook.tasks.own import BadRows, read_rows
from workbook.tasks.own_reward import InProcess, end_all
from workbook.tasks.own_rows import MAX_ROWS
from workbook.tasks.task import split_rows

FUNCTIONS = """from __future__ import annotations
import dataclasses, math, os, re, time
import beside

def score(completion, answer, topic=None):
    print("what a function prints must not reach the protocol")
    return float(answer in completion) + beside.BONUS
def everything(completion, answer, **row): return len(row) + 100 * row["line"] + 10_000 * len(row["prompt"])
def raises(completion, answer): return 1 / (len(answer) - 1)
def nan(completion, answer): return math.nan
def several(completion, answer): return [1.0, 0.0]
def nothing(completion, answer): pass
def text(completion, answer): return "1.0"
def leaves(completion, answer): raise SystemExit(2)
def dies(completion, answer): os._exit(3)
def backtracks(completion, answer): return bool(re.match(r"(a+)+$", "a" * 40 + "b"))
def sometimes(completion, answer): time.sleep(60 if completion == "hang" else 0); return 1
async def later(completion, answer): return 1
def forks(completion, answer):
    if copy := os.fork():
        open(completion + ".part", "w").write(str(copy))
        os.rename(completion + ".part", completion)
    time.sleep(600)
@dataclasses.dataclass
class Looks_its_module_up:
    x: int
    _: dataclasses.KW_ONLY
"""


@pytest.fixture
def file(tmp_path):
    """A function: a data file's name and text -> its path; the reward functions lie beside it."""
    (tmp_path / "reward.py").write_text(FUNCTIONS)
    (tmp_path / "beside.py").write_text("BONUS = 0.5")

    def write(text="prompt,answer,topic\n2 + 3 =,5,sums\n2 + 2 =,4,sums\n", name="rows.csv"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    return write


def task(path, function, **options):
    return get_task(f"own:{path}", reward=f"{path.parent / 'reward.py'}:{function}", **options)


# --- rows


def test_rows_of_a_csv_and_of_json_lines_are_the_same(file):
    lines = [
        '{"prompt": "2 + 3 =", "answer": 5, "topic": "sums"}',
        "",
        '{"prompt": "a, b", "answer": 4.0, "topic": null}',
    ]
    rows = read_rows(file("\r\n".join(lines), "rows.jsonl"))
    assert rows == [
        {"prompt": "2 + 3 =", "answer": "5", "topic": "sums", "line": 1},
        {"prompt": "a, b", "answer": "4", "topic": None, "line": 3},
    ]
    csv = read_rows(file('\ufeffprompt, answer,topic\n2 + 3 =,5,sums\n\n"a, b\nc",4,x\nlast,1,y\n'))
    assert [(row["prompt"], row["line"]) for row in csv] == [("2 + 3 =", 2), ("a, b\nc", 4), ("last", 6)]


GOOD = '{"prompt": "a", "answer": 1}\n'


@pytest.mark.parametrize(
    ("name", "text", "bad"),
    [
        ("r.csv", "prompt,answer\na,1\nb\nc,3,4\n", [(3, "has 1 fields, but"), (4, "has 3 fields, .* quote texts")]),
        ("r.csv", "prompt,answer\n,1\nb,  \n", [(2, "prompt is empty"), (3, "answer is empty")]),
        ("r.csv", 'prompt,answer\na,1\n"b,2\nc,3\n', [(3, "is not valid CSV")]),
        ("r.csv", b"prompt,answer\na,1\n\xff,2\n", [(3, "is not UTF-8")]),
        ("r.csv", "prompt,answer\n" + "a" * 30_000 + ",1\n", [(2, "prompt has 30,000 characters")]),
        ("r.jsonl", GOOD + '{"prompt": "b"\n[]\n', [(2, "is not valid JSON"), (3, "is a list")]),
        ("r.jsonl", GOOD + '{"prompt": 5, "answer": null}\n', [(2, "prompt is 5, but must be text")]),
        ("r.jsonl", GOOD + '{"prompt": "b", "answer": true}\n', [(2, "answer is True")]),
        ("r.jsonl", '{"prompt": "a", "answer": NaN}\n', [(1, "answer is nan")]),
        ("r.jsonl", GOOD + '{"prompt": "b", "anwser": 2}\n', [(2, "lacks answer and has anwser")]),
        (
            "r.jsonl",
            GOOD.replace("}", ', "k": 1}') + GOOD.replace("}", ', "k": "x"}'),
            [(2, "k is text, but a number")],
        ),
        ("r.jsonl", '{"prompt": "a", "answer": 1, "k": [1]}\n', [(1, r"k is \[1\], but must be text")]),
        ("r.jsonl", '{"prompt": "a\\ud800", "answer": 1}\n', [(1, "prompt holds characters that are no text")]),
    ],
)
def test_bad_rows_are_named_by_line_and_nothing_is_loaded(file, name, text, bad):
    with pytest.raises(BadRows) as error:
        task(file(text, name), "score")
    assert [line for line, _ in error.value.rows] == [line for line, _ in bad]
    for line, words in bad:
        error.match(rf"line {line}: {words}")
    error.match(rf"{name} was not loaded: {len(bad)} row")


def test_of_many_bad_rows_ten_are_named(file):
    with pytest.raises(BadRows) as error:
        read_rows(file("prompt,answer\n" + "a\n" * 200))
    assert str(error.value).count("line ") == 10 + 10  # each says "the first line", too
    error.match("And 190 more")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("r.csv", "question,answer\na,1\n", "no column prompt; its columns are answer, question"),
        ("r.csv", "prompt,answer,line\na,1,2\n", "column line, a name that is taken"),
        ("r.csv", "prompt,answer,image\na,1,2\n", "column image, a name that is taken"),
        ("r.csv", "prompt,answer,self\na,1,2\n", "column self, a name that is taken"),
        ("r.csv", "prompt,answer,answer\na,1,2\n", "must name each column once"),
        ("r.csv", "", "r.csv has no rows"),
        ("r.json", '[{"prompt": "a", "answer": 1}]', "is one JSON list; write one object per line"),
        ("r.txt", "a", "must end in .csv or .jsonl"),
    ],
)
def test_files_that_cannot_be_read_at_all(file, name, text, says):
    with pytest.raises(ValueError, match=says):
        read_rows(file(text, name))


def test_a_sample_of_damaged_files_is_read_rightly_or_refused_by_file_line_and_field(tmp_path):
    own_files = campaign("own_files")
    findings = {name: own_files.attempt(tmp_path, *arguments) for name, arguments in sample("own_files", 150)}
    assert {name: finding for name, finding in findings.items() if finding} == {}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "data is a NoneType, but must be a file's path or a list of dicts"),
        (5, "data is a int"),
        ({"prompt": ["a"]}, "data is a dict"),
        (pd.DataFrame({"prompt": ["a"], "answer": [1]}), r"data is a DataFrame, .* is \.to_dict\('records'\)"),
        ("", "is a folder; give the path of a .csv or .jsonl file in it"),
        ("~nobody-has-this-name/rows.csv", "there can be no data file '~nobody"),
        ("x" * 5000 + ".csv", "there can be no data file 'xxx.* File name too long"),
        ("x\0.csv", r"there is no data file 'x\\x00.csv'"),
        ([{5: "a"}], "rows has a column 5; a column's name must be one line of text"),
        ([{"prompt": "a", "answer": 10**5000}], "line 1: answer is an integer of more than 4,000 digits"),
        ([{"prompt": "a", "answer": 1, "k": 10**5000}], "line 1: k is a int that can't be shown, but must be"),
        ([{"prompt": "a", "answer": 1, "k": float("nan")}], "line 1: k is nan, but must be a finite number or null"),
        (
            [{"prompt": "a", "answer": 1, "k": 2**60 + 1}, {"prompt": "a", "answer": 1, "k": 0.5}],
            r"line 2: k is 0.5, but a column with fractions holds no integer beyond 2\*\*53 \(see line 1\)",
        ),
    ],
)
def test_data_that_is_none_is_refused_in_a_sentence(data, says):
    with pytest.raises(ValueError, match=says) as error:
        read_rows(data)
    assert len(str(error.value)) < 400


def test_numbers_of_any_size_and_of_numpy_are_taken_as_they_are():
    table = pd.DataFrame({"prompt": ["a", "b"], "answer": [1, 2], "k": [0.5, 1.5]})
    rows = read_rows(table.to_dict("records")) + read_rows(
        [{"prompt": np.str_("c"), "answer": np.int64(3), "k": 2**60}]
    )
    assert [(row["answer"], row["k"]) for row in rows] == [("1", 0.5), ("2", 1.5), ("3", 2**60)]
    assert {type(row["k"]) for row in rows} == {float, int}
    assert read_rows([{"prompt": "a", "answer": 10**400}])[0]["answer"] == str(10**400)
    assert (
        len(own_task([{"prompt": "a", "answer": 1, "k": 1}, {"prompt": "b", "answer": 1, "k": 2**60}], max).dataset(2))
        == 2
    )


def test_a_file_that_may_not_be_read_is_refused_in_a_sentence(file, monkeypatch):
    def refuses(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    path = file()
    monkeypatch.setattr(Path, "open", refuses)
    with pytest.raises(ValueError, match=r"rows.csv' can't be read: Permission denied\.$"):
        read_rows(path)


def test_sizes_are_bounded(file, monkeypatch):
    monkeypatch.setattr("workbook.tasks.own_rows.MAX_BYTES", 30)
    with pytest.raises(ValueError, match="the most that is taken"):
        read_rows(file())
    with pytest.raises(ValueError, match=f"most that is taken is {MAX_ROWS:,}"):
        read_rows([{"prompt": "a", "answer": "b"}] * (MAX_ROWS + 1))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="3 prompts are asked for, but rows"):
        task(file(), "score").dataset(3)


def test_the_data_set_has_all_columns_and_chat_if_asked(file):
    plain, chat = task(file(), "score"), task(file(), "score", chat=True)
    assert sorted(plain.dataset(2)["prompt"]) == ["2 + 2 =", "2 + 3 ="]
    assert set(plain.dataset(1).column_names) == {"prompt", "answer", "topic", "line"}
    assert plain.dataset(2, seed=3).to_list() == plain.dataset(2, seed=3).to_list()
    assert chat.dataset(1)["prompt"][0][0]["role"] == "user"


# --- training rows and held-out rows


def test_no_prompt_is_both_trained_on_and_held_out(file):
    lines = [f"question {i // 2 if i < 10 else i},{i}" for i in range(30)]  # ten rows ask five questions twice
    one = task(file("prompt,answer\n" + "\n".join(lines)), "score")
    for seed in range(5):
        trained, held = one.split(20, 8, seed)
        assert (len(trained), len(held)) == (20, 8)
        assert not set(trained["prompt"]) & set(held["prompt"])
        assert not set(trained["line"]) & set(held["line"])
        assert one.split(20, 8, seed)[0].to_list() == trained.to_list()
        assert one.split(20, 4, seed)[1]["line"][:] == held["line"][:4], "more held out are those and others"
    assert len(one.split(30, 0)[1]) == 0
    assert one.describe_split(20, 8) == f"{one.name}: 20 prompts to train, 8 held out."


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), st.integers(1, 8), st.integers(0, 6))
def test_a_split_is_disjoint_and_found_where_whole_prompts_can_be_held_out(prompts, train, held_out):
    rows = Dataset.from_dict({"prompt": prompts, "line": range(len(prompts))})
    try:
        trained, held = split_rows(rows, prompts, train, held_out, "rows")
    except ValueError:
        spare = max(map(prompts.count, prompts)) - 1  # rows of a prompt of which only some are held out
        assert train + held_out > len(prompts) - spare
    else:
        assert (len(trained), len(held)) == (train, held_out)
        assert not set(trained["prompt"]) & set(held["prompt"])
        assert len(set(trained["line"]) | set(held["line"])) == train + held_out


def test_which_rows_train_does_not_depend_on_how_many_are_held_out():
    one = own_task([{"prompt": f"p{i}", "answer": i} for i in range(30)], lambda completion, answer: 1)
    trained = one.dataset(22, seed=3).to_list()
    assert all(one.split(22, n, seed=3)[0].to_list() == trained for n in (0, 1, 8))


@pytest.mark.parametrize(
    ("train", "held_out", "says"),
    [
        (
            22,
            9,
            "^22 prompts to train and 9 held out are asked for, but rows has 30 rows, with 29 different prompts",
        ),
        (22, -1, "held_out is -1"),
        (0, 1, "train is 0"),
        (True, 1, "train is True"),
    ],
)
def test_rows_that_do_not_suffice_are_refused_with_the_numbers(train, held_out, says):
    spaces = [{"prompt": f"p {max(i, 1)}" + " " * (i == 0), "answer": i} for i in range(30)]
    with pytest.raises(ValueError, match=says):
        own_task(spaces, lambda completion, answer: 1).split(train, held_out)


# --- rewards


def rewards(one, completions, **columns):
    n = len(completions)
    return one.reward(["2 + 3 ="] * n, completions, ["5"] * n, topic=["sums"] * n, line=[2] * n, **columns)


def test_a_function_gets_the_columns_it_takes_and_helpers_beside_it(file):
    assert rewards(task(file(), "score"), ["5", "4"]) == [1.5, 0.5]
    assert rewards(task(file(), "everything"), ["x"], trainer_state=object(), completion_ids=[[1]]) == [70_203.0]
    as_chat = [[{"role": "assistant", "content": "it is 5"}]]
    assert rewards(task(file(), "score"), as_chat) == [1.5]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("raises", r"raised ZeroDivisionError: division by zero \(line 9 of reward.py\), at line 2 of rows.csv"),
        ("nan", "returned nan, not a finite number, at line 2 of rows.csv"),
        ("several", "returned a list of length 2, not one number, at line 2"),
        ("nothing", "returned None, not one number; does it lack a return"),
        ("text", "returned a str, not one number"),
        ("later", "returned a coroutine, not one number"),
        ("leaves", "raised SystemExit: 2"),
        ("dies", r"ended its process \(exit status 3\), at line 2"),
        ("backtracks", r"took longer than 0.4 s, at line 2"),
    ],
)
def test_what_a_function_does_wrong_is_said_with_its_row(file, function, says):
    one, began = task(file(), function, seconds=0.4), time.monotonic()
    with pytest.raises(ValueError, match=f"^The reward function {function} {says}"):
        rewards(one, ["x"])
    assert time.monotonic() - began < 20


def test_after_a_call_that_hung_the_next_one_is_answered(file):
    one = task(file(), "sometimes", seconds=0.4)
    with pytest.raises(ValueError, match="took longer"):
        rewards(one, ["fine", "hang"])
    assert rewards(one, ["fine"]) == [1.0]
    process = one._call.process
    del one
    assert process.poll() is not None, "its process does not outlive it"


def test_a_function_at_hand_is_given_up_when_it_hangs():
    def score(completion, answer):
        return 1 / 0 if completion == "raise" else time.sleep(5) if completion == "hang" else completion == answer

    one = own_task([{"prompt": "a", "answer": "b"}], score, seconds=0.2)
    assert one.reward(["a"], ["b"], ["b"]) == [1.0]
    for completion, says in {"raise": "ZeroDivisionError", "hang": "took longer than 0.2 s", "": ""}.items():
        if says:
            with pytest.raises(ValueError, match=says):
                one.reward(["a"], [completion], ["b"])


SHARP = [
    (("fork", "watchdog"), "sleeps"),
    (("daemon",), "backtracks"),
    (("program-session",), "becomes sleep"),
    (("fork-returns",), "return True"),
    (("forges", "forges-half"), "return 0.5"),
    (("closes",), "return True"),
    (("reopens",), "return True"),
    (("no-math",), "return float('nan')"),
    (("thread",), "raise KeyboardInterrupt"),
    (("nothing",), "return 1e39"),
    (("nothing",), "raise Base('\\ud800\\x1b[31m\\n')"),
    (("nothing",), "dies of no name"),
]


@pytest.mark.skipif(os.name != "posix", reason="forks")
@pytest.mark.parametrize(("acts", "end"), [*SHARP, *(arguments for _, arguments in sample("own_rewards", 4))])
def test_hostile_functions_are_ended_with_all_that_they_started(tmp_path, monkeypatch, acts, end):
    own_rewards = campaign("own_rewards")
    for limit, seconds in {"SECONDS": 1.0, "GRACE": 60.0}.items():  # how long it takes is the campaign's to measure
        monkeypatch.setattr(own_rewards, limit, seconds)
    assert own_rewards.attempt(tmp_path, acts, end) is None


def test_an_interrupt_ends_the_call_and_the_next_one_is_answered(file):
    one = task(file(), "sometimes", seconds=60)
    process = one._call.process
    timer = threading.Timer(0.1, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        rewards(one, ["hang"])
    assert process.poll() is not None, "nobody waits for its answer"
    assert rewards(one, ["fine"]) == [1.0]
    if os.name == "posix":
        assert os.getsid(one._call.process.pid) != os.getsid(0), "a Ctrl-C in this terminal does not reach it"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.float32(0.5), None),
        (np.bool_(True), None),
        (torch.tensor(0.5), None),
        (Fraction(1, 3), None),
        (Decimal("0.5"), None),
        (np.float64(1e39), r"returned 1e\+39, but a reward must lie between"),
        (-1e30, r"returned -1e\+30, but"),
        (10**400, "returned a number beyond every float"),
        (Fraction(10**400), "returned a number beyond every float"),
        (torch.tensor([0.5]), "returned a Tensor of length 1, not one number"),
        (1 + 0j, "returned a complex, not one number"),
        (Decimal("sNaN"), "raised ValueError"),
        (type("a\nb" * 99, (), {})(), "returned a a ba ba"),
    ],
)
def test_one_finite_number_that_training_can_square_is_a_reward(value, says):
    one = own_task([{"prompt": "a", "answer": "b"}], lambda completion, answer: value)
    if says is None:
        assert one.reward(["a"], ["x"], ["b"]) == [float(value)]
    else:
        with pytest.raises(ValueError, match=f"^The reward function <lambda> {says}.*, at the answer 'b'") as error:
            one.reward(["a"], ["x"], ["b"])
        assert str(error.value).isprintable()


# --- what the task is made of


def test_the_sources_are_the_files_with_the_helpers_that_they_import(file):
    path = file()
    folder = path.parent
    before = task(path, "score").sources
    assert before == {
        f"{kind} {name}": hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for kind, name in [("prompts", "rows.csv"), ("reward", "beside.py"), ("reward", "reward.py")]
    }
    (folder / "beside.py").write_text("BONUS = 0.25")
    path.write_bytes(path.read_bytes() + b"1 + 1 =,2,sums\n")
    after = task(path, "score").sources
    assert {name for name in before if before[name] != after[name]} == {"prompts rows.csv", "reward beside.py"}


@pytest.mark.parametrize("source_is_kept", [True, False])
def test_the_sources_of_rows_and_a_function_at_hand_distinguish_them(monkeypatch, source_is_kept):
    def lenient(completion, answer):
        return answer in {completion, completion.strip(), "a", "b"}

    def strict(completion, answer):
        return answer in {completion, completion.strip(), "a", "c"}

    def refuses(function):
        raise OSError("could not get source code")

    if not source_is_kept:
        monkeypatch.setattr(inspect, "getsource", refuses)
    rows = [{"prompt": "a", "answer": "b"}]
    first, other = own_task(rows, lenient).sources, own_task(rows, strict).sources
    assert first == own_task(rows, lenient).sources
    assert first["prompts rows"] == other["prompts rows"] != own_task(rows * 2, max).sources["prompts rows"]
    assert first["reward lenient"] != other["reward strict"]
    assert Chain().sources == {}


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ("reward.py:missing", "reward.py has no function 'missing'; it has score"),
        ("absent.py:score", "is no Python file"),
        ("reward.py", r"must be '<file>.py:<function>'"),
        ("broken.py:score", r"broken.py can't be imported: SyntaxError"),
        ("needy.py:score", r"needy.py can't be imported: ModuleNotFoundError: .*\(line 1 of needy.py\)"),
        ("exits.py:score", r"^the reward file exits.py ended its process \(exit status 3\), while it was imported.$"),
        ("closes.py:score", "^the reward file closes.py closed the files .*, while it was imported.$"),
        ("forges.py:missing", "^forges.py has no function 'missing'; it has score.$"),
        (None, r"must be '<file>.py:<function>'"),
        (["reward.py:score"], r"must be '<file>.py:<function>'"),
        ("rows.csv:score", r"must be '<file>.py:<function>'"),
        ("~nobody-has-this-name/r.py:score", "is no Python file"),
        ("x" * 5000 + ".py:score", "is no Python file"),
        ("a\0.py:score", "is no Python file"),
    ],
)
def test_a_reward_that_cannot_be_used_is_refused_at_once(file, monkeypatch, reward, says):
    folder = file().parent
    function = "import os\nfrom os.path import join\ndef score(completion, answer): return 1\n"
    (folder / "exits.py").write_text(function + "os._exit(3)")
    (folder / "closes.py").write_text(function + "os.closerange(3, 256)")
    forged = """b'\\n{"id": "ready", "files": {}}\\n'"""
    (folder / "forges.py").write_text(
        function + f"for fd in (3, 4, 5):\n  try: os.write(fd, {forged})\n  except OSError: pass"
    )
    (folder / "broken.py").write_text("def score(:")
    (folder / "needy.py").write_text("import a_module_that_nobody_has")
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=says):
        get_task("own:rows.csv", reward=reward)


@pytest.mark.parametrize("seconds", [0, -1, True, "2", 10_000])
def test_the_time_of_a_call_is_bounded(file, seconds):
    with pytest.raises(ValueError, match="seconds is"):
        task(file(), "score", seconds=seconds)


def test_hostile_completions_reach_the_function_as_text(file):
    texts = ["\ud800", "\x00", "\n\r\u2028", "x" * 10**6, '"}\n{"reward": 9}']
    assert rewards(task(file(), "score"), texts) == [0.5] * 5


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_a_process_whose_user_is_gone_ends_with_its_copies_even_where_its_function_hangs(file):
    folder = file().parent
    command = [sys.executable, reward_server.__file__, str(folder / "reward.py"), "forks"]
    request = {"id": "1", "completion": str(folder / "copy"), "answer": "", "row": {}}
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        process.stdin.write(f'{{"id": "0"}}\n{json.dumps(request)}\n'.encode())
        process.stdin.flush()
        while not (folder / "copy").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.stdin.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
    copy = int((folder / "copy").read_text())
    while psutil.pid_exists(copy) and psutil.Process(copy).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def test_a_copy_of_this_process_does_not_end_it_on_its_way_out(file):
    one = task(file(), "score")
    end_all(one._call.process, "", owner=os.getpid() + 1)
    assert one._call.process.poll() is None


def test_the_protocol_is_json_lines_and_a_process_is_reused(file):
    call = InProcess(file().parent / "reward.py", "score", 5.0)
    first = call.process.pid
    for _ in range(3):
        assert call("5", "5", {"topic": "x", "unknown": 1})["reward"] == 1.5
    assert call.process.pid == first
    assert call("", "5", {})["reward"] == 0.5


def test_the_command_line_of_the_process_needs_nothing_but_python():
    source = Path(reward_server.__file__).read_text()
    imports = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imports <= sys.stdlib_module_names
