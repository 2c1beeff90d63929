"""The laboratory: choices that make a run or are refused in a sentence, the form over them, runs
compared by seed.
"""

import html
import json
import re
import time
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from refusals import refused

from workbook.app import (
    QLORA,
    QWEN_7B,
    LogForm,
    RunForm,
    experiment,
    load_run,
    plan,
    start_run,
    sweep,
)
from workbook.app.choices import FIELDS, batch_sizes, first_values, parse_options
from workbook.app.compare import (
    compare_settings,
    comparison_chart,
    reward_curves_chart,
    run_tables,
)
from workbook.app.form import _sources
from workbook.app.memory import peak_mib
from workbook.training.checks import problems
from workbook.training.config import trainer_args

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
TINY = {"prompts": 2, "group_size": 4, "steps": 2, "num_prompts": 8, "learning_rate": 1e-3}


@pytest.fixture(autouse=True)
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def own(tmp_path):
    """Choices of a task of one's own."""
    rows = "".join(f"{a} + {b} =,{(a + b) % 10}\n" for a in range(8) for b in range(4))
    (tmp_path / "rows.csv").write_text(f"prompt,answer\n{rows}")
    (tmp_path / "reward.py").write_text(
        "def score(completion, answer):\n    return float(answer in completion)\n"
    )
    return {
        "task": f"own:{tmp_path / 'rows.csv'}",
        "task_options": {"reward": f"{tmp_path / 'reward.py'}:score"},
    }


def settle(done, seconds=180):
    """Wait until a condition holds: a form looks things up, samples and trains in threads and
    processes.
    """
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


# --- choices and plans


@pytest.mark.parametrize(
    "choices",
    [
        {"batching": "sign_partitioned"},
        {"group_transform": "min_replace", "mini_batches": 2},
        {"clipping": "symmetric"},
        {"advantage_estimator": "positive_only", "batching": "sign_partitioned", "mini_batches": 2},
    ],
)
def test_a_plan_says_what_the_trainer_would_say(choices):
    sentences = [problem.sentence for problem in plan(**choices).problems]
    args = trainer_args(experiment(**choices), torch.device("cpu"), "unused")
    assert sentences == [problem.sentence for problem in problems(args)]
    assert (plan(**choices).config is None) == any(
        p.severity == "error" for p in plan(**choices).problems
    )


def test_choices_reach_the_fields_that_they_mean():
    assert experiment(optimizer="AdamW, beta1 = 0").trainer["adam_beta1"] == 0
    assert experiment(clipping="none", ratio="sequence").trainer["epsilon"] > 1e6
    assert plan(vary="optimizer", values=["AdamW", "SGD"]).grid[1] == {
        "seed": [0],
        "optim": ["sgd"],
    }
    config = experiment(prompts=4, group_size=8, mini_batches=2, accumulation=2)
    assert batch_sizes(config) == {
        "prompts": 4,
        "group_size": 8,
        "mini_batches": 2,
        "accumulation": 2,
    }
    values = first_values(config) | {"task_options": {}}
    assert experiment(config, **values).trainer == config.trainer | {
        key: value
        for key, value in experiment(config, **values).trainer.items()
        if key not in config.trainer
    }
    with refused("task options", "a: 1: 2"):
        parse_options("a: 1: 2")


def test_a_reward_that_fails_ends_the_run_in_its_sentence(own, tmp_path):
    (tmp_path / "reward.py").write_text("def score(completion, answer):\n    return {}[answer]\n")
    trial = start_run(plan(**TINY, **own).config, tmp_path / "trial")
    with pytest.raises(RuntimeError, match=r"line 2 of reward\.py"):
        trial.wait(300)


# --- the form


def test_every_field_says_what_a_config_says():
    for config in (None, "data/configs/smollm2_chain_sum.yaml"):
        form = RunForm(config, tuple(FIELDS))
        assert set(form.controls) == set(FIELDS)
        changed = {
            key
            for key, value in form.config().trainer.items()
            if form.base.trainer.get(key, value) != value
        }
        assert changed <= {"epsilon"}, "the controls begin with what the config says"
        form.close()


def said(widget) -> str:
    """The text of a line of status."""
    return html.unescape(widget.value)


