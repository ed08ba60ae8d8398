"""Judging a trained model on any samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cdmpp.calibration.intervals import add_interval_metrics
from cdmpp.datasets.judge import judge
from cdmpp.datasets.samples import Samples
from cdmpp.models.base import CostModel
from cdmpp.models.parts.checks import as_learned
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.requested_device import check_kinds
from cdmpp.predict.saved_model import task_digests
from cdmpp.training.baselines import judge_lines


@dataclass(frozen=True)
class EvaluateOptions:
    """What is judged beside a model.

    Attributes:
        baselines: kinds that the model's run keeps, as fitted on its training part.
    """

    baselines: tuple[str, ...] = ()


def evaluate(
    trained: TrainedModel, samples: Samples, baselines: Mapping[str, CostModel] | None = None
) -> dict[str, Any]:
    """Returns the metrics of `judge` and of the intervals, for all samples and by device, each with
    `overlap_with_training`: how many tasks were in the model's training part.

    The model's own descriptions of the devices that it knows are used.

    Args:
        baselines: lines judged beside it; with any, `baselines` has line -> metrics, and
            `recognised` what `judge_lines` says of those that answer only some samples.

    Raises:
        DeviceError: a device is of a kind that the model was not trained on.
    """
    known = {spec.name: spec for spec in (*trained.card.described, *trained.card.devices)}
    devices = tuple(known.get(spec.name, spec) for spec in samples.devices)
    samples = as_learned(trained.card.feature_schema, replace(samples, devices=devices))
    check_kinds([devices[index] for index in np.unique(samples.device)], trained.card)
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
    if baselines:
        lines = {trained.card.kind: estimates.latency_s}
        lines |= {kind: model.predict(samples) for kind, model in baselines.items()}
        whole, values["recognised"] = judge_lines(samples, lines)
        values["baselines"] = {kind: whole[kind] for kind in baselines if kind in whole}
    return values


def _overlap(samples: Samples, trained: TrainedModel) -> int:
    return len(task_digests(samples) & trained.card.training_tasks)
