"""Judging a trained model on any samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cdmpp.calibration.intervals import add_interval_metrics
from cdmpp.datasets.judge import judge
from cdmpp.datasets.samples import Samples
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.saved_model import task_digests


def evaluate(trained: TrainedModel, samples: Samples) -> dict[str, Any]:
    """Returns the metrics of `judge` and of the intervals, for all samples and by device, each with
    `overlap_with_training`: how many tasks were in the model's training part.

    The model's own descriptions of the devices that it knows are used.
    """
    known = {spec.name: spec for spec in (*trained.card.described, *trained.card.devices)}
    devices = tuple(known.get(spec.name, spec) for spec in samples.devices)
    samples = replace(samples, devices=devices)
    estimates = trained.estimate(samples)
    values = judge(samples, estimates.latency_s)
    by_device = values.pop("by_device")
    values["overlap_with_training"] = _overlap(samples, trained)
    values["by_device"] = by_device
    for index, spec in enumerate(devices):
        if spec.name in by_device:
            own = samples.take(samples.device == index)
            by_device[spec.name]["overlap_with_training"] = _overlap(own, trained)
    add_interval_metrics(values, samples, estimates.low_s, estimates.high_s)
    return values


def _overlap(samples: Samples, trained: TrainedModel) -> int:
    return len(task_digests(samples) & trained.card.training_tasks)
