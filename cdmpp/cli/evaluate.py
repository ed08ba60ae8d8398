"""`cdmpp evaluate`: judges a saved model on any measured dataset."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.shared.options import add_data_options, add_output_options, is_quiet

if TYPE_CHECKING:
    from cdmpp.datasets.samples import Samples
    from cdmpp.training.estimates import TrainedModel


def register(subparsers: Any) -> None:
    """Adds the `evaluate` command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="judge a trained model on measured programs",
        description=(
            "Predicts every measured program of a dataset and compares. Says how many of its "
            "tasks were "
            "in the model's training part: on those the errors are too good."
        ),
    )
    parser.add_argument(
        "--model", type=Path, required=True, metavar="RUN", help="run folder, or pretrained"
    )
    add_data_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.pretrained import model_folder
    from cdmpp.training.estimates import load_trained

    trained = load_trained(model_folder(args.model))

    from cdmpp.cli.dataset.samples import samples_of
    from cdmpp.datasets.judge import judge
    from cdmpp.training.uncertainty.calibration import add_interval_metrics

    samples = _as_trained(samples_of(args), trained)
    estimates = trained.estimate(samples)
    values = judge(samples, estimates.latency_s)
    overlap = _overlap(samples, trained.card.training_tasks)
    by_device = values.pop("by_device")
    values["overlap_with_training"] = overlap
    values["by_device"] = by_device
    for index, spec in enumerate(samples.devices):
        if spec.name in by_device:
            own = samples.take(samples.device == index)
            tasks = _overlap(own, trained.card.training_tasks)
            by_device[spec.name]["overlap_with_training"] = tasks
    add_interval_metrics(values, samples, estimates.low_s, estimates.high_s)
    if args.json:
        print(json.dumps(values, allow_nan=False))
        return 0
    _print(args, values, trained, samples)
    return 0


def _as_trained(samples: Samples, trained: TrainedModel) -> Samples:
    """Returns the samples with the model's own descriptions of the devices that it knows."""
    from dataclasses import replace

    known = {spec.name: spec for spec in trained.card.devices}
    devices = tuple(known.get(spec.name, spec) for spec in samples.devices)
    return replace(samples, devices=devices)


def _overlap(samples: Samples, training_tasks: frozenset[str]) -> int:
    """Returns how many tasks of the samples were in the model's training part."""
    from cdmpp.training.run_folder import task_digests

    return len(task_digests(samples) & training_tasks)


def _print(
    args: argparse.Namespace, values: dict[str, Any], trained: TrainedModel, samples: Samples
) -> None:
    import numpy as np

    from cdmpp.cli.shared.tables import print_metric_tables
    from cdmpp.report.tables import metric_table

    kind = trained.card.kind
    values["tasks"] = len(np.unique(samples.task_id))
    for index, spec in enumerate(samples.devices):
        if spec.name in values["by_device"]:
            rows = samples.device == index
            values["by_device"][spec.name]["tasks"] = len(np.unique(samples.task_id[rows]))
    groups = [metric_table("all devices", {kind: [values]}, model=kind)]
    groups += [
        metric_table(label, {kind: [metrics]}, model=kind)
        for label, metrics in values["by_device"].items()
    ]
    print_metric_tables(groups if len(groups) > 2 else groups[1:])
    print(_interval_sentence(values, trained))
    print(_overlap_sentence(values["overlap_with_training"], values["tasks"], args.model))
    if values["overlap_with_training"] and not is_quiet(args):
        print("(its test part alone is judged in its report.html and metrics.json)")


def _interval_sentence(values: dict[str, Any], trained: TrainedModel) -> str:
    import math

    calibration = trained.card.calibration
    if calibration is None or values["interval_coverage"] is None:
        return "no intervals: the model was calibrated on too few tasks, or by an older version"
    factor = math.exp(values["interval_log_width"] / 2.0)
    return (
        f"{100 * calibration.coverage:.0f} % intervals hold "
        f"{100 * values['interval_coverage']:.1f} % of a task's programs (mean over tasks), "
        f"typically a factor {factor:.2f} each way"
    )


def _overlap_sentence(overlap: int, tasks: int, model: Path | str) -> str:
    """Returns whether the result may be called held-out."""
    if overlap == 0:
        return f"held out: none of the {tasks} tasks was in the training part of {model}"
    return (
        f"NOT held out: {overlap} of {tasks} tasks were in the training part of {model}, so these "
        "errors are too small for tasks that it has not seen"
    )
