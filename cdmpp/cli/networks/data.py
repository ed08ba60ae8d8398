"""`cdmpp networks convert|statistics`: datasets of networks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdmpp.cli.networks.step_time import convert_table, is_table
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options, check_goes_with
from cdmpp.errors import UsageError
from cdmpp.networks.dataset.published import PUBLISHED_DEVICE, convert_published, export_published
from cdmpp.networks.dataset.statistics import ROWS, dataset_rows, network_statistics
from cdmpp.networks.dataset.store import MANIFEST
from cdmpp.text import aligned, counted

#: Graphs between two lines of progress.
_PROGRESS_STEP = 5000


def add_convert_options(convert: argparse.ArgumentParser) -> None:
    """Adds the options of `networks convert`."""
    convert.add_argument(
        "folder", type=Path, metavar="DIR|TABLE",
        help=
            "published layout, or a data set; or a table of measured networks in the layout of "
            "timm's benchmarks (.parquet, .csv), whose architectures are traced (needs timm; "
            "resumes after an interruption)",
    )  # fmt: skip
    add_table(convert, """
        --out DIR: Path required          output folder
        --to parquet|published = parquet  parquet: cdmpp's data set; published: cg/*.json and
            label/*.txt (no pickles are written)
    """)  # fmt: skip
    _add_reading(convert)
    add_output_options(convert)


def add_statistics_options(statistics: argparse.ArgumentParser) -> None:
    """Adds the options of `networks statistics`."""
    statistics.add_argument(
        "folder", type=Path, metavar="DIR", help="a data set, or the published layout"
    )
    _add_reading(statistics)
    add_output_options(statistics)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    add_table(parser, """
        --device LABEL  published layout: measured device (default: rtx3090); with --to
            published: whose labels are written (default: the only one)
        --skip-damaged  published layout: leave out unusable files and list them
    """)  # fmt: skip


def run_convert(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks convert`."""
    if is_table(args.folder):
        check_goes_with(
            "the published layout or a data set", None, skip_damaged=args.skip_damaged,
            device=args.device, to=args.to != "parquet",
        )  # fmt: skip
        convert_table(args.folder, args.out, as_json=args.json, is_quiet=args.quiet)
        return 0
    if args.to == "published":
        count, device = export_published(args.folder, args.out, device=args.device)
        if args.json:
            print(json.dumps({"out_dir": str(args.out), "graphs": count, "device": device}))
        else:
            print(f"{counted(count, 'graph')} as JSON with labels on {device} in {args.out}")
        return 0
    if (args.folder / MANIFEST).is_file():
        raise UsageError(
            f"{args.folder} is a data set of cdmpp ({MANIFEST}), expected the published layout "
            "(cg and label); --to published converts the other way"
        )
    report = convert_published(
        args.folder,
        args.out,
        device=args.device or PUBLISHED_DEVICE,
        skip_damaged=args.skip_damaged,
        on_progress=None if args.json or args.quiet else _progress(),
    )
    print(json.dumps(report.to_json()) if args.json else report.summary())
    return 0


def run_statistics(args: argparse.Namespace) -> int:
    """Runs `cdmpp networks statistics`."""
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
    batches = ", ".join(f"{batch}: {count}" for batch, count in numbers["batches"].items())
    print(
        f"{numbers['graphs']} graphs of {counted(numbers['architectures'], 'architecture')}; "
        f"graphs by batch: {batches}"
    )
    tables = [("graphs", numbers["columns"])]
    for device, about in numbers["devices"].items():
        outcomes = ", ".join(f"{name}: {count}" for name, count in about["outcomes"].items())
        tables.append(
            (f"{device} ({counted(about['labels'], 'label')}, {outcomes})", about["columns"])
        )
    for title, columns in tables:
        rows = [["", *(name.replace("_", " ") for name in columns)]]
        for row in ("n", *ROWS):
            rows.append([row, *(_shown(column[row]) for column in columns.values())])
        print(f"\n{title}\n{aligned(rows, 'lr')}")


def _shown(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def _progress() -> Callable[[int], None]:
    def show(count: int) -> None:
        if count % _PROGRESS_STEP == 0:
            print(f"convert: {count} graphs", file=sys.stderr)

    return show
