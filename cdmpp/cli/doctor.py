"""`cdmpp doctor`: checks the health of the measurements of a campaign, or of this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options, check_goes_with
from cdmpp.errors import EXIT_DEVICE, UsageError
from tvm_helper.measure.doctor import folder_report, live_report, report_text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp doctor`."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR", help="--out folder of `cdmpp measure`"
    )
    add_table(what, """
        --live  time a reference program on this machine's CPU now
    """)  # fmt: skip
    add_table(parser, """
        --seconds N: float  with --live: duration of the timing (default: 20)
        --threads N: int    with --live: threads (default: all CPUs)
        --strict            exit with 4 if there is a warning
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp doctor`; returns the exit code."""
    check_goes_with("--live", args.live, args.folder, seconds=args.seconds, threads=args.threads)
    if args.live:
        seconds = 20.0 if args.seconds is None else args.seconds
        if not seconds > 0 or (args.threads is not None and args.threads < 1):
            raise UsageError("--seconds must be above 0 and --threads at least 1")
        show = None if args.json or args.quiet else _show
        report = live_report(seconds, threads=args.threads, on_progress=show)
    else:
        report = folder_report(args.folder)
    print(json.dumps(report) if args.json else report_text(report))
    return EXIT_DEVICE if args.strict and report["findings"] else 0


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="" if "left" in text else "\n", file=sys.stderr, flush=True)
    elif "left" not in text:
        print(text, file=sys.stderr)
