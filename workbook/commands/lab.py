"""Open JupyterLab on working copies of the chapters, or make a fresh copy of one."""

from __future__ import annotations

import os

from workbook.commands.arguments import as_path


def _lab(args) -> int:
    from workbook.book.chapters import ROOT, find_chapters
    from workbook.book.copies import COPIES, fresh_copy, update_copies

    if args.fresh:
        for chapter in find_chapters(args.fresh):
            print(fresh_copy(chapter))
        return 0
    lab = _jupyterlab()
    earlier = ROOT / "notebooks" / "runs"
    if "WORKBOOK_RUNS" not in os.environ and earlier.is_dir():
        print(f"Runs lie in runs/ now. WORKBOOK_RUNS={earlier} opens with those of notebooks/.", flush=True)
    for sentence in update_copies():
        print(sentence, flush=True)
    _prepare_surroundings(ROOT)
    first = find_chapters()[0].name
    lab.launch_instance(
        [
            f"--ServerApp.root_dir={ROOT}",
            f"--LabApp.default_url=/lab/tree/{COPIES.name}/{first}",
            *(["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),  # in a container everybody is root
            *args.options,
        ]
    )
    return 0


def _jupyterlab():
    try:
        from jupyterlab.labapp import LabApp
    except ImportError:
        raise ImportError(
            "JupyterLab is not installed here; `make lab` installs it, or pip install '.[lab]'."
        ) from None
    return LabApp


def _prepare_surroundings(root: Path) -> None:
    """What the server's kernels and pages shall find: one folder for runs, and this book's defaults of settings."""
    from workbook.places import data_path

    os.environ.setdefault("WORKBOOK_RUNS", str(root / "runs"))
    paths = [str(data_path("jupyter")), os.environ.get("JUPYTER_CONFIG_PATH")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))


def add_lab(commands) -> None:
    """`lab`: JupyterLab on working copies of the chapters."""
    lab = commands.add_parser("lab", help="open JupyterLab on working copies of the chapters, in my_chapters/")
    lab.add_argument(
        "--fresh", nargs="+", type=as_path, metavar="CHAPTER", help="only make a fresh copy, e.g. of 05; yours is kept"
    )
    lab.add_argument("options", nargs="*", help="JupyterLab's own, after two dashes: lab -- --no-browser --port=9999")
    lab.set_defaults(command=_lab)
