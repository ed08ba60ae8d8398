"""Evaluation of predictions on samples: connects `Samples` and the metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.metrics import (
    Judged,
    pairwise_accuracy,
    summarise_by_device,
    task_weights,
    top1_regret,
)


def judged(samples: Samples, predicted_s: FloatArray) -> Judged:
    """Returns the predictions with the measurements of `samples`, as input of the metrics."""
    return Judged(
        measured_s=samples.latency_s,
        predicted_s=predicted_s,
        task=samples.task_id,
        device=samples.device,
        task_weight=task_weights(samples.programs.networks),
    )


def judge(samples: Samples, predicted_s: FloatArray) -> dict[str, Any]:
    """Returns the metrics of all samples, and of each device under `by_device`."""
    labels = [spec.name for spec in samples.devices]
    everything, by_device = summarise_by_device(judged(samples, predicted_s), labels)
    return {**everything, "by_device": by_device}


def judge_in_detail(samples: Samples, predicted_s: FloatArray) -> dict[str, Any]:
    """Returns the metrics of `judge`, plus the number of tasks, pairwise accuracy and top-1 regret,
    overall and by device.
    """
    values = judge(samples, predicted_s)
    everything = judged(samples, predicted_s)
    _add_detail(values, everything)
    for index, spec in enumerate(samples.devices):
        if spec.name in values["by_device"]:
            _add_detail(values["by_device"][spec.name], everything.take(samples.device == index))
    return values


def oracle_task_median(samples: Samples) -> FloatArray:
    """Returns float64 [N], the median measured latency of each sample's task on its device.

    It uses the measurements: its error is that of a model that knows each task but no schedule.
    """
    predicted_s = np.empty(len(samples))
    group = samples.task_id * len(samples.devices) + samples.device
    order = np.argsort(group, kind="stable")
    boundaries = np.flatnonzero(np.diff(group[order])) + 1
    for rows in np.split(order, boundaries):
        if len(rows):
            predicted_s[rows] = np.median(samples.latency_s[rows])
    return predicted_s


def _add_detail(values: dict[str, Any], subset: Judged) -> None:
    values["tasks"] = len(np.unique(subset.task))
    values["pairwise_accuracy"] = pairwise_accuracy(subset)
    values["top1_regret"] = top1_regret(subset)
