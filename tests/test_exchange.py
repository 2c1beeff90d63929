"""Rollouts of other programs: read exactly, written exactly, refused in a sentence that names file and line."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workbook.policies.load import load_policy
from workbook.rollouts import exchange, read_rollouts, token_files, write_prime_rl
from workbook.rollouts.foreign import as_prompt, words

COMPLETIONS = Path(__file__).parent / "data" / "completions"  # written by TRL 1.16: log_completions, bundled policy
PRIME_RL = {  # a line of prime-rl's exporter: a prompt of two tokens, a tool's turn inside the completion
    "schema_version": 1,
    "step": 3,
    "env_name": "math",
    "token_ids": [7, 8, 20, 21, 30, 22],
    "position_ids": [0, 1, 2, 3, 4, 5],
    "loss_mask": [False, False, True, True, False, True],
    "advantages": [0.0, 0.0, 0.5, 0.5, 0.5, 0.5],
    "rewards": [1.0] * 6,
    "inference_logprobs": [-1.0, -1.0, -0.5, -0.25, 0.0, -2.0],
    "trainer_logprobs": [-1.0, -1.0, -0.25, -0.25, 0.0, -1.0],
    "entropy": [1.0, 1.0, 0.5, 0.25, 0.0, None],
    "importance_ratio": [1.0, 1.0, 1.25, 1.0, 1.0, 2.5],
    "is_masked": [False, False, False, False, False, True],
    "is_masked_high": [False, False, False, False, False, True],
    "is_masked_low": [False] * 6,
}


@pytest.fixture(scope="module")
def policy():
    return load_policy("bundled")


@pytest.fixture
def lines(tmp_path):
    """Write objects, or texts as they are, as the lines of a file."""

    def write(*rows, name="rollouts.jsonl"):
        texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("\n".join(texts) + "\n")
        return tmp_path / name

    return write


def trained_table() -> pd.DataFrame:
    """Two steps of two rollouts each with awkward numbers, in the layout of a run's token tables."""
    random = np.random.default_rng(0)
    lengths = {(2, 5, 0): 3, (2, 5, 4): 2, (9, 1, 7): 4, (9, 3, 1): 1}
    keys = [(*key, position) for key, length in lengths.items() for position in range(length)]
    table = pd.DataFrame(keys, columns=["step", "group", "rollout", "position"]).astype("int32")
    table["token_id"] = random.integers(0, 30, len(table)).astype("int32")
    table["token"] = pd.Categorical([f" <b>{number}\n" for number in table["token_id"]])
    table["prompt"] = pd.Categorical([f"5 - {group} =" for group in table["group"]])
    table["stopped"] = pd.Categorical(
        ["", "clip high", "clip low", "tool", "", "truncated", "entropy", "off-policy", "", ""]
    )
    for name in ("reward", "advantage", "weight", "push", "ratio", "importance", "old_logp", "logp", "logp_after"):
        table[name] = random.normal(size=len(table)).astype("float32")
    table["entropy"] = np.float32([0.1, 1e-30, 3e20, np.nan, 0, 1 / 3, 2, 3, 4, 5])
    table["residual"] = np.float32(0.1)
    table.attrs["objective"] = {"loss_type": "grpo", "epsilon_low": 0.2}
    return table


@pytest.mark.parametrize("with_prompts", [False, True])
def test_a_token_export_gives_every_number_back(with_prompts, tmp_path, policy):
    table = trained_table()
    write_prime_rl(table, tmp_path / "rank_0.jsonl", policy.tokenizer if with_prompts else None)
    back = read_rollouts(tmp_path / "rank_0.jsonl")
    assert set(table) == set(back)
    for name in table:
        if table[name].dtype == "category":
            assert back[name].astype(str).tolist() == table[name].astype(str).tolist()
        else:
            assert back[name].dtype == table[name].dtype
            np.testing.assert_array_equal(back[name], table[name])  # NaN equal NaN, and no rounding
    assert back.attrs["objective"] == table.attrs["objective"]
    assert back.attrs["source"]["groups"] == "file"


