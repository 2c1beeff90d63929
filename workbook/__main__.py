"""The command line: train, resume and sweep runs, measure studies, judge the claims, run the
chapters.

python -m workbook train data/configs/chain.yaml --set learning_rate=5e-4 --set
batching=query_preserved
"""

import argparse
import sys

from workbook.book.terminal import show
from workbook.commands import book, training
from workbook.commands.arguments import MAIN

GROUPS = {  # heading of the help: its commands
    "Read": ("lab", "findings", "claims", "glossary"),
    "Train and read your own runs": ("train", "resume", "sweep", "runs", "report", "forecast"),
    "Try your own reward or rule of credit": ("attack-reward", "estimators", "arena"),
    "Keep the book": ("measure", "chapters"),
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m workbook")
    commands = parser.add_subparsers(metavar="COMMAND")
    training.add_commands(commands)
    book.add_commands(commands)
    known = {choice.dest: choice.help for choice in commands._get_subactions()}
    lines = ["usage: python -m workbook COMMAND ...; of one: python -m workbook COMMAND --help"]
    for heading, names in GROUPS.items():
        lines += ["", f"**{heading}**", *(f"  {name:<15}{known[name]}" for name in names)]
    parser.print_help = lambda file=None: show("\n".join(lines))
    parser.set_defaults(command=lambda args: parser.print_help())
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command, show the text that it returns, if it does; returns the exit status.

    It is 2 for a request that can't be met, with one sentence on stderr.
    """
    parser = make_parser()
    args, more = parser.parse_known_args(argv)
    if more and not (
        getattr(args, "set", None) and all("=" in text and text[0] != "-" for text in more)
    ):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    getattr(args, "set", []).extend(more)  # the second and further ones of `--set a=1 b=2`
    try:
        said = args.command(args)
        if isinstance(said, str):
            show(said)
        return said if isinstance(said, int) else 0
    except KeyboardInterrupt:
        sentence, status = "Interrupted.", 130
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        from workbook.messages import explain_error

        sentence, status = explain_error(error, 400), 2
    if MAIN:
        print(sentence, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
