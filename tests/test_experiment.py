"""An experiment is refused in the trainer's own words, forecast by a trial, swept, compared in pairs and taken away."""

import html
import json
import re
import time
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from workbook.training.export import export_config, export_run

from workbook.policies.load import load_policy
from workbook.topics.laboratory.compare import OUTCOMES, compare_settings, comparison_chart, run_tables
from workbook.topics.laboratory.forecast import forecast_sentence
from workbook.topics.laboratory.monitor import ExperimentMonitor
from workbook.topics.laboratory.results import Results, compare_started
from workbook.topics.laboratory.settings import (
    MAX_RUNS,
    MENUS,
    experiment,
    forecast_chart,
    parse_options,
    parse_values,
    plan,
)
from workbook.training import RunConfig
from workbook.training.checks import problems, validate
from workbook.training.config import trainer_args
from workbook.training.memory import at_peak, forecast_run
from workbook.training.plan import (
    Throughput,
    batches,
    forecast_seconds,
    measure_throughput,
    start_trial,
    steps_per_batch,
)
from workbook.training.sweep_run import SweepRun, as_yaml, start_sweep
from workbook.views.renderer import png

TINY = {"prompts": 2, "group_size": 4, "steps": 2, "num_prompts": 32, "max_tokens": 24}
ROWS = "prompt,answer\n" + "".join(f"{a} + {b} =,{(a + b) % 10}\n" for a in range(6) for b in range(6))
REWARD = "def score(completion, answer):\n    return float(completion.split()[-1:] == [answer])\n"


@pytest.fixture(autouse=True)
def shell():
    """Displays go somewhere only inside IPython."""
    from IPython.core.interactiveshell import InteractiveShell

    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def own(tmp_path):
    """Choices of a task of one's own."""
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "reward.py").write_text(REWARD)
    return {"task": f"own:{tmp_path / 'rows.csv'}", "task_options": {"reward": f"{tmp_path / 'reward.py'}:score"}}


# --- choices and plans


@pytest.mark.parametrize(
    "choices",
    [
        {"batching": "sign_partitioned"},
        {"group_transform": "min_replace"},
        {"group_transform": "min_replace", "mini_batches": 2},
        {"clipping": "symmetric"},
        {"batching": "query_preserved", "mini_batches": 2, "prompts": 2, "group_size": 16, "accumulation": 4},
        {"advantage_estimator": "positive_only", "batching": "sign_partitioned", "mini_batches": 2},
    ],
)
def test_a_plan_says_what_the_trainer_would_say(choices):
    sentences = [problem.sentence for problem in plan(**choices).problems]
    config = experiment(**choices)
    assert sentences == [problem.sentence for problem in problems(trainer_args(config, torch.device("cpu"), "unused"))]
    assert (plan(**choices).config is None) == any(p.severity == "error" for p in plan(**choices).problems)


def test_what_is_refused_before_the_trainer_is_asked():
    says = {
        "in 3 equal parts|into 3 equal parts": {"mini_batches": 3},
        "at least 2 generations": {"group_size": 1},
        "leaves nothing to train; set lora": {"quantization": "nf4"},
        "needs two or more different values": {"vary": "batching", "values": ["shuffled"]},
        f"more than {MAX_RUNS} runs": {"seeds": range(MAX_RUNS + 1)},
        "must be a positive number of optimizer steps": {"steps": 0},
    }
    for sentence, choices in says.items():
        planned = plan(**choices)
        assert planned.config is None
        assert re.search(sentence, planned.problems[0].sentence), planned.problems


def test_every_option_of_every_menu_is_a_run_that_the_trainer_understands():
    for key, (_, options) in MENUS.items():
        for value in options.values():
            choices = {key: value} | ({"lora": 8} if key == "quantization" and value else {})
            sentences = " ".join(problem.sentence for problem in plan(**choices).problems)
            assert "unknown" not in sentences, sentences
    assert experiment(optimizer="AdamW, beta1 = 0").trainer["adam_beta1"] == 0
    assert experiment(clipping="none", ratio="sequence").trainer["epsilon"] > 1e6
    assert trainer_args(experiment(clipping="none"), torch.device("cpu"), "x").epsilon > 1e6
    assert plan(vary="optimizer", values=["AdamW", "SGD"]).grid == [
        {"seed": [0], "optim": ["adamw_torch"], "adam_beta1": [0.9]},
        {"seed": [0], "optim": ["sgd"]},
    ]


def test_a_refused_value_of_a_sweep_is_named():
    planned = plan(vary="group_transform", values=[None, "min_replace"], seeds=[0, 1])
    assert planned.config is None
    assert planned.problems[0].sentence.startswith(
        "group transform min_replace: group_transform='min_replace' can't have"
    )