def test_a_token_export_is_prime_rls(tmp_path, policy):
    write_prime_rl(trained_table(), tmp_path / "rank_0.jsonl", policy.tokenizer)
    row = json.loads((tmp_path / "rank_0.jsonl").read_text().split("\n")[0])
    assert set(PRIME_RL) <= set(row)
    prompt = policy.tokenizer("5 - 5 =")["input_ids"]
    assert row["token_ids"][: len(prompt)] == prompt
    assert row["loss_mask"] == [False] * len(prompt) + [True] * 3
    assert row["is_masked_high"][len(prompt) :] == [False, True, False]
    assert {len(value) for value in row.values() if isinstance(value, list)} == {len(prompt) + 3}
    ratio = np.exp(np.subtract(row["trainer_logprobs"][-1], row["inference_logprobs"][-1]))
    assert row["importance_ratio"][-1] == pytest.approx(ratio, rel=1e-12)
    assert row["mismatch_kl"][-1] == pytest.approx(ratio - 1 - np.log(ratio), rel=1e-9)
    assert [path.name for path in tmp_path.iterdir()] == ["rank_0.jsonl"]


def test_prime_rls_own_lines_are_read(lines):
    other = PRIME_RL | {"token_ids": [7, 8, 20, 21, 30, 23], "rewards": [0.0] * 6}
    table = read_rollouts(lines(PRIME_RL, other, PRIME_RL | {"token_ids": [9, 9, 20, 21, 30, 22]}))
    assert table["group"].tolist() == [0] * 8 + [1] * 4  # rollouts of the same prompt tokens
    first = table[table["rollout"] == 0]
    assert first["token_id"].tolist() == [20, 21, 30, 22]
    assert first["token"].tolist() == ["#20", "#21", "#30", "#22"]
    assert first["stopped"].tolist() == ["", "", "tool", "clip high"]
    assert first["ratio"].tolist() == [1.25, 1.0, 1.0, 2.5]
    assert first["old_logp"].tolist() == [-0.5, -0.25, 0.0, -2.0]
    assert first["logp"].tolist() == [-0.25, -0.25, 0.0, -1.0]
    assert np.isnan(first["entropy"].iloc[3])
    assert table.groupby("rollout")["reward"].first().tolist() == [1.0, 0.0, 1.0]
    assert table["step"].unique().tolist() == [3]
    source = table.attrs["source"]
    assert (source["format"], source["tokens"], source["groups"]) == ("prime-rl", "ids", "prompt")


def test_a_folder_of_several_ranks_is_one_step(tmp_path):
    folder = tmp_path / "token_exports" / "step_3"
    folder.mkdir(parents=True)
    for rank in (0, 1):
        (folder / f"rank_{rank}.jsonl").write_text(json.dumps(PRIME_RL) + "\n")
    (folder / "STABLE").touch()
    for place in (tmp_path, tmp_path / "token_exports", folder):
        table = read_rollouts(place)
        assert table["rollout"].unique().tolist() == [0, 1]
        assert table["group"].unique().tolist() == [0]  # a group may lie on two ranks
        assert table.attrs["source"]["files"] == 2


def test_trls_completions(policy):
    table = read_rollouts(COMPLETIONS.parent)
    one = pd.read_parquet(COMPLETIONS / "completions_00001.parquet")
    assert table["step"].unique().tolist() == [1, 5]  # step 2 trained on the rollouts of step 1 once more
    assert table.attrs["source"]["notes"] == ["1 of 3 steps repeat the rollouts of the step before and were left out."]
    first = table[table["step"] == 1]
    rollouts = first.groupby("rollout")
    assert rollouts["token"].agg("".join).tolist() == one["completion"].tolist()
    assert rollouts["reward"].first().tolist() == one["reward"].tolist()
    np.testing.assert_array_equal(rollouts["advantage"].first(), one["advantage"].astype("float32"))
    assert rollouts["group"].first().tolist() == pd.factorize(one["prompt"])[0].tolist()
    cut = read_rollouts(COMPLETIONS / "completions_00001.parquet", policy.tokenizer)
    ids = policy.tokenizer(one["completion"].tolist())["input_ids"]
    assert cut.groupby("rollout")["token_id"].agg(list).tolist() == ids
    assert cut.attrs["source"]["tokens"] == "tokenizer"


def test_chats_and_several_rewards_of_trl(tmp_path):
    chat = [{"role": "user", "content": "How many?"}]
    answers = [[{"role": "assistant", "content": text}] for text in ("It is 5", "It is 6")]
    columns = {"step": 4, "prompt": [chat, chat], "completion": answers}
    columns |= {"right": [1.0, 0.0], "short": [0.5, None], "advantage": [1.0, -1.0]}
    pd.DataFrame(columns).to_parquet(tmp_path / "completions_00004.parquet")
    table = read_rollouts(tmp_path / "completions_00004.parquet")
    assert table["token"].tolist() == ["It", " is", " 5", "It", " is", " 6"]
    assert table.groupby("rollout")["reward"].first().tolist() == [1.5, 0.0]  # as TRL's nansum
    assert as_prompt(table["prompt"].iloc[0]) == chat
    assert table["group"].unique().tolist() == [0]
    assert table.attrs["source"]["notes"] == ["The reward is the sum of the columns right, short, each with weight 1."]


