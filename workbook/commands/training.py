"""Commands on runs: train, resume, sweep, list and forecast them, and try a rule or a reward."""

import sys
from pathlib import Path

from workbook.book.terminal import frame_table, literal, print_text
from workbook.commands.arguments import MAIN, as_count, read_settings, settings_option
from workbook.places import import_to_stay


def _train(args) -> int:
    train_run = import_to_stay("workbook.app.worker").train_run
    from workbook.training.checks import check_run
    from workbook.training.config import RunConfig

    config = RunConfig.load(args.config).override(read_settings(args.set))
    if MAIN:
        check_run(config)
        _warn(config)
    return _report(train_run(config, args.folder, progress=True))


def _resume(args) -> int:
    execute = import_to_stay("workbook.app.worker").execute
    from workbook.app.runs import FINAL_STATES, load_run
    from workbook.files import broadcast_from_main

    run = load_run(args.run)
    # a wrong config is refused before anything is written
    _ = run.config
    state = broadcast_from_main(run.status()["state"])
    if state not in FINAL_STATES:
        raise ValueError(
            f"{run.folder} is {state} in process {run.status()['pid']}; stop it first."
        )
    return _report(execute(run.folder, progress=True))


def _sweep(args) -> int:
    from workbook.app.sweeps import check_grid, combinations, load_sweep, sweep
    from workbook.training.config import locate_setting

    config, grid = load_sweep(args.config)
    settings = read_settings(args.set)
    varied = {locate_setting(key) for part in check_grid(grid) for key in part}
    overridden = [key for key in settings if locate_setting(key) in varied]
    if overridden:
        raise ValueError(
            f"--set {overridden[0]} would be overridden by the grid of {args.config}, which varies"
            " it."
        )
    config = config.override(settings)
    folder = args.folder or Path("runs") / Path(args.config).stem
    runs = list(combinations(config, grid).values())
    _warn(runs[0], at_once=min(args.jobs, len(runs)))
    table = sweep(config, grid, folder, n_jobs=args.jobs)
    print_text(frame_table(table.drop(columns="message")))
    failed = int((table["state"] != "finished").sum())
    print(f"{len(table) - failed} of {len(table)} runs finished. They lie in {folder}")
    return 1 if failed else 0


def _runs(args) -> str:
    from workbook.app.sweeps import runs

    table = runs(args.folder)
    return frame_table(table.drop(columns="message")) if len(table) else "No runs."


def _estimators(args) -> str:
    from workbook.commands.estimators import estimators_text, trial_text

    return estimators_text() if args.rule is None else literal(trial_text(args.rule))


def _forecast(args) -> str:
    from workbook.app.memory import forecast_markdown

    return forecast_markdown(args.rollouts, args.tokens)


def _attack(args) -> int:
    from workbook.tasks import get_task
    from workbook.tasks.attack import attack_reward, describe_attack
    from workbook.training.config import RunConfig

    config = RunConfig.load(args.config)
    task = get_task(config.task, **config.task_options)
    table = attack_reward(task, args.prompts, args.seed)
    print_text(f"{task.name}: {describe_attack(table)}")
    paid = table[table["false"] & (table["paid"] > 0)]
    if len(paid):
        paid = paid.sort_values("paid", ascending=False, kind="stable")
        print_text("\n" + frame_table(paid[["hack", "paid", "mean_reward", "example"]]))
    return int(len(paid) > 0)


def _warn(config, at_once: int = 1) -> None:
    from workbook.app.memory import fits

    sentence = fits(config, at_once)
    if sentence:
        print(f"Warning: {sentence}", file=sys.stderr)


def _report(run) -> int:
    status = run.status()
    if MAIN:
        print(f"{status['message']} It lies in {run.folder}")
    return 0 if status["state"] in ("finished", "stopped") else 1


def add_training_commands(commands) -> None:
    """Add the commands on runs to the command line."""
    train = commands.add_parser("train", help="train a run from a YAML config")
    train.add_argument("config", help="e.g. data/configs/chain.yaml")
    train.add_argument("--folder", help="where to keep the run (default: a new folder in runs/)")
    settings_option(train)
    train.set_defaults(command=_train)

    resume = commands.add_parser(
        "resume", help="go on with a run from its newest intact checkpoint"
    )
    resume.add_argument("run", help="the run's folder")
    resume.set_defaults(command=_resume)

    sweep = commands.add_parser("sweep", help="train every combination of a grid of settings")
    sweep.add_argument(
        "config", help="a run's YAML with a grid, e.g. data/configs/chain_seeds.yaml"
    )
    sweep.add_argument(
        "--folder", help="where to keep its runs (default: runs/ and the config's name)"
    )
    sweep.add_argument(
        "--jobs", type=as_count(1, 1024), default=2, help="runs at a time (default: 2)"
    )
    settings_option(sweep)
    sweep.set_defaults(command=_sweep)

    runs = commands.add_parser("runs", help="list your runs, with state, reward and size on disk")
    runs.add_argument("--folder", help="where they lie (default: $WORKBOOK_RUNS or ./runs)")
    runs.set_defaults(command=_runs)

    estimators = commands.add_parser(
        "estimators", help="what a run may take for an advantage, and how to write one"
    )
    estimators.add_argument(
        "--try", dest="rule", metavar="RULE", help="give four made-up rollouts to own:credit.py:f"
    )
    estimators.set_defaults(command=_estimators)

    forecast = commands.add_parser(
        "forecast", help="memory of probes, 0.5B to 7B; of training: chapter 11"
    )
    forecast.add_argument(
        "--rollouts", type=as_count(1), nargs="+", default=[64, 1_000], help="(default: 64 1000)"
    )
    forecast.add_argument(
        "--tokens", type=as_count(1), default=1_000, help="of a completion (default: 1000)"
    )
    forecast.set_defaults(command=_forecast)

    attack = commands.add_parser(
        "attack-reward", help="which of some hacks the reward of a config pays"
    )
    attack.add_argument("config", help="a run's YAML, e.g. data/configs/chain.yaml")
    attack.add_argument(
        "--prompts", type=as_count(1, 10_000), default=32, help="of the task's, to try them on (32)"
    )
    attack.add_argument("--seed", type=as_count(0), default=0)
    attack.set_defaults(command=_attack)
