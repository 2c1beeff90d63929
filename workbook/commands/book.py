"""Commands on the book: its findings, studies, claims, credit rules, reports and chapters."""

import os
import sys
from functools import partial
from pathlib import Path

from workbook.book.terminal import literal
from workbook.commands.arguments import as_count, check_writable, read_settings
from workbook.messages import require_one_of

# the names that `lab --open` takes beside chapters: the notebook, and what it is
_OPENED = {"experiment": ("try_your_own", "The form for an experiment of your own")}


def _measure(args) -> int:
    from workbook.studies import measure

    if args.figures:
        from workbook.studies.figures import write_figures

        print(*write_figures(args.study), sep="\n")
        return 0
    for path in measure(args.study, args.scale, args.seeds, args.folder):
        print(path)
    return 0


def _claims(args) -> str:
    from workbook.ledger import format_ledger, format_summary, kept_ledger, read_book

    if args.claim is not None:
        require_one_of("--claim", args.claim, tuple(read_book("claims")))
    if args.keep and (args.claim or args.scale):
        raise ValueError("--keep is of all rows; leave --claim and --scale out.")
    check_writable(args.json, "--json")
    # the kept rows, unless the options ask for others or for more than was kept of them
    if args.scale or args.folder or args.keep or args.json:
        from workbook.studies import compute_ledger

        table = compute_ledger(args.scale, args.folder, [args.claim] if args.claim else None)
    else:
        table = kept_ledger(described=True)
    if args.claim:
        text = format_ledger(table[table["claim"] == args.claim], commands=True)
    else:
        text = format_summary(table)
    if args.keep:
        from workbook.studies.ledger import keep_ledger

        text += f"\nThe rows lie in {keep_ledger(table)}"
    if args.json:
        from workbook.files import write_text
        from workbook.studies import ledger_json

        write_text(Path(args.json).resolve(), ledger_json(table))
        text += f"\nEvery row, with what decided it, lies in {args.json}"
    return text


def _findings(args) -> str:
    from workbook.book.conclusions import decisions_text, findings_text, write_readme

    if args.readme is not None:
        changed = write_readme(Path(args.readme))
        state = "were written anew" if changed else "are as the ledger has them"
        return f"{args.readme}: its findings {state}."
    if args.evidence is not None:
        from workbook.book.evidence import write_evidence

        check_writable(args.evidence, "--evidence")
        changed = write_evidence(Path(args.evidence))
        state = "written anew" if changed else "as the ledger has it"
        return f"{args.evidence}: {state}."
    return decisions_text() if args.decisions else findings_text()


def _glossary(args) -> str:
    from workbook.book.back_matter import glossary_text

    return glossary_text(" ".join(args.term))


def _arena(args) -> str | int:
    from workbook.app import (
        add_to_table,
        chart_kind,
        compare_rule,
        save_chart,
        table_markdown,
        table_text,
    )
    from workbook.views.measured import measured_table

    check_writable(args.chart, "--chart")
    if args.chart is not None:
        # an unknown kind is refused before anything is trained
        chart_kind(args.chart)
    options = {
        name: getattr(args, name)
        for name in ("units", "folder", "retrain_controls")
        if getattr(args, name)
    }
    if args.rule is None and options:
        raise ValueError(
            "--units, --folder and --retrain-controls are of a rule of yours; name a rule with"
            " --rule."
        )
    if args.rule is None:
        table = measured_table("worlds/arena")
    else:
        rows = compare_rule(args.rule, show=partial(print, flush=True), **options)
        table = add_to_table(rows)
    if args.chart is not None:
        save_chart(table, args.chart)
    drawn = f"\n\nThe chart lies in {args.chart}" if args.chart else ""
    # Markdown for a page is printed as it is, without layout
    if args.markdown:
        print(table_markdown(table) + drawn)
        return 0
    return table_text(table) + drawn


