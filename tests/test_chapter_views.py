"""What chapters 00 and 04 lean on: checks that name the mistake, charts of credit, controls, kept results."""

import json

import pandas as pd
import pytest
import torch

from workbook.studies.keep import keep_records
from workbook.studies.sweeps import load_records, seconds_to
from workbook.theory.advantages import group_advantages
from workbook.topics.groups.explore import check_rloo, check_shared_push

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
