"""What training did to the tokens of a run, yours or another program's."""

from __future__ import annotations

from pathlib import Path

from workbook.commands.arguments import as_path, check_writable


def _write_report(args) -> int:
    from workbook.book.report_page import default_page, report_text, write_report
    from workbook.policies.load import load_policy
    from workbook.probes import model_findings, report_findings
    from workbook.rollouts import read_rollouts

    page = default_page(args.run) if args.html is None else args.html
    check_writable(page, "--html")
    if Path(page).resolve() == Path(args.run).expanduser().resolve():
        raise ValueError(f"--html {page} is the file that is read; give another.")
    policy = None if args.model is None else load_policy(args.model)
    table = read_rollouts(args.run, None if policy is None else policy.tokenizer)
    report = report_findings(table, None if policy is None else model_findings(table, policy))
    print(report_text(report))
    write_report(report, page)
    print(f"The report as a page lies in {page}")
    return 0


def add_report(commands) -> None:
    """`report`: what training did to the tokens of a run."""
    report = commands.add_parser("report", help="what training did to the tokens of a run, yours or another program's")
    report.add_argument("run", type=as_path, help="a run's folder, or a file or folder of TRL, prime-rl or JSON lines")
    report.add_argument("--model", help="score tokens, and couple them, with this policy: a name, folder or hub id")
    report.add_argument("--html", type=as_path, metavar="FILE", help="default: report.html in the folder, or beside it")
    report.set_defaults(command=_write_report)
