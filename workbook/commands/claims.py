"""The ledger of claims, and what the book found."""

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
    if args.json is not None:
        check_writable(args.json, "--json")
    whole = bool(args.claim or args.json)  # the rows that decide nothing take most of the time
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


def add_claims(commands) -> None:
    """`claims`: what was measured of each claim."""
    claims = commands.add_parser("claims", help="what was measured of each claim, and the outcomes")
    claims.add_argument("--scale", help="e.g. family, bundled or smollm2_chat (default: all of them)")
    claims.add_argument("--claim", help="measurements of one, and the commands that recompute them, e.g. H11")
    claims.add_argument("--permuted", type=as_count(1, 100_000), metavar="DRAWS", help="outcomes with signs at random")
    claims.add_argument("--keep", action="store_true", help="also keep the registered rows, which chapters read")
    claims.add_argument("--json", type=as_path, metavar="FILE", help="also write all rows, with what decided them")
    claims.add_argument("--folder", type=as_path, help="of the studies' tables (default: data/results)")
    claims.set_defaults(command=_claims)


def add_findings(commands) -> None:
    """`findings`: what the book found, and what to do about it."""
    parser = commands.add_parser("findings", help="what the book found and how sure that is, from the ledger")
    parser.add_argument("--decisions", action="store_true", help="what to do about it, setting by setting")
    parser.add_argument("--readme", type=as_path, metavar="FILE", help="write them between a file's findings marks")
    parser.set_defaults(command=_findings)
