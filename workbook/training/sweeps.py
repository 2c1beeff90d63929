"""Sweeps: every combination of some settings, a run folder each, side by side through joblib.

A sweep that died is simply called again: finished runs are kept, interrupted ones resume. joblib's own backend switch
hands the same sweep to a cluster, here a Dask cluster (`pip install distributed`):

    client = Client("scheduler-address:8786")  # dask.distributed's; or Client(LocalCluster(2, threads_per_worker=1))
    with joblib.parallel_config("dask"):
        sweep(config, grid, folder)

`folder` must lie where every worker sees it, and a worker trains one run at a time, with the config's `threads`. A
cluster promises each task at least once: when a worker dies, another trains its run on from the last checkpoint, and
while a worker that was only thought dead still trains, the other waits for it (see `runs.training_lock`).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
import yaml

from workbook.training.compare import compare_runs
from workbook.training.run_config import RunConfig
from workbook.training.runs import Run, create_run, load_run

_ONE_RUN = threading.Lock()  # random states and torch's threads are a process's: it trains one run at a time

Grid = dict[str, list] | list[dict[str, list]]


def sweep(config, grid: Grid, folder: str | Path, n_jobs: int = 2, quiet: bool = False) -> pd.DataFrame:
    """Train every combination of the values in `grid`; each combination is a run folder below `folder`.

    Args:
        config: what the combinations share: a YAML file's path, a dict or a `RunConfig`.
        grid: values to try for each field, e.g. `{"batching": ["shuffled", "query_preserved"], "seed": [0, 1]}`; or a
            list of such grids, one after the other, e.g. one for each optimizer with its own learning rates.
        folder: of the sweep; called again on the same folder, it does only what is missing.
        n_jobs: runs at a time; the cores are shared among them. A cluster runs as many as it has workers.
        quiet: no progress bar.

    Returns:
        `compare_runs` of all combinations; a failed one has its message there, and does not stop the others.

    Raises:
        ValueError: if a field is unknown, a value is invalid, or the folder holds runs of another config.
    """
    runs = [
        _prepare(Path(folder) / name, config.override(settings))
        for name, config, settings in combinations(config, grid)
    ]
    todo = [run.folder for run in runs if run.status()["state"] != "finished"]
    threads = max(1, (os.cpu_count() or 1) // max(1, n_jobs))
    jobs = (joblib.delayed(_train)(str(path.resolve()), threads) for path in todo)
    done = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(jobs)
    for message in done if quiet else _progress(done, len(todo)):
        if not quiet:
            print(message)
    return compare_runs(runs)


def load_sweep(path: str | Path) -> tuple[RunConfig, Grid]:
    """A sweep's YAML file: a run's fields, and `grid`, a mapping of fields to lists of values or a list of such.

    Raises:
        ValueError: if there is no grid, or a field is unknown.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"The sweep {path} can't be read as YAML: {' '.join(str(error).split())}.") from None
    grid = values.pop("grid", None) if isinstance(values, dict) else None
    if not _is_grid(grid) and not (isinstance(grid, list) and grid and all(map(_is_grid, grid))):
        raise ValueError(
            f"The sweep {path} needs a grid: a mapping of fields to lists of values, e.g. seed: [0, 1, 2]."
        )
    return RunConfig.load(values), grid


def _is_grid(grid: Any) -> bool:
    return isinstance(grid, dict) and all(isinstance(values, list) and values for values in grid.values())


def combinations(config, grid: Grid) -> Iterator[tuple[str, RunConfig, dict]]:
    """Folder name, shared config and settings of every combination in `grid`."""
    config = RunConfig.load(config)
    grids = grid if isinstance(grid, list) else [grid]
    for keys, values in ((each, values) for each in grids for values in itertools.product(*each.values())):
        settings = dict(zip(keys, values, strict=True))
        name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items()) or config.name
        yield name.replace("/", "-"), config, settings


def _prepare(folder: Path, config: RunConfig) -> Run:
    if not (folder / "config.yaml").exists():
        return create_run(config, folder)
    run = load_run(folder)
    if run.config != config:
        raise ValueError(f"{folder} holds a run of another config; use another folder for this sweep, or remove it.")
    return run


def _train(folder: str, threads: int) -> str:
    """In a worker process: one run, whose failure is its own; returns its closing message. Safe to call twice."""
    import torch

    from workbook.training.worker import execute

    with _ONE_RUN:
        torch.set_num_threads(threads)
        try:
            return execute(folder, wait=True).status()["message"]
        except Exception as error:  # execute has written it to status.json; the other runs go on
            return f"{Path(folder).name} failed: {error}"


def _progress(done, total: int):
    from tqdm import tqdm

    return tqdm(done, total=total, unit="run", desc="sweep")
