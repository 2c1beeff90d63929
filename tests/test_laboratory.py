"""The laboratory: choices that make a run or are refused in a sentence, the form over them, runs compared by seed."""

import html
import time

import numpy as np
import pandas as pd
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from workbook.topics.laboratory import QLORA, RunForm, experiment, plan
from workbook.topics.laboratory.choices import FIELDS, batch_sizes, first_values, parse_options
from workbook.topics.laboratory.compare import compare_settings, comparison_chart, run_tables
from workbook.topics.laboratory.form import _sources
from workbook.training import QWEN_7B, load_run, start_run, sweep
from workbook.training.checks import problems
from workbook.training.config import trainer_args

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
    (tmp_path / "reward.py").write_text("def score(completion, answer):\n    return float(answer in completion)\n")
    return {"task": f"own:{tmp_path / 'rows.csv'}", "task_options": {"reward": f"{tmp_path / 'reward.py'}:score"}}


def settle(done, seconds=180):
    """Wait until a condition holds: a form looks things up, samples and trains in threads and processes."""
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
    assert (plan(**choices).config is None) == any(p.severity == "error" for p in plan(**choices).problems)


def test_choices_reach_the_fields_that_they_mean():
    assert experiment(optimizer="AdamW, beta1 = 0").trainer["adam_beta1"] == 0
    assert experiment(clipping="none", ratio="sequence").trainer["epsilon"] > 1e6
    assert plan(vary="optimizer", values=["AdamW", "SGD"]).grid[1] == {"seed": [0], "optim": ["sgd"]}
    config = experiment(prompts=4, group_size=8, mini_batches=2, accumulation=2)
    assert batch_sizes(config) == {"prompts": 4, "group_size": 8, "mini_batches": 2, "accumulation": 2}
    values = first_values(config) | {"task_options": {}}
    assert experiment(config, **values).trainer == config.trainer | {
        key: value for key, value in experiment(config, **values).trainer.items() if key not in config.trainer
    }
    with pytest.raises(ValueError, match="task options 'a: 1: 2' must be name: value pairs"):
        parse_options("a: 1: 2")


def test_a_reward_that_fails_ends_the_run_in_its_sentence(own, tmp_path):
    (tmp_path / "reward.py").write_text("def score(completion, answer):\n    return {}[answer]\n")
    trial = start_run(plan(**TINY, **own).config, tmp_path / "trial")
    with pytest.raises(RuntimeError, match=r"score raised KeyError: '\d' \(line 2 of reward.py\), at line"):
        trial.wait(300)


# --- the form


def test_every_field_says_what_a_config_says():
    for config in (None, "data/configs/smollm2_chain_sum.yaml"):
        form = RunForm(config, tuple(FIELDS))
        assert set(form.controls) == set(FIELDS)
        changed = {key for key, value in form.config().trainer.items() if form.base.trainer.get(key, value) != value}
        assert changed <= {"epsilon"}, "the controls begin with what the config says"
        form.close()


def test_the_form_refuses_tries_starts_and_compares(own, tmp_path, monkeypatch):
    """The stranger's path without a browser: two runs of one's own task, one setting changed, compared."""
    monkeypatch.setenv("WORKBOOK_RUNS", str(tmp_path / "runs"))
    form = RunForm(experiment(**TINY, **own))
    settle(lambda: "it fits" in form.line.value)
    form.controls["batching"].value = "sign_partitioned"
    assert "can't have an effect" in html.unescape(form.line.value)
    assert form.monitor.start_button.disabled
    form.controls["batching"].value = "shuffled"
    form.controls["task"].value = "own:gone.csv"
    settle(lambda: "there is no data file" in html.unescape(form.line.value))
    assert form.monitor.start_button.disabled
    form.controls["task"].value = own["task"]
    settle(lambda: not form.monitor.start_button.disabled)
    form.try_button.click()
    settle(lambda: form.try_button.description == "Try it")
    assert "hacks are paid" in form.samples_line.value, form.samples_line.value
    assert "Prompt 1 as bundled gets it" in form.samples.value
    form.controls["learning_rate"].value = 0.01
    assert form.samples.layout.display == "none", "they are of other settings"
    for rate in (0.01, 0.001):
        form.controls["learning_rate"].value = rate
        form.monitor.start()
        form.started[-1].wait(300)
    assert len(form.started) == 2
    form.compare_button.click()
    assert "learning_rate=0.001" in form.effect_line.value
    assert "over one seed" in form.effect_line.value
    form.close()


def test_a_run_that_does_not_fit_starts_at_the_second_click(monkeypatch):
    form = RunForm("data/configs/smollm2_chain_sum.yaml", QLORA)
    form._known[_sources(form.config())] = (QWEN_7B, 64)
    monkeypatch.setattr("workbook.topics.laboratory.form.free_mib", lambda device: 100.0)
    began = []
    monkeypatch.setattr("workbook.topics.laboratory.form.start_run", lambda config: began.append(config) or config)
    with pytest.raises(ValueError, match=r"it does not fit; take more micro-batches.*Start anyway would"):
        form.start()
    assert form.monitor.start_button.description == "Start anyway"
    form.start()
    assert len(began) == 1
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
    assert compare_settings(outcomes().iloc[::-1])["effects"]["verdict"].tolist() == ["lower"], "the first is the base"
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
    assert sorted(tables["outcomes"]["setting"].unique()) == ["learning_rate=0.001", "learning_rate=0.01"]
    effects = compare_settings(tables["outcomes"])["effects"]
    assert effects["seeds"].tolist() == [2]
    chart = comparison_chart(tables["curves"], **compare_settings(tables["outcomes"])).to_dict()
    assert "over 2 seeds, can't be told" in chart["description"]
