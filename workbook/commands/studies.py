"""Measure studies, keep what sweeps gave, and measure what needs a GPU."""

from __future__ import annotations

from workbook.commands.arguments import as_count, as_path
from workbook.training.messages import one_line


def _keep(args) -> int:
    from workbook.studies.keep import keep_sweep

    print(keep_sweep(args.sweep, args.scale, args.folder))
    return 0


def _measure(args) -> int:
    from workbook.studies import measure

    for folder in measure(args.study, args.scale, args.seeds, args.folder):
        print(folder)
    return 0


def _gpu(args) -> int:
    from workbook.studies.gpu.campaign import ROWS, run_rows

    if unknown := [row for row in args.rows or () if row not in ROWS]:
        raise ValueError(f"--rows {one_line(unknown[0], 60)} is unknown: choose of {', '.join(ROWS)}.")
    return run_rows(args.rows, args.folder, args.minutes, args.dry)


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


def add_gpu(commands) -> None:
    """`gpu`: measure everything that needs a GPU."""
    gpu = commands.add_parser("gpu", help="measure everything that needs a GPU; rows that are done are kept")
    gpu.add_argument("--dry", action="store_true", help="the same code at tiny sizes on a CPU")
    gpu.add_argument(
        "--rows", nargs="+", metavar="ROW", help="equality, speed, peaks, chapter11, mechanism (default: all)"
    )
    gpu.add_argument("--minutes", type=as_count(1, 10_000), default=40, help="until it ends in order (default: 40)")
    gpu.add_argument(
        "--folder", type=as_path, help="where to write (default: data/results/gpu; a temporary one if dry)"
    )
    gpu.set_defaults(command=_gpu)
