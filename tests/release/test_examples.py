"""What can be pasted runs: the examples at tiny size, blocks as typed, a rule in other trainers'
registries.
"""

import asyncio
import re
import runpy
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl
from small_run import byte_tokenizer
from test_documents import ROOT, blocks
from transformers import AutoConfig, AutoModelForCausalLM

from workbook import app
from workbook.app import latest_run
from workbook.rollouts import read_rollouts
from workbook.studies.unit import StudyUnit

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run an example in an empty folder, and return what it prints."""
    monkeypatch.chdir(tmp_path)

    def execute(name, *arguments):
        file = ROOT / "examples" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [name, "--steps", "2", *arguments])
        runpy.run_path(str(file), run_name="__main__")
        return capsys.readouterr().out

    return execute


@pytest.fixture
def tool_caller(tmp_path):
    """A tiny Qwen3 that can do one thing, call `multiply`: the marks of a turn and the call are a
    token each.
    """
    tokenizer, call = byte_tokenizer(), '\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}\n'
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", call])
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = (
        Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    ).read_text()
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    sizes |= {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **sizes))
    turn = f"<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>{call}</tool_call><|im_end|>"
    ids, optimizer = (
        tokenizer(turn, return_tensors="pt").input_ids,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
    )
    for _ in range(60):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_a_drop_in_with_lora_takes_a_model_and_a_data_set(run, tool_caller, tmp_path):
    assert "1 steps, 2 groups, 16 rollouts" in run("drop_in_lora")
    (data := tmp_path / "data").mkdir()
    (data / "rows.csv").write_text("question,answer\n" + "What is 3 times 4?,It is #### 12\n" * 16)
    (data / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files: rows.csv\n---\n"
    )
    assert "groups" in run(
        "drop_in_lora", "--model", tool_caller, "--data", str(data), "--length", "8"
    )


def test_a_rule_of_ones_own_trains_and_enters_the_arena(run, monkeypatch):
    study_unit, small = (
        StudyUnit("tiny", 0),
        {"units": 2, "batches": 1, "worlds": ("tiny",), "jobs": 1},
    )
    monkeypatch.setattr("workbook.app.arena.WorldUnit", lambda world, unit=0: study_unit)
    monkeypatch.setitem(vars(app), "compare_rule", partial(app.compare_rule, **small))
    monkeypatch.setitem(vars(app), "add_to_table", lambda own: own)
    assert re.search(
        r"reward 0\.\d+ -> 0\.\d+\n(.|\n)*entropy_weighted", run("own_rule", "--arena")
    )


def test_plain_trl_is_reported_by_its_ids_and_its_record(run):
    out = run("plain_trl")
    assert "words" not in out
    tokens = f"{len(read_rollouts('out/plain_trl/completions')):,}"
    assert f"2 steps, 16 groups, 128 rollouts, {tokens} tokens" in out
    assert "1 steps, 8 groups, 64 rollouts" in out


def test_the_recipe_prints_a_line_a_step_and_what_was_held_out(run):
    out = run("recipe", "--completions", "--rollouts", "16", "--held-out", "8", "--prompts", "16")
    assert len(re.findall(r"^step +\d+   reward \d\.\d+   no spread ", out, re.MULTILINE)) == 2
    number = r"\d\.\d+ ± \d\.\d+"
    assert re.search(rf"^held-out reward {number} -> {number}$", out, re.MULTILINE)
    assert "token_id" in read_rollouts("out/recipe/completions")


def test_what_a_tool_wrote_stands_in_the_completion_and_is_not_trained(run, tool_caller):
    run("tools", "--model", tool_caller)
    tokens = read_rollouts("out/tools")
    written = tokens["stopped"] == "tool"
    assert 0 < written.mean() < 1
    assert (tokens.loc[written, "push"] == 0).all()
    assert "12" in "".join(tokens.loc[written, "token"].astype(str))


@pytest.mark.parametrize("page", ["README.md", "data/book/using.md"])
def test_blocks_run_as_typed(page, tmp_path, monkeypatch, shell):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKBOOK_RUNS", raising=False)
    for block in blocks(page, "python"):
        Path("block.py").write_text(block)
        runpy.run_path("block.py", run_name="__main__")
    if Path("runs").exists():  # one starts a run
        latest_run().stop()


REGISTRIES = {  # with the signatures of verl and prime-rl
    "verl/trainer/ppo/core_algos.py": (
        "known = {}\ndef register_adv_est(n): return lambda f: known.update({n: f})"
    ),
    "prime_rl/orchestrator/train/algo/base.py": "class Algorithm: pass\n",
    "prime_rl/orchestrator/train/algo/routing.py": (
        "given = []\ndef assign_advantages(*pair): given.append(pair)\n"
    ),
}


def test_a_rule_gives_the_same_credit_in_other_trainers_registries(tmp_path, monkeypatch):
    own = {block.split()[1]: block for block in blocks("data/book/elsewhere.md", "python")}
    for path, source in (REGISTRIES | own).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import_module("my_verl")
    mask, rewards = (
        torch.arange(12) < torch.tensor([[12], [3], [9]]),
        torch.tensor([[1.0], [0.0], [2.0]]),
    )
    last = mask & ~(torch.arange(12) < torch.tensor([[4], [0], [1]]))
    estimate = import_module("verl.trainer.ppo.core_algos").known["last_tokens"]
    groups = np.array(["b", "b", "a"], dtype=object)
    given = estimate(token_level_rewards=rewards, response_mask=mask, config=None, index=groups)
    assert torch.equal(given[0], torch.tensor([[0.5], [-0.5], [0.0]]) * last)
    traces = [
        SimpleNamespace(reward=reward, nodes=[SimpleNamespace(mask=[0, 1, 1])])
        for reward in (1.0, 0.0)
    ]
    asyncio.run(
        import_module("my_prime_rl").LastTokens().score_group([SimpleNamespace(traces=traces)])
    )
    given = import_module("prime_rl.orchestrator.train.algo.routing").given
    assert given == [(traces[0], [0.5, 0.5]), (traces[1], [-0.5, -0.5])]