def test_the_form_refuses_tries_times_starts_and_compares(own, tmp_path, monkeypatch):
    """The stranger's path without a browser: two runs of one's own task, one setting changed,
    compared.
    """
    monkeypatch.setenv("WORKBOOK_RUNS", str(tmp_path / "runs"))
    form = RunForm(experiment(**TINY, **own))
    settle(lambda: "it fits" in form.line.value)
    assert "checkpoints, 2 at a time" in form.line.value
    form.controls["batching"].value = "sign_partitioned"
    assert "“batching” = 'sign_partitioned' can't have an effect" in said(form.line)
    assert form.monitor.start_button.disabled
    form.controls["batching"].value = "shuffled"
    form.controls["task"].value = "own:gone.csv"
    settle(lambda: "must be a file that exists" in said(form.line))
    assert form.monitor.start_button.disabled
    form.controls["task"].value = own["task"]
    settle(lambda: not form.monitor.start_button.disabled)
    form.sampled.button.click()
    settle(lambda: form.sampled.button.description == "Try it")
    assert re.search(
        r"The reward pays \d+ of \d+ texts that are no answer, such as “", said(form.sampled.line)
    )
    assert "Prompt 1 as bundled gets it" in form.sampled.more.value
    assert "2 more completions" in form.sampled.more.value
    form.controls["learning_rate"].value = 0.01
    assert said(form.sampled.line).count("Of other settings: ") == 1
    assert form.sampled.box.layout.opacity != "1"
    form.controls["learning_rate"].value = 0.001
    assert "Of other settings" not in said(form.sampled.line), "they are its own again"
    form.timed.button.click()
    settle(lambda: form.timed.button.description == "Time it")
    assert re.search(r"Time: about .* for 2 batches, .* each\.", said(form.timed.line))
    for rate in (0.01, 0.001):
        form.controls["learning_rate"].value = rate
        form.monitor.start()
        form.started[-1].wait(300)
    assert len(form.started) == 2
    form.compare_button.click()
    assert "learning_rate=0.001" in form.effect_line.value
    assert "over one seed" in form.effect_line.value
    form.close()
    later = RunForm(experiment(**TINY, **own))  # after a restart of the kernel
    later.compare_button.click()
    assert "choose earlier runs" in said(later.effect_line)
    assert len(later.earlier.options) == 2
    later.earlier.value = [folder for _, folder in later.earlier.options]
    later.compare_button.click()
    assert "over one seed" in later.effect_line.value
    later.close()


