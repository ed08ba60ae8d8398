"""`cdmpp roofline`: what bounds a program or an operator on a device."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import add_data_options, add_output_options

if TYPE_CHECKING:
    from cdmpp.analytic.roofline.levels import ProgramBound
    from cdmpp.analytic.roofline.operators import OperatorBound

_MS_PER_S = 1e3


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `roofline` command."""
    parser = subparsers.add_parser("roofline", help="what bounds a program or an operator")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--op", metavar="KIND", help="an operator, e.g. linear, softmax, add")
    what.add_argument(
        "--program", metavar="ID", help="a program of the dataset, by the start of its id"
    )
    parser.add_argument(
        "--shape", metavar="NAME=N,...",
        help="shape of the operator: batch=1,m=512,n=1024,k=1024 or rows=4096,cols=1024",
    )  # fmt: skip
    add_data_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run_roofline)


def run_roofline(args: argparse.Namespace) -> int:
    """Runs `cdmpp roofline`; returns the exit code."""
    rows = _operator_rows(args) if args.op else _program_rows(args)
    if args.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print(f"{row['device']}: {row['seconds'] * _MS_PER_S:.4g} ms at the least; {row['why']}")
        for name, seconds in row["levels"].items():
            shown = "unknown" if seconds is None else f"{seconds * _MS_PER_S:.4g} ms"
            print(f"  {name:12}{shown:>14}")
        if "fitted_s" in row:
            print(f"  with the fitted efficiency {row['fitted_s'] * _MS_PER_S:.4g} ms")
        for leaf in row.get("leaves", []):
            times = ", ".join(
                f"{name[:-2]} {'unknown' if leaf[name] is None else format(leaf[name], '.3g')}"
                for name in ("compute_s", "dram_s", "l2_s")
            )
            print(f"  leaf {leaf['leaf']:<4} {leaf['level']:8} (seconds: {times})")
    return 0


def _operator_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    import numpy as np

    from cdmpp.analytic.operators.model import OperatorModel, known_hardware, packaged_model_path
    from cdmpp.analytic.operators.operators import make_operators
    from cdmpp.analytic.roofline.operators import operator_bound
    from cdmpp.cli.analytic.operator import device_labels, parse_shape
    from cdmpp.errors import UsageError

    if not args.shape or not args.device:
        raise UsageError(
            "an operator needs --shape NAME=N,... and --device LABEL, e.g. cdmpp roofline "
            "--op linear --shape m=512,n=1024,k=1024 --device t4"
        )
    labels = device_labels(args.device)
    known = known_hardware(labels)
    operators = make_operators(
        [args.op] * len(labels),
        {name: [size] * len(labels) for name, size in parse_shape(args.shape).items()},
    )
    model = OperatorModel.load(packaged_model_path())
    fitted = model.predict(operators, np.array(labels), known, context="queued")
    rows = []
    for index, label in enumerate(labels):
        bound = operator_bound(operators, index, known[label], launch_s=_launch_s(label))
        rows.append(
            {
                "operator": args.op, "shape": args.shape, "device": label,
                "seconds": bound.seconds, "why": bound.sentence(), "levels": _levels(bound),
                "fitted_s": float(fitted[index]),
            }
        )  # fmt: skip
    return rows


def _program_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    import numpy as np

    from cdmpp.analytic.roofline.levels import program_bound
    from cdmpp.cli.dataset.samples import samples_of
    from cdmpp.errors import DataError

    samples = samples_of(args)
    programs = samples.programs
    found = [
        row for row, name in enumerate(programs.program_id) if str(name).startswith(args.program)
    ]
    if len(found) != 1:
        raise DataError(
            f"{len(found)} programs of the dataset begin with {args.program!r}, expected one; "
            "`cdmpp predict --json` prints the ids"
        )
    start, stop = (int(value) for value in programs.leaf_offset[found[0] : found[0] + 2])
    leaves = np.asarray(programs.leaf_features[start:stop])
    rows = []
    for spec in samples.devices:
        launch_s = _launch_s(spec.name) if spec.kind == "gpu" else 0.0
        bound = program_bound(leaves, spec, launch_s=launch_s)
        rows.append(
            {
                "program_id": str(programs.program_id[found[0]]), "device": spec.name,
                "seconds": bound.seconds, "why": bound.sentence(),
                "levels": _program_levels(bound),
                "leaves": [
                    {"leaf": number, **asdict(leaf)} for number, leaf in enumerate(bound.leaves)
                ],
            }
        )  # fmt: skip
    return rows


def _launch_s(label: str) -> float:
    """Returns the fitted time of a launch without work on a GPU."""
    from cdmpp.analytic.operators.model import OperatorModel, known_hardware, packaged_model_path

    model = OperatorModel.load(packaged_model_path())
    return model.launch_s(label, known_hardware([label])[label])


def _levels(bound: OperatorBound) -> dict[str, float]:
    return {
        "compute": bound.compute_s, "dram": bound.dram_s, "l2": bound.l2_s,
        "launch": bound.launch_s,
    }  # fmt: skip


def _program_levels(bound: ProgramBound) -> dict[str, float | None]:
    l2 = [leaf.l2_s for leaf in bound.leaves]
    return {
        "compute": sum(leaf.compute_s for leaf in bound.leaves),
        "dram": sum(leaf.dram_s for leaf in bound.leaves),
        "l2": None if None in l2 else sum(value for value in l2 if value is not None),
        "launch": bound.launch_s,
    }
