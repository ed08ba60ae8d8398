"""`cdmpp benchmark`: the committed tables of results, several seeds of every model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from cdmpp.cli.shared.options import (
    add_data_options,
    add_output_options,
    add_profile_option,
    add_training_options,
)


def register(subparsers: Any) -> None:
    """Adds the `benchmark` command."""
    parser = subparsers.add_parser(
        "benchmark",
        help="train and judge every model with several seeds, write tables",
        description=(
            "Trains and judges models and writes SUITE.csv, .json, .md and .html with means and "
            "95 % intervals. by-task and by-network: one dataset, the model and its baselines. "
            "cross-model, cross-device or a YAML file: the grid of configs/suites. Finished cells "
            "are kept: run it again to continue."
        ),
    )
    parser.add_argument(
        "--suite",
        default="by-task",
        metavar="SUITE",
        help="by-task (default), by-network, cross-model, cross-device or a YAML file",
    )
    parser.add_argument(
        "--seeds", metavar="N,N,...", help="seeds (default: 0,1,2, or those of the YAML file)"
    )
    parser.add_argument(
        "--model", metavar="KIND", help="transformer (default), gbdt, roofline or constant"
    )
    add_data_options(parser)
    add_training_options(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("docs/results"),
        metavar="DIR",
        help="where the tables go (default: docs/results)",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="DIR",
        help="where the cells go (default: runs/suite-SUITE)",
    )
    grid = parser.add_argument_group("the grid of cells; --jobs processes run it (default: 1)")
    grid.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="folder of a data set of a suite in configs/suites (tenset-cpu: the shipped one); "
        "those without a folder are left out",
    )
    grid.add_argument(
        "--cells", metavar="PATTERN", help="run only cells whose id matches, e.g. '*-s0-gbdt'"
    )
    grid.add_argument(
        "--report-only", action="store_true", help="run nothing, write tables of what is finished"
    )
    add_profile_option(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.cli.benchmark.suite import run_suite

    return run_suite(args, None if args.seeds is None else _seeds(args.seeds))


def _seeds(text: str) -> list[int]:
    from cdmpp.errors import UsageError

    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise UsageError(
            f"--seeds is {text!r}, expected different whole numbers >= 0, e.g. --seeds 0,1,2"
        )
    return seeds
