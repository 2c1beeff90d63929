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
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd

from workbook.lazy import import_to_stay
from workbook.training.checks import check_run
from workbook.training.folders import as_folder, check_vacant
from workbook.training.messages import one_line, show_value
from workbook.training.run_config import RunConfig, plain, read_yaml
from workbook.training.runs import compare_runs, create_run, is_done, load_run

MAX_RUNS, MAX_JOBS, MAX_NAME = 10_000, 1024, 200  # of a sweep; and characters of a run folder's name in it
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

    Returns `compare_runs` of all combinations; a failed one has its message there, and does not stop the others.

    Raises ValueError, and writes nothing, if a field is unknown, a value is invalid, a combination makes no run, or the
    folder holds runs of another config.
    """
    check_jobs(n_jobs)
    folder = as_folder(folder)
    named = [(folder / name, run_config) for name, run_config in checked_runs(config, grid)]
    for path, run_config in named:
        if not (path / "config.yaml").exists():
            check_vacant(path)
        elif load_run(path).config != run_config:
            raise ValueError(f"{path} holds a run of another config; use another folder for this sweep, or remove it.")
    runs = [
        load_run(path) if (path / "config.yaml").exists() else create_run(run_config, path)
        for path, run_config in named
    ]
    todo = [run.folder for run in runs if not is_done(run)]
    threads = max(1, (os.cpu_count() or 1) // max(1, n_jobs))
    jobs = (joblib.delayed(_train)(str(path.resolve()), threads) for path in todo)
    done = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(jobs)
    for message in done if quiet else _progress(done, len(todo)):
        if not quiet:
            print(message)
    return compare_runs(runs)


def load_sweep(path: str | Path) -> tuple[RunConfig, Grid]:
    """A sweep's YAML file: a run's fields, and `grid`, a mapping of fields to lists of values or a list of such.

    Raises ValueError if there is no grid, or a field is unknown.
    """
    values = read_yaml(path, "sweep")
    grid = values.pop("grid", None) if isinstance(values, dict) else None
    try:
        grids = check_grid(grid)
    except ValueError as error:
        raise ValueError(f"The sweep {path} needs a grid: {error}") from None
    try:
        config = RunConfig.load(values)
        for key, first in {key: values[0] for one in grids for key, values in one.items()}.items():
            config.override({key: first})
    except ValueError as error:
        raise ValueError(f"The sweep {path}: {error}") from None
    return config, grid


def check_grid(grid: Any) -> list[dict[str, list]]:
    """A grid as a list of mappings of fields to lists of values. Raises ValueError, in one sentence, if it is none."""
    grids = grid if isinstance(grid, list) else [grid]
    if not grids or not all(isinstance(one, dict) and one for one in grids):
        raise ValueError(
            f"grid={show_value(grid)} must be a mapping of fields to lists of values, e.g. seed: [0, 1, 2], "
            "or a list of such mappings."
        )
    if wrong := [key for one in grids for key in one if not isinstance(key, str)]:
        raise ValueError(f"grid: {show_value(wrong[0])} must be the name of a field, e.g. seed.")
    for key, values in (item for one in grids for item in one.items()):
        if not isinstance(values, list | tuple | range | np.ndarray) or not len(values):
            raise ValueError(f"grid: {one_line(key, 40)}={show_value(values)} must be a list of one value or more.")
    runs = sum(math.prod(map(len, one.values())) for one in grids)
    if runs > MAX_RUNS:
        raise ValueError(f"grid={show_value(grid)} makes {runs:,} runs; a sweep takes at most {MAX_RUNS:,}.")
    return [{key: [plain(value) for value in values] for key, values in one.items()} for one in grids]


def check_jobs(n_jobs: Any) -> None:
    """Raise a ValueError unless a number of jobs is one."""
    if not isinstance(n_jobs, int) or isinstance(n_jobs, bool) or not 1 <= n_jobs <= MAX_JOBS:
        raise ValueError(f"n_jobs={show_value(n_jobs)} must be an integer of at least 1 and at most {MAX_JOBS}.")


def combinations(config, grid: Grid) -> Iterator[tuple[str, RunConfig, dict]]:
    """Folder name, shared config and settings of every combination in `grid`. Raises ValueError if it is no grid."""
    config = RunConfig.load(config)
    grids = check_grid(grid)
    for keys, values in ((one, values) for one in grids for values in itertools.product(*one.values())):
        settings = dict(zip(keys, values, strict=True))
        name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items())
        yield name.replace("/", "-"), config, settings


def checked_runs(config, grid: Grid) -> list[tuple[str, RunConfig]]:
    """Folder name and config of every combination in `grid`, each of which can be trained.

    Raises ValueError, naming the combination that makes no run, or that is there twice.
    """
    configs: dict[str, RunConfig] = {}
    settings_of: dict[Any, str] = {}
    for name, shared, settings in combinations(config, grid):
        try:
            config = shared.override(settings)
            check_run(config)
        except ValueError as error:
            raise ValueError(f"The combination {one_line(name, 100)} makes no run: {error}") from None
        short, key = one_line(name, 60), _hashable(asdict(config))
        twin = name if name in configs else settings_of.get(key)
        if twin is not None:
            raise ValueError(
                f"The grid has the same combination twice, {one_line(twin, 60)} and {short}; name each once."
            )
        if len(name.encode()) > MAX_NAME or not name.isprintable():
            limit = f"at most {MAX_NAME} printable characters can"
            raise ValueError(f"The combination {short} can't name a folder: {limit}.")
        configs[name], settings_of[key] = config, name
    return list(configs.items())


def _hashable(value: Any) -> Any:
    """Plain data as something that equals another's where the data does."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _train(folder: str, threads: int) -> str:
    """In a worker process: one run, whose failure is its own; returns its closing message. Safe to call twice."""
    execute = import_to_stay("workbook.training.worker").execute
    import torch

    with _ONE_RUN:
        torch.set_num_threads(threads)
        try:
            return execute(folder, wait=True).status()["message"]
        except Exception as error:  # execute has written it to status.json; the other runs go on
            return f"{Path(folder).name} failed: {error}"


def _progress(done, total: int):
    from tqdm import tqdm

    return tqdm(done, total=total, unit="run", desc="sweep")