def test_plans_become_yaml_that_the_command_line_takes(tmp_path):
    planned = plan(vary="learning_rate", values=[1e-3, 5e-4], seeds=[0, 1], **TINY)
    assert planned.runs == 4
    path = export_config(planned.config, tmp_path / "out", planned.grid)
    from workbook.training import load_sweep

    config, grid = load_sweep(path)
    assert config == planned.config
    assert grid == planned.grid
    single = plan(**TINY)
    assert RunConfig.load(export_config(single.config, tmp_path / "one")) == single.config
    assert yaml.safe_load(as_yaml(single.config))["trainer"]["max_steps"] == 2


@pytest.mark.parametrize("text", ["operands", "a: 1: 2", "[", "operands:"])
def test_options_that_cannot_be_read(text):
    with pytest.raises(ValueError, match="must be name: value pairs"):
        parse_options(text)


@pytest.mark.parametrize(("vary", "text"), [("batching", "shuffled; sorted"), ("learning_rate", "1e-3; fast")])
def test_values_that_cannot_be_read(vary, text):
    with pytest.raises(ValueError, match=r"has no value 'sorted'|must be numbers"):
        parse_values(vary, text)


# --- forecasts


def test_time_is_forecast_from_whole_batches():
    class Trial:
        config = experiment(mini_batches=2, reuse=2, steps=100)

        def __init__(self, n):
            self.n = n

        def metrics(self):
            seconds = np.tile([2.0, 1.0, 1.0, 1.0], 3)[: self.n] + np.repeat([10, 0, 0], 4)[: self.n]
            return pd.DataFrame({"step_time": seconds, "time": 112.0 + np.cumsum(seconds) - seconds[:1].sum()})

        def status(self):
            return {"born": 93.0, "message": "failed: no such task."}

    assert steps_per_batch(Trial.config) == 4
    assert batches(Trial.config) == 25
    measured = measure_throughput(Trial(12))
    assert measured == Throughput(start=7.0, per_batch=5.0, batches=2)
    assert measure_throughput(Trial(7)) == Throughput(7.0, 45.0, 1), (
        "a first batch alone has to do; half of the second does not count"
    )
    assert forecast_seconds(Trial.config, measured, runs=3) == 3 * (7 + 25 * 5)
    with pytest.raises(ValueError, match="finished no generation batch: failed: no such task"):
        measure_throughput(Trial(3))
    sentence = forecast_sentence(plan(mini_batches=2, reuse=2, steps=100), measured)
    assert "about 2 min for one run: 7.0 s to start, then 25 generation batches of 5 s each" in sentence
    assert "Measured on 2 of this very setting's batches" in sentence
    assert "held-out" not in sentence


def test_held_out_prompts_count_twice_in_the_forecast():
    planned = plan(steps=100, eval_prompts=8)
    measured = Throughput(start=7.0, per_batch=5.0, batches=2, held_out=0.5)
    assert forecast_seconds(planned.config, measured, runs=3) == 3 * (7 + 100 * 5 + 2 * 8 * 0.5)
    assert "and twice 8 held-out prompts of 0.5 s each" in forecast_sentence(planned, measured)
    unmeasured = measured._replace(held_out=None)
    assert "held-out prompts come on top" in forecast_sentence(planned, unmeasured)


def test_memory_is_drawn():
    memory = at_peak(forecast_run(experiment(**TINY)))
    chart = forecast_chart(memory)
    assert png(chart.to_dict()).startswith(b"\x89PNG")
    assert "this setting:" in chart.to_dict()["description"]


# --- comparisons


def outcomes(n=8, gap=0.1, settings=("a", "b"), noise=0.01):
    rng = np.random.default_rng(0)
    level = rng.uniform(0.3, 0.7, n)  # what a seed has in common dwarfs the gap
    rows = [
        {
            "setting": setting,
            "seed": seed,
            "run": f"{setting}{seed}",
            "area": level[seed] + gap * k + noise * k * (-1) ** seed,
        }
        for k, setting in enumerate(settings)
        for seed in range(n)
    ]
    return pd.DataFrame(rows).assign(end=lambda table: table["area"] + 0.1, heldout=float("nan"))


def test_differences_are_paired_by_seed():
    compared = compare_settings(outcomes())
    row = compared["effects"].iloc[0]
    assert row["setting"] == "b"
    assert row["mean"] == pytest.approx(0.1, abs=0.02)
    assert 0.07 < row["low"] < row["high"] < 0.13, "what seeds have in common drops out"
    assert (row["seeds"], row["verdict"]) == (8, "higher")
    assert compare_settings(outcomes(), baseline="b")["effects"]["verdict"].tolist() == ["lower"]
    assert compare_settings(outcomes(gap=0.0))["effects"]["verdict"].tolist() == ["can't be told"]
    assert compared["pairs"]["difference"].mean() == pytest.approx(row["mean"])