def test_plain_json_lines_and_verls_names(lines):
    table = read_rollouts(
        lines(
            {"input": "p", "output": "a b", "score": 1, "step": 2},
            {"input": "p", "output": "a", "score": 0.0, "step": 2},
            {"prompt": "q", "tokens": ["x", "y"], "token_ids": [1, 2], "reward": 0, "logp": [-1, None], "uid": "u"},
        )
    )
    assert table["token"].tolist() == ["a", " b", "a", "x", "y"]
    assert table["reward"].tolist() == [1, 1, 0, 0, 0]
    assert table["step"].tolist() == [2, 2, 2, 0, 0]
    assert table["logp"].isna().tolist() == [True, True, True, False, True]
    assert "token_id" not in table  # not all have one
    assert table.attrs["source"]["groups"] == "prompt"


def test_token_tables_of_a_folder_are_joined(tmp_path):
    (tmp_path / "tokens").mkdir()
    whole = trained_table()
    for step, rows in whole.groupby("step"):
        rows.reset_index(drop=True).to_parquet(tmp_path / "tokens" / f"step-{step:06d}.parquet")
    table = read_rollouts(tmp_path)
    pd.testing.assert_frame_equal(table[list(whole)].astype(object), whole.astype(object), check_dtype=False)


def test_an_unfinished_last_line_is_left_out(lines, tmp_path):
    path = lines(PRIME_RL, PRIME_RL)
    path.write_text(path.read_text()[:-20])
    table = read_rollouts(path)
    assert table["rollout"].nunique() == 1
    assert table.attrs["source"]["notes"] == [
        "The last line of rollouts.jsonl is incomplete and was left out: is it being written?"
    ]


