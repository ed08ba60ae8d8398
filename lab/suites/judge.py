"""Metrics of leaderboards: by device, operator and latency, by unit of a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.judge import judge_in_detail, judged
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import network_family, workload_of
from cdmpp.datasets.tenset.operator_kinds import operator_kind
from cdmpp.metrics import (
    absolute_percentage_error,
    mean_metrics,
    summarise,
)

FloatArray = NDArray[np.float64]

#: Counts and rank metrics: the metrics of scores that are not times.
_RANKS_AND_COUNTS = (
    "n", "tasks", "spearman_by_task", "pairwise_accuracy", "top1_score", "top5_score",
    "top1_regret",
)  # fmt: skip


def judge_everywhere(
    samples: Samples, predicted_s: FloatArray, *, few_workloads: int = 0
) -> dict[str, Any]:
    """Returns the metrics of a leaderboard.

    Keys: `all` (pooled samples of all devices), `mean` (over `mean_devices`, equally weighted),
    `mean_devices` (labels), `by_device` (label -> metrics) and `by_group` (`operator:KIND` and
    `latency:1e-4s`, the decade of measured latency -> metrics of the pooled samples).

    Args:
        few_workloads: devices with fewer workloads than this in `samples` are excluded from the
            mean, unless all have fewer.
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


def ranks_only(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of `judge_everywhere` with None for all but counts and ranks."""

    def kept(values: dict[str, Any]) -> dict[str, Any]:
        return {name: v if name in _RANKS_AND_COUNTS else None for name, v in values.items()}

    nested = {
        name: {key: kept(values) for key, values in metrics[name].items()}
        for name in ("by_device", "by_group")
    }
    return {**metrics, "all": kept(metrics["all"]), "mean": kept(metrics["mean"]), **nested}


def errors_by_unit(
    samples: Samples, predicted_s: FloatArray, networks: Sequence[str] = ()
) -> dict[str, dict[str, list[float]]]:
    """Returns device label -> unit -> [samples, sum of their absolute percentage errors].

    A unit is held out as a whole by a split: a workload, or one of the held-out `networks` (a task
    of several networks belongs to the alphabetically first).
    """
    tasks, present = samples.programs.tasks, np.unique(samples.task_id)
    if networks:
        held_out = {network_family(name) for name in networks}
        unit_of = {
            int(task): min(
                family
                for name, _ in samples.programs.networks[task]
                if (family := network_family(name)) in held_out
            )
            for task in present
        }
    else:
        unit_of = {int(task): workload_of(tasks[task]) for task in present}
    ape = absolute_percentage_error(samples.latency_s, predicted_s)
    found: dict[str, dict[str, list[float]]] = {}
    for index, spec in enumerate(samples.devices):
        for task in np.unique(samples.task_id[samples.device == index]).tolist():
            rows = (samples.device == index) & (samples.task_id == task)
            sums = found.setdefault(spec.name, {}).setdefault(unit_of[task], [0.0, 0.0])
            sums[0] += float(rows.sum())
            sums[1] += float(ape[rows].sum())
    return found


def mean_devices(samples: Samples, few_workloads: int) -> list[str]:
    """Returns the labels of the devices in the mean over devices, see `judge_everywhere`."""
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