def test_few_seeds_tell_nothing_whatever_their_interval():
    three = compare_settings(outcomes(3))["effects"].iloc[0]
    assert three["low"] > 0
    assert three["verdict"] == "can't be told"
    one = compare_settings(outcomes(1))["effects"].iloc[0]
    assert np.isnan(one["low"])
    assert one["verdict"] == "can't be told"


def test_seeds_that_only_one_setting_has_are_left_out():
    table = outcomes(8).query("not (setting == 'b' and seed < 2)")
    assert compare_settings(table)["effects"]["seeds"].tolist() == [6]
    disjoint = table.query("(setting == 'a') == (seed < 2)")
    with pytest.raises(ValueError, match="no seed in common"):
        compare_settings(disjoint)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"outcome": "best"}, "outcome='best' must be one of area, end, heldout"),
        ({"baseline": "c"}, "baseline='c' one of a; b"),
        ({"outcome": "heldout"}, "was not measured in every run; set eval_prompts"),
    ],
)
def test_comparisons_that_cannot_be(change, says):
    with pytest.raises(ValueError, match=says):
        compare_settings(outcomes(), **change)
    with pytest.raises(ValueError, match="a comparison needs two"):
        compare_settings(outcomes(settings=("a",)))


@pytest.mark.parametrize("n", [1, 8])
def test_the_comparison_is_drawn_with_its_numbers(n):
    table = outcomes(n, settings=("a", "b", "c"))
    curves = pd.DataFrame([{**row, "step": step, "reward": 0.3 + 0.1 * step} for row in table[["setting", "seed", "run"]].to_dict("records") for step in (1, 2)])  # fmt: skip  # noqa: E501
    compared = compare_settings(table, "end")
    chart = comparison_chart(curves, **compared, outcome="end")
    text = json.dumps(chart.to_dict())
    assert png(chart.to_dict()).startswith(b"\x89PNG")
    assert "Difference from a, paired by seed" in text
    assert OUTCOMES["end"] in text
    assert f"over {n} seeds" in chart.to_dict()["description"] if n > 1 else "over one seed, can't be told"


# --- the real thing: a small sweep on one's own task, stopped, resumed, compared, taken away


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    (folder / "rows.csv").write_text(ROWS)
    (folder / "reward.py").write_text(REWARD)
    task = {"task": f"own:{folder / 'rows.csv'}", "task_options": {"reward": f"{folder / 'reward.py'}:score"}}
    planned = plan(vary="optimizer", values=["AdamW", "SGD"], seeds=[0, 1], **TINY | {"steps": 3}, **task)
    sweep = start_sweep(planned.config, planned.grid, folder / "sweep")
    with pytest.raises(ValueError, match="is running"):
        sweep.resume()
    end = time.monotonic() + 300
    while sweep.status()["step"] < 4 and time.monotonic() < end:
        time.sleep(0.05)
    sweep.stop()
    while sweep.running and time.monotonic() < end:
        time.sleep(0.1)
    stopped = sweep.status()
    return sweep.resume().wait(300), stopped


def test_a_sweep_stops_and_goes_on(swept):
    sweep, stopped = swept
    assert stopped["state"] == "stopped"
    assert 4 <= stopped["step"] < stopped["total"] == 12
    assert sweep.status()["state"] == "finished"
    assert sweep.status()["step"] == 12
    for run in sweep.runs.values():
        assert run.metrics()["step"].tolist() == [1, 2, 3], "each step once"
    assert sweep.metrics()["step"].tolist() == list(range(1, 13))
    assert set(sweep.settings.values()) == {"optim=adamw_torch, adam_beta1=0.9", "optim=sgd"}
    assert len(sweep.samples())
    with pytest.raises(ValueError, match="already holds a sweep"):
        start_sweep(sweep.config, sweep.grid, sweep.folder)
    assert SweepRun(sweep.folder).status()["state"] == "finished", "found again by its folder"


def test_a_sweep_is_watched_and_compared(swept):
    sweep, _ = swept
    monitor = ExperimentMonitor(sweep)
    assert "finished: mine: all 4 runs finished." in html.unescape(monitor.line.value)
    drawn = {row["run"] for row in monitor.chart.data["rows"]}
    assert len(drawn) == 4
    assert "this run: optim=sgd, seed 1" in drawn
    assert max(row["step"] for row in monitor.chart.data["frame"]) == 3, "a run's steps, not the sweep's"
    tables = run_tables([sweep])
    assert len(tables["outcomes"]) == 4
    assert compare_settings(tables["outcomes"])["effects"]["seeds"].tolist() == [2]
    with pytest.raises(ValueError, match=r"two runs have .*seed 0"):
        run_tables([sweep, sweep])


