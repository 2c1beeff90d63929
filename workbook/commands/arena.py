"""Credit rules: what there is, and what each makes of as many tokens."""

from __future__ import annotations

from pathlib import Path

from workbook.commands.arguments import as_count, as_path, check_writable


def _estimators(args) -> int:
    from workbook.training.credit import estimators_text

    print(estimators_text())
    return 0


def _arena(args) -> int:
    from workbook.topics.arena import contender, contest, measured_table, place, save_chart, setting_of
    from workbook.topics.arena import table_markdown as markdown
    from workbook.topics.arena import table_text as text

    if args.chart is not None:
        _check_chart(args.chart)
    asked = {"--small": args.small or None, "--units": args.units, "--folder": args.folder}
    if args.rule is None and (idle := [option for option, value in asked.items() if value is not None]):
        raise ValueError(f"{idle[0]} is of a contest; name a rule with --rule, or leave it out.")
    rule = None if args.rule is None else contender(args.rule).name
    table = measured_table()
    if rule is not None:
        folder = "runs/arena" if args.folder is None else args.folder
        own = contest(args.rule, setting_of(args.small), args.units, folder, lambda line: print(line, flush=True))
        table = place(table, own, rule)
    print(markdown(table) if args.markdown else text(table))
    if args.chart is not None:
        save_chart(table, args.chart)
        print(f"The chart lies in {args.chart}")
    return 0


def _check_chart(path: str) -> None:
    """Raise a ValueError unless a chart can be written at `path`."""
    if Path(path).suffix.lower() not in (".png", ".svg", ".html"):
        raise ValueError(f"--chart {path} must end in .png, .svg or .html.")
    check_writable(path, "--chart")


def add_estimators(commands) -> None:
    """`estimators`: what a run may take for an advantage."""
    estimators = commands.add_parser("estimators", help="what a run may take for an advantage, and how to write one")
    estimators.set_defaults(command=_estimators)


def add_arena(commands) -> None:
    """`arena`: what each credit rule makes of as many tokens."""
    arena = commands.add_parser("arena", help="what each credit rule makes of as many tokens, yours too")
    arena.add_argument("--rule", help="measure this one and place it: own:credit.py:f, or a name of `estimators`")
    arena.add_argument("--small", action="store_true", help="half the budget and smaller samples: minutes for a rule")
    arena.add_argument("--units", type=as_count(2, 1000), help="policies x seeds (default: 6 if small, else 10)")
    arena.add_argument("--folder", type=as_path, help="where to keep what is measured (default: runs/arena)")
    arena.add_argument("--chart", type=as_path, metavar="FILE", help="also draw the table: .png, .svg or .html")
    arena.add_argument("--markdown", action="store_true", help="print the table as README has it")
    arena.set_defaults(command=_arena)