def _worlds(args) -> str:
    from workbook.book.worlds import save_worlds_chart, worlds_markdown, write_worlds

    check_writable(args.chart, "--chart")
    lines = []
    if args.page is not None:
        changed = write_worlds(Path(args.page))
        state = "written anew" if changed else "as the ledger has it"
        lines.append(f"{args.page}: its table is {state}.")
    if args.chart is not None:
        save_worlds_chart(Path(args.chart))
        lines.append(f"The chart lies in {args.chart}")
    return "\n".join(lines) or worlds_markdown()


def _report(args) -> str:
    from workbook.app import report_findings, report_text
    from workbook.rollouts import read_logged_metrics, read_rollouts

    tokenizer = None
    if args.model is not None:
        from workbook.policies.load import load_policy

        tokenizer = load_policy(args.model).tokenizer
    weights = read_settings(args.weights, "--weights") or None
    findings = report_findings(
        read_rollouts(args.run, tokenizer, weights), read_logged_metrics(args.run)
    )
    return literal(report_text(findings))


def _chapters(args) -> int:
    from workbook.book.chapters import ChapterFailed, find_chapters, read_chapters, run_chapters

    # unknown names are refused before anything runs
    find_chapters(args.names)
    if args.no_run and (args.book is None or args.in_place):
        raise ValueError(
            "--no-run renders the chapters as they are: give --book FOLDER, and leave --in-place"
            " out."
        )
    names = args.names or None
    try:
        if args.no_run:
            executed = read_chapters(names=names)
        else:
            executed = run_chapters(args.profile, names=names, in_place=args.in_place)
    except ChapterFailed as error:
        # all lines of it: they show the cell
        print(error, file=sys.stderr)
        return 2
    if args.book is not None:
        from workbook.book.pages import render_book

        render_book(executed, Path(args.book))
    return 0


