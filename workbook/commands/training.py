"""Train, resume and sweep runs."""

from __future__ import annotations

import sys
from pathlib import Path

from workbook.commands.arguments import MAIN, as_count, as_path, read_settings, settings_option
from workbook.lazy import import_to_stay
from workbook.training.messages import show_value


def _train(args) -> int:
    train = import_to_stay("workbook.training.worker").train
    from workbook.training.checks import check_run
    from workbook.training.memory import fits
    from workbook.training.run_config import RunConfig

    config = RunConfig.load(args.config).override(read_settings(args.set))
    if MAIN:
        check_run(config)
        if sentence := fits(config):
            print(f"Warning: {sentence}", file=sys.stderr)
    return _report(train(config, args.folder, progress=True))


def _resume(args) -> int:
    execute = import_to_stay("workbook.training.worker").execute
    from workbook.training.processes import broadcast_from_main
    from workbook.training.run_config import RunConfig
    from workbook.training.runs import FINAL_STATES, load_run

    run = load_run(args.run)
    RunConfig.load(run.folder / "config.yaml")  # before anything is written
    state = broadcast_from_main(run.status()["state"])
    if state not in FINAL_STATES:
        raise ValueError(f"{run.folder} is {state} in process {run.status()['pid']}; stop it first.")
    return _report(execute(run.folder, progress=True))


def _sweep(args) -> int:
    from workbook.training.memory import fits
    from workbook.training.run_config import place
    from workbook.training.sweeps import check_grid, checked_runs, load_sweep, sweep

    config, grid = load_sweep(args.config)
    settings = read_settings(args.set)
    varied = {place(key) for part in check_grid(grid) for key in part}
    if both := [f"{key}={show_value(value)}" for key, value in settings.items() if place(key) in varied]:
        raise ValueError(f"--set {both[0]} would be overridden by the grid of {args.config}, which varies it.")
    config = config.override(settings)
    folder = args.folder or Path("runs") / Path(args.config).stem
    runs = [run for _, run in checked_runs(config, grid)]
    if sentence := fits(runs[0], at_once=min(args.jobs, len(runs))):
        print(f"Warning: {sentence}", file=sys.stderr)
    table = sweep(config, grid, folder, n_jobs=args.jobs)
    print(table.drop(columns="message").to_string(index=False))
    failed = int((table["state"] != "finished").sum())
    print(f"{len(table) - failed} of {len(table)} runs finished. They lie in {folder}")
    return 1 if failed else 0


def _report(run) -> int:
    status = run.status()
    if MAIN:
        print(f"{status['message']} It lies in {run.folder}")
    return 0 if status["state"] in ("finished", "stopped") else 1


def add_train(commands) -> None:
    """`train`: train a run from a YAML config."""
    train = commands.add_parser("train", help="train a run from a YAML config")
    train.add_argument("config", type=as_path, help="e.g. data/configs/chain.yaml")
    train.add_argument("--folder", type=as_path, help="where to keep the run (default: a new folder in runs/)")
    settings_option(train)
    train.set_defaults(command=_train)


def add_resume(commands) -> None:
    """`resume`: go on with a run from its newest intact checkpoint."""
    resume = commands.add_parser("resume", help="go on with a run from its newest intact checkpoint")
    resume.add_argument("run", type=as_path, help="the run's folder")
    resume.set_defaults(command=_resume)


def add_sweep(commands) -> None:
    """`sweep`: train every combination of a grid of settings."""
    sweep = commands.add_parser("sweep", help="train every combination of a grid of settings")
    sweep.add_argument("config", type=as_path, help="a run's YAML with a grid, e.g. data/configs/chain_seeds.yaml")
    sweep.add_argument("--folder", type=as_path, help="where to keep its runs (default: runs/ and the config's name)")
    sweep.add_argument("--jobs", type=as_count(1, 1024), default=2, help="runs at a time (default: 2)")
    settings_option(sweep)
    sweep.set_defaults(command=_sweep)
