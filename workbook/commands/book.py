"""Execute the chapters and render the book."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from workbook.commands.arguments import as_path


def _chapters(args) -> int:
    from workbook.book.chapters import ChapterFailed, find_chapters, read_chapters, run_chapters

    find_chapters(args.names)  # before what takes long
    if args.terms:
        return _terms(args)
    if args.book is not None and Path(args.book).exists() and not Path(args.book).is_dir():
        raise ValueError(f"--book {args.book} is no folder; give the path of one.")
    if args.book is not None:
        above = next(path for path in [Path(args.book), *Path(args.book).absolute().parents] if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise ValueError(f"--book {args.book} can't be written: {above} is no folder that you may write to.")
    if args.no_run and (args.book is None or args.in_place):
        raise ValueError("--no-run renders the chapters as they are: give --book FOLDER, and leave --in-place out.")
    try:
        run = read_chapters if args.no_run else partial(run_chapters, args.profile, in_place=args.in_place)
        executed = run(names=args.names or None)
    except ChapterFailed as error:
        print(error, file=sys.stderr)  # with the lines of the cell
        return 2
    if args.book is not None:
        from workbook.book.pages import render_book

        render_book(executed, Path(args.book))
    return 0


def _terms(args) -> int:
    from workbook.book.tooltips import write_tooltips

    if args.book is not None or args.in_place or args.no_run:
        raise ValueError(
            "--terms writes tooltips and literature and runs nothing: leave --book, --in-place and --no-run out."
        )
    changed = write_tooltips(args.names or None)
    print(f"New tooltips or literature in {', '.join(changed)}." if changed else "All are up to date.")
    return 0


def add_chapters(commands) -> None:
    """`chapters`: execute the chapters top to bottom."""
    chapters = commands.add_parser("chapters", help="execute the chapters top to bottom")
    chapters.add_argument("names", nargs="*", type=as_path, help="e.g. 04; all by default")
    chapters.add_argument("--profile", default="smoke", choices=("smoke", "teach", "full"))
    chapters.add_argument("--in-place", action="store_true", help="write the outputs into notebooks/")
    chapters.add_argument("--book", type=as_path, metavar="FOLDER", help="render HTML pages, to be served by anything")
    chapters.add_argument("--no-run", action="store_true", help="render the notebooks as they are")
    chapters.add_argument("--terms", action="store_true", help="only write tooltips and literature into notebooks/")
    chapters.set_defaults(command=_chapters)
