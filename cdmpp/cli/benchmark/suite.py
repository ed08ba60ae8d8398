"""The part of `cdmpp benchmark` that runs suites and writes their leaderboards."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cdmpp.cli.shared.options import is_quiet
from cdmpp.errors import UsageError

if TYPE_CHECKING:
    from cdmpp.benchmark.options import SuiteOptions
    from cdmpp.benchmark.plan import DatasetFacts
    from cdmpp.benchmark.run import SuiteProgress

#: Suites of one --dataset, a model and its baselines.
ONE_DATASET_SUITES = ("by-task", "by-network")
#: The one data set that is shipped; it needs no --data.
_SHIPPED = "tenset-cpu"


def run_suite(args: argparse.Namespace, seeds: list[int] | None) -> int:
    """Runs a suite, writes its leaderboard and returns the exit code: 0 also when cells failed,
    which the tables say.
    """
    from cdmpp.benchmark.cell_store import read_cells, read_facts, write_facts
    from cdmpp.benchmark.leaderboard.board import Board
    from cdmpp.benchmark.leaderboard.write import board_json, leaderboard, write_leaderboard
    from cdmpp.benchmark.plan import plan_cells
    from cdmpp.benchmark.run import run_cells, select_cells
    from cdmpp.cli.train import command_line
    from cdmpp.datasets.cache import load_samples
    from cdmpp.files.atomic import make_folder

    _check(args)
    suite = _suite(args, seeds)
    runs_dir: Path = args.runs or Path("runs") / f"suite-{suite.name}"
    make_folder(args.out, what="tables")
    if not args.report_only:
        folders = _folders(args, suite)
        facts = _facts(folders)
        write_facts(runs_dir, facts)
        cells = plan_cells(suite, facts, config=args.config, overrides=args.set)
        run_cells(
            select_cells(cells, args.cells),
            folders,
            runs_dir,
            load=load_samples,
            jobs=1 if args.jobs is None else args.jobs,
            on_progress=None if is_quiet(args) else _show,
        )
    # Data sets of earlier runs stay in the tables.
    facts = read_facts(runs_dir)
    cells = plan_cells(suite, facts, config=args.config, overrides=args.set)
    results = read_cells(runs_dir, cells)
    found = leaderboard(Board(suite, facts, cells, results, command_line()))
    paths = write_leaderboard(found, args.out)
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


def _check(args: argparse.Namespace) -> None:
    """Refuses options that do not fit together.

    Raises:
        UsageError: an option has no use here.
    """
    if args.suite in ONE_DATASET_SUITES:
        if args.data:
            raise UsageError(
                f"--data does not fit --suite {args.suite}, which runs on one --dataset"
            )
    else:
        for name in ("dataset", "device", "model", "network_info"):
            if getattr(args, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} does not fit --suite {args.suite}, whose YAML "
                    "says what runs; give folders with --data NAME=DIR, choose with --cells"
                )
    if args.report_only and args.cells:
        raise UsageError("--cells chooses what runs, but --report-only runs nothing; leave one out")
    if args.jobs is not None and args.jobs < 0:
        raise UsageError(f"--jobs is {args.jobs}, expected 0 (in this process) or more")


def _suite(args: argparse.Namespace, seeds: list[int] | None) -> SuiteOptions:
    from cdmpp.benchmark.options import load_suite, one_dataset_suite
    from cdmpp.cli.train import train_options

    if args.suite not in ONE_DATASET_SUITES:
        return load_suite(args.suite, seeds=seeds)
    options = train_options(args)
    name = Path(options.dataset).name if options.dataset else _SHIPPED
    return one_dataset_suite(args.suite, name, options, seeds or [0, 1, 2])


def _folders(args: argparse.Namespace, suite: SuiteOptions) -> dict[str, Path]:
    """Returns the extracted folder of each data set that has one; names the others.

    Raises:
        UsageError: `--data` is malformed or names a data set that the suite does not have.
    """
    from cdmpp.cli.dataset.samples import extracted_folder

    own = argparse.Namespace(**vars(args))
    own.jobs = args.jobs or None  # none, or all in this process, says nothing about extraction
    names = [entry.name for entry in suite.datasets]
    if args.suite in ONE_DATASET_SUITES:
        from cdmpp.cli.train import train_options

        options = train_options(args)
        own.dataset = Path(options.dataset) if options.dataset else None
        own.device = list(options.devices) or None
        return {names[0]: extracted_folder(own)}
    given: dict[str, Path] = {}
    for text in args.data:
        name, separator, place = text.partition("=")
        if not separator or not place or name not in names:
            raise UsageError(
                f"--data is {text!r}, expected NAME=DIR with NAME one of {', '.join(names)}"
            )
        given[name] = Path(place)
    folders = {}
    for name in names:
        if name in given or name == _SHIPPED:
            own.dataset = given.get(name)
            folders[name] = extracted_folder(own)
        else:
            print(
                f"data set {name} is left out: no folder given (--data {name}=DIR)",
                file=sys.stderr,
            )
    return folders


def _facts(folders: dict[str, Path]) -> dict[str, DatasetFacts]:
    from cdmpp.benchmark.plan import dataset_facts
    from cdmpp.datasets.cache import load_samples

    return {name: dataset_facts(load_samples(folder)) for name, folder in folders.items()}


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
