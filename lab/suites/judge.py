"""Metrics of leaderboards: by device, operator and latency, of networks, by unit of a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.judge import judge_in_detail, judged
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import network_family, plain_network, workload_of
from cdmpp.datasets.tenset.operator_kinds import operator_kind
from cdmpp.metrics import (
    Judged,
    absolute_percentage_error,
    mean_metrics,
    summarise,
    top_k_latencies,
)

FloatArray = NDArray[np.float64]

#: Metrics of an order, and counts: what there is to say of scores that are no times.
_RANKS_AND_COUNTS = (
    "n", "tasks", "spearman_by_task", "pairwise_accuracy", "top1_score", "top5_score",
    "top1_regret",
)  # fmt: skip


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


def judge_networks(
    samples: Samples, predicted_s: FloatArray, networks: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Returns the top-k scores of whole networks, by device label, in both definitions in use.

    Keys of a device: `n` and `tasks` (of the networks that are there), `mean_top1` and `mean_top5`
    (unweighted mean of the networks' scores, as Tenset), `pooled_top1` and `pooled_top5` (one sum
    of latencies over all networks above, one below, as TLP), and `networks` (name -> `tasks`,
    `top1`, `top5`). A network's score is that of `cdmpp.metrics.top_k_score` with its own weights.

    Args:
        networks: full names; those without a measured task on a device are left out there.
    """
    weights = {
        name: np.array(
            [
                sum(weight for other, weight in entry if plain_network(other) == name)
                for entry in samples.programs.networks
            ],
            np.float64,
        )
        for name in map(plain_network, networks)
    }
    everything = judged(samples, predicted_s)
    found: dict[str, dict[str, Any]] = {}
    for index, spec in enumerate(samples.devices):
        part = everything.take(samples.device == index)
        there = {name: weight for name, weight in weights.items() if weight[part.task].any()}
        if there:
            is_tested = np.sum(list(there.values()), axis=0)[part.task] > 0
            found[spec.name] = {
                "n": int(is_tested.sum()),
                "tasks": len(np.unique(part.task[is_tested])),
                **_network_scores(part, there),
            }
    return found


def _network_scores(part: Judged, weights: dict[str, FloatArray]) -> dict[str, Any]:
    scores: dict[str, Any] = {
        "networks": {
            name: {"tasks": int((weight[np.unique(part.task)] > 0).sum())}
            for name, weight in weights.items()
        }
    }
    for k in (1, 5):
        sums = {name: top_k_latencies(part, weight, k) for name, weight in weights.items()}
        for name, (best, chosen) in sums.items():
            scores["networks"][name][f"top{k}"] = best / chosen
        scores[f"mean_top{k}"] = float(np.mean([best / chosen for best, chosen in sums.values()]))
        all_best, all_chosen = np.sum(list(sums.values()), axis=0).tolist()
        scores[f"pooled_top{k}"] = all_best / all_chosen
    return scores


def ranks_only(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns what `judge_everywhere` said of scores that are no times: all but ranks is None."""

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

    A unit is what a split holds out as a whole: a workload, or a network where `networks` names
    those that are held out (a task of several belongs to the first).
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
