"""Judging predictions on samples: the bridge between `Samples` and the metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import workload_of
from cdmpp.datasets.tenset.operator_kinds import operator_kind
from cdmpp.metrics import (
    Judged,
    mean_metrics,
    pairwise_accuracy,
    summarise,
    summarise_by_device,
    task_weights,
    top1_regret,
)

FloatArray = NDArray[np.float64]


def judged(samples: Samples, predicted_s: FloatArray) -> Judged:
    """Returns the predictions beside the measurements of `samples`."""
    return Judged(
        measured_s=samples.latency_s,
        predicted_s=predicted_s,
        task=samples.task_id,
        device=samples.device,
        task_weight=task_weights(samples.programs.networks),
    )


def judge(samples: Samples, predicted_s: FloatArray) -> dict[str, Any]:
    """Returns the metrics of all samples, with those of each device under `by_device`."""
    labels = [spec.name for spec in samples.devices]
    everything, by_device = summarise_by_device(judged(samples, predicted_s), labels)
    return {**everything, "by_device": by_device}


def judge_in_detail(samples: Samples, predicted_s: FloatArray) -> dict[str, Any]:
    """Returns `judge` plus the number of tasks, the pairwise accuracy and the regret of the top-1
    pick, overall and by device.
    """
    values = judge(samples, predicted_s)
    everything = judged(samples, predicted_s)
    _add_detail(values, everything)
    for index, spec in enumerate(samples.devices):
        if spec.name in values["by_device"]:
            _add_detail(values["by_device"][spec.name], everything.take(samples.device == index))
    return values


def judge_everywhere(
    samples: Samples, predicted_s: FloatArray, *, few_workloads: int = 0
) -> dict[str, Any]:
    """Returns the metrics of a leaderboard.

    Keys: `all` (samples of all devices pooled), `mean` (over `mean_devices`, each device counting
    the same), `mean_devices` (labels), `by_device` (label -> metrics) and `by_group`
    (`operator:KIND` and `latency:1e-4s`, the decade of measured latency -> metrics of the pooled
    samples).

    Args:
        few_workloads: devices with fewer workloads than this in `samples` do not enter the mean,
            unless all have fewer.
    """
    detail = judge_in_detail(samples, predicted_s)
    by_device = detail.pop("by_device")
    chosen = mean_devices(samples, few_workloads)
    return {
        "all": detail,
        "mean": mean_metrics([by_device[label] for label in chosen]),
        "mean_devices": chosen,
        "by_device": by_device,
        "by_group": _by_group(samples, predicted_s),
    }


def mean_devices(samples: Samples, few_workloads: int) -> list[str]:
    """Returns the labels of the devices that enter a mean over devices, see `judge_everywhere`."""
    workloads = {}
    for index, spec in enumerate(samples.devices):
        tasks = np.unique(samples.task_id[samples.device == index])
        if len(tasks):
            names = {workload_of(samples.programs.tasks[task]) for task in tasks}
            workloads[spec.name] = len(names)
    enough = [label for label, count in workloads.items() if count >= few_workloads]
    return enough or list(workloads)


def _by_group(samples: Samples, predicted_s: FloatArray) -> dict[str, Any]:
    everything = judged(samples, predicted_s)
    kinds = {name: operator_kind(str(name)) for name in set(samples.programs.operator.tolist())}
    kind = np.array([kinds[name] for name in samples.programs.operator[samples.program]], object)
    decade = np.floor(np.log10(samples.latency_s)).astype(np.int64)
    groups = {f"operator:{name}": kind == name for name in sorted(set(kind.tolist()))}
    groups |= {f"latency:1e{step}s": decade == step for step in np.unique(decade).tolist()}
    found = {}
    for name, rows in groups.items():
        subset = everything.take(rows)
        found[name] = {**summarise(subset), "tasks": len(np.unique(subset.task))}
    return found


def oracle_task_median(samples: Samples) -> FloatArray:
    """Returns float64 [N], the median measured latency of each sample's task on its device.

    It looks at the answers: the error that is left when a model knows every task but no schedule.
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
