"""`cdmpp benchmark`: the committed tables of results, several seeds of every model."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdmpp.cli._options import add_data_options, add_output_options, add_training_options, is_quiet


def register(subparsers: Any) -> None:
    """Adds the `benchmark` command."""
    parser = subparsers.add_parser(
        "benchmark",
        help="train and judge every model with several seeds, write tables",
        description=(
            "Trains the model and its baselines once a seed and writes SUITE.csv, .json, .md "
            "and .html with "
            "means and 95 % intervals. Finished cells are kept: run it again to continue."
        ),
    )
    parser.add_argument(
        "--suite",
        choices=("by-task", "by-network"),
        default="by-task",
        help="what the test part holds out (default: by-task)",
    )
    parser.add_argument(
        "--seeds", default="0,1,2", metavar="N,N,...", help="seeds (default: 0,1,2)"
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
        help="where the run folders go (default: runs/benchmark-SUITE-NAME of the options)",
    )
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.cli._data import samples_of
    from cdmpp.cli._progress import training_progress
    from cdmpp.cli.train import command_line, run_name, train_options
    from cdmpp.datasets.atomic import make_folder
    from cdmpp.report.results import SuiteOrigin, suite_groups, write_results
    from cdmpp.training.benchmark import SUITES, run_grid

    seeds = _seeds(args.seeds)
    options = replace(train_options(args), split=SUITES[args.suite], seed=0)
    args.dataset = Path(options.dataset) if options.dataset else None
    args.device = list(options.devices) or None
    make_folder(args.out, what="tables")
    samples = samples_of(args)
    runs_dir = args.runs or Path("runs") / f"benchmark-{args.suite}-{run_name(options)}"
    with training_progress(is_quiet=is_quiet(args)) as progress:
        grid = run_grid(options, samples, seeds, runs_dir, on_progress=progress)
    origin = SuiteOrigin(
        suite=args.suite,
        dataset=Path(options.dataset).name if options.dataset else "tenset-cpu",
        data_hash=samples.programs.data_hash,
        command=command_line(),
        model=options.model,
    )
    paths = write_results(grid, origin, args.out)
    if args.json:
        print(json.dumps({"files": [str(path) for path in paths], "test": grid.lines}))
        return 0
    from cdmpp.cli._tables import print_groups

    print_groups(suite_groups(grid, options.model))
    for path in paths:
        print(path)
    return 0


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
