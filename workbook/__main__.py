"""The command line: read the book, train runs, and measure its studies.

    python -m workbook
    python -m workbook train data/configs/chain.yaml --set learning_rate=5e-4

The first line lists all commands. A command is a function in `workbook/commands` that takes the
parsed arguments and returns a text to show, or an exit status.
"""

import argparse
import sys

from workbook.book.terminal import print_text
from workbook.commands.arguments import MAIN
from workbook.commands.book import add_book_commands
from workbook.commands.training import add_training_commands

# heading of the help: its commands
COMMAND_GROUPS = {
    "Read": ("lab", "findings", "claims", "glossary"),
    "Train and read your own runs": ("train", "resume", "sweep", "runs", "report", "forecast"),
    "Try your own reward or rule of credit": ("attack-reward", "estimators", "arena"),
    "Keep the book": ("measure", "worlds", "chapters"),
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m workbook")
    commands = parser.add_subparsers(metavar="COMMAND")
    add_training_commands(commands)
    add_book_commands(commands)
    known = {choice.dest: choice.help for choice in commands._get_subactions()}
    lines = ["usage: python -m workbook COMMAND ...; of one: python -m workbook COMMAND --help"]
    for heading, names in COMMAND_GROUPS.items():
        lines += ["", f"**{heading}**", *(f"  {name:<15}{known[name]}" for name in names)]
    parser.print_help = lambda file=None: print_text("\n".join(lines))
    parser.set_defaults(command=lambda args: parser.print_help())
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command, show the text that it may return, and return the exit status.

    It is 2 for a request that can't be met, with one sentence on stderr.
    """
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    # the second and further settings of `--set a=1 b=2`
    are_settings = all("=" in text and not text.startswith("-") for text in rest)
    if rest and not (getattr(args, "set", None) and are_settings):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.set.extend(rest)
    try:
        result = args.command(args)
        if isinstance(result, str):
            print_text(result)
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        sentence = "Interrupted."
        status = 130
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
        from workbook.messages import explain_error

        sentence = explain_error(error, 400)
        status = 2
    if MAIN:
        print(sentence, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
