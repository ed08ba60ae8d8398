"""`cdmpp runs`: lists run folders, and compares runs side by side."""

from __future__ import annotations

import argparse
import json

from cdmpp.api.runs import compared_tables, runs
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.text import aligned


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Lists the run folders in a folder. With names, compares up to six runs: their errors "
        "on their own test parts, and their worst tasks."
    )
    parser.add_argument("names", nargs="*", metavar="RUN", help="runs to compare")
    add_table(parser, """
        --folder DIR = runs  folder with the run folders, directly or one level below
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    found = runs(args.folder)
    if args.names:
        compared = found.compared(args.names)
        if args.json:
            print(json.dumps(compared, allow_nan=False))
            return 0
        for title, lines in compared_tables(compared):
            print(f"{title}\n\n{aligned(lines)}\n")
        return 0
    if args.json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return 0
    print(aligned(found.table()) if len(found) else f"no run folder in {args.folder}")
    print("".join(f"\n{note}" for note in found.notes), end="\n" if found.notes else "")
    return 0
