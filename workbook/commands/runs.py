"""List the runs of a workspace, compare two of them, and tidy up."""

from __future__ import annotations

from pathlib import Path

from workbook.commands.arguments import as_path


def _runs(args) -> int:
    from workbook.places import runs_folder
    from workbook.training.my_runs import list_runs, pair_settings, runs_text, select_runs
    from workbook.training.tidy import plan_tidy, tidy_up

    folder = Path(args.folder) if args.folder else runs_folder()
    if args.compare:
        if args.tidy:
            raise ValueError("--compare and --tidy are two requests; ask for one at a time.")
        print(pair_settings(*(_named(folder, name) for name in args.compare)).to_string())
        return 0
    if args.yes and not args.tidy:
        raise ValueError("--yes confirms --tidy; say what to delete, e.g. --tidy checkpoints.")
    if args.tidy == "runs" and not args.filter.strip() and args.state is None:
        raise ValueError("--tidy runs deletes whole runs; say which by --filter or --state.")
    table = select_runs(list_runs(folder), args.filter, args.state)
    if not args.tidy:
        print(runs_text(table))
        return 0
    plan = plan_tidy(table, args.tidy)
    print(plan)
    if plan.rows.empty:
        return 0
    print(tidy_up(plan) if args.yes else "Nothing was deleted; --yes does it.")
    return 0


def _named(folder: Path, name: str) -> Path:
    """A run by its name in the list, or by its folder. Raises ValueError if there is none."""
    for path in (folder / name, Path(name)):
        if (path / "config.yaml").is_file():
            return path
    raise ValueError(f"--compare {name}: there is no such run in {folder}; `python -m workbook runs` lists them.")


def add_runs(commands) -> None:
    """`runs`: list, compare and tidy up."""
    runs = commands.add_parser("runs", help="list your runs with the disk that they take, compare two, tidy up")
    runs.add_argument("--filter", default="", metavar="TEXT", help="only runs with these words in name, task or model")
    runs.add_argument("--state", help="only those finished, stopped, failed, interrupted, running, starting or damaged")
    runs.add_argument("--folder", type=as_path, help="where they lie (default: $WORKBOOK_RUNS or ./runs)")
    runs.add_argument(
        "--compare", nargs=2, type=as_path, metavar="RUN", help="settings and results in which two differ"
    )
    kinds = ("checkpoints", "tokens", "models", "runs")
    runs.add_argument("--tidy", choices=kinds, help="say what of them can go and how much that frees; see --yes")
    runs.add_argument("--yes", action="store_true", help="with --tidy: delete what it lists")
    runs.set_defaults(command=_runs)
