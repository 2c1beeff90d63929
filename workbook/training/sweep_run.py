"""SweepRun: a sweep in a process of its own, watched, stopped and resumed like a single run.

    sweep = start_sweep(config, {"batching": ["shuffled", "query_preserved"], "seed": [0, 1]})

Its folder holds sweep.yaml, which `python -m workbook sweep` takes as well, and a run folder per combination. The
process is that very command. Stopping ends every run after the step in hand; resuming does what is missing.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pandas as pd

from workbook.training.files import as_folder, check_vacant, read_json, write_json, write_text
from workbook.training.processes import is_alive, launch
from workbook.training.run_config import RunConfig, dump_yaml
from workbook.training.runs import Run, create_run, new_folder
from workbook.training.sweeps import Grid, check_grid, combinations, compare_runs, load_sweep


class SweepRun(Run):
    """The sweep that lies in `folder`; has the methods of a `Run`, over all of its runs.

    Attributes:
        folder: where it lies.
        runs: {name: Run}, a run for each combination, in the grid's order.
        settings: {name: what distinguishes it but for the seed}, e.g. "batching=shuffled".
    """

    def __init__(self, folder: str | Path):
        self.folder = as_folder(folder)
        self.shared, self.grid = load_sweep(self.folder / "sweep.yaml")
        self.runs, self.settings, self._total = {}, {}, 0
        for name, config in combinations(self.shared, self.grid).items():
            self._total += config.trainer["max_steps"]
            self.runs[name] = Run(self.folder / name)
            self.settings[name] = ", ".join(part for part in name.split(",") if not part.startswith("seed="))

    @property
    def config(self) -> RunConfig:
        return self.shared

    def status(self) -> dict:
        """As `Run.status`; step and total count the optimizer steps of all runs."""
        process = self._process()
        statuses = {name: run.status() for name, run in self.runs.items()}
        finished, failed, now = (
            [name for name, status in statuses.items() if status["state"] == state]
            for state in ("finished", "failed", "running")
        )
        done = f"{len(finished)} of {len(statuses)} runs finished"
        if is_alive(process):
            state, message = "starting", "Loading the policy."
            if now or finished or failed:
                state, message = "running", f"{done}{'; now ' if now else ''}{' and '.join(now)}."
        elif len(finished) == len(statuses):
            state, message = "finished", f"{self.config.name}: all {len(statuses)} runs finished."
        elif failed:
            reason = f"{failed[0]}: {statuses[failed[0]]['message']}"
            state, message = "failed", f"{done}, {len(failed)} failed; {reason}"
        elif self.stopping:
            state, message = "stopped", f"Stopped: {done}; resume goes on."
        else:
            state, message = "interrupted", f"The process ended: {done}; resume() goes on."
        step = sum(status["step"] for status in statuses.values())
        return process | {"state": state, "message": message, "step": step, "total": self._total}

    def curves(self) -> pd.DataFrame:
        """`Run.metrics` of every run that has some, with the columns run, setting and seed."""
        tables = [
            run.metrics().assign(run=name, setting=self.settings[name], seed=run.config.seed)
            for name, run in self.runs.items()
        ]
        return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)

    def metrics(self) -> pd.DataFrame:
        """Steps of all runs in the order in which they were made: step (over all), reward, step_time (of all jobs)."""
        curves = self.curves()
        if "time" not in curves:
            return curves[["step", "reward"]]
        jobs = self._process()["jobs"]
        made = curves.sort_values("time")[["step", "reward", "step_time"]].reset_index(drop=True)
        return made.assign(step=made.index + 1, step_time=made["step_time"] / jobs)

    def samples(self) -> pd.DataFrame:
        """`Run.samples` of the run that wrote some last."""
        written = {name: run.folder / "samples.json" for name, run in self.runs.items()}
        newest = max(self.runs, key=lambda name: written[name].stat().st_mtime if written[name].exists() else 0)
        return self.runs[newest].samples()

    def stop(self) -> None:
        """Ask every run to stop after the step in hand; what was trained stays resumable."""
        super().stop()
        for run in self.runs.values():
            if run.status()["state"] != "finished":
                run.stop()

    def resume(self) -> SweepRun:
        """Do what is missing: finished runs are kept, others go on from their newest checkpoint.

        Raises ValueError if it is running.
        """
        self.check_idle()
        self._launch(self._process()["jobs"])
        return self

    def table(self) -> pd.DataFrame:
        """`compare_runs` of all runs."""
        return compare_runs(self.runs.values())

    def _process(self) -> dict:
        """The process that trains it, as process.json says; one that has ended, of a single job, if that is damaged."""
        try:
            process = read_json(self.folder / "process.json", dict)
        except ValueError:
            process = {}
        jobs = process.get("jobs")
        valid = type(jobs) is int and jobs >= 1 and type(process.get("pid")) is int
        return process if valid else {"pid": 0, "jobs": 1}

    def _launch(self, jobs: int) -> None:
        for path in (self.folder, *(run.folder for run in self.runs.values())):
            (path / "stop").unlink(missing_ok=True)
        command = ["sweep", str(self.folder / "sweep.yaml"), "--folder", str(self.folder), "--jobs", str(jobs)]
        write_json(self.folder / "process.json", launch(self.folder, "workbook", *command) | {"jobs": jobs})


def start_sweep(config, grid: Grid, folder: str | Path | None = None, n_jobs: int = 1) -> SweepRun:
    """Start training every combination of a grid in a process of its own, which goes on if this one ends.

    config: what the combinations share: a YAML file's path, a dict or a `RunConfig`.  grid: as in `sweep`.
    folder: where to keep it; by default a new folder in $WORKBOOK_RUNS or ./runs.  n_jobs: runs at a time.

    Raises ValueError if a field is unknown or a value invalid, two combinations are the same, or the folder is in use.
    """
    config = RunConfig.load(config)
    grids = check_grid(grid)
    named = combinations(config, grids).items()
    folder = as_folder(new_folder(f"{config.name}-sweep") if folder is None else folder)
    if (folder / "sweep.yaml").exists():
        raise ValueError(f"{folder} already holds a sweep; SweepRun({str(folder)!r}).resume() goes on with it.")
    check_vacant(folder)
    for name, run_config in named:
        create_run(run_config, folder / name)
    write_text(folder / "sweep.yaml", as_yaml(config, grids if isinstance(grid, list) else grids[0]))
    sweep = SweepRun(folder)
    sweep._launch(n_jobs)
    return sweep


def as_yaml(config: RunConfig, grid: Grid | None = None) -> str:
    """The YAML that `python -m workbook train` takes, or, with a grid, `python -m workbook sweep`."""
    return dump_yaml(asdict(config) | ({"grid": grid} if grid else {}))