def test_the_form_compares_and_exports_what_it_has_started(swept, tmp_path, monkeypatch):
    sweep, _ = swept
    monkeypatch.chdir(tmp_path)
    first = next(iter(sweep.runs.values()))
    sentences, chart = compare_started([first])
    assert sentences[0].startswith("One setting so far, 1 run: mean sampled reward over the run 0.")
    assert png(chart.to_dict()).startswith(b"\x89PNG")
    started = []
    results = Results(started)
    assert results.compare_button.disabled
    assert results.export_button.disabled
    with pytest.raises(ValueError, match="Nothing that was started here has finished yet"):
        results.compare()
    started += [sweep, first]
    results.refresh()
    assert len(results.run.options) == 4, "a run that is there twice counts once"
    assert not results.export_button.disabled
    results.compare()
    line = html.unescape(results.line.value)
    assert f"difference from {run_tables([sweep])['outcomes']['setting'].iloc[0]}" in line
    assert "over 2 seeds, can't be told" in line
    assert results.chart_box.layout.display == ""
    results.outcome.value = "heldout"
    results.compare_button.click()
    until(lambda: "was not measured in every run" in results.line.value)
    for name in ("", "-1"):  # a second export stands beside the first
        results.export()
        (zipped,) = (tmp_path / "exports").glob(f"{results.run.label}{name}.zip")
        assert "rows.csv" in results.line.value
        assert zipped.name in results.line.value


def until(done, seconds=120):
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    assert done()


def test_a_run_is_taken_away_whole(swept, tmp_path, monkeypatch):
    sweep, _ = swept
    run = next(iter(sweep.runs.values()))
    zipped = export_run(run, tmp_path / "taken")
    names = set(zipfile.ZipFile(zipped).namelist())
    assert {
        f"taken/{n}" for n in ("config.yaml", "rows.csv", "reward.py", "manifest.json", "model/model.safetensors")
    } <= names
    assert not [name for name in names if name.endswith((".bin", ".pkl", ".pt"))]
    config = RunConfig.load(tmp_path / "taken" / "config.yaml")
    assert (config.task, config.task_options) == ("own:rows.csv", {"reward": "reward.py:score"})
    monkeypatch.chdir(tmp_path / "taken")
    from workbook.tasks import get_task

    assert get_task(config.task, **config.task_options).dataset(4)["prompt"]
    taken, trained = load_policy(tmp_path / "taken" / "model").model, run.policy().model
    assert all(torch.equal(a, b) for a, b in zip(taken.parameters(), trained.parameters(), strict=True))
    with pytest.raises(ValueError, match="is not empty"):
        export_run(run, tmp_path / "taken")
    assert validate(experiment(model=str(tmp_path / "taken" / "model"))) == []


def test_what_has_no_model_or_a_damaged_one_is_not_exported(swept, tmp_path):
    import shutil

    sweep, _ = swept
    run = list(sweep.runs.values())[1]
    shutil.copytree(run.folder, tmp_path / "copy")
    from workbook.training import load_run

    copy = load_run(tmp_path / "copy")
    with open(copy.folder / "final" / "model.safetensors", "r+b") as file:
        file.seek(200)
        file.write(b"\x01\x02\x03")
    with pytest.raises(ValueError, match=r"is damaged: final/model.safetensors"):
        export_run(copy, tmp_path / "a")
    shutil.rmtree(copy.folder / "final")
    with pytest.raises(ValueError, match="has no model yet: it is finished"):
        export_run(copy, tmp_path / "b")


def test_a_trial_of_an_own_model_and_an_own_task(own, tmp_path):
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from workbook.policies.load import BUNDLED

    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    shape = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=len(tokenizer)
    )
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = plan(model=str(tmp_path / "model"), **TINY, **own).config
    trial = start_trial(config, tmp_path / "trial").wait(300)
    assert trial.status()["state"] == "finished"
    assert measure_throughput(trial).batches == 1
    assert not list(trial.folder.glob("checkpoint-*"))


def test_a_reward_that_fails_ends_the_run_in_its_sentence(own, tmp_path):
    (tmp_path / "reward.py").write_text("def score(completion, answer):\n    return {}[answer]\n")
    trial = start_trial(plan(**TINY, **own).config, tmp_path / "trial")
    with pytest.raises(
        RuntimeError, match=r"reward function score raised KeyError: '\d' \(line 2 of reward.py\), at line"
    ):
        trial.wait(300)
