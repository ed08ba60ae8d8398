"""Split-conformal intervals: how far predictions were off on tasks that no weight was fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.operator_kinds import operator_kind
from cdmpp.datasets.samples import Samples

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DEFAULT_COVERAGE = 0.9
#: A group's scale counts as if this many tasks with the scale of all had been seen in it too.
_PRIOR_TASKS = 10.0
_LEAST_SCALE = 1e-6
_LEVELS = np.linspace(0.5, 1.0, 201)

#: Keys of `interval_metrics`.
INTERVAL_METRICS = ("interval_coverage", "interval_log_width")


@dataclass(frozen=True)
class Calibration:
    """Half widths of intervals on the log of latency: [latency / exp(h), latency x exp(h)].

    Attributes:
        coverage: share of programs of an unseen task that is to lie in its interval.
        tasks: tasks that the widths were measured on.
        samples: measured programs of them.
        level: quantile of the normalised errors that was taken, see `calibrate`.
        pooled: half width for a program of which neither device nor operator kind was seen.
        by_device: device label -> half width, for operator kinds that were not seen.
        by_operator: operator kind -> half width, for devices that were not seen.
        by_device_and_operator: device label -> operator kind -> half width.
    """

    coverage: float
    tasks: int
    samples: int
    level: float
    pooled: float
    by_device: dict[str, float]
    by_operator: dict[str, float]
    by_device_and_operator: dict[str, dict[str, float]]

    def half_width(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], the half width of each sample's group, in log seconds."""
        labels = [spec.name for spec in samples.devices]
        kinds = operator_kinds(samples)
        pairs = zip(samples.device.tolist(), kinds.tolist(), strict=True)
        return np.array([self._of_group(labels[device], kind) for device, kind in pairs])

    @property
    def widest(self) -> float:
        """Half width of the group with the widest interval, in log seconds."""
        groups = [value for row in self.by_device_and_operator.values() for value in row.values()]
        return max([self.pooled, *self.by_device.values(), *self.by_operator.values(), *groups])

    def _of_group(self, device: str, kind: str) -> float:
        row = self.by_device_and_operator.get(device, {})
        if kind in row:
            return row[kind]
        return self.by_device.get(device, self.by_operator.get(kind, self.pooled))


def calibrate(
    samples: Samples, predicted_s: FloatArray, *, coverage: float = DEFAULT_COVERAGE
) -> Calibration | None:
    """Returns intervals from predictions of measured tasks that the model was not fitted to.

    The error of a program is |log(predicted) - log(measured)|. Errors are divided by the scale of
    their (device, operator kind): the mean error of its tasks, drawn towards the product of the
    device's and the kind's own scales where there are few tasks. One quantile of these normalised
    errors, in which every task has the same weight however many programs it has, times its scale
    gives each group's half width.

    Programs of one task err together, so what counts is the number of tasks. The correction for
    their finite number: the level of the quantile is the least one at which intervals made from all
    tasks but one (scales included) cover `coverage` of the programs of the one left out, on
    average over tasks; never less than `coverage`.

    Args:
        samples: measured programs; no weight may have been fitted to them.
        predicted_s: float64 [N], seconds.
        coverage: share of the programs of an unseen task that is to be covered, in (0, 1).

    Returns:
        None when there are fewer than coverage / (1 - coverage) tasks (9 for 90 %): no number of
        errors then says where the interval must end.

    Source: split conformal prediction for groups of correlated samples (Dunn, Wasserman and
    Ramdas 2018; Lee, Barber and Willett 2023), with the leave-one-task-out level in place of their
    conservative bound.
    """
    tasks, owner = np.unique(samples.task_id, return_inverse=True)
    if len(tasks) < least_tasks(coverage):
        return None
    error = np.abs(np.log(predicted_s) - np.log(samples.latency_s))
    table = _ErrorTable.of(samples, error, owner, len(tasks))
    level = _level(table, error, owner, samples.device, coverage)
    scale = table.scales(np.ones(len(tasks), bool))
    kind = table.kind[owner]
    factor = _quantile(error / scale.pair[samples.device, kind], owner, level)
    labels = [spec.name for spec in samples.devices]
    present = np.unique(samples.device).tolist()
    return Calibration(
        coverage=coverage,
        tasks=len(tasks),
        samples=len(samples),
        level=level,
        pooled=factor * scale.all,
        by_device={labels[d]: factor * float(scale.device[d]) for d in present},
        by_operator={name: factor * float(scale.kind[k]) for k, name in enumerate(table.kinds)},
        by_device_and_operator={
            labels[d]: {
                name: factor * float(scale.pair[d, k]) for k, name in enumerate(table.kinds)
            }
            for d in present
        },
    )


def least_tasks(coverage: float) -> int:
    """Returns how many tasks an interval of that coverage needs at least."""
    return math.ceil(round(coverage / (1.0 - coverage), 6))


def operator_kinds(samples: Samples) -> NDArray[np.object_]:
    """Returns object [N], the kind of each sample's operator."""
    operators = samples.programs.operator[samples.program]
    kinds = {str(name): operator_kind(str(name)) for name in set(operators.tolist())}
    return np.array([kinds[str(name)] for name in operators], object)


