"""`cdmpp roofline`: lower bound of a program or an operator, and what limits it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from cdmpp.analytic.intervals import Evidence
from cdmpp.analytic.roofline.bounds import operator_bounds, program_bounds
from cdmpp.cli.analytic.operator import gpu_labels, parse_shape
from cdmpp.cli.shared.files import add_file, taken_file
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_data_options,
    add_output_options,
    add_sizes_option,
    check_goes_with,
    labels_of,
    sizes_of,
)
from cdmpp.cli.shared.samples import asked_labels, dataset_of
from cdmpp.devices.registry import get_devices
from cdmpp.errors import DataError, UsageError
from cdmpp.replay.file_kind import FileKind
from cdmpp.text import interval_text, seconds_text

_FILES: dict[FileKind, str] = {"program": "program"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp roofline`."""
    what = parser.add_mutually_exclusive_group(required=True)
    add_file(what, _FILES)
    add_table(what, """
        --op KIND          an operator, e.g. linear, softmax, add
        --program FILE|ID  a Python file with tensor programs, or a program of the dataset by the
            start of its id
    """)  # fmt: skip
    add_table(parser, """
        --shape NAME=N,...  shape of the operator: batch=1,m=512,n=1024,k=1024 or
            rows=4096,cols=1024
    """)  # fmt: skip
    add_sizes_option(parser)
    add_data_options(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp roofline`; returns the exit code."""
    vars(args).update(taken_file(args.file, _FILES))
    check_goes_with("a program", args.program, set=args.set)
    check_goes_with("--op", args.op, shape=args.shape)
    is_file = str(args.program).endswith(".py")
    check_goes_with("a program of a dataset", not (args.op or is_file), dataset=args.dataset)
    if is_file:
        rows = _file_bounds(Path(args.program), labels_of(args.device), sizes_of(args.set))
    elif not args.op:
        samples = dataset_of(
            args.dataset, asked_labels(args.dataset, args.device), cache_dir=args.cache,
            network_info=args.network_info, jobs=args.jobs, may_install=not args.no_install,
            is_quiet=args.json or args.quiet,
        ).samples  # fmt: skip
        rows = program_bounds(samples, args.program)
    elif args.shape and args.device:
        found = operator_bounds(args.op, parse_shape(args.shape), gpu_labels(args.device))
        rows = [{"operator": args.op, "shape": args.shape, **row} for row in found]
    else:
        raise UsageError(
            "an operator needs --shape NAME=N,... and --device LABEL, e.g. cdmpp roofline "
            "--op linear --shape m=512,n=1024,k=1024 --device t4"
        )
    if args.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        what = f"{row['name']} on {row['device']}" if "name" in row else row["device"]
        print(
            f"{what}: lower bound {seconds_text(row['least_s'])} ({row['least_why']})\n"
            f"  roofline    {_roofline(row):>14}, an estimate; {row['why']}"
        )
        for name, seconds in row["levels"].items():
            shown = "unknown" if seconds is None else seconds_text(seconds)
            print(f"  {name:12}{shown:>14}")
        if "fitted_s" in row:
            fitted = interval_text(row["fitted_s"], row["fitted_low_s"], row["fitted_high_s"])
            print(f"  with the fitted efficiency {fitted}")
        print(f"  {Evidence(row['interval_source'], row['low_s'] is not None).sentence}")
        for leaf in row.get("leaves", []):
            times = ", ".join(
                f"{name[:-2]} {seconds_text(leaf[name], none='unknown')}"
                for name in ("compute_s", "dram_s", "l2_s")
            )
            print(f"  store {leaf['leaf'] + 1:<4}{leaf['level']:8} ({times})")
    return 0


def _file_bounds(
    path: Path, labels: Sequence[str], sizes: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Returns `program_bounds` of every program of a file on every device that can run it.

    Prints the other combinations on stderr.

    Raises:
        UsageError: no device is given.
        DataError: the file cannot be read, or no device can run any of its programs.
    """
    from tvm_helper.predict.predictor import program_samples  # TVM takes a second
    from tvm_helper.tasks.program_file import read_programs, sized

    if not labels:
        raise UsageError(f"{path}: no device given; expected --device LABEL")
    rows: list[dict[str, Any]] = []
    failures: list[str] = []
    for program, device in product(sized(read_programs(path), sizes), get_devices(labels)):
        try:
            samples = program_samples(program, device)
        except DataError as error:
            failures.append(str(error))
            continue
        rows += [{"name": program.name, **row} for row in program_bounds(samples, "")]
    if not rows:
        raise DataError("; ".join(failures))
    for failure in failures:
        print(f"cdmpp: left out: {failure}", file=sys.stderr)
    return rows


def _roofline(row: Mapping[str, Any]) -> str:
    return interval_text(row["seconds"], row["low_s"], row["high_s"])
