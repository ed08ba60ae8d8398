"""`cdmpp analytic conv from-nvprof`."""

from __future__ import annotations

import argparse
import json

from cdmpp.analytic.conv.collect.cudnn_counters import read_kernel_names
from cdmpp.analytic.conv.collect.cudnn_profile import check_workbooks, write_profiled
from cdmpp.analytic.conv.collect.nvprof_launches import NVPROF_METRICS, nvprof_tables
from cdmpp.cli.analytic.conv import add_layer_options, given_layers, parse_algorithm
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.devices.registry import get_device


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic conv from-nvprof`."""
    add_table(parser, f"""
        --trace CSV...: Path required  output of nvprof --print-gpu-trace --csv; repeatable, times
            are averaged
        --metrics CSV: Path required  output of the same run with --metrics
            {",".join(NVPROF_METRICS)}
    """)  # fmt: skip
    group = parser.add_mutually_exclusive_group(required=True)
    add_layer_options(group)
    add_table(parser, """
        --algorithm NAME required  algorithm of all layers: a name or cuDNN's number
        --device LABEL required    the GPU
        --kernels YAML: Path       your table of kernel names
        --out DIR: Path required   where to write the workbooks
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic conv from-nvprof`; returns the exit code."""
    check_workbooks(args.out)
    layers = given_layers(args.layer, args.list)
    found = nvprof_tables(
        args.trace,
        args.metrics,
        layers,
        parse_algorithm(args.algorithm),
        get_device(args.device),
        read_kernel_names(args.kernels),
    )
    write_profiled(args.out, found)
    rows = {name: len(table) for name, table in found.tables.items()}
    if args.json:
        print(json.dumps({"tables": rows, "unmatched": found.unmatched}))
        return 0
    for name, count in rows.items():
        print(f"{name:24}{count:6} rows in {args.out}")
    for name, times in found.unmatched.items():
        print(f"no pattern matches the kernel {name!r} ({times} launches); add it with --kernels")
    return 0
