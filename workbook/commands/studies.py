"""Measure studies, and keep what sweeps gave."""

from __future__ import annotations

from workbook.commands.arguments import as_count, as_path


def _keep(args) -> int:
    from workbook.studies.keep import keep_sweep

    print(keep_sweep(args.sweep, args.scale, args.folder))
    return 0


def _measure(args) -> int:
    from workbook.studies import measure

    for folder in measure(args.study, args.scale, args.seeds, args.folder):
        print(folder)
    return 0


def add_keep(commands) -> None:
    """`keep`: write the outcomes of a sweep's runs."""
    keep = commands.add_parser("keep", help="write the outcomes of a sweep's runs, small enough to commit")
    keep.add_argument("sweep", type=as_path, help="the sweep's folder, e.g. runs/batching")
    keep.add_argument("--scale", help="default: that of the runs' policy")
    keep.add_argument("--folder", type=as_path, help="where to write (default: data/results)")
    keep.set_defaults(command=_keep)


def add_measure(commands) -> None:
    """`measure`: make the tables of a study."""
    measure = commands.add_parser("measure", help="make the tables of a study, seed by seed; those made are kept")
    measure.add_argument("study", help="e.g. flips")
    measure.add_argument("--scale", default="bundled", help="default: bundled; family, smollm2_chat, ..., tiny")
    measure.add_argument(
        "--seeds", type=as_count(0, 2**31 - 1), nargs="+", help="default: those registered, else the scale's"
    )
    measure.add_argument("--folder", type=as_path, help="where to keep the tables (default: data/results)")
    measure.set_defaults(command=_measure)