def interval_metrics(
    samples: Samples, low_s: FloatArray, high_s: FloatArray
) -> dict[str, float | None]:
    """Returns `interval_coverage`, the share of measured latencies in [low, high], and
    `interval_log_width`, log(high / low); both are means over tasks of means over programs, None
    without samples or where an interval is NaN.
    """
    if len(samples) == 0 or not np.all(np.isfinite(low_s) & np.isfinite(high_s)):
        return dict.fromkeys(INTERVAL_METRICS)
    _, owner = np.unique(samples.task_id, return_inverse=True)
    is_inside = (low_s <= samples.latency_s) & (samples.latency_s <= high_s)
    return {
        "interval_coverage": float(_task_means(is_inside.astype(np.float64), owner).mean()),
        "interval_log_width": float(_task_means(np.log(high_s / low_s), owner).mean()),
    }


def add_interval_metrics(
    values: dict[str, Any], samples: Samples, low_s: FloatArray, high_s: FloatArray
) -> None:
    """Adds `interval_metrics` to a metrics object and to those of each device under
    `by_device`.
    """
    values.update(interval_metrics(samples, low_s, high_s))
    for index, spec in enumerate(samples.devices):
        if spec.name in values["by_device"]:
            rows = samples.device == index
            found = interval_metrics(samples.take(rows), low_s[rows], high_s[rows])
            values["by_device"][spec.name].update(found)


@dataclass(frozen=True)
class _Scales:
    """Mean errors, drawn towards their parents: of all, per device, per kind, per pair."""

    all: float
    device: FloatArray
    kind: FloatArray
    pair: FloatArray


@dataclass(frozen=True)
class _ErrorTable:
    """Mean error of each (task, device).

    Attributes:
        mean: float64 [T, D], NaN where a task was not measured on a device.
        kind: int64 [T], index into `kinds`.
        kinds: names of the operator kinds, sorted.
    """

    mean: FloatArray
    kind: IntArray
    kinds: list[str]

    @classmethod
    def of(cls, samples: Samples, error: FloatArray, owner: IntArray, tasks: int) -> _ErrorTable:
        devices = len(samples.devices)
        cell = owner * devices + samples.device
        count = np.bincount(cell, minlength=tasks * devices)
        total = np.bincount(cell, error, minlength=tasks * devices)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        kinds, kind = np.unique(operator_kinds(samples).astype(str), return_inverse=True)
        kind_of_task = np.zeros(tasks, np.int64)
        kind_of_task[owner] = kind
        return cls(mean.reshape(tasks, devices), kind_of_task, [str(name) for name in kinds])

    def scales(self, chosen: NDArray[np.bool_]) -> _Scales:
        """Returns the scales from the chosen tasks."""
        mean = self.mean[chosen]
        is_there = np.isfinite(mean)
        filled = np.where(is_there, mean, 0.0)
        of_task = filled.sum(axis=1) / np.maximum(is_there.sum(axis=1), 1)
        everything = max(float(of_task.mean()), _LEAST_SCALE)
        device = _drawn(filled.sum(axis=0), is_there.sum(axis=0), everything)
        member = self.kind[chosen][:, None] == np.arange(len(self.kinds))[None, :]
        kind = _drawn(of_task @ member, member.sum(axis=0), everything)
        parent = device[:, None] * kind[None, :] / everything
        pair = _drawn(
            filled.T @ member.astype(np.float64),
            is_there.T.astype(np.float64) @ member.astype(np.float64),
            parent,
        )
        return _Scales(everything, device, kind, pair)


def _drawn(total: NDArray[Any], count: NDArray[Any], parent: FloatArray | float) -> FloatArray:
    """Returns the means total / count, drawn towards the parent where the count is small."""
    return np.asarray((total + _PRIOR_TASKS * parent) / (count + _PRIOR_TASKS), np.float64)


def _level(
    table: _ErrorTable,
    error: FloatArray,
    owner: IntArray,
    device: IntArray,
    coverage: float,
) -> float:
    """Returns the level of the quantile, see `calibrate`."""
    levels = _LEVELS[coverage - 1e-9 <= _LEVELS]
    covered = np.zeros(len(levels))
    tasks = len(table.kind)
    for task in range(tasks):
        inside = owner != task
        scale = table.scales(np.arange(tasks) != task)
        normalised = error / scale.pair[device, table.kind[owner]]
        bound = _quantiles(normalised[inside], owner[inside], levels)
        covered += np.mean(normalised[~inside][:, None] <= bound[None, :], axis=0)
    enough = np.flatnonzero(covered / tasks >= coverage - 1e-9)
    return float(levels[enough[0]] if len(enough) else 1.0)


def _quantile(values: FloatArray, owner: IntArray, level: float) -> float:
    return float(_quantiles(values, owner, np.array([level]))[0])


def _quantiles(values: FloatArray, owner: IntArray, levels: FloatArray) -> FloatArray:
    """Returns the quantiles of values in which each owner has the same weight."""
    count = np.bincount(owner)
    order = np.argsort(values, kind="stable")
    weight = np.cumsum(1.0 / count[owner[order]])
    place = np.searchsorted(weight / weight[-1], levels - 1e-9)
    return np.asarray(values[order][np.minimum(place, len(values) - 1)])


def _task_means(values: FloatArray, owner: IntArray) -> FloatArray:
    return np.asarray(np.bincount(owner, values) / np.bincount(owner))
