"""`cdmpp train-code`: a model of machine code beside a trained model."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdmpp.cli._options import add_output_options


def register(subparsers: Any) -> None:
    """Adds the `train-code` command."""
    parser = subparsers.add_parser(
        "train-code",
        help="teach a trained model to read the machine code of compiled programs",
        description=(
            "Trains trees and a perceptron over leaf columns and machine code on datasets that "
            "have it (`cdmpp measure --machine-code`), and saves both with the model: `replay` "
            "then compiles a network's kernels and errs less (docs/machine-code.md)."
        ),
    )
    parser.add_argument(
        "--model", type=Path, required=True, metavar="RUN",
        help="run folder or `pretrained`, trained on these datasets among others",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, action="append", required=True, metavar="DIR",
        help="extracted dataset with machine code, of one device; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", default=Path("cache"),
        help="where the datasets' arrays are kept (default: ./cache)",
    )  # fmt: skip
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.pretrained import model_folder
    from cdmpp.training.code_run import train_code

    code = train_code(model_folder(args.model), args.data, cache_dir=args.cache)
    assert code.errors is not None
    found, calibration = code.errors, code.calibration
    if args.json:
        values = {"device": code.device, "target": code.target,
                  "calibration": asdict(calibration), "test": asdict(found)}  # fmt: skip
        print(json.dumps(values, allow_nan=False))
        return 0
    print(
        f"{code.device}: {found.programs} programs of held-out tasks: MAPE {found.mape:.1%} "
        f"(the model alone {found.model_mape:.1%}), median {found.median_ape:.1%}, deviation of "
        f"the logarithm {found.log_deviation:.3f} ({found.model_log_deviation:.3f}), "
        f"{found.coverage:.0%} in their 90 % interval; shares: trees "
        f"{calibration.trees:.0%}, perceptron {calibration.perceptron:.0%}"
    )
    return 0
