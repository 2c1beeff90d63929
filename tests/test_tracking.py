"""A run's metrics, ours among them, reach the trackers that TRL's report_to names."""

from importlib.util import find_spec

import pytest
from test_runs import CONFIG, run_process

from workbook.__main__ import main
from workbook.training.run_config import RunConfig
from workbook.training.runs import create_run

SHORT = CONFIG | {"trainer": CONFIG["trainer"] | {"max_steps": 4, "batching": "query_preserved"}}


def test_tensorboard_has_what_cancels_and_lies_in_the_run_folder(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = create_run(RunConfig.load(SHORT).override({"report_to": "tensorboard"}), tmp_path / "run")
    run_process(run.folder).join()
    assert run.status()["state"] == "finished", run.status()
    (events,) = run.folder.rglob("events.out.tfevents.*")
    logged = EventAccumulator(str(events.parent)).Reload()
    metrics = run.metrics().set_index("step")
    ours = [name for name in metrics if name.startswith("cancellation/")]
    assert "cancellation/batch_residual" in ours
    for name in [*ours, "reward", "grad_norm"]:
        written = {scalar.step: scalar.value for scalar in logged.Scalars(f"train/{name}")}
        assert written == pytest.approx(metrics[name].dropna().to_dict()), name


@pytest.mark.skipif(find_spec("trackio") is not None, reason="trackio is installed here")
def test_a_tracker_that_is_not_installed_is_named(tmp_path, capsys):
    config = create_run(SHORT, tmp_path / "made").folder / "config.yaml"
    assert main(["train", str(config), "--folder", str(tmp_path / "run"), "--set", "report_to=trackio"]) == 2
    error = capsys.readouterr().err.strip()
    assert error == "report_to='trackio' needs the package trackio, which is not installed: pip install trackio"