GOOD = {"prompt": "p", "completion": "c", "reward": 1.0}
REFUSED = {
    "not JSON": ([GOOD, "{not", GOOD], "rollouts.jsonl, line 2: is no JSON (Expecting property name"),
    "nested": ([GOOD, "[" * 100_000 + "]" * 100_000], "line 2: is no JSON that is read here."),
    "digits": (['{"prompt": ' + "9" * 5_000 + "}", GOOD], "line 1: is no JSON that is read here."),
    "a list": (["[1, 2]"], "line 1: is [1, 2], but must be an object, one rollout per line."),
    "no text": ([{"prompt": "p", "reward": 1}], "line 1: has none of completion, output, response, text, tokens"),
    "no reward": ([{"prompt": "p", "completion": "c"}], "line 1: has neither a reward nor an advantage."),
    "reward": ([GOOD | {"reward": "high"}], "line 1: reward is 'high', but must be a number."),
    "huge": ([GOOD | {"reward": 10**400}], "line 1: reward is a number of more than 40 digits, which no float holds."),
    "step": ([GOOD | {"step": -1}], "line 1: step is -1, but must be a whole number of steps."),
    "group": ([GOOD | {"group": [1]}], "line 1: group is [1], but must be a whole number or a text."),
    "prompt": ([GOOD | {"prompt": 3}], "line 1: prompt is 3, but must be a text."),
    "chat": ([GOOD | {"prompt": [{"text": "x"}]}], "but must be a text or a list of chat messages."),
    "long": ([GOOD | {"completion": "x" * 1_000_001}], "line 1: completion has 1,000,001 characters; the most"),
    "lengths": ([PRIME_RL | {"entropy": [1.0]}], "line 1: entropy has 1 values for 6 tokens."),
    "ids": ([PRIME_RL | {"token_ids": [1, 2, 3, 4, 5, -6]}], "line 1: token_ids holds -6, which is no token id."),
    "mask": ([PRIME_RL | {"loss_mask": None}], "line 1: loss_mask is None, but must be a list of 6 numbers."),
    "values": ([PRIME_RL | {"rewards": ["1"] * 6}], "line 1: rewards holds '1', which is no number."),
    "stopped": (
        [PRIME_RL | {"workbook": {"prompt_tokens": 2, "stopped": ["<b>"] * 4}}],
        "line 1: stopped holds '<b>'; valid are '', 'clip low'",
    ),
    "start": ([PRIME_RL | {"workbook": {"prompt_tokens": 9}}], "line 1: prompt_tokens is 9 of 6 tokens."),
    "empty": ([""], "rollouts.jsonl holds no tokens."),
    "tokens": ([{"tokens": ["a", 1], "reward": 1}], "line 1: tokens must be a list of texts, one per token."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cant_be_read_is_one_sentence(case, lines):
    rows, sentence = REFUSED[case]
    with pytest.raises(ValueError) as error:
        read_rollouts(lines(*rows))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_files_and_folders_that_cant_be_read(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="there is no file or folder"):
        read_rollouts(tmp_path / "none")
    with pytest.raises(ValueError, match=r"holds none of tokens/step-N\.parquet, completions/completions_N\.parquet"):
        read_rollouts(tmp_path)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(ValueError, match=r"bad\.parquet is no Parquet file that can be read"):
        read_rollouts(tmp_path / "bad.parquet")
    whole = bytearray((COMPLETIONS / "completions_00001.parquet").read_bytes())
    whole[4:12] = b"\xff" * 8  # the first page's header
    (tmp_path / "damaged.parquet").write_bytes(whole)
    with pytest.raises(ValueError, match=r"^\S+damaged\.parquet can't be read: [^\n]+\.$"):
        read_rollouts(tmp_path / "damaged.parquet")
    table = trained_table()
    table.assign(push="3").to_parquet(tmp_path / "text.parquet")
    with pytest.raises(ValueError, match=r"text\.parquet: column push holds (large_)?string, but must hold numbers"):
        read_rollouts(tmp_path / "text.parquet")
    table.assign(position=-1).to_parquet(tmp_path / "negative.parquet")
    with pytest.raises(ValueError, match=r"column position must hold a whole number from 0 to 2\*\*31"):
        read_rollouts(tmp_path / "negative.parquet")
    table.assign(stopped="gremlins").to_parquet(tmp_path / "stopped.parquet")
    with pytest.raises(ValueError, match="stopped holds 'gremlins'; valid are"):
        read_rollouts(tmp_path / "stopped.parquet")
    monkeypatch.setattr(exchange, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="at most 0 are read"):
        read_rollouts(tmp_path / "text.parquet")


def test_a_small_file_of_large_texts_takes_little_memory(tmp_path, monkeypatch):
    """Texts that repeat are held once; a file that says it unpacks to too much is refused before it is read."""
    path, rows = tmp_path / "bomb.parquet", 500
    numbers = {name: np.arange(rows) for name in ("group", "rollout", "position", "reward")}
    texts = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * 900_000])
    pq.write_table(pa.table(numbers | {"token": texts}), path, store_schema=False)
    assert path.stat().st_size < 2**18
    categories, kinds = token_files._categories, []
    monkeypatch.setattr(token_files, "_categories", lambda *args: kinds.append(args[-1].type) or categories(*args))
    assert len(read_rollouts(path)) == rows
    assert [pa.types.is_dictionary(kind) for kind in kinds] == [True]  # else they take 429 MiB
    monkeypatch.setattr(token_files, "MAX_UNPACKED", 2**10)
    with pytest.raises(ValueError, match=r"^bomb\.parquet unpacks to more than 0 MiB, the most that is read\.$"):
        read_rollouts(path)


def test_a_damaged_table_among_others_is_named(tmp_path):
    trained_table().to_parquet(tmp_path / "step-000001.parquet")
    (tmp_path / "step-000002.parquet").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"^step-000002\.parquet is no Parquet file that can be read: "):
        read_rollouts(tmp_path)


def test_a_large_folder_is_thinned_and_the_newest_step_kept(tmp_path, monkeypatch):
    for step in range(1, 6):
        trained_table().query("step == 2").assign(step=step).to_parquet(tmp_path / f"step-{step:06d}.parquet")
    size = (tmp_path / "step-000001.parquet").stat().st_size
    monkeypatch.setattr(exchange, "MAX_BYTES", 3.5 * size)
    table = read_rollouts(tmp_path)
    assert table["step"].unique().tolist() == [1, 3, 5]
    assert table.attrs["source"]["notes"] == ["Of 5 files 3 were read, evenly spaced: more than 0 MiB are not."]


def test_what_cant_be_written_is_one_sentence_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="the table has no column token_id"):
        write_prime_rl(trained_table().drop(columns="token_id"), tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="rollout 0 of step 2 is not whole: its positions are not 0 to 1"):
        write_prime_rl(trained_table().query("position > 0 | rollout > 0"), tmp_path / "a.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_words_are_the_text():
    for text in ("", " ", "a", "  a b\n\nc ", "５ ＋ ３"):
        assert "".join(words(text)) == text
