"""`cdmpp evaluate`: judges a saved model on any measured dataset."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli._options import add_data_options, add_output_options, is_quiet

if TYPE_CHECKING:
    from cdmpp.datasets.samples import Samples


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
    parser.add_argument("--model", type=Path, required=True, metavar="RUN", help="run folder")
    add_data_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.training.run_folder import load_model

    model, card = load_model(args.model)

    from cdmpp.cli._data import samples_of
    from cdmpp.training.judge import judge

    samples = samples_of(args)
    values = judge(samples, model.predict(samples))
    overlap = _overlap(samples, card.training_tasks)
    if args.json:
        by_device = values.pop("by_device")
        labels = {spec.name: index for index, spec in enumerate(samples.devices)}
        values["overlap_with_training"] = overlap
        values["by_device"] = {
            label: {
                **metrics,
                "overlap_with_training": _overlap(
                    samples.take(samples.device == labels[label]), card.training_tasks
                ),
            }
            for label, metrics in by_device.items()
        }
        print(json.dumps(values, allow_nan=False))
        return 0
    _print(args, values, card.kind, samples, overlap)
    return 0


def _overlap(samples: Samples, training_tasks: frozenset[str]) -> int:
    """Returns how many tasks of the samples were in the model's training part."""
    from cdmpp.training.run_folder import task_digests

    return len(task_digests(samples) & training_tasks)


def _print(
    args: argparse.Namespace, values: dict[str, Any], kind: str, samples: Samples, overlap: int
) -> None:
    import numpy as np

    from cdmpp.cli._tables import print_groups
    from cdmpp.report.tables import metric_group

    values["tasks"] = len(np.unique(samples.task_id))
    for index, spec in enumerate(samples.devices):
        if spec.name in values["by_device"]:
            rows = samples.device == index
            values["by_device"][spec.name]["tasks"] = len(np.unique(samples.task_id[rows]))
    groups = [metric_group("all devices", {kind: [values]}, model=kind)]
    groups += [
        metric_group(label, {kind: [metrics]}, model=kind)
        for label, metrics in values["by_device"].items()
    ]
    print_groups(groups if len(groups) > 2 else groups[1:])
    print(f"{overlap} of {values['tasks']} tasks were in the training part of {args.model}")
    if overlap and not is_quiet(args):
        print("(its test part alone is judged in its report.html and metrics.json)")
