"""`cdmpp evaluate`: judges a saved model on any measured dataset."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.api.model import load
from cdmpp.cli.shared.options import add_data_options, add_model_option, add_output_options
from cdmpp.cli.shared.samples import asked_labels, samples_of
from cdmpp.cli.shared.tables import print_metric_tables
from cdmpp.config import load_config
from cdmpp.datasets.samples import Samples
from cdmpp.models.registry import judged_baselines
from cdmpp.predict.estimates import TrainedModel
from cdmpp.report.recognised import judged_table, on_device
from cdmpp.training.baselines import load_baselines
from cdmpp.training.evaluate import EvaluateOptions, evaluate


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `cdmpp evaluate`."""
    parser.description = (
        "Predicts every measured program of a dataset and compares. Says how many of its tasks "
        "were in the model's training part: on those the errors are too good."
    )
    add_model_option(parser)
    add_data_options(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="baselines=[conv,embedding,roofline,constant]: those of the run, judged beside it",
    )  # fmt: skip
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    options = load_config(EvaluateOptions, overrides=args.set)
    model = load(args.model)
    trained = model.trained()
    asked = judged_baselines(options.baselines)
    kinds = [kind for kind in asked if kind != trained.card.kind]
    baselines = load_baselines(model.folder, kinds)
    samples = samples_of(
        args.dataset, asked_labels(args.dataset, args.device), cache_dir=args.cache,
        network_info=args.network_info, jobs=args.jobs, may_install=not args.no_install,
        is_quiet=args.json or args.quiet,
    )  # fmt: skip
    values = evaluate(trained, samples, baselines)
    if args.json:
        print(json.dumps(values, allow_nan=False))
        return 0
    _print_tables(values, trained.card.kind, samples)
    tasks = len(np.unique(samples.task_id))
    print(_interval_sentence(values, trained))
    print(_overlap_sentence(values["overlap_with_training"], tasks, args.model))
    if values["overlap_with_training"] and not (args.json or args.quiet):
        print("(its test part alone is judged in its report.html and metrics.json)")
    return 0


def _print_tables(values: dict[str, Any], kind: str, samples: Samples) -> None:
    recognised = values.get("recognised", {})
    lines = {kind: values, **values.get("baselines", {})}

    def counted(found: dict[str, Any], rows: Any) -> dict[str, Any]:
        return {**found, "tasks": len(np.unique(samples.task_id[rows]))}

    whole = {line: counted(found, slice(None)) for line, found in lines.items()}
    groups = [judged_table("all devices", whole, recognised, model=kind)]
    for index, spec in enumerate(samples.devices):
        if spec.name in values["by_device"]:
            own = {
                line: counted(found["by_device"][spec.name], samples.device == index)
                for line, found in lines.items()
            }
            groups.append(
                judged_table(spec.name, own, on_device(recognised, spec.name), model=kind)
            )
    print_metric_tables(groups if len(groups) > 2 else groups[1:])


def _interval_sentence(values: dict[str, Any], trained: TrainedModel) -> str:
    calibration = trained.card.calibration
    if calibration is None or values["interval_coverage"] is None:
        return "no intervals: the model was calibrated on too few tasks, or by an older version"
    factor = math.exp(values["interval_log_width"] / 2.0)
    return (
        f"{100 * calibration.coverage:.0f} % intervals hold "
        f"{100 * values['interval_coverage']:.1f} % of a task's programs (mean over tasks), "
        f"typically a factor {factor:.2f} each way"
    )


def _overlap_sentence(overlap: int, tasks: int, model: Path) -> str:
    """Returns whether the result may be called held-out."""
    if overlap == 0:
        return f"held out: none of the {tasks} tasks was in the training part of {model}"
    return (
        f"NOT held out: {overlap} of {tasks} tasks were in the training part of {model}, so these "
        "errors are too small for tasks that it has not seen"
    )
