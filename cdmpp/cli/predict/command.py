"""`cdmpp predict`: latencies of the programs of a record or Python file, or of networks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.api.model import MOST_COMPILED, load
from cdmpp.api.served import served_programs, served_records
from cdmpp.api.sources import Device
from cdmpp.cli.predict.network import print_networks
from cdmpp.cli.predict.text import ModelFacts, print_predictions
from cdmpp.cli.shared.files import add_file, taken_file
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_device_spec_option,
    add_output_options,
    add_sizes_option,
    check_goes_with,
    labels_of,
    machine_code_of,
    sizes_of,
)
from cdmpp.cli.shared.running import add_running_options, given_running
from cdmpp.errors import UsageError
from cdmpp.networks.graph.execution import Running
from cdmpp.networks.graph.factory import load_factory
from cdmpp.networks.shape_text import parse_input_shapes, parse_numbers
from cdmpp.predict.networks import WAYS
from cdmpp.pretrained import PRETRAINED
from cdmpp.replay.file_kind import FileKind
from cdmpp.serve.client import Client, read_token

_DEFAULT_MODEL = Path(PRETRAINED)
_FILES: dict[FileKind, str] = {"program": "program", "records": "records", "network": "network"}
_DEFAULT_INPUT = "3x224x224"
_TORCH_OPTIONS = ("memory", "export")
_NOT_SERVED = ("device_spec", "machine_code", "measured_on", "network_info", "set")
_NETWORK_OPTIONS = ("way", "database", "batch", "input")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Predicts the latency of programs or networks without measuring anything. Programs of a "
        "record file are printed fastest first, beside the measured latency if the record has "
        "one; programs of a Python file in their order. A network has one line for each way of "
        "running it: compiled by TVM without tuning, compiled by TVM with a tuning database, "
        "and run by torch."
    )
    add_table(parser, f"""
        --model RUN: Path = {_DEFAULT_MODEL}  run folder, of a cost model or of a model of whole
            networks (default: pretrained; with --server: the server's first)
    """)  # fmt: skip
    source = parser.add_mutually_exclusive_group(required=True)
    add_file(source, _FILES)
    add_table(source, """
        --records FILE: Path     measure records: an Ansor record file (.json, packed or not), an
            AutoTVM log, or the folder of a MetaSchedule database
        --program FILE.py: Path  TVMScript, which is parsed and not run; or Python with PrimFuncs or
            IRModules, which is run
        --network FILE: Path     ONNX file, or .pt2 written by torch.export.save
        --torch MODULE:FACTORY   function that returns a torch network; its module is imported
    """)  # fmt: skip
    add_table(parser, """
        --network-info DIR: Path  folder of the tasks (default: that of the file's dataset, else the
            shipped one)
        --device LABEL...         device to predict for; may be repeated (default: that of
            each record, of the model's only device, or of the networks that were measured)
    """)  # fmt: skip
    add_device_spec_option(parser)
    add_sizes_option(parser)
    add_table(parser, f"""
        --machine-code           compile programs or records (half a second each) and read their
            machine code: smaller errors; fail if the model cannot (default: networks and up to
            {MOST_COMPILED} programs on CPUs, if the model can; no records)
        --no-machine-code        do not compile programs or the network's kernels: faster
        --measured-on LABEL      --records: device on which the records were measured; its times
            correct the predictions for the devices of --device
        --target TEXT            --records of AutoTVM or MetaSchedule: only those whose target
            contains TEXT
        --no-install             --records: do not build the side environment that AutoTVM logs and
            databases of older TVMs need
        --server URL             predict with a running `cdmpp serve`: programs, records; without
            machine code
        --token-file FILE: Path  --server: file with the server's token
        options of --network and --torch:
        --way {"|".join(WAYS)}...  way of running; may be repeated (default: all)
        --database DIR: Path  MetaSchedule database, such as the folder of `cdmpp search --network
            FILE`: adds tvm-tuned
        --batch N[,N] = None  samples in one iteration (default: 1; ONNX: as in the file, required
            if its batch is dynamic)
        --input SHAPE...      input shape; may be repeated. --torch: SHAPE[:TYPE] without the batch
            (default: {_DEFAULT_INPUT}; TYPE e.g. int64); ONNX: NAME=SHAPE with the batch, for
            dynamic sizes
        options of --torch:
        --memory SIZE  available memory, e.g. 8GiB (default: the device's)
        --export       trace the network with torch.export: slower, supports more code than torch.fx
    """)  # fmt: skip
    add_running_options(parser, title="how torch runs a network")
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    vars(args).update(taken_file(args.file, _FILES))
    is_network = args.torch is not None or args.network is not None
    running = Running(args.dtype, args.layout, args.compiled, args.mode)
    values = vars(args)
    check_goes_with(
        "--torch MODULE:FACTORY", args.torch, **{name: values[name] for name in _TORCH_OPTIONS}
    )
    check_goes_with("--torch MODULE:FACTORY or FILE.pt2", is_network, **given_running(running))
    check_goes_with(
        "--network or --torch", is_network, **{name: values[name] for name in _NETWORK_OPTIONS}
    )
    machine_code = machine_code_of(args.machine_code, args.no_machine_code)
    check_goes_with("--server", args.server, token_file=args.token_file)
    check_goes_with(
        "--records", args.records,
        measured_on=args.measured_on, target=args.target, no_install=args.no_install,
        network_info=args.network_info,
    )  # fmt: skip
    check_goes_with("--program FILE", args.program, set=args.set)
    output = {"as_json": args.json, "is_quiet": args.quiet}
    labels, descriptions = labels_of(args.device), args.device_spec or []
    if args.server is not None:
        given = [name for name in _NOT_SERVED if getattr(args, name)]
        if given or is_network:
            name = "network" if is_network else given[0].replace("_", "-")
            raise UsageError(f"--{name} cannot be used with --server; leave one of them out")
        served = None if args.model == _DEFAULT_MODEL else str(args.model)
        with Client(args.server, token=read_token(args.token_file)) as client:
            predict = served_programs if args.records is None else served_records
            found = predict(client, args.records or args.program, labels, model=served)
            print_predictions(found, lambda: ModelFacts.of_served(client, served), **output)
        return 0
    devices: list[Device] = [*labels, *descriptions]
    predict_file = run_network if is_network else run_programs
    return predict_file(args, devices, machine_code)


def run_programs(
    args: argparse.Namespace, devices: Sequence[Device], machine_code: bool | None
) -> int:
    """Predicts the programs of a record file or a Python file; returns the exit code."""

    def prepare() -> None:
        from cdmpp.cli.shared.samples import prepared  # it loads tvm_helper

        prepared(may_install=not args.no_install)()

    model = load(args.model)
    if args.program is not None:
        found = model.programs(
            args.program, devices, machine_code=machine_code, sizes=sizes_of(args.set)
        )
    else:
        found = model.records(
            args.records, devices, network_info=args.network_info, measured_on=args.measured_on,
            target=args.target, machine_code=bool(machine_code),
            prepare=prepare,
        )  # fmt: skip
    print_predictions(
        found, lambda: ModelFacts.of(model.card), measured_on=args.measured_on,
        as_json=args.json, is_quiet=args.quiet,
    )  # fmt: skip
    return 0


def run_network(
    args: argparse.Namespace, devices: Sequence[Device], machine_code: bool | None
) -> int:
    """Predicts a network; returns the exit code."""
    options: dict[str, Any] = {}
    if args.torch is not None:
        from cdmpp.cli.predict.torch import torch_options

        options = torch_options(
            args.batch or "1", args.input or [_DEFAULT_INPUT], args.memory, is_export=args.export
        )
    else:
        options["batches"] = None if args.batch is None else parse_numbers(args.batch, "--batch")
        options["input_shapes"] = parse_input_shapes(args.input or ())
    found = load(args.model).network(
        args.network or load_factory(args.torch), devices, name=args.torch or "",
        ways=args.way or (), database=args.database,
        machine_code=machine_code,
        dtype=args.dtype, layout=args.layout, compiled=args.compiled, mode=args.mode,
        on_step=None if args.quiet else _tell, **options,
    )  # fmt: skip
    print_networks(found, as_json=args.json)
    return 0


def _tell(step: str) -> None:
    print(f"cdmpp: {step} ...", file=sys.stderr)