def _lab(args) -> int:
    from workbook.book.chapters import ROOT, find_chapters
    from workbook.book.copies import COPIES, fresh_copy, update_copies
    from workbook.places import data_path

    if args.fresh:
        for chapter in find_chapters(args.fresh):
            print(fresh_copy(chapter))
        return 0
    name, what = _OPENED.get(args.open, (args.open, f"Chapter {args.open}"))
    opened = find_chapters([name])[0].name
    try:
        from jupyterlab.labapp import LabApp
    except ImportError:
        raise ImportError(
            "JupyterLab is not installed here; `make lab` or pip install '.[all,lab]' does it."
        ) from None
    for sentence in update_copies():
        print(sentence, flush=True)
    # the server's kernels share one folder for runs, its pages the book's own default settings
    os.environ.setdefault("WORKBOOK_RUNS", str(ROOT / "runs"))
    paths = [str(data_path("jupyter")), os.environ.get("JUPYTER_CONFIG_PATH")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    options = [
        f"--ServerApp.root_dir={ROOT}",
        f"--LabApp.default_url=/lab/tree/{COPIES.name}/{opened}",
        "--log-level=ERROR",
    ]
    # in a container everybody is root; Windows has no such number
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--allow-root")
    server = LabApp.initialize_server([*options, *args.options])
    address = server.display_url.split()[-1]
    # printed after all that the server prints
    last_line = f"{what}: {address}  (Ctrl + C, twice, ends it)"
    server.io_loop.add_callback(print, last_line, flush=True)
    server.start()
    return 0


def add_book_commands(commands) -> None:
    """Add the commands on the book to the command line."""
    measure = commands.add_parser("measure", help="make the tables of a study, seed by seed")
    measure.add_argument("study", help="e.g. dose")
    measure.add_argument(
        "--scale", default="bundled", help="default: bundled; family, smollm2_chat, ..., tiny"
    )
    measure.add_argument(
        "--seeds", type=as_count(0), nargs="+", help="default: those registered, else the scale's"
    )
    measure.add_argument("--folder", help="where to keep the tables (default: data/results)")
    measure.add_argument(
        "--figures", action="store_true", help="write what chapters draw of it, and measure nothing"
    )
    measure.set_defaults(command=_measure)

    claims = commands.add_parser("claims", help="what was measured of each claim, and the outcomes")
    claims.add_argument(
        "--scale", help="e.g. family, bundled or smollm2_chat (default: all of them)"
    )
    claims.add_argument(
        "--claim", help="measurements of one, and the commands that recompute them, e.g. H11"
    )
    claims.add_argument(
        "--keep", action="store_true", help="compute all rows and keep them, for chapters to read"
    )
    claims.add_argument(
        "--json", metavar="FILE", help="also write all rows, with what decided them"
    )
    claims.add_argument("--folder", help="of the studies' tables (default: data/results)")
    claims.set_defaults(command=_claims)

    findings = commands.add_parser(
        "findings", help="what the book found; --decisions: what to set in TRL"
    )
    findings.add_argument(
        "--decisions", action="store_true", help="what to do about it, setting by setting"
    )
    findings.add_argument(
        "--readme", metavar="FILE", help="write them between a file's findings marks"
    )
    findings.add_argument(
        "--evidence", metavar="FILE", help="write the page of the experiments behind them"
    )
    findings.set_defaults(command=_findings)

    glossary = commands.add_parser(
        "glossary", help="what the book's terms mean, and which code computes them"
    )
    glossary.add_argument("term", nargs="*", help="e.g. push; all of them by default")
    glossary.set_defaults(command=_glossary)

    arena = commands.add_parser(
        "arena", help="what each rule of credit ends at in two worlds, yours too"
    )
    arena.add_argument(
        "--rule", help="measure this one and place it: own:credit.py:f, or a name of `estimators`"
    )
    arena.add_argument(
        "--units", type=as_count(2, 1000), help="policies of each world to train on (default: 6)"
    )
    arena.add_argument("--folder", help="where to keep what is measured (default: runs/arena)")
    arena.add_argument(
        "--retrain-controls", action="store_true", help="train its controls here, too"
    )
    arena.add_argument("--chart", metavar="FILE", help="also draw the table: .png, .svg or .html")
    arena.add_argument(
        "--markdown", action="store_true", help="print the table as the arena's page has it"
    )
    arena.set_defaults(command=_arena)

    worlds = commands.add_parser(
        "worlds", help="what exact credit adds, world by world: a table and a chart"
    )
    worlds.add_argument("--page", metavar="FILE", help="write the table between a page's marks")
    worlds.add_argument("--chart", metavar="FILE", help="draw the runs: .png, .svg or .html")
    worlds.set_defaults(command=_worlds)

    report = commands.add_parser(
        "report", help="what training did to the tokens of a run, yours or TRL's"
    )
    report.add_argument(
        "run", help="a run's or TRL's output folder, or a file of logged completions"
    )
    report.add_argument(
        "--weights",
        nargs="+",
        default=[],
        metavar="NAME=NUMBER",
        help="of several reward functions",
    )
    report.add_argument(
        "--model", help="cut texts into tokens as this policy does: a name, folder or hub id"
    )
    report.set_defaults(command=_report)

    chapters = commands.add_parser("chapters", help="execute the chapters top to bottom")
    chapters.add_argument("names", nargs="*", help="e.g. 04; all by default")
    chapters.add_argument("--profile", default="smoke", choices=("smoke", "teach", "full"))
    chapters.add_argument(
        "--in-place", action="store_true", help="write the outputs into notebooks/"
    )
    chapters.add_argument(
        "--book", metavar="FOLDER", help="render HTML pages, to be served by anything"
    )
    chapters.add_argument("--no-run", action="store_true", help="render the notebooks as they are")
    chapters.set_defaults(command=_chapters)

    lab = commands.add_parser("lab", help="open JupyterLab on your working copies of the chapters")
    lab.add_argument(
        "--fresh",
        nargs="+",
        metavar="CHAPTER",
        help="only make a fresh copy, e.g. of 05; yours is kept",
    )
    lab.add_argument(
        "--open",
        default="00",
        metavar="NAME",
        help="what to open: experiment, the form, or e.g. 05",
    )
    lab.add_argument(
        "options",
        nargs="*",
        help="JupyterLab's own, after two dashes: lab -- --no-browser --port=9999",
    )
    lab.set_defaults(command=_lab)
