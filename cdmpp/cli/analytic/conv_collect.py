"""`cdmpp analytic conv collect`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.collect.cudnn_collect import (
    CollectOptions,
    collect,
    collected_rows,
    original_grid,
)
from cdmpp.analytic.conv.collect.cudnn_counters import read_kernel_names
from cdmpp.analytic.conv.collect.cudnn_library import CudnnError, open_cudnn
from cdmpp.analytic.conv.collect.cudnn_profile import check_workbooks, write_counters
from cdmpp.analytic.conv.collect.torch_operators import time_operators
from cdmpp.cli.analytic.conv import add_layer_options, given_layers, parse_algorithm
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.errors import UsageError
from cdmpp.files.atomic import check_replaceable, write_text
from cdmpp.text import aligned, csv_text

_ALGORITHMS = (
    "implicit_gemm", "implicit_precomp_gemm", "gemm", "fft", "fft_tiling", "winograd",
    "winograd_nonfused",
)  # fmt: skip
_MIB = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic conv collect`."""
    group = parser.add_mutually_exclusive_group(required=True)
    add_layer_options(group)
    group.add_argument(
        "--grid", choices=_ALGORITHMS, help="the original's training layers of an algorithm"
    )
    add_table(parser, """
        --algorithm NAME... = []            name or cuDNN's number; repeatable (default: all that a
            layer allows)
        --free                              let cuDNN choose the algorithm
        --operator maxpool|maxpool_gradient|conv_1x1|data_layout|conv_grad  measure this operator
            in torch instead
        --repeats N: int = 10               timed runs
        --warmups N: int = 3                runs before them
        --flush MIB: int = 0                copy this much before each timed run, to flush the cache
        --math fma|default|tensor = fma     fma = fp32 only
        --counters                          also read the counters, with ncu (slow)
        --kernels YAML: Path                your table of kernel names
        --limit N: int                      only the first N layers
        --gpu NAME                          label of the GPU, for the layer file
        --out PATH: Path                    CSV of layers; with --counters a folder
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv collect`; returns the exit code."""
    if not args.counters:
        titles = r"(device|operator),[\w,]*time_ms"
        check_replaceable(args.out, titles, what="a CSV of measured layers", option="--out")
    elif args.out is not None:
        check_workbooks(args.out)
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit must be at least 1, got {args.limit}")
    asked = [parse_algorithm(text) for text in args.algorithm]
    if args.grid is not None:
        algorithm = ConvAlgorithm[args.grid.upper()]
        layers, asked = original_grid(algorithm), asked or [int(algorithm)]
    else:
        layers = given_layers(args.layer, args.list)
    layers = layers[np.arange(len(layers))[: args.limit]]
    if args.operator is not None:
        rows = [
            {"operator": found.operator, **layers.row(found.row), "time_ms": found.time_ms}
            for found in time_operators(args.operator, layers)
        ]
    else:
        if args.counters and args.out is None:
            raise UsageError("--counters writes workbooks; give --out DIR")
        options = CollectOptions(
            algorithms=tuple(asked), is_free=args.free, repeats=args.repeats,
            warmups=args.warmups, flush_bytes=args.flush * _MIB, math=args.math,
        )  # fmt: skip
        library = open_cudnn()
        try:
            measured = list(collect(library, layers, options))
        finally:
            # On a GPU that failed, this fails too; earlier measurements are kept.
            with contextlib.suppress(CudnnError):
                library.close()
        if args.counters:
            names = read_kernel_names(args.kernels)
            unmatched = write_counters(args.out, layers, measured, names, math=args.math)
            for name, times in unmatched.items():
                print(
                    f"no pattern matches the kernel {name!r} ({times} launches); add it with "
                    "--kernels", file=sys.stderr)  # fmt: skip
        rows = collected_rows(layers, measured, device=args.gpu or "")
    if args.out is not None and not args.counters:
        # Rows without a time have a reason instead: they are printed but not stored.
        kept = [list(row.values()) for row in rows if row["time_ms"] is not None]
        write_text(args.out, csv_text(list(rows[0]) if rows else ["reason"], kept))
    if args.json:
        print(json.dumps(rows))
    elif args.out is not None:
        count = sum(row["time_ms"] is not None for row in rows)
        print(f"{count} of {len(rows)} measured, written to {args.out}")
    else:
        cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
        print(aligned(cells, "lr"))
    return 0
