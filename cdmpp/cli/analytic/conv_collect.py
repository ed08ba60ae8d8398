"""`cdmpp analytic conv collect`."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.collect.cudnn_collect import (
    Collected,
    CollectOptions,
    collect,
    original_grid,
    read_layer_list,
)
from cdmpp.analytic.conv.collect.cudnn_counters import read_kernel_names
from cdmpp.analytic.conv.collect.cudnn_library import CudnnLibrary, open_cudnn
from cdmpp.analytic.conv.collect.cudnn_profile import profile
from cdmpp.analytic.conv.layers.table import LAYER_COLUMNS
from cdmpp.analytic.conv.seer.workbook import write_workbook
from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes
from cdmpp.cli.analytic.conv_text import parse_layers
from cdmpp.errors import UsageError
from cdmpp.files.atomic import make_folder, write_text
from cdmpp.text import aligned, csv_text

_MIB = 1 << 20


def run_collect(args: argparse.Namespace, library: CudnnLibrary | None = None) -> int:
    """Runs `cdmpp analytic conv collect`; returns the exit code.

    Args:
        library: cuDNN; None = the installed one. A test gives a recording.
    """
    layers = _layers(args)
    if args.operator is not None:
        rows = _operator_rows(args, layers)
    else:
        rows = _forward_rows(args, layers, library)
    if args.out is not None and not args.counters:
        # A row without a time is no measurement; its reason is printed, not stored as one.
        kept = [list(row.values()) for row in rows if row["time_ms"] is not None]
        write_text(args.out, csv_text(list(rows[0]) if rows else ["reason"], kept))
    if args.json:
        print(json.dumps(rows))
    elif args.out is not None:
        measured = sum(row["time_ms"] is not None for row in rows)
        print(f"{measured} of {len(rows)} measured, written to {args.out}")
    else:
        cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
        print(aligned(cells, "lr"))
    return 0


def _layers(args: argparse.Namespace) -> ConvShapes:
    if args.grid is not None:
        layers = original_grid(ConvAlgorithm[args.grid.upper()])
    elif args.list is not None:
        layers = read_layer_list(args.list)
    else:
        layers = parse_layers(args.layer)
    return layers.take(np.arange(len(layers))[: args.limit])


def _forward_rows(
    args: argparse.Namespace, layers: ConvShapes, library: CudnnLibrary | None
) -> list[dict[str, Any]]:
    asked = [_number(text) for text in args.algorithm]
    if args.grid is not None and not asked:
        asked = [int(ConvAlgorithm[args.grid.upper()])]
    options = CollectOptions(
        algorithms=tuple(asked),
        is_free=args.free,
        repeats=args.repeats,
        warmups=args.warmups,
        flush_bytes=args.flush * _MIB,
        math=args.math,
    )
    opened = library or open_cudnn()
    try:
        found = list(collect(opened, layers, options))
    finally:
        if library is None:
            opened.close()
    if args.counters:
        _write_counters(args, layers, found)
    return [_row(args, layers, value) for value in found]


def _write_counters(args: argparse.Namespace, layers: ConvShapes, found: list[Collected]) -> None:
    """Profiles what could be measured and writes a workbook (csv) for each variant."""
    if args.out is None:
        raise UsageError("--counters writes workbooks; give --out DIR")
    measured = [value for value in found if value.time_ms is not None]
    profiled = profile(
        layers.take(np.array([value.row for value in measured], np.int64)),
        [value.algorithm for value in measured],
        read_kernel_names(args.kernels),
    )
    folder = make_folder(args.out, what="workbooks")
    for name, table in profiled.tables.items():
        write_workbook(folder / name, {"train": table})
    for name, times in profiled.unmatched.items():
        print(f"no pattern knows the kernel {name!r} ({times} launches); add it with --kernels")


def _operator_rows(args: argparse.Namespace, layers: ConvShapes) -> list[dict[str, Any]]:
    from cdmpp.analytic.conv.collect.torch_operators import time_operators

    return [
        {"operator": found.operator, **_sizes(layers, found.row), "time_ms": found.time_ms}
        for found in time_operators(args.operator, layers)
    ]


def _row(args: argparse.Namespace, layers: ConvShapes, value: Collected) -> dict[str, Any]:
    number = value.algorithm
    return {
        "device": args.gpu or "",
        **{name: size for name, size in _sizes(layers, value.row).items() if name in LAYER_COLUMNS},
        "algorithm": "" if number < 0 else ConvAlgorithm(number).name.lower(),
        "time_ms": value.time_ms,
        "reason": value.reason,
    }


def _sizes(layers: ConvShapes, row: int) -> dict[str, int]:
    return {name: int(getattr(layers, name)[row]) for name in SHAPE_NAMES}


def _number(text: str) -> int:
    """Returns cuDNN's number of an algorithm given by name or number."""
    try:
        return int(ConvAlgorithm(int(text)) if text.isdecimal() else ConvAlgorithm[text.upper()])
    except (KeyError, ValueError):
        known = ", ".join(algorithm.name.lower() for algorithm in ConvAlgorithm)
        raise UsageError(f"unknown algorithm {text!r}; known: {known}, or 0 to 7") from None
