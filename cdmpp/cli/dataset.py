"""`cdmpp dataset`: extract a Tenset directory, look at one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdmpp.datasets.store import ExtractProgress, ExtractReport


def register(subparsers: Any) -> None:
    """Adds the `dataset` command and its subcommands to the parser of `cdmpp`."""
    parser = subparsers.add_parser(
        "dataset", help="extract measure records into a dataset, look at datasets"
    )
    commands = parser.add_subparsers(dest="dataset_command", required=True, metavar="COMMAND")
    extract = commands.add_parser(
        "extract", help="featurise a Tenset directory into an extracted dataset (Parquet)"
    )
    add_extract_arguments(extract)
    extract.set_defaults(run=run_extract)
    stats = commands.add_parser("stats", help="summarise a Tenset directory or extracted dataset")
    add_stats_arguments(stats)
    stats.set_defaults(run=run_stats)


def add_extract_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset extract`."""
    _add_dataset(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the extracted dataset goes (default: cache/NAME of the dataset folder)",
    )
    parser.add_argument(
        "--device",
        action="append",
        metavar="LABEL[,LABEL]",
        help="devices to read (default: all); may be repeated",
    )
    parser.add_argument(
        "--network-info",
        type=Path,
        metavar="DIR",
        help="folder of the tasks (default: network_info in the dataset)",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per CPU)")
    _add_output(parser)


def add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset stats`."""
    _add_dataset(parser)
    _add_output(parser)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset",
        type=Path,
        metavar="DIR",
        help="folder in Tenset's layout (default: the shipped data/tenset-cpu)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON value and nothing else")
    # SUPPRESS keeps what a parser above this one has already set.
    suppressed: dict[str, Any] = {"default": argparse.SUPPRESS}
    parser.add_argument("-v", "--verbose", action="count", help="say more", **suppressed)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress", **suppressed)


def device_labels(values: list[str] | None) -> list[str] | None:
    """Returns the labels of repeated and comma-separated `--device` options; None = all."""
    if not values:
        return None
    return [label for value in values for label in (v.strip() for v in value.split(",")) if label]


def run_extract(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset extract`."""
    from cdmpp.datasets.tenset import default_dataset_dir

    dataset_dir = args.dataset or default_dataset_dir()
    report = extract_with_progress(
        dataset_dir,
        args.out or Path("cache") / dataset_dir.resolve().name,
        device_labels(args.device),
        jobs=args.jobs,
        network_info=args.network_info,
        is_quiet=args.json or getattr(args, "quiet", False),
    )
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0


def extract_with_progress(
    dataset_dir: Path,
    out_dir: Path,
    devices: list[str] | None,
    *,
    jobs: int | None = None,
    network_info: Path | None = None,
    is_quiet: bool = False,
) -> ExtractReport:
    """Extracts with the product's featuriser and shows progress on stderr.

    On a terminal a bar with the remaining time, elsewhere a plain line at every tenth.

    Raises:
        DataError: as `cdmpp.datasets.store.extract`.
        UsageError: as `cdmpp.datasets.store.extract`.
    """
    from cdmpp.datasets.store import extract
    from cdmpp.datasets.tenset import find_device_files, find_devices

    for label in devices if devices is not None else find_devices(dataset_dir)[:1]:
        find_device_files(dataset_dir, label)  # a clear error before the compiler is loaded
    from tvm_helper.featurise import featurise_records

    def run(on_progress: Callable[[ExtractProgress], None] | None) -> ExtractReport:
        return extract(
            dataset_dir,
            out_dir,
            devices,
            featurise_records,
            jobs=jobs,
            on_progress=on_progress,
            network_info=network_info,
        )

    if is_quiet:
        return run(None)
    return _run_on_terminal(run) if sys.stderr.isatty() else run(_plain_progress())


def _run_on_terminal(
    run: Callable[[Callable[[ExtractProgress], None] | None], ExtractReport],
) -> ExtractReport:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("extract"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %  {task.fields[programs]} programs"),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("extract", total=None, programs=0)

        def show(progress: ExtractProgress) -> None:
            bar.update(
                task, completed=progress.done, total=progress.total, programs=progress.programs
            )

        return run(show)


def _plain_progress() -> Callable[[ExtractProgress], None]:
    shown = -1

    def show(progress: ExtractProgress) -> None:
        nonlocal shown
        tenth = 10 * progress.done // max(1, progress.total)
        if tenth > shown:
            shown = tenth
            print(
                f"extract: {100 * progress.done // max(1, progress.total)} %, "
                f"{progress.programs} programs, shard {progress.shards} of {progress.shards_total}",
                file=sys.stderr,
            )

    return show


def run_stats(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset stats`."""
    from cdmpp.datasets.stats import dataset_stats, stats_table
    from cdmpp.datasets.tenset import default_dataset_dir

    stats = dataset_stats(args.dataset or default_dataset_dir())
    if args.json:
        print(json.dumps(stats))
        return 0
    from rich.console import Console

    Console(highlight=False).print(stats_table(stats))
    return 0
