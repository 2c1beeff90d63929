"""What chapters 00 and 04 lean on: checks that name the mistake, charts of credit, controls, kept results."""

import json

import pandas as pd
import pytest
import torch

from workbook.studies.keep import keep_records
from workbook.studies.sweeps import load_records, seconds_to
from workbook.theory.advantages import group_advantages
from workbook.theory.choices import ESTIMATORS, STRATEGIES
from workbook.topics.groups.explore import check_rloo, check_shared_push
from workbook.topics.laboratory.controls import TrainerControls, as_code
from workbook.topics.laboratory.settings import overrides
from workbook.training.config import CancellationConfig
from workbook.training.run_config import RunConfig

BESIDE = pd.DataFrame({"step": [1, 2], "reward": [0.4, 0.5], "run": "base"})


@pytest.mark.parametrize(
    ("answer", "message"),
    [(None, "Not answered"), (0, "Right"), (0.5, "alone"), (1.0, "adds sizes"), (7, "advantage times")],
)
def test_shared_push_says_what_went_wrong(capsys, answer, message):
    check_shared_push(answer)
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda r, g: None, "Not answered"),
        (lambda r, g: group_advantages(r, g, "rloo"), "Right"),
        (lambda r, g: group_advantages(r, g, "dr_grpo"), "leave it out"),
        (lambda r, g: group_advantages(r, g, "grpo"), "standard deviation"),
        (lambda r, g: r[:3], "shape (3,)"),
        (lambda r, g: torch.zeros(12), "rollout 0 should be 1, but yours is 0."),
        (lambda r, g: r / 0 + g.nothing, "AttributeError"),
    ],
)
def test_rloo_says_what_went_wrong(capsys, function, message):
    check_rloo(function)
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("batching", STRATEGIES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_settings_are_accepted_by_a_run(batching, estimator):
    settings = overrides(mini_batches=4, batching=batching, advantage_estimator=estimator)
    config = RunConfig.load("data/configs/chain.yaml").override(settings)
    CancellationConfig("unused", use_cpu=True, bf16=False, **config.trainer)
    assert settings["per_device_train_batch_size"] * settings["steps_per_generation"] == 256


@pytest.mark.parametrize(
    ("choice", "message"),
    [({"batching": "reward_balanced"}, "mini_batches of 2 or more"), ({"group_size": 7}, "groups of 7")],
)
def test_settings_without_an_effect_are_refused(choice, message):
    with pytest.raises(ValueError, match=message):
        overrides(**choice)


class Idle:
    """A run that loads its policy until it is stopped."""

    stopping = False

    def status(self):
        return {"state": "stopped" if self.stopping else "starting", "step": 0, "total": 0, "message": "Loading."}

    def metrics(self):
        return pd.DataFrame({"step": pd.Series(dtype=int), "reward": pd.Series(dtype=float)})

    def samples(self):
        return pd.DataFrame()

    def stop(self):
        self.stopping = True


def test_controls_show_the_code_and_start_what_they_show():
    started = []

    def start(**settings):
        started.append(settings)
        return Idle()

    controls = TrainerControls(start, "chain.yaml", BESIDE, steps=10)
    controls.fields["learning_rate"].value = 5e-4
    controls.fields["loss_type"].value = "grpo"
    controls.monitor.start_button.click()
    assert started == [overrides(learning_rate=5e-4, steps=10, loss_type="grpo")]
    assert controls.snippet.text == as_code("chain.yaml", started[0])
    controls.monitor.start_button.click()
    assert len(started) == 1, "one run at a time"
    controls.monitor.stop_button.click()
    controls.monitor._thread.join()
    controls.monitor.start_button.click()
    assert len(started) == 2
    controls.monitor.stop()
    assert {row["run"] for row in controls.monitor.chart.data["rows"]} == set(BESIDE["run"])


def test_controls_say_why_a_choice_is_impossible():
    started = []
    controls = TrainerControls(lambda **_: started.append(1), "chain.yaml", BESIDE)
    controls.fields["batching"].value = "sign_partitioned"
    assert "mini_batches of 2 or more" in controls.problem.value
    assert controls.snippet.text == "", "no code for what is refused"
    controls.monitor.start_button.click()
    assert not started
    assert "mini_batches of 2 or more" in controls.monitor.line.value
    controls.fields["mini_batches"].value = 4
    assert not controls.problem.value
    assert "batching='sign_partitioned'" in controls.snippet.text


@pytest.fixture
def sweep(tmp_path):
    run = tmp_path / "sweep" / "seed=3"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("name: x\n")
    (run / "manifest.json").write_text(json.dumps({"seed": 3}))
    (run / "log.txt").write_text("noise")
    return run


def test_results_keep_the_records_alone(sweep, tmp_path):
    with pytest.raises(ValueError, match="has not finished"):
        keep_records(sweep.parent, tmp_path / "kept")
    pd.DataFrame({"step": [1], "reward": [0.5]}).to_parquet(sweep / "metrics.parquet")
    (kept,) = keep_records(sweep.parent, tmp_path / "kept")
    assert sorted(path.name for path in kept.iterdir()) == ["config.yaml", "manifest.json", "metrics.parquet"]
    loaded = load_records(tmp_path / "kept")
    assert loaded[["step", "reward", "run", "seed"]].to_numpy().tolist() == [[1, 0.5, "seed=3", 3]]
    with pytest.raises(ValueError, match="holds no run folders"):
        keep_records(tmp_path / "nothing", tmp_path / "kept")
    with pytest.raises(ValueError, match="holds no results"):
        load_records(tmp_path / "nothing")


def test_seconds_to_is_nan_where_the_aim_is_never_reached():
    metrics = pd.DataFrame({"time": [1.0, 2.0], "step_time": [1.0, 1.0], "reward": [0.1, 0.2]})
    assert pd.isna(seconds_to(metrics, 0.9, window=1))
    assert seconds_to(metrics, 0.2, window=1) == 2
