"""`cdmpp completion`: prints a script that completes commands, options and files in a shell."""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from cdmpp.cli.commands import filled
from cdmpp.cli.main import build_parser
from cdmpp.files.places import given_or_shipped


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Prints the script. The shell loads it at startup and completes without starting "
        "Python. Print it again after updating cdmpp."
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    top = build_parser()
    for parser in filled(top):
        for action in parser._actions:
            if action.type in (Path, given_or_shipped):
                vars(action)["complete"] = shtab.FILE
    print(shtab.complete(top, args.shell))
    return 0