def test_starting_ends_a_trial(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBOOK_RUNS", str(tmp_path / "runs"))
    form = RunForm(experiment(**TINY | {"steps": 200}))
    form.timed.button.click()
    trial = form.timed._job
    monkeypatch.setattr("workbook.app.form.start_run", lambda config: config)
    form.start()
    assert trial.ended()
    assert not trial._folder.exists()
    settle(lambda: form.timed.button.description == "Time it")
    assert "Stopped" in form.timed.line.value
    form.close()


def test_a_file_sets_the_sliders_and_a_model_its_adapters(own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.csv").write_text(
        "prompt,answer\n" + "".join(f"{k} + 1 =,{k + 1}\n" for k in range(5))
    )
    form = RunForm()
    assert {"own:few.csv", "own:rows.csv"} <= {*form.controls["task"].options}
    assert form.controls["reward"].options == ("reward.py:score",)
    form.controls["task"].value = "own:few.csv"
    settle(lambda: "Choose a “reward”" in said(form.line))
    assert (form.controls["num_prompts"].max, form.controls["num_prompts"].value) == (5, 5)
    assert form.controls["prompts"].value == 4
    form.controls["reward"].value = "reward.py:score"
    settle(lambda: "few.csv: 5 prompts to train on." in said(form.line))
    form.controls["chat"].value = True
    settle(lambda: "Switch “prompts as chat” off" in said(form.line))
    form.controls["model"].value = "smollm2-135m"
    assert form.controls["lora"].value == 8
    form.controls["model"].value = "bundled"
    assert (form.controls["lora"].value, form.controls["chat"].value) == (0, False)
    form.close()


@pytest.mark.parametrize("body", ["str(answer)", "1 / len(completion)"])
def test_a_reward_that_fails_starts_nothing(own, tmp_path, body):
    (tmp_path / "reward.py").write_text(f"def score(completion, answer):\n    return {body}\n")
    form = RunForm(experiment(**TINY, **own))
    settle(lambda: "The reward function score" in said(form.line))
    assert form.monitor.start_button.disabled
    form.close()


def test_doubts_are_said_and_start_nothing_less(own, tmp_path):
    rows = "".join(f"{'1 + ' * 150}{k} =,{k}\n" for k in range(10))
    (tmp_path / "rows.csv").write_text(f"prompt,answer\n{rows}")
    form = RunForm(experiment(**TINY, **own))
    settle(lambda: "more than the 256 positions that bundled knows" in said(form.line))
    form.controls["learning_rate"].value = 0.1
    assert "is high for AdamW" in said(form.line)
    assert not form.monitor.start_button.disabled
    form.close()


@pytest.mark.parametrize(("free", "anyway"), [(0.7, True), (0.4, False)])
def test_a_run_that_does_not_fit_starts_at_the_second_click_unless_twice_too_large(
    monkeypatch, free, anyway
):
    form = RunForm("data/configs/smollm2_chain_sum.yaml", QLORA)
    form._known[_sources(form.config())] = (QWEN_7B, 64)
    peak = peak_mib(form._forecasts(form.config())[0].table)
    monkeypatch.setattr("workbook.app.forecast.free_mib", lambda device: free * peak)
    form._changed()
    assert form.monitor.start_button.disabled != anyway
    began = []
    monkeypatch.setattr(
        "workbook.app.form.start_run", lambda config: began.append(config) or config
    )
    with pytest.raises(ValueError, match="does not fit"):
        form.start()
    assert (form.monitor.start_button.description == "Start anyway") == anyway
    if anyway:
        form.start()
    assert len(began) == anyway
    form.close()


# --- a log of completions


def test_a_log_is_read_or_refused_in_a_sentence(tmp_path):
    rows = [
        {
            "step": step,
            "prompt": f"{a} + 1 =",
            "completion": f"it is {a + k}<b>{step}",
            "reward": float(k == 1),
        }
        for step in (1, 2)
        for a in range(3)
        for k in range(4)
    ]
    log = "\n".join(json.dumps(row) for row in rows).encode()
    form = LogForm()
    form.upload.value = (
        {"name": "../log.jsonl", "type": "", "size": 1, "content": log, "last_modified": MOMENT},
    )
    assert "log.jsonl: 1 file(s) read." in form.line.value
    assert "24 rollouts" in form.report.value
    assert "100% of 6 groups have an advantage to learn from." in form.report.value
    assert form.heatmap.column == "reward"
    assert form.steps.children[0].value == 2
    first = form.heatmap
    form.steps.children[0].value = 1
    assert form.heatmap is not first
    assert set(form.heatmap.table["step"]) == {1}
    (tmp_path / "two.csv").write_text("prompt,completion,a,b\nx,y,1,0\nx,z,0,1\n")
    form.path.value = str(tmp_path / "two.csv")
    assert "give “weights” a=1 b=1" in said(form.line)
    assert (form.heatmap, form.report.value) == (None, "")
    form.weights.value = "a=1 b=2"
    assert "2 rollouts" in form.report.value
    form.weights.value = "a"
    assert "must be name=number" in said(form.line)
    form.weights.value = ""
    form.path.value = str(tmp_path / "gone")
    assert "a folder that holds one of" in said(form.line)
    form.close()


# --- comparisons


def outcomes(n=8, gap=0.1, settings=("a", "b"), noise=0.01):
    rng = np.random.default_rng(0)
    level = rng.uniform(0.3, 0.7, n)  # what a seed has in common dwarfs the gap
    rows = [
        (setting, seed, f"{setting}{seed}", level[seed] + gap * k + noise * k * (-1) ** seed)
        for k, setting in enumerate(settings)
        for seed in range(n)
    ]
    return pd.DataFrame(rows, columns=["setting", "seed", "run", "area"]).assign(
        end=lambda table: table["area"] + 0.1, heldout=float("nan")
    )


def test_differences_are_paired_by_seed():
    compared = compare_settings(outcomes())
    row = compared["effects"].iloc[0]
    assert row["setting"] == "b"
    assert row["mean"] == pytest.approx(0.1, abs=0.02)
    assert 0.07 < row["low"] < row["high"] < 0.13, "what seeds have in common drops out"
    assert (row["seeds"], row["verdict"]) == (8, "higher")
    assert compare_settings(outcomes().iloc[::-1])["effects"]["verdict"].tolist() == ["lower"], (
        "the first is the base"
    )
    assert compare_settings(outcomes(gap=0.0))["effects"]["verdict"].tolist() == ["can't be told"]
    assert compared["pairs"]["difference"].mean() == pytest.approx(row["mean"])


def test_few_seeds_tell_nothing_whatever_their_interval():
    three = compare_settings(outcomes(3))["effects"].iloc[0]
    assert three["low"] > 0
    assert three["verdict"] == "can't be told"
    one = compare_settings(outcomes(1))["effects"].iloc[0]
    assert np.isnan(one["low"])
    assert one["verdict"] == "can't be told"


def test_runs_of_a_sweep_are_compared(tmp_path):
    planned = plan(vary="learning_rate", values=[1e-3, 1e-2], seeds=[0, 1], **TINY)
    table = sweep(planned.config, planned.grid, tmp_path, n_jobs=1, quiet=True)
    assert table["state"].tolist() == ["finished"] * 4
    tables = run_tables([load_run(tmp_path / name) for name in table["run"]])
    assert sorted(tables["outcomes"]["setting"].unique()) == [
        "learning_rate=0.001",
        "learning_rate=0.01",
    ]
    effects = compare_settings(tables["outcomes"])["effects"]
    assert effects["seeds"].tolist() == [2]
    chart = comparison_chart(tables["curves"], **compare_settings(tables["outcomes"])).to_dict()
    assert "over 2 seeds, can't be told" in chart["description"]


@pytest.mark.parametrize(
    ("ends", "title"),
    [
        ((0.5, 0.6), "Sampled reward rises under both settings"),
        ((0.5, 0.1), "Sampled reward rises under 1 of 2 settings"),
        ((0.1, 0.1), "Sampled reward rises under none of 2 settings"),
        ((0.5,), "Sampled reward rises"),
    ],
)
def test_the_curves_title_says_where_reward_rises(ends, title):
    curves = [
        {"setting": f"lr={i}", "seed": 0, "step": step, "reward": 0.2 + (end - 0.2) * step / 8}
        for i, end in enumerate(ends)
        for step in range(1, 9)
    ]
    chart = reward_curves_chart(pd.DataFrame(curves)).to_dict()
    assert chart["title"]["text"] == title
