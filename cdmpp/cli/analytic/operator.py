"""`cdmpp analytic operator`: framework operators on GPUs by a roofline with fitted efficiencies."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence

import numpy as np

from cdmpp.analytic.intervals import Evidence, ends_of
from cdmpp.analytic.operators.device import hardware
from cdmpp.analytic.operators.evaluate import evaluate
from cdmpp.analytic.operators.intervals import operator_errors, operators_are_larger
from cdmpp.analytic.operators.model import OperatorModel
from cdmpp.analytic.operators.operators import Operators, make_operators
from cdmpp.analytic.operators.training import FitOptions, fit_model, read_training_tables
from cdmpp.analytic.roofline.floor import (
    floor_on,
    least_kernel_s,
    least_work_of_operators,
)
from cdmpp.analytic.scores import Score
from cdmpp.analytic.sweep.predict import SweptOperators
from cdmpp.cli.analytic.evaluated import operators_page
from cdmpp.cli.shared.lab import run_experiment
from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import (
    add_device_spec_option,
    add_output_options,
    labels_of,
    parse_seeds,
)
from cdmpp.comparison.run import asked_devices
from cdmpp.config import named_values
from cdmpp.devices.registry import get_devices
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.files.atomic import check_replaceable_json
from cdmpp.machine import versions
from cdmpp.report.page import page_markdown
from cdmpp.text import counted, interval_text


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic operator fit`."""
    add_table(parser, """
        --data DIR...: Path required  folder with bmm, linear, elementwise, softmax and ln as .csv
            or .csv.gz; may be repeated
        --out JSON: Path required     the model's file
        --seeds N,N = '0,1,2'         seeds of the rows drawn (default: 0,1,2)
    """)  # fmt: skip
    add_output_options(parser)


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic operator evaluate`."""
    add_table(parser, """
        --data DIR: Path required  folder with peers/op_instances and optionally test/
        --model JSON: Path = pretrained  a fitted model (default: pretrained, the packaged one)
        --out DIR: Path  also write operators.md, .csv and .json there
    """)  # fmt: skip
    add_output_options(parser)


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `analytic operator predict`."""
    add_table(parser, """
        --op KIND required  e.g. linear, softmax, add
        --shape NAME=N,... required  batch=1,m=512,n=1024,k=1024 of a product; else
            rows=4096,cols=1024
        --device LABEL[,LABEL]...  GPUs
        --context isolated|queued = isolated  isolated: a single call; queued: behind other
            operators, which hide the dispatch
        --model JSON: Path = pretrained  a fitted model (default: pretrained, the packaged one)
    """)  # fmt: skip
    add_device_spec_option(parser, of="if the file names a sweep, the sweep corrects the times")
    add_output_options(parser)


def run_fit(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic operator fit`; returns the exit code."""
    check_replaceable_json(
        args.out, r"\d", what="a fitted model", option="--out", key="format_version"
    )
    tables = read_training_tables(*args.data)
    options = FitOptions(seeds=parse_seeds(args.seeds))
    model = fit_model(tables, options, about={"versions": versions()})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    model.save(args.out)
    if args.json:
        print(json.dumps({"model": str(args.out), "octaves": model.octaves, **model.about}))
        return 0
    for family, table in tables.items():
        print(f"{family:12}{len(table):8} measurements")
    near = "all alike" if model.octaves is None else f"near ones first ({model.octaves:g} octaves)"
    print(f"unseen device: from the measured devices, {near}")
    print(f"model: {args.out}")
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic operator evaluate`; returns the exit code."""
    if args.out is not None:
        return run_experiment(
            "--out", "operators", neusight=args.data, model=args.model, out=args.out,
            is_json=args.json,
        )  # fmt: skip
    print_scores(evaluate(OperatorModel.at(args.model), args.data), is_json=args.json)
    return 0


def print_scores(scores: Sequence[Score], *, is_json: bool) -> None:
    """Prints the scores of `evaluate`, as a page or as JSON."""
    if is_json:
        print(json.dumps([{**score.row(), "spearman": score.rank} for score in scores]))
    else:
        print(page_markdown(operators_page(scores)), end="")


def run_predict(args: argparse.Namespace) -> int:
    """Runs `cdmpp analytic operator predict`; returns the exit code."""
    model = OperatorModel.at(args.model)
    devices, _ = asked_devices(labels_of(args.device), args.device_spec or (), {}, takes_all=False)
    labels = [device.name for device in devices]
    operators = make_operators(
        [args.op] * len(labels),
        {name: [size] * len(labels) for name, size in parse_shape(args.shape).items()},
    )
    known = {device.name: hardware(device) for device in devices}
    seconds = model.predict(operators, np.array(labels), known, context=args.context)
    is_larger = operators_are_larger(model, operators, args.context)
    rows = []
    swept_model = SweptOperators(model)
    for place, (device, value, larger) in enumerate(zip(devices, seconds, is_larger, strict=True)):
        label, one = device.name, operators[np.array([place])]
        is_isolated = args.context == "isolated"
        swept = swept_model.correction(one, device, is_isolated=is_isolated)
        if swept is not None:
            value = max(float(swept[0][0]) * value, least_kernel_s(device))
        measured_as = model.measured_as(label, known[label])
        is_fitted = model.is_fitted(args.op, measured_as)
        errors, evidence = operator_errors(
            model, args.model, args.op, measured_as, args.context, is_larger=larger
        )
        if swept is not None and swept[1] is not None:
            errors = swept[1]
            evidence = Evidence(
                f"the sweep of {label}, {counted(errors.count, 'kernel')}, each eighth left out "
                "of the correction",
                True,
            )
        low_s, high_s = ends_of(errors, float(value))
        if low_s is not None:  # the interval's low end may be below the operator's lower bound
            low_s = min(float(value), max(low_s, _least_s(one, device)))
        rows.append(
            {
                "operator": args.op,
                "shape": args.shape,
                "device": label,
                "context": args.context,
                "latency_s": float(value),
                "low_s": low_s,
                "high_s": high_s,
                "interval_source": evidence.source,
                "out_of_distribution": larger,
                "device_was_measured": is_fitted or swept is not None,
                "is_corrected_by_sweep": swept is not None,
            }
        )
        if not args.json:
            mark = " !" if larger else ""
            note = "" if is_fitted else "   (unseen device: from similar devices)"
            note = note if swept is None else "   (corrected by its sweep)"
            text = f"{interval_text(float(value), low_s, high_s)}{mark}"
            print(f"{label:14}{text:>24}{note}\n  {evidence.sentence}")
    if args.json:
        print(json.dumps(rows))
    elif any(is_larger):
        print("! larger than every measured size: the interval may be too narrow")
    return 0


def _least_s(operator: Operators, device: DeviceSpec) -> float:
    """Returns the lower bound of one operator's latency, seconds."""
    return float(floor_on(device, least_work_of_operators(operator)).seconds[0])


def parse_shape(text: str) -> dict[str, float]:
    """Returns name -> size from a text such as `m=512,n=1024,k=1024`.

    Raises:
        UsageError: the text has another form.
    """
    form = "NAME=N,..., e.g. batch=1,m=512,n=1024,k=1024 or rows=4096,cols=1024"
    try:
        return {
            name: float(int(size)) for name, size in named_values(text, "--shape", form).items()
        }
    except ValueError:
        raise UsageError(f"--shape {text!r}: expected {form}") from None


def gpu_labels(values: Iterable[str]) -> list[str]:
    """Returns the registry's labels for the values of `--device A,B --device C`.

    Raises:
        DeviceError: a device is unknown.
    """
    return [spec.name for spec in get_devices(labels_of(values))]
