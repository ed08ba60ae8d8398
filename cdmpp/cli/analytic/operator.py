"""`cdmpp analytic operator`: framework operators on GPUs, roofline with fitted efficiencies."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import add_output_options

if TYPE_CHECKING:
    from cdmpp.analytic.operators.evaluate import Score
    from cdmpp.analytic.operators.model import OperatorModel

_MS_PER_S = 1e3


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the `operator` command and its subcommands."""
    parser = subparsers.add_parser(
        "operator", help="bmm, linear, softmax, layer norm and element-wise operators on GPUs"
    )
    commands = parser.add_subparsers(dest="operator_command", required=True, metavar="COMMAND")
    fit = commands.add_parser("fit", help="fit the model on a folder of operator tables")
    fit.add_argument(
        "--data", type=Path, required=True, metavar="DIR",
        help="folder with bmm, linear, elementwise, softmax and ln as .csv or .csv.gz",
    )  # fmt: skip
    fit.add_argument("--out", type=Path, required=True, metavar="JSON", help="the model's file")
    fit.add_argument("--seeds", default="0,1,2", metavar="N,N", help="draws of rows (0,1,2)")
    add_output_options(fit)
    fit.set_defaults(run=run_fit)
    evaluate = commands.add_parser("evaluate", help="judge the model beside recorded peers")
    evaluate.add_argument(
        "--data", type=Path, required=True, metavar="DIR",
        help="folder with peers/op_instances and, if wanted, test/",
    )  # fmt: skip
    _add_model(evaluate)
    evaluate.add_argument(
        "--out", type=Path, metavar="DIR", help="also write operators.md, .csv and .json there"
    )
    add_output_options(evaluate)
    evaluate.set_defaults(run=run_evaluate)
    predict = commands.add_parser("predict", help="time of one operator")
    predict.add_argument("--op", required=True, metavar="KIND", help="e.g. linear, softmax, add")
    predict.add_argument(
        "--shape", required=True, metavar="NAME=N,...",
        help="batch=1,m=512,n=1024,k=1024 of a product; else rows=4096,cols=1024",
    )  # fmt: skip
    predict.add_argument(
        "--device", action="append", required=True, metavar="LABEL[,LABEL]", help="GPUs"
    )
    predict.add_argument(
        "--context", choices=("isolated", "queued"), default="isolated",
        help="a call of its own, or behind other operators, so that dispatch is hidden",
    )  # fmt: skip
    _add_model(predict)
    add_output_options(predict)
    predict.set_defaults(run=run_predict)


def run_fit(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic operator fit`; returns the exit code."""
    from cdmpp.analytic.operators.training import FitOptions, fit_model, read_training_tables
    from cdmpp.machine import versions

    tables = read_training_tables(args.data)
    model = fit_model(tables, FitOptions(seeds=_seeds(args.seeds)), about={"versions": versions()})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    model.save(args.out)
    if args.json:
        print(json.dumps({"model": str(args.out), "octaves": model.octaves, **model.about}))
        return 0
    for family, table in tables.items():
        print(f"{family:12}{len(table):8} measurements")
    near = "all alike" if model.octaves is None else f"near ones first ({model.octaves:g} octaves)"
    print(f"a device without measurements: by the known ones, {near}")
    print(f"model: {args.out}")
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic operator evaluate`; returns the exit code."""
    from cdmpp.analytic.operators.evaluate import evaluate
    from cdmpp.report.operator_results import results_page, write_results
    from cdmpp.report.page import page_markdown

    scores = evaluate(_model(args), args.data)
    command = " ".join(["cdmpp", *sys.argv[1:]])
    if args.out is not None:
        write_results(scores, args.out, command=command, data=args.data)
    if args.json:
        print(json.dumps([_as_json(score) for score in scores]))
    else:
        print(page_markdown(results_page(scores, command=command)), end="")
    return 0


def run_predict(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic operator predict`; returns the exit code."""
    import numpy as np

    from cdmpp.analytic.operators.model import known_hardware
    from cdmpp.analytic.operators.operators import make_operators

    model = _model(args)
    labels = device_labels(args.device)
    operators = make_operators(
        [args.op] * len(labels),
        {name: [size] * len(labels) for name, size in parse_shape(args.shape).items()},
    )
    seconds = model.predict(
        operators, np.array(labels), known_hardware(labels), context=args.context
    )
    rows = [
        {
            "operator": args.op,
            "shape": args.shape,
            "device": label,
            "context": args.context,
            "latency_s": float(value),
            "device_was_measured": label in model.known,
        }
        for label, value in zip(labels, seconds, strict=True)
    ]
    if args.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        note = "" if row["device_was_measured"] else "   (no measurements: from devices like it)"
        print(f"{row['device']:14}{float(seconds[rows.index(row)]) * _MS_PER_S:12.6g} ms{note}")
    return 0


def parse_shape(text: str) -> dict[str, float]:
    """Returns name -> size of `m=512,n=1024,k=1024`.

    Raises:
        UsageError: not of that form.
    """
    from cdmpp.errors import UsageError

    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(int(size)) for name, size in pairs}
    except ValueError:
        raise UsageError(
            f"--shape {text!r}: expected NAME=N,..., e.g. batch=1,m=512,n=1024,k=1024 or "
            "rows=4096,cols=1024"
        ) from None


def device_labels(values: list[str]) -> list[str]:
    """Returns the labels of `--device A,B --device C`, as the registry names them.

    Raises:
        DeviceError: one is not known.
    """
    from cdmpp.devices.registry import get_device

    return [get_device(name).name for value in values for name in value.split(",") if name]


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="JSON", help="a fitted model (default: the packaged one)"
    )


def _model(args: argparse.Namespace) -> OperatorModel:
    from cdmpp.analytic.operators.model import OperatorModel, packaged_model_path

    return OperatorModel.load(args.model or packaged_model_path())


def _seeds(text: str) -> tuple[int, ...]:
    from cdmpp.errors import UsageError

    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0:
        raise UsageError(f"--seeds {text!r}: expected whole numbers from 0, e.g. 0,1,2")
    return seeds


def _as_json(score: Score) -> dict[str, Any]:
    from dataclasses import asdict

    value = asdict(score)
    value["spearman"] = value.pop("rank")
    return value
