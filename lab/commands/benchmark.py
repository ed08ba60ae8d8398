"""`python -m lab benchmark`: trains and evaluates every model with several seeds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_data_options,
    add_output_options,
    add_profile_option,
    add_training_options,
    command_line,
    parse_seeds,
)
from cdmpp.cli.shared.samples import dataset_of, given_data
from cdmpp.config import load_config
from cdmpp.datasets.find import shipped_folders
from cdmpp.errors import UsageError
from cdmpp.models.registry import MODEL_CLASSES
from cdmpp.training.options import TrainOptions
from lab.suites.leaderboard.write import board_json
from lab.suites.options import SuiteOptions, load_suite, one_dataset_suite
from lab.suites.run import SuiteProgress
from lab.suites.suite import report_suite, run_suite

#: Suites of one --dataset, with a model and its baselines.
ONE_DATASET_SUITES = ("by-task", "by-network")
#: The dataset without --dataset.
_SHIPPED = "tenset-cpu"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m lab benchmark`."""
    parser.description = (
        "Trains and evaluates models and writes SUITE.csv, .json and .md with means and "
        "95 % intervals. by-task and by-network: one dataset, the model and its baselines. "
        "cross-model, cross-device, cross-device-autotvm or a YAML file: the grid of "
        "configs/suites. Finished cells are kept: run it again to continue."
    )
    add_table(parser, f"""
        --suite SUITE = by-task  by-task (default), by-network, cross-model, cross-device,
            cross-device-autotvm or a YAML file
        --seeds N,N,...          seeds (default: 0,1,2, or those of the YAML file)
        --model KIND             {', '.join(MODEL_CLASSES)} (default: transformer)
    """)  # fmt: skip
    add_data_options(parser)
    add_training_options(parser)
    add_table(parser, """
        --out DIR: Path = runs/results  where the tables go (default: runs/results)
        --runs DIR: Path                where the cells go (default: runs/suite-SUITE)
        the grid of cells; --jobs processes run it (default: 1):
        --data NAME=DIR... = []         folder of a data set of a suite in configs/suites
            (tenset-cpu and ansor-gpu are shipped); those without a folder are left out; a suite of
            one data set takes a DIR
        --cells PATTERN                 run only cells whose id matches, e.g. '*-s0-gbdt'
        --report-only                   run nothing, write tables of what is finished
    """)  # fmt: skip
    add_profile_option(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code, which is 0 even if cells failed (see the tables)."""
    seeds = None if args.seeds is None else parse_seeds(args.seeds)
    if args.report_only and args.cells:
        raise UsageError("--cells chooses what runs, but --report-only runs nothing; leave one out")
    if args.jobs is not None and args.jobs < 0:
        raise UsageError(f"--jobs must be 0 (run in this process) or larger, got {args.jobs}")
    places: dict[str, str | Path | None]
    if args.suite in ONE_DATASET_SUITES:
        if args.data:
            raise UsageError(
                f"--data does not fit --suite {args.suite}, which runs on one --dataset"
            )
        given = {**given_data(args.dataset, args.device), "model": args.model}
        options = load_config(TrainOptions, args.config, overrides=args.set, given=given)
        name = Path(options.dataset).name if options.dataset else _SHIPPED
        suite = one_dataset_suite(args.suite, name, options, seeds or [0, 1, 2])
        places, devices = {name: options.dataset}, options.devices
    else:
        for name in ("dataset", "device", "model", "network_info"):
            if getattr(args, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} does not fit --suite {args.suite}, whose YAML "
                    "says what runs; give folders with --data NAME=DIR, choose with --cells"
                )
        suite = load_suite(args.suite, seeds=seeds)
        places, devices = dict(_given_places(suite, args.data)), ()
    runs_dir = args.runs or Path("runs") / f"suite-{suite.name}"
    if not args.report_only:
        for name in (entry.name for entry in suite.datasets if entry.name not in places):
            print(
                f"data set {name} is left out: no folder given (--data {name}=DIR)",
                file=sys.stderr,
            )
        folders = {
            name: dataset_of(
                place, devices, cache_dir=args.cache, network_info=args.network_info,
                # None, or 0 for this process, does not limit extraction.
                jobs=args.jobs or None, may_install=not args.no_install,
                is_quiet=args.json or args.quiet,
            ).folder
            for name, place in places.items()
        }  # fmt: skip
        run_suite(
            suite, folders, runs_dir, pattern=args.cells, config=args.config, overrides=args.set,
            jobs=1 if args.jobs is None else args.jobs,
            on_progress=None if args.json or args.quiet else _show,
        )  # fmt: skip
    found, paths = report_suite(
        suite, runs_dir, args.out, config=args.config, overrides=args.set, command=command_line()
    )
    if args.json:
        value = {"files": [str(path) for path in paths], **board_json(found)}
        print(json.dumps(value, allow_nan=False))
        return 0
    for warning in found.page.warnings:
        print(warning)
    for section in found.page.sections:
        print(f"\n{section.title}")
        for text in section.verdict:
            print(f"  {text}")
    print()
    for path in paths:
        print(path)
    return 0


def _given_places(suite: SuiteOptions, data: Sequence[str]) -> dict[str, Path | None]:
    """Returns the folder of each dataset of a suite that has one, including the shipped ones; None
    for the default dataset.

    Raises:
        UsageError: `--data` is malformed or names an unknown dataset.
    """
    names = [entry.name for entry in suite.datasets]
    given: dict[str, Path | None] = {one.path.name: one.path for one in shipped_folders()}
    given[_SHIPPED] = None
    for text in data:
        name, separator, place = text.partition("=")
        if not separator and len(names) == 1:
            name, separator, place = names[0], "=", text
        if not separator or not place or name not in names:
            raise UsageError(
                f"--data is {text!r}, expected NAME=DIR with NAME one of {', '.join(names)}"
            )
        given[name] = Path(place)
    return {name: given[name] for name in names if name in given}


def _show(progress: SuiteProgress) -> None:
    result = progress.result
    seconds = float(result.value.get("wall_s", 0.0))
    text = {"ok": _score(result.value)}.get(result.status, f"{result.status}: {result.reason}")
    left = "" if progress.left_s is None else f", about {_duration(progress.left_s)} left"
    print(
        f"[{progress.done}/{progress.total}] {result.cell.id}: {text} ({seconds:.0f} s{left})",
        file=sys.stderr,
        flush=True,
    )


def _score(value: dict[str, object]) -> str:
    metrics = value.get("metrics")
    mean = metrics.get("mean") if isinstance(metrics, dict) else None
    mape = mean.get("mape") if isinstance(mean, dict) else None
    return "done" if mape is None else f"MAPE {100 * mape:.1f} %"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
