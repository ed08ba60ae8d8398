"""`cdmpp networks convert|statistics`: data sets of networks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdmpp.cli.shared.options import add_output_options, is_quiet

#: Graphs between two lines of progress.
_PROGRESS_STEP = 5000


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `convert` and `statistics`."""
    convert = subparsers.add_parser(
        "convert", help="the published layout (cg, label) to a data set of ours, or back"
    )
    convert.add_argument("folder", type=Path, metavar="DIR", help="published layout, or a data set")
    convert.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it goes")
    convert.add_argument(
        "--to",
        choices=("parquet", "published"),
        default="parquet",
        help="parquet: our data set; published: cg/*.json and label/*.txt (no pickles are written)",
    )
    _add_reading(convert)
    add_output_options(convert)
    convert.set_defaults(run=run_convert)
    statistics = subparsers.add_parser(
        "statistics", help="what a data set of networks spans: size, time, memory, utilisation"
    )
    statistics.add_argument(
        "folder", type=Path, metavar="DIR", help="a data set, or the published layout"
    )
    _add_reading(statistics)
    add_output_options(statistics)
    statistics.set_defaults(run=run_statistics)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        metavar="LABEL",
        help="published layout: what it was measured on (default: rtx3090); with --to published: "
        "whose labels are written (default: the only one)",
    )
    parser.add_argument(
        "--skip-damaged",
        action="store_true",
        help="published layout: leave out files that cannot be used, and say which",
    )


def run_convert(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks convert`."""
    from cdmpp.errors import UsageError
    from cdmpp.networks.dataset.published import PUBLISHED_DEVICE, convert_published
    from cdmpp.networks.dataset.store import MANIFEST

    if args.to == "published":
        return _to_published(args)
    if (args.folder / MANIFEST).is_file():
        raise UsageError(
            f"{args.folder} is a data set of ours ({MANIFEST}), expected the published layout (cg "
            "and label); --to published converts the other way"
        )
    report = convert_published(
        args.folder,
        args.out,
        device=args.device or PUBLISHED_DEVICE,
        skip_damaged=args.skip_damaged,
        on_progress=None if is_quiet(args) else _progress(),
    )
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0


def _to_published(args: argparse.Namespace) -> int:
    from cdmpp.errors import UsageError
    from cdmpp.networks.dataset.published import write_published
    from cdmpp.networks.dataset.store import read_dataset

    data = read_dataset(args.folder)
    devices = sorted({label.device for label in data.labels})
    if args.device is None and len(devices) > 1:
        raise UsageError(
            f"{args.folder} has labels of {len(devices)} devices, a label file has place for one; "
            f"choose with --device, e.g. --device {devices[0]}"
        )
    device = args.device or (devices[0] if devices else "none")
    count = write_published(data, args.out, device=device)
    if args.json:
        print(json.dumps({"out_dir": str(args.out), "graphs": count, "device": device}))
    else:
        print(f"{count} graphs as JSON and their labels on {device} in {args.out}")
    return 0


def run_statistics(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks statistics`."""
    from cdmpp.networks.dataset.published import PUBLISHED_DEVICE
    from cdmpp.networks.dataset.statistics import dataset_rows, network_statistics

    damaged: list[str] = []
    rows = dataset_rows(
        args.folder,
        device=args.device or PUBLISHED_DEVICE,
        on_damaged=damaged.append if args.skip_damaged else None,
    )
    numbers = network_statistics(rows)
    if args.skip_damaged:
        numbers["damaged"] = damaged
    if args.json:
        print(json.dumps(numbers))
        return 0
    _print_statistics(numbers)
    for reason in damaged:
        print(f"damaged, left out: {reason}", file=sys.stderr)
    return 0


def _print_statistics(numbers: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from cdmpp.networks.dataset.statistics import ROWS

    console = Console(highlight=False)
    batches = ", ".join(f"{batch}: {count}" for batch, count in numbers["batches"].items())
    console.print(
        f"{numbers['graphs']} graphs of {numbers['architectures']} architectures; "
        f"graphs by batch: {batches}"
    )
    tables = [("graphs", numbers["columns"])]
    for device, about in numbers["devices"].items():
        outcomes = ", ".join(f"{name}: {count}" for name, count in about["outcomes"].items())
        tables.append((f"{device} ({about['labels']} labels, {outcomes})", about["columns"]))
    for title, columns in tables:
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for name in columns:
            table.add_column(name.replace("_", " "), justify="right")
        for row in ("n", *ROWS):
            table.add_row(row, *(_shown(column[row]) for column in columns.values()))
        console.print(table)


def _shown(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def _progress() -> Callable[[int], None]:
    def show(count: int) -> None:
        if count % _PROGRESS_STEP == 0:
            print(f"convert: {count} graphs", file=sys.stderr)

    return show
