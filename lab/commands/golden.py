"""`python -m lab golden`: compares replayed records with results of the original TVM."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cdmpp.cli.shared.option_table import add_table
from cdmpp.datasets.tenset.folder import default_dataset_dir
from lab.experiments.golden import compare_golden, page


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m lab golden`."""
    parser.description = (
        "Replays every record of golden files and counts how many programs have the same stores, "
        "loops and operation counts as the original TVM computed."
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="golden file (.jsonl or .jsonl.gz)"
    )
    add_table(parser, """
        --network-info DIR+: Path  folders with all_tasks.pkl (default: the shipped dataset's)
        --json                     print one JSON object of counts
    """)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    folders = args.network_info or [default_dataset_dir() / "network_info"]
    report = compare_golden(args.files, folders)
    if args.json:
        print(json.dumps(report.as_json()))
    else:
        print(page({"all files": report}))
    return 0
