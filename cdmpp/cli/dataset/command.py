"""`cdmpp dataset`: extract, summarise, audit, merge and export datasets."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cdmpp.api.featurisers import tvm_featurisers
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_no_install_option,
    add_output_options,
    parse_seeds,
)
from cdmpp.cli.shared.progress import campaign_progress
from cdmpp.cli.shared.samples import asked_labels, extraction_progress, prepared
from cdmpp.datasets.audit.audit import audit
from cdmpp.datasets.audit.stats import dataset_stats, stats_text
from cdmpp.datasets.audit.text import audit_text
from cdmpp.datasets.export import export
from cdmpp.datasets.extraction.merge import merge
from cdmpp.datasets.find import record_folder
from cdmpp.datasets.metaschedule.export import export_databases
from cdmpp.datasets.sources import extract_any
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.errors import EXIT_DATA, UsageError
from cdmpp.text import counted


def add_extract_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset extract`."""
    _add_dataset(parser)
    add_table(parser, """
        --out DIR: Path            output folder of the extracted dataset (default: cache/NAME of
            the dataset folder)
        --device LABEL[,LABEL]...  devices to read (default: all); may be repeated
        --network-info DIR: Path   folder of the tasks (default: network_info in the dataset)
        --per-task N: int          AutoTVM logs: N programs of each task and device, drawn by hash
            (default: all)
        --target TEXT              MetaSchedule databases, AutoTVM logs of several devices: only
            records whose target (of databases as JSON) contains TEXT
        --fallback ansor           Tenset: send records that cannot be replayed to the old TVM's
            Ansor (make legacy-env); they are counted separately
        --machine-code             compile the programs too, without a run (half a second each):
            Tenset's of CPUs and NVIDIA GPUs, AutoTVM's of such GPUs (cdmpp[nvrtc]); needed by
            `train-code`
        --jobs N: int              processes (default: one per CPU)
    """)  # fmt: skip
    add_no_install_option(parser)
    add_table(parser, """
        --backend local|ray = local  where to run: processes of this machine, or a Ray cluster
            (RAY_ADDRESS; without it one of N CPUs is started here); its machines must share these
            folders
    """)  # fmt: skip
    add_output_options(parser)


def add_stats_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset stats`."""
    _add_folder(parser)
    _add_dataset(parser)
    add_output_options(parser)


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset audit`."""
    _add_folder(parser)
    _add_dataset(parser)
    add_table(parser, """
        --network-info DIR: Path  folder of the tasks (default: network_info in the dataset)
        --seeds N[,N] = '0'       seeds of the splits to check (default: 0)
        --strict                  exit with 3 when an error is found
    """)  # fmt: skip
    add_output_options(parser)


def add_merge_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset merge`."""
    parser.add_argument("inputs", nargs="+", type=Path, metavar="DIR", help="extracted datasets")
    add_table(parser, """
        --out DIR: Path required  the merged dataset
    """)  # fmt: skip
    add_output_options(parser)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp dataset export`."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="extracted dataset")
    add_table(parser, """
        --format cdmpp6|metaschedule = cdmpp6  cdmpp6: the six columns of the original CDMPP's
            feature files; metaschedule: a database of TVM's search a device
        --database DIR...: Path = []        metaschedule: a database that holds the traces; may be
            repeated
        --out DIR: Path required            output folder
        --device LABEL[,LABEL]...           devices to export (default: all); may be repeated
        --min-samples N: int = 1            leave out tasks with fewer samples (default: 1; the
            original uses 48)
    """)  # fmt: skip
    add_output_options(parser)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="extracted dataset or folder in Tenset's layout (default: the shipped one)",
    )


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    add_table(parser, """
        --dataset DIR: Path  folder in Tenset's layout (default: shipped or fetched records of the
            devices; without --device data/tenset-cpu), or AutoTVM logs: DEVICE.json[.gz] or a
            folder of them
    """)  # fmt: skip


def run_extract(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset extract`; returns the exit code."""
    devices = asked_labels(args.dataset, args.device)
    dataset = args.dataset or record_folder(devices, Path("cache"))
    if args.machine_code:
        from tvm_helper.measure.records_code import check_compilable  # needs TVM

        check_compilable(dataset, devices or None)
    with extraction_progress(is_quiet=args.json or args.quiet) as show:
        report = extract_any(
            dataset,
            args.out or Path("cache") / dataset.resolve().name.split(".json")[0],
            devices or None,
            network_info=args.network_info,
            per_task=args.per_task,
            target=args.target,
            fallback=args.fallback,
            jobs=args.jobs,
            backend=args.backend,
            featurisers=tvm_featurisers(prepared(may_install=not args.no_install)),
            on_progress=show,
        )
    found = report.to_json()
    if args.machine_code:
        from tvm_helper.measure.records_code import write_records_code  # needs TVM

        with campaign_progress(is_quiet=args.json or args.quiet) as show_compiled:
            tables = write_records_code(
                dataset, report.out_dir, devices or None, network_info=args.network_info,
                jobs=args.jobs, on_progress=show_compiled,
            )  # fmt: skip
        found["machine_code"] = sum(len(table.columns) for table in tables)
    print(json.dumps(found) if args.json else report.summary())
    if args.machine_code and not args.json:
        print(f"machine code of {counted(found['machine_code'], 'program')} in {report.out_dir}")
    return 0


def run_stats(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset stats`; returns the exit code."""
    stats = dataset_stats(_asked_folder(args.folder, args.dataset))
    if args.json:
        print(json.dumps(stats))
    else:
        print(stats_text(stats))
    return 0


def run_audit(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset audit`; returns the exit code."""
    folder = _asked_folder(args.folder, args.dataset)
    report = audit(folder, network_info=args.network_info, seeds=parse_seeds(args.seeds))
    if args.json:
        print(json.dumps(report))
    else:
        print(audit_text(report))
    has_errors = any(finding["severity"] == "error" for finding in report["findings"])
    return EXIT_DATA if args.strict and has_errors else 0


def _asked_folder(folder: Path | None, dataset: Path | None) -> Path:
    if folder is not None and dataset is not None:
        raise UsageError(
            f"two datasets: got {folder} and --dataset {dataset}, expected one; leave one out"
        )
    return folder or dataset or default_dataset_dir()


def run_merge(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset merge`; returns the exit code."""
    report = merge(args.inputs, args.out)
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0


def run_export(args: argparse.Namespace) -> int:
    """Runs `cdmpp dataset export`; returns the exit code."""
    devices = asked_labels(args.folder, args.device) or None
    if args.format == "metaschedule":
        written = export_databases(args.folder, args.out, args.database, devices=devices)
        print(json.dumps(written.to_json()) if args.json else written.summary())
        return 0
    report = export(
        args.folder, args.out, format=args.format, devices=devices, min_samples=args.min_samples
    )
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0
