"""Sweeps and tables of runs: every combination of some settings, a run folder each, side by side
through joblib.

One that died is called again: finished runs are kept, interrupted ones resume. With joblib's own
switch of backends, `with joblib.parallel_config("dask"): sweep(...)`, it runs on a cluster whose
workers all see its folder. A run that is handed out twice is trained once.
"""

import itertools
import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd

from workbook.app.run_folder import as_folder, check_vacant
from workbook.app.runs import END_WINDOW, Run, create_run, is_done, load_run
from workbook.messages import InvalidValue, explain_error, one_line, progress, reworded
from workbook.places import import_to_stay, runs_folder
from workbook.training.checks import check_run
from workbook.training.config import RunConfig, flatten, read_settings_file, to_builtin

# random states and torch's threads are a process's: it trains one run at a time
_ONE_RUN = threading.Lock()

# of a combination's name: what file systems take, less what is put before and after it
_MAX_NAME_BYTES = 200

Grid = dict[str, list] | list[dict[str, list]]


def sweep(
    config, grid: Grid, folder: str | Path, n_jobs: int = 2, quiet: bool = False
) -> pd.DataFrame:
    """Train every combination of the values in `grid`; each combination is a run folder below
    `folder`.

    Args:
        config: what the combinations share: a YAML file's path, a dict or a `RunConfig`.
        grid: values to try for each field, e.g. `{"batching": ["shuffled", "query_preserved"],
            "seed": [0, 1]}`; or a list of such grids, one after the other, e.g. one for each
            optimizer with its own learning rates.
        folder: of the sweep; called again on the same folder, it does only what is missing.
        n_jobs: runs at a time; the cores are shared among them.
        quiet: print no line per run.

    Returns `compare_runs` of all; a failed run has its message there, and does not stop the others.
    Raises ValueError, and writes nothing, if a combination makes no run, or the folder holds runs
    of another config.
    """
    if type(n_jobs) is not int or n_jobs < 1:
        raise InvalidValue("n_jobs", n_jobs, "an integer of at least 1")
    configs = {
        as_folder(folder) / name: run_config
        for name, run_config in combinations(config, grid).items()
    }
    # all is looked at before anything is written
    present = [path for path in configs if (path / "config.yaml").exists()]
    for path, run_config in configs.items():
        if path not in present:
            check_vacant(path)
        elif load_run(path).config != run_config:
            raise ValueError(
                f"{path} holds a run of another config; use another folder for this sweep, or"
                " remove it."
            )
    runs = []
    for path, run_config in configs.items():
        runs.append(load_run(path) if path in present else create_run(run_config, path))

    missing = [run.folder for run in runs if not is_done(run)]
    threads = max(1, (os.cpu_count() or 1) // n_jobs)
    jobs = [joblib.delayed(_train)(str(path.resolve()), threads) for path in missing]
    messages = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(jobs)
    for message in progress(messages, "runs", len(missing)):
        if not quiet:
            print(message)
    return compare_runs(runs)


def combinations(config, grid: Grid) -> dict[str, RunConfig]:
    """{folder name: config} of every combination in `grid`, each of which can be trained.

    Raises ValueError, naming the combination that makes no run, or that is there twice.
    """
    shared = RunConfig.load(config)
    configs = {}
    seen = set()
    for settings in _each_combination(grid):
        values = [f"{key.rpartition('.')[2]}={value}" for key, value in settings.items()]
        name = ",".join(values).replace("/", "-")
        short = one_line(name, 60)
        try:
            combined = shared.override(settings)
            check_run(combined)
        except ValueError as error:
            raise reworded(error, f"The combination {short} makes no run: {error}") from None
        if name in configs or repr(combined) in seen:
            raise ValueError(f"The grid has the same combination twice, {short}; name each once.")
        if len(name.encode()) > _MAX_NAME_BYTES or not name.isprintable():
            raise ValueError(
                f"The combination {short} can't name a folder: at most {_MAX_NAME_BYTES} printable"
                " bytes can."
            )
        configs[name] = combined
        seen.add(repr(combined))
    return configs


def _each_combination(grid: Grid) -> Iterator[dict[str, Any]]:
    for part in check_grid(grid):
        for values in itertools.product(*part.values()):
            yield dict(zip(part, values, strict=True))


def check_grid(grid: Any) -> list[dict[str, list]]:
    """A grid as a list of mappings of fields to lists of values.

    Raises InvalidValue if it is none.
    """
    parts = grid if isinstance(grid, list) else [grid]
    if not parts or not all(isinstance(part, dict) and part for part in parts):
        valid = (
            "a mapping of fields to lists of values, e.g. seed: [0, 1, 2], or a list of such"
            " mappings"
        )
        raise InvalidValue("grid", grid, valid)
    checked = []
    for part in parts:
        for key, values in part.items():
            is_list = isinstance(values, list | tuple | range | np.ndarray)
            if not isinstance(key, str) or not is_list or not len(values):
                field = f"grid: {one_line(key, 40)}"
                raise InvalidValue(field, values, "a list of one value or more")
        checked.append({key: [to_builtin(value) for value in part[key]] for key in part})
    return checked


def load_sweep(path: str | Path) -> tuple[RunConfig, Grid]:
    """Read a sweep's YAML file: a run's fields, and `grid`.

    Raises ValueError if there is no grid, or a field is unknown.
    """
    values = read_settings_file(path, "sweep")
    grid = values.pop("grid", None) if isinstance(values, dict) else None
    wrong = f"The sweep {path} needs a grid"
    try:
        check_grid(grid)
        wrong = f"The sweep {path}"
        return RunConfig.load(values), grid
    except ValueError as error:
        raise reworded(error, f"{wrong}: {error}") from None


def _train(folder: str, threads: int) -> str:
    """Train one run in a worker process; returns its closing message, or how it failed.

    Safe to call twice.
    """
    execute = import_to_stay("workbook.app.worker").execute
    import torch

    with _ONE_RUN:
        torch.set_num_threads(threads)
        try:
            return execute(folder, wait=True).status()["message"]
        except Exception as error:  # execute has written it to status.json; the other runs go on
            return f"{Path(folder).name} failed: {error}"


# -- tables of runs --------------------------------------------------------------------------------


def runs(folder: str | Path | None = None) -> pd.DataFrame:
    """Every run in a folder, those of sweeps too, the newest first.

    folder: by default $WORKBOOK_RUNS or ./runs.  Reward is the mean of the last 5 batches. A run
    that can't be read is damaged, and its message says why.
    """
    folder = runs_folder() if folder is None else as_folder(folder)
    configs = [*folder.glob("*/config.yaml"), *folder.glob("*/*/config.yaml")]
    configs.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    rows = []
    for path in configs:
        run = Run(path.parent)
        size = sum(file.lstat().st_size for file in run.folder.rglob("*") if file.is_file())
        row = {"run": run.folder.relative_to(folder).as_posix(), "mb": round(size / 1e6, 1)}
        try:
            status = run.status()
            row |= {name: status[name] for name in ("state", "step", "total", "message")}
            config = run.config
            row |= {"policy": config.policy, "task": config.task}
            row["reward"] = run.metrics()["reward"].dropna().tail(END_WINDOW).mean()
        except (ValueError, OSError) as error:
            row["state"] = "damaged"
            row["message"] = explain_error(error)
        rows.append(row)
    columns = ["run", "policy", "task", "state", "step", "total", "reward", "mb", "message"]
    return pd.DataFrame(rows, columns=columns)


def compare_runs(runs: Iterable[Run | str | Path]) -> pd.DataFrame:
    """One row per run: its folder's name, the settings in which the runs differ, and results.

    Result columns: state, message, steps, seconds (of training), reward (mean sampled reward of the
    last 5 steps), grad_norm (their mean), heldout_before and heldout_after (mean reward on held-out
    prompts, where evaluated).
    """
    if isinstance(runs, str | Path | Run) or not isinstance(runs, Iterable):
        raise InvalidValue("runs", runs, "a list of runs or of their folders")
    runs = [run if isinstance(run, Run) else load_run(run) for run in runs]
    settings = pd.DataFrame([flatten(asdict(run.config)) for run in runs])
    written = settings.map(lambda value: json.dumps(value, default=str))
    varying = [name for name in settings if written[name].nunique() > 1 and name != "name"]
    names = pd.DataFrame({"run": [run.folder.name for run in runs]})
    return pd.concat([names, settings[varying], pd.DataFrame(map(_results, runs))], axis=1)


def _results(run: Run) -> dict:
    """What became of a run, NaN where it is not known."""
    metrics = run.metrics()
    status = run.status()
    nan = float("nan")
    seconds = nan
    if "time" in metrics and len(metrics) > 1:
        seconds = metrics["time"].max() - metrics["time"].min()
    heldout = run.evaluation().set_index("label")["mean"]
    # steps that sampled a new generation batch
    last = metrics.dropna(subset="reward").tail(END_WINDOW)
    return {
        "state": status["state"],
        "steps": len(metrics),
        "seconds": seconds,
        "reward": last["reward"].mean(),
        "grad_norm": last["grad_norm"].mean() if "grad_norm" in last else nan,
        "heldout_before": heldout.get("before", nan),
        "heldout_after": heldout.get("after", nan),
        "message": status["message"],
    }
