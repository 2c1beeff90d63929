"""The ledger of claims, and how often its intervals hold the truth."""

from __future__ import annotations

from pathlib import Path

from workbook.commands.arguments import as_count, as_path, check_writable, write_page
from workbook.training.messages import one_line


def _claims(args) -> int:
    from workbook.claims import CLAIMS, format_ledger, format_summary, ledger, ledger_json

    if args.claim is not None and args.claim not in CLAIMS:
        raise ValueError(f"--claim {one_line(args.claim, 60)} is unknown: choose one of {', '.join(CLAIMS)}.")
    if args.permuted and (args.claim or args.scale):
        raise ValueError("--permuted is of all primary rows; leave --claim and --scale out.")
    if args.keep and (args.claim or args.scale or args.folder):
        raise ValueError("--keep is of all rows of data/results; leave --claim, --scale and --folder out.")
    for option in ("html", "json"):
        if getattr(args, option) is not None:
            check_writable(getattr(args, option), f"--{option}")
    if args.json and args.html and Path(args.json).resolve() == Path(args.html).resolve():
        raise ValueError(f"--json and --html are both {args.html}; give each a file of its own.")
    whole = bool(args.claim or args.json or args.html)  # the rows that decide nothing take most of the time
    table = ledger(args.scale, args.folder, [args.claim] if args.claim else None, described=whole)
    print(format_ledger(table, commands=True) if args.claim else format_summary(table))
    if args.keep:
        from workbook.claims.kept import keep_ledger

        print(f"The registered rows lie in {keep_ledger(table[table['role'] != 'described'])}")
    if args.permuted:
        print(_by_chance(table, args.permuted))
    if args.json is not None:
        write_page(args.json, ledger_json(table))
        print(f"Every row, with what decided it, lies in {args.json}")
    if args.html is not None:
        from workbook.book.ledger_page import ledger_page

        write_page(args.html, ledger_page(table))
        print(f"The ledger as a page lies in {args.html}")
    return 0


def _by_chance(table, draws: int) -> str:
    """How many primary rows would be supported if each unit's side of the threshold were a coin."""
    from workbook.claims import permuted_outcomes

    drawn = permuted_outcomes(table, draws)
    if drawn.empty or not drawn["rows"].iloc[0]:
        return "Signs at random: no primary row can be judged yet."
    share, alone = (drawn[name] / drawn["rows"] for name in ("supported", "uncorrected"))
    return (
        f"Signs at random, {draws} draws of {drawn['rows'].iloc[0]} primary rows: {share.mean():.2%} of rows supported "
        f"(at least one in {(share > 0).mean():.1%} of draws); {alone.mean():.2%} by the interval alone."
    )


def _findings(args) -> int:
    from workbook.book.outcomes import decisions_markdown, findings_markdown, write_readme

    if args.readme is not None:
        changed = write_readme(Path(args.readme))
        print(f"{args.readme}: its findings {'were written anew' if changed else 'are as the ledger has them'}.")
    else:
        print(decisions_markdown() if args.decisions else findings_markdown())
    return 0


def _coverage(args) -> int:
    from workbook.claims import ledger
    from workbook.claims.coverage import (
        coverage_table,
        coverage_text,
        keep_coverage,
        ledger_skewness,
        skewness_table,
        skewness_text,
    )

    if args.folder is not None and Path(args.folder).exists() and not Path(args.folder).is_dir():
        raise ValueError(f"folder={args.folder!r} is no folder; give the path of one.")
    table, curve = coverage_table(args.repetitions, args.seed), skewness_table(args.repetitions, args.seed)
    print(coverage_text(table), skewness_text(curve, ledger_skewness(ledger(), curve)), sep="\n\n")
    if args.folder is not None:
        print(keep_coverage(table, curve, args.folder, args.repetitions, args.seed))
    return 0


def add_claims(commands) -> None:
    """`claims`: what was measured of each claim."""
    claims = commands.add_parser("claims", help="what was measured of each claim, and the outcomes")
    claims.add_argument("--scale", help="e.g. family, bundled or smollm2_chat (default: all of them)")
    claims.add_argument("--claim", help="measurements of one, and the commands that recompute them, e.g. H11")
    claims.add_argument("--permuted", type=as_count(1, 100_000), metavar="DRAWS", help="outcomes with signs at random")
    claims.add_argument("--keep", action="store_true", help="also keep the registered rows, which chapters read")
    claims.add_argument("--json", type=as_path, metavar="FILE", help="also write all rows, with what decided them")
    claims.add_argument("--html", type=as_path, metavar="FILE", help="also write it as a page")
    claims.add_argument("--folder", type=as_path, help="of the studies' tables (default: data/results)")
    claims.set_defaults(command=_claims)


def add_findings(commands) -> None:
    """`findings`: what the book found, and what to do about it."""
    parser = commands.add_parser("findings", help="what the book found and how sure that is, from the ledger")
    parser.add_argument("--decisions", action="store_true", help="what to do about it, setting by setting")
    parser.add_argument("--readme", type=as_path, metavar="FILE", help="write them between a file's findings marks")
    parser.set_defaults(command=_findings)


def add_coverage(commands) -> None:
    """`coverage`: how often the ledger's intervals hold the truth."""
    coverage = commands.add_parser("coverage", help="how often the ledger's intervals hold the truth, simulated")
    coverage.add_argument("--repetitions", type=as_count(100, 10**6), default=20_000, help="a cell (default: 20000)")
    coverage.add_argument("--seed", type=as_count(0, 2**31 - 1), default=0)
    coverage.add_argument("--folder", type=as_path, help="also write the table and its manifest to coverage/ in it")
    coverage.set_defaults(command=_coverage)
