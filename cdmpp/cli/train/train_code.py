"""`cdmpp train-code`: extends a trained model by a model of machine code."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from typing import Any

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_output_options
from cdmpp.predict.machine_code.model import CodeCalibration, CodeErrors
from cdmpp.pretrained import own_model_folder
from cdmpp.training.train_code import train_code


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp train-code`."""
    parser.description = (
        "Trains trees and a perceptron over leaf columns and machine code on datasets that have "
        "it (`cdmpp measure --machine-code`), and saves both with the model: `replay` then "
        "compiles a network's kernels, which makes its errors smaller "
        "(docs/explanation/machine-code.md)."
    )
    add_table(parser, """
        --model RUN: Path required    run folder of a model trained on at least these datasets;
            `pretrained` with --package
        --package                     allow changes to the model of the installed package
        --data DIR...: Path required  extracted dataset with machine code; may be repeated
        --further DIR...: Path = []   dataset with machine code that the model did not learn from:
            three fifths of its tasks train, the others calibrate and test; may be repeated
        --searched DIR...: Path = []  dataset measured by searches, with machine code: how much
            faster the fastest program of a task is than predicted on its device; may be repeated
        --cache DIR: Path = cache     cache folder of the datasets' arrays (default: ./cache)
    """)  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    folder = own_model_folder(args.model, is_package=args.package)
    code = train_code(
        folder, args.data, cache_dir=args.cache, further=args.further, searched=args.searched
    )
    assert code.errors is not None
    if args.json:
        values: dict[str, Any] = {
            "targets": code.targets,
            "calibration": asdict(code.calibration),
            "test": asdict(code.errors),
            "fastest": {label: asdict(one) for label, one in code.fastest.items()},
            "fastest_test": {label: asdict(one) for label, one in code.fastest_errors.items()},
            "cold_s_per_byte": code.cold_s_per_byte,
        }
        if code.of_records is not None and code.record_errors is not None:
            values["of_records"] = asdict(code.of_records)
            values["record_test"] = asdict(code.record_errors)
        print(json.dumps(values, allow_nan=False))
        return 0
    devices = ", ".join(code.targets)
    if code.of_records is None or code.record_errors is None:
        print(_text(devices, "programs of held-out tasks", code.errors, code.calibration))
    else:
        of_modules, of_records = "modules of held-out tasks", "measure records of held-out tasks"
        print(_text(devices, of_modules, code.errors, code.calibration))
        print(_text(devices, of_records, code.record_errors, code.of_records))
    for label, errors in code.fastest_errors.items():
        what = "fastest programs of held-out searched tasks"
        print(_text(label, what, errors, code.fastest[label]))
    for label, cold_s in code.cold_s_per_byte.items():
        print(f"{label}: in networks {1e9 * cold_s:.4f} ns more for a byte of a kernel's arguments")
    return 0


def _text(device: str, what: str, found: CodeErrors, calibration: CodeCalibration) -> str:
    factor = f", times {math.exp(calibration.shift):.2f}" if calibration.shift else ""
    return (
        f"{device}: {found.programs} {what}: MAPE {found.mape:.1%} (without it "
        f"{found.model_mape:.1%}), median {found.median_ape:.1%}, deviation of the logarithm "
        f"{found.log_deviation:.3f} ({found.model_log_deviation:.3f}), {found.coverage:.0%} in "
        f"their 90 % interval; shares: trees {calibration.trees:.0%}, perceptron "
        f"{calibration.perceptron:.0%}{factor}"
    )
