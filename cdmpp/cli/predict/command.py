"""`cdmpp predict`: latencies of the programs in a record file, best first; of a user's own programs
and of networks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cdmpp.cli.predict.network import predict_network
from cdmpp.cli.predict.program import predict_program
from cdmpp.cli.predict.records import predict_record_file
from cdmpp.cli.shared.options import add_output_options, labels_of
from cdmpp.errors import UsageError

_DEFAULT_INPUT = "3x224x224"
_TORCH_OPTIONS = ("batch", "input", "memory", "export")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Predicts every program of a Tenset record file (measured or not) and prints the "
        "latencies, best first, beside the measured one when the record has it; or the tensor "
        "programs of a Python file; or a whole network, task by task, with the first valid "
        "MetaSchedule sample of each task (seed 0) as its schedule. Nothing is measured."
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="RUN",
        help="run folder, or pretrained (the default with --torch; else it must be given)",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--records", type=Path, metavar="FILE", help="record file, .json or .json.gz"
    )
    source.add_argument(
        "--program",
        type=Path,
        metavar="FILE.py",
        help="Python file with TVMScript, PrimFuncs or IRModules; it is run",
    )
    source.add_argument(
        "--network",
        type=Path,
        metavar="FILE",
        help="ONNX file, or .pt2 as torch.export.save writes it",
    )
    source.add_argument(
        "--torch",
        metavar="MODULE:FACTORY",
        help="function that makes a torch network: time, memory and utilisation, infer and train; "
        "its module is imported",
    )
    parser.add_argument(
        "--network-info",
        type=Path,
        metavar="DIR",
        help="folder of the tasks (default: that of the file's dataset, else the shipped)",
    )
    parser.add_argument(
        "--device",
        action="append",
        metavar="LABEL",
        help="device to predict for (default: that of each record); programs and networks take "
        "several, side by side",
    )
    parser.add_argument(
        "--device-spec",
        action="append",
        type=Path,
        metavar="YAML",
        help="hardware that nobody measured, described as in cdmpp/devices (programs and networks)",
    )
    parser.add_argument(
        "--machine-code",
        action="store_true",
        help="compile the programs, half a second each, where the model can read their machine "
        "code: it errs less (programs and networks)",
    )
    _add_torch_options(parser)
    add_output_options(parser)


def _add_torch_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options of --torch")
    group.add_argument(
        "--batch", metavar="N[,N]", help="samples of one iteration (default: 1)", default=None
    )
    group.add_argument(
        "--input",
        action="append",
        metavar="SHAPE[:TYPE]",
        help=f"shape of an input without the batch (default: {_DEFAULT_INPUT}); repeat it for "
        "several inputs; TYPE e.g. int64",
    )
    group.add_argument(
        "--memory", metavar="SIZE", help="memory that there is, e.g. 8GiB (default: the device's)"
    )
    group.add_argument(
        "--export",
        action="store_true",
        help="follow the network with torch.export: slower, understands more code than torch.fx",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if args.machine_code and args.program is None and args.network is None:
        raise UsageError("--machine-code compiles what --program or --network names; give one")
    output = {"as_json": args.json, "is_quiet": args.quiet}
    labels, descriptions = labels_of(args.device), args.device_spec or []
    if args.torch is not None:
        if descriptions:
            raise UsageError(
                "--torch takes devices by label, got --device-spec; expected --device LABEL"
            )
        from cdmpp.cli.predict.torch import predict_torch  # torch takes seconds

        predict_torch(
            args.torch, str(args.model or "pretrained"), labels, batches=args.batch or "1",
            inputs=args.input or [_DEFAULT_INPUT], memory=args.memory,
            method="export" if args.export else "fx", **output,
        )  # fmt: skip
        return 0
    given = [name for name in _TORCH_OPTIONS if getattr(args, name)]
    if given:
        raise UsageError(f"--{given[0]} goes with --torch MODULE:FACTORY only; leave it out")
    if args.model is None:
        raise UsageError(
            "no --model; expected a run folder that `cdmpp train` wrote, or pretrained"
        )
    if args.records is not None:
        named = [*(args.device or ()), *map(str, descriptions)]
        if len(named) > 1 or descriptions:
            raise UsageError(
                "the programs of records are predicted for one device that has a label, got "
                f"{', '.join(named)}; expected one --device"
            )
        predict_record_file(
            args.records, args.model, device=named[0] if named else None,
            network_info=args.network_info, **output,
        )  # fmt: skip
        return 0
    from tvm_helper.predict.predictor import new_predictor  # TVM takes a second

    predictor = new_predictor(
        args.model, labels, descriptions,
        compiles=args.machine_code, must_compile=args.machine_code,
    )  # fmt: skip
    if args.program is not None:
        predict_program(args.program, predictor, **output)
    else:
        predict_network(args.network, predictor, **output)
    return 0
