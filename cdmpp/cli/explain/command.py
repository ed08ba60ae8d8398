"""`cdmpp explain`: where the time of a program or network goes, and the effect of changes."""

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
    machine_code_of,
    sizes_of,
)
from cdmpp.errors import UsageError
from cdmpp.files.atomic import write_text
from cdmpp.networks.shape_text import parse_input_shapes
from cdmpp.replay.file_kind import FileKind
from cdmpp.report.explain_page import explain_page
from cdmpp.report.page import check_page_file, page_html

_KERNELS = 5
_FILES: dict[FileKind, str] = {"program": "program", "network": "network"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Explains predictions: the text of a program with the time of every store, what limits "
        "each store, the most similar measured tasks, and the predicted time with a loop "
        "vectorised, unrolled or tiled. Nothing is measured."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    add_file(source, _FILES)
    add_table(source, """
        --program FILE.py: Path  TVMScript, which is parsed and not run; or Python with PrimFuncs or
            IRModules, which is run
        --network FILE: Path     ONNX file, or .pt2 written by torch.export.save: explain its
            kernels
    """)  # fmt: skip
    add_model_option(parser)
    add_table(parser, """
        --device LABEL...  device; may be repeated
    """)  # fmt: skip
    add_device_spec_option(parser)
    add_sizes_option(parser)
    add_table(parser, f"""
        --machine-code     compile the programs (half a second each), use and describe their machine
            code (default: as `cdmpp predict`)
        --no-machine-code  do not compile programs or the network's kernels: faster
        --kernels N: int   --network: number of kernels to explain, most expensive first (default:
            {_KERNELS})
        --batch N: int     ONNX: size of the first axes that are dynamic in the file
        --input NAME=SHAPE...  ONNX: full shape of an input with dynamic sizes
        --html PAGE: Path  also write an HTML page
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
    check_page_file(args.html)
    found = load(args.model).explain(
        args.network or args.program, [*labels_of(args.device), *(args.device_spec or [])],
        machine_code=machine_code_of(args.machine_code, args.no_machine_code),
        kernels=args.kernels or _KERNELS, batch=args.batch,
        input_shapes=parse_input_shapes(args.input or ()), sizes=sizes_of(args.set),
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
