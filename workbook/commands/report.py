"""What training did to the tokens of a run, yours or another program's."""

from __future__ import annotations

from workbook.commands.arguments import as_path


def _report(args) -> int:
    from workbook.policies.load import load_policy
    from workbook.probes import report_findings, report_text
    from workbook.rollouts import read_metrics, read_rollouts

    tokenizer = None if args.model is None else load_policy(args.model).tokenizer
    print(report_text(report_findings(read_rollouts(args.run, tokenizer), read_metrics(args.run))))
    return 0


def add_report(commands) -> None:
    """`report`: what training did to the tokens of a run."""
    report = commands.add_parser("report", help="what training did to the tokens of a run, yours or another program's")
    report.add_argument("run", type=as_path, help="a run's or TRL's output folder, or a file of logged completions")
    report.add_argument("--model", help="cut texts into tokens as this policy does: a name, folder or hub id")
    report.set_defaults(command=_report)
