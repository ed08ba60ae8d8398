"""`cdmpp dataset`: extract, look at, audit, merge and export datasets."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.errors import UsageError

if TYPE_CHECKING:
    from cdmpp.datasets.extraction.extract import Backend, ExtractProgress, ExtractReport
    from cdmpp.datasets.extraction.program_rows import Featurise


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
    audit = commands.add_parser(
        "audit", help="find leakage, duplicates, wrong units and outliers; print the noise floor"
    )
    add_audit_arguments(audit)
    audit.set_defaults(run=run_audit)
    merge = commands.add_parser("merge", help="merge extracted datasets into a new one")
    add_merge_arguments(merge)
    merge.set_defaults(run=run_merge)
    export = commands.add_parser(
        "export", help="write an extracted dataset in the layout of another tool"
    )
    add_export_arguments(export)
    export.set_defaults(run=run_export)


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
    parser.add_argument(
        "--per-task",
        type=int,
        metavar="N",
        help="AutoTVM logs: N programs of each task and device, drawn by hash (default: all)",
    )
    parser.add_argument(
        "--target",
        metavar="TEXT",
        help="MetaSchedule databases: only records whose target (as JSON) contains this",
    )
    parser.add_argument(
        "--fallback",
        choices=("ansor",),
        help="Tenset: send records that cannot be replayed to the old TVM's Ansor (make "
        "legacy-env); they are counted separately",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per CPU)")
    parser.add_argument(
        "--backend",
        choices=("local", "ray"),
        default="local",
        help="where to run: processes of this machine, or a Ray cluster (RAY_ADDRESS; without it "
        "one of N CPUs is started here); its machines must see the same folders",
    )
    _add_output(parser)


def add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset stats`."""
    _add_folder(parser)
    _add_dataset(parser)
    _add_output(parser)


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset audit`."""
    _add_folder(parser)
    _add_dataset(parser)
    parser.add_argument(
        "--network-info",
        type=Path,
        metavar="DIR",
        help="folder of the tasks (default: network_info in the dataset)",
    )
    parser.add_argument(
        "--seeds", default="0", metavar="N[,N]", help="seeds of the splits to check (default: 0)"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 when an error is found")
    _add_output(parser)


def add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset merge`."""
    parser.add_argument("inputs", nargs="+", type=Path, metavar="DIR", help="extracted datasets")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the merged dataset")
    _add_output(parser)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset export`."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="extracted dataset")
    parser.add_argument(
        "--format",
        choices=("cdmpp6", "metaschedule"),
        default="cdmpp6",
        help="cdmpp6: the six columns of the original CDMPP's feature files; metaschedule: a "
        "database of TVM's search a device",
    )
    parser.add_argument(
        "--database",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="metaschedule: a database that holds the traces; may be repeated",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where files go")
    parser.add_argument(
        "--device",
        action="append",
        metavar="LABEL[,LABEL]",
        help="devices to export (default: all); may be repeated",
    )
    parser.add_argument(
        "--min-samples",
        type=int,
        default=1,
        metavar="N",
        help="leave out tasks with fewer samples (default: 1; the original asks for 48)",
    )
    _add_output(parser)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="extracted dataset or folder in Tenset's layout (default: the shipped one)",
    )


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset",
        type=Path,
        metavar="DIR",
        help="folder in Tenset's layout (default: the shipped data/tenset-cpu), or AutoTVM logs: "
        "DEVICE.json[.gz] or a folder of them",
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
    from cdmpp.datasets.tenset.folder import default_dataset_dir

    dataset_dir = args.dataset or default_dataset_dir()
    report = extract_with_progress(
        dataset_dir,
        args.out or Path("cache") / dataset_dir.resolve().name.split(".json")[0],
        device_labels(args.device),
        jobs=args.jobs,
        network_info=args.network_info,
        is_quiet=args.json or getattr(args, "quiet", False),
        backend=args.backend,
        per_task=args.per_task,
        target=args.target,
        fallback=args.fallback,
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
    backend: Backend = "local",
    per_task: int | None = None,
    target: str | None = None,
    fallback: str | None = None,
) -> ExtractReport:
    """Extracts with the product's featuriser and shows progress on stderr.

    On a terminal a bar with the remaining time, elsewhere a plain line at every tenth.

    Raises:
        DataError: as `cdmpp.datasets.extraction.extract.extract`.
        UsageError: as `cdmpp.datasets.extraction.extract.extract`, or the fallback's environment
            is missing.
    """
    from cdmpp.datasets.autotvm.logs import is_autotvm_log
    from cdmpp.datasets.metaschedule.databases import is_metaschedule_database

    is_tenset = (dataset_dir / "measure_records").is_dir()
    if fallback is not None and not is_tenset:
        raise UsageError(
            f"--fallback {fallback} is for folders in Tenset's layout; {dataset_dir} is none"
        )
    if is_metaschedule_database(dataset_dir):
        from cdmpp.cli.dataset.metaschedule import metaschedule_run

        database_run = metaschedule_run(
            dataset_dir, out_dir, devices, target=target, jobs=jobs, backend=backend
        )
        return _show(database_run, is_quiet=is_quiet)
    if is_autotvm_log(dataset_dir):
        from cdmpp.cli.dataset.autotvm import autotvm_run

        prepared = autotvm_run(
            dataset_dir, out_dir, devices, jobs=jobs, per_task=per_task, backend=backend
        )
        return _show(prepared, is_quiet=is_quiet)
    if per_task is not None:
        raise UsageError(f"--per-task is for AutoTVM logs; {dataset_dir} is none")
    from cdmpp.datasets.extraction.extract import extract
    from cdmpp.datasets.tenset.folder import find_device_files, find_devices

    for label in devices if devices is not None else find_devices(dataset_dir)[:1]:
        find_device_files(dataset_dir, label)  # a clear error before the compiler is loaded
    featurise = _featuriser(fallback)

    def run(on_progress: Callable[[ExtractProgress], None] | None) -> ExtractReport:
        return extract(
            dataset_dir,
            out_dir,
            devices,
            featurise,
            jobs=jobs,
            on_progress=on_progress,
            network_info=network_info,
            backend=backend,
        )

    return _show(run, is_quiet=is_quiet)


def _featuriser(fallback: str | None) -> Featurise:
    """Returns what featurises Tenset records.

    Raises:
        UsageError: the fallback's environment is missing.
    """
    if fallback is None:
        from tvm_helper.featurise import featurise_records

        return featurise_records
    from tvm_helper.legacy.environment import find_environment
    from tvm_helper.legacy.fallback import featurise_with_ansor

    find_environment()  # one clear error now instead of one in every worker
    return featurise_with_ansor


def _show(
    run: Callable[[Callable[[ExtractProgress], None] | None], ExtractReport], *, is_quiet: bool
) -> ExtractReport:
    """Runs an extraction with its progress on stderr."""
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
    from cdmpp.datasets.audit.stats import dataset_stats, stats_table
    from cdmpp.datasets.tenset.folder import default_dataset_dir

    stats = dataset_stats(args.folder or args.dataset or default_dataset_dir())
    if args.json:
        print(json.dumps(stats))
        return 0
    from rich.console import Console

    Console(highlight=False).print(stats_table(stats))
    return 0


def run_audit(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset audit`."""
    from cdmpp.datasets.audit.audit import audit
    from cdmpp.datasets.audit.text import audit_table
    from cdmpp.datasets.tenset.folder import default_dataset_dir
    from cdmpp.errors import EXIT_DATA

    try:
        seeds = [int(seed) for seed in args.seeds.split(",")]
    except ValueError:
        raise UsageError(f"--seeds is {args.seeds!r}, expected whole numbers: 0,1,2") from None
    folder = args.folder or args.dataset or default_dataset_dir()
    report = audit(folder, network_info=args.network_info, seeds=seeds)
    if args.json:
        print(json.dumps(report))
    else:
        from rich.console import Console

        Console(highlight=False).print(audit_table(report))
    has_errors = any(finding["severity"] == "error" for finding in report["findings"])
    return EXIT_DATA if args.strict and has_errors else 0


def run_merge(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset merge`."""
    from cdmpp.datasets.extraction.merge import merge

    report = merge(args.inputs, args.out)
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0


def run_export(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset export`."""
    from cdmpp.datasets.export import export
    from cdmpp.datasets.metaschedule.export import export_databases

    if args.format == "metaschedule":
        written = export_databases(
            args.folder, args.out, args.database, devices=device_labels(args.device)
        )
        print(json.dumps(written.to_json()) if args.json else written.summary())
        return 0
    report = export(
        args.folder,
        args.out,
        format=args.format,
        devices=device_labels(args.device),
        min_samples=args.min_samples,
    )
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0
