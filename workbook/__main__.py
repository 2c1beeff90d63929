"""The command line: train, resume and sweep runs, measure studies, judge the claims, run the chapters.

python -m workbook train data/configs/chain.yaml --set learning_rate=5e-4 --set batching=query_preserved
"""

from __future__ import annotations

import argparse
import os
import sys

from workbook.commands.arena import add_arena, add_estimators
from workbook.commands.arguments import MAIN
from workbook.commands.book import add_chapters
from workbook.commands.claims import add_claims, add_findings
from workbook.commands.lab import add_lab
from workbook.commands.policies import add_family
from workbook.commands.report import add_report
from workbook.commands.rewards import add_attack_reward
from workbook.commands.runs import add_runs
from workbook.commands.studies import add_keep, add_measure
from workbook.commands.training import add_resume, add_sweep, add_train
from workbook.training.messages import explain_error, one_line

LONGEST = 400  # characters of a sentence on stderr
COMMANDS = (  # in the order in which help lists them
    *(add_train, add_resume, add_sweep, add_runs),
    *(add_family, add_keep, add_measure),
    *(add_claims, add_findings, add_report),
    *(add_estimators, add_arena, add_attack_reward),
    *(add_lab, add_chapters),
)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status, 2 for a request that can't be met, with one sentence on stderr."""
    parser, texts = _parser(), sys.argv[1:] if argv is None else argv
    for text in texts:
        if text.startswith("--") and text.endswith("=--"):  # which argparse takes for a list
            parser.error(f"argument {text[:-3]}: expected one argument")
    args = parser.parse_args(texts)
    try:
        return args.command(args)
    except KeyboardInterrupt:
        return _refuse("Interrupted.", 130)
    except BrokenPipeError:  # whoever read the output, as `head` does, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        return _refuse(explain_error(error, LONGEST), 2)


def _refuse(sentence: str, status: int) -> int:
    if MAIN:
        print(sentence, file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str):
        self.exit(2, f"{one_line(message, LONGEST - 60)}; {self.prog} --help says more.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m workbook", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
