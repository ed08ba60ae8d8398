"""`cdmpp explain`: where the time of a program or network goes, and what it might be instead."""

from __future__ import annotations

import argparse
import json
import sys

from cdmpp.api.model import load
from cdmpp.cli.shared.files import add_file, taken_file
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_device_spec_option,
    add_model_option,
    add_output_options,
    add_sizes_option,
    check_goes_with,
    labels_of,
    sizes_of,
)
from cdmpp.errors import UsageError
from cdmpp.files.atomic import write_text
from cdmpp.networks.shape_text import parse_input_shapes
from cdmpp.replay.file_kind import FileKind
from cdmpp.report.explain_page import explain_page
from cdmpp.report.page import page_html

_KERNELS = 5
_FILES: dict[FileKind, str] = {"program": "program", "network": "network"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Says why programs take as long as predicted: their text with the time of every store "
        "beside it, what bounds each, what they resemble among the measured tasks, and what they "
        "would take if a loop were vectorised, unrolled or tiled. Nothing is measured."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    add_file(source, _FILES)
    add_table(source, """
        --program FILE.py: Path  TVMScript, of which nothing is run; or Python with PrimFuncs or
            IRModules, which is run
        --network FILE: Path     ONNX file, or .pt2 as torch.export.save writes it: its kernels,
            then into each
    """)  # fmt: skip
    add_model_option(parser)
    add_table(parser, """
        --device LABEL...  device; several one after another
    """)  # fmt: skip
    add_device_spec_option(parser)
    add_sizes_option(parser)
    add_table(parser, f"""
        --machine-code  compile the programs, half a second each: say what the compiler made of
            them
        --kernels N: int   --network: how many kernels are explained, dearest first (default:
            {_KERNELS})
        --batch N: int     ONNX: size of every first axis that the file leaves open
        --input NAME=SHAPE...  ONNX: whole shape of an input whose sizes the file leaves open
        --html PAGE: Path  write it as a page too
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    vars(args).update(taken_file(args.file, _FILES))
    if args.kernels is not None and (args.program is not None or args.kernels < 1):
        raise UsageError(
            f"--kernels {args.kernels}: expected at least 1, and --network FILE to take them from"
        )
    check_goes_with("a network", args.network, args.program, batch=args.batch, input=args.input)
    check_goes_with("--program FILE", args.program, set=args.set)
    found = load(args.model).explain(
        args.network or args.program, [*labels_of(args.device), *(args.device_spec or [])],
        machine_code=args.machine_code, kernels=args.kernels or _KERNELS,
        batch=args.batch, input_shapes=parse_input_shapes(args.input or ()),
        sizes=sizes_of(args.set),
    )  # fmt: skip
    rows = [dict(one.row) for one in found]
    if args.html is not None:
        write_text(args.html, page_html(explain_page(rows, args.network or args.program)))
    if args.json:
        print(json.dumps(rows, allow_nan=False))
        return 0
    is_painted = sys.stdout.isatty()
    for number, one in enumerate(found):
        print(("\n" if number else "") + one.text(is_painted=is_painted))
    return 0
