"""`python -m lab`: the commands of the laboratory."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cdmpp.cli.commands import Command, CommandParser, add_commands
from cdmpp.cli.main import run_main

COMMANDS = tuple(
    Command(name, text, module, package="lab.commands")
    for name, text, module in (
        ("run", "run an experiment and write its pages", "experiments:run"),
        ("list", "list the experiments, or the options of one", "experiments:list"),
        ("stale", "list the results of earlier models or features", "experiments:stale"),
        ("claims", "look up the numbers of README.md in the results", "experiments:claims"),
        ("benchmark", "train and evaluate every model with several seeds", "benchmark"),
        ("golden", "compare replayed records with the original TVM's results", "golden"),
        ("pretrain", "train and package the model behind `--model pretrained`", "pretrain"),
    )
)


def build_parser() -> CommandParser:
    """Returns the parser with every command."""
    parser = CommandParser(prog="python -m lab", description="The laboratory of cdmpp.")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_commands(parser, COMMANDS, "command")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code, as `cdmpp` does."""
    return run_main(build_parser(), sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
