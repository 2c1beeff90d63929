"""Sweeps on a real Dask cluster of two worker processes lose nothing and double nothing when one is killed."""

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import joblib
import psutil
import pytest
from test_runs import CONFIG, run_process, weights

from workbook.training import load_run, sweep
from workbook.training.runs import Run, create_run
from workbook.training.sweeps import _train
from workbook.training.worker import execute

STEPS = 24
SETTINGS = CONFIG | {"trainer": CONFIG["trainer"] | {"max_steps": STEPS}}
SEEDS = [0, 1, 2, 3]


@pytest.fixture
def client():
    """Two worker processes of one thread each, forked from a server that has torch loaded."""
    import dask
    from distributed import Client, LocalCluster

    multiprocessing.get_context("forkserver").set_forkserver_preload(["workbook.training.worker", "distributed"])
    forkserver.ensure_running()
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def kill_one(folder: Path, killed: dict) -> None:
    """SIGKILL the first worker process that is found training past its first checkpoint."""
    while not killed:
        for run in (Run(folder / f"seed={seed}") for seed in SEEDS):
            status = run.status() if (run.folder / "status.json").exists() else {"state": "", "step": 0}
            if status["state"] == "running" and 6 <= status["step"] < STEPS - 4:
                os.kill(status["pid"], signal.SIGKILL)
                killed |= {"run": run, "pid": status["pid"], "step": status["step"]}
                return
        time.sleep(0.01)


def test_a_killed_worker_loses_and_doubles_no_run(client, tmp_path):
    pids = set(client.run(os.getpid).values())
    assert len(pids) == 2
    assert os.getpid() not in pids
    killed = {}
    killer = threading.Thread(target=kill_one, args=(tmp_path, killed), daemon=True)
    killer.start()
    with joblib.parallel_config("dask"):
        table = sweep(SETTINGS, {"seed": SEEDS}, tmp_path, quiet=True)
    killer.join(10)
    assert killed["pid"] in pids
    assert table["state"].tolist() == ["finished"] * len(SEEDS)
    for seed in SEEDS:
        run = load_run(tmp_path / f"seed={seed}")
        assert run.metrics()["step"].tolist() == list(range(1, STEPS + 1))
        assert run.status()["pid"] not in (killed["pid"], os.getpid())
    alone = create_run(SETTINGS | {"seed": killed["run"].config.seed}, tmp_path / "alone")
    run_process(alone.folder).join()
    assert weights(killed["run"]) == weights(alone)


def test_a_task_that_is_run_twice_at_once_trains_once(tmp_path):
    run = create_run(SETTINGS, tmp_path / "twice")
    first = run_process(run.folder, pause_at=2)
    while psutil.Process(first.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    with pytest.raises(ValueError, match=f"is being trained by process {first.pid}"):
        execute(run.folder)
    threading.Timer(0.5, os.kill, (first.pid, signal.SIGCONT)).start()
    message = _train(str(run.folder), threads=1)
    first.join()
    status = run.status()
    assert status["pid"] == first.pid, "the second call wrote a status, so it trained"
    assert status["state"] == "finished"
    assert message == status["message"]
    assert run.metrics()["step"].tolist() == list(range(1, STEPS + 1))
