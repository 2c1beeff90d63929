"""The command line: train, resume and sweep runs, measure studies, judge the claims, run the chapters.

python -m workbook train data/configs/chain.yaml --set learning_rate=5e-4 --set batching=query_preserved
"""

import argparse
import sys

from workbook.commands import book, training
from workbook.commands.arguments import MAIN


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m workbook", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    training.add_commands(commands)
    book.add_commands(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status, 2 for a request that can't be met, with one sentence on stderr."""
    parser = make_parser()
    args, more = parser.parse_known_args(argv)
    if more and not (getattr(args, "set", None) and all("=" in text and text[0] != "-" for text in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    getattr(args, "set", []).extend(more)  # the second and further ones of `--set a=1 b=2`
    try:
        return args.command(args)
    except KeyboardInterrupt:
        sentence, status = "Interrupted.", 130
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        from workbook.training.messages import explain_error

        sentence, status = explain_error(error, 400), 2
    if MAIN:
        print(sentence, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
