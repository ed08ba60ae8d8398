"""Split-conformal intervals from prediction errors on tasks that no weight was fitted to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.conformal import half_widths, least_owners, owner_means
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.tenset.operator_kinds import operator_kind

DEFAULT_COVERAGE = 0.9

#: Added to errors and disagreements (log seconds) before logarithms: parts may agree by chance.
_LEAST_ERROR, _LEAST_DISAGREEMENT = 0.02, 0.03

#: Keys of `interval_metrics`.
INTERVAL_METRICS = ("interval_coverage", "interval_log_width")


@dataclass(frozen=True)
class LatencyCalibration:
    """Half widths of intervals on the log of latency: [latency / exp(h), latency x exp(h)].

    Attributes:
        coverage: target share of the programs of an unseen task inside their intervals.
        tasks: number of calibration tasks.
        samples: number of measured programs of these tasks.
        level: quantile level of the normalised errors, see `calibrate`.
        pooled: half width for programs of an unseen device and operator kind.
        by_device: device label -> half width for unseen operator kinds.
        by_operator: operator kind -> half width for unseen devices.
        by_device_and_operator: device label -> operator kind -> half width.
        mean_ratio: total measured over total predicted seconds of a task, median over tasks, mean
            over devices. A prediction that minimises the percentage error is below the expected
            latency, which sums over programs need.
        mean_ratio_by_device: device label -> the same ratio on one device.
        strange_factor: factor on the half width of programs unlike all training tasks
            (`cdmpp.calibration.left_out_kinds`); None if not measured.
        usual_disagreement: disagreement of the model's parts
            (`CostModel.predict_with_disagreement`) at which the half widths hold.
        disagreement_exponent: half widths grow with this power of the disagreement; 0 for a model
            of one part.
    """

    coverage: float
    tasks: int
    samples: int
    level: float
    pooled: float
    by_device: dict[str, float]
    by_operator: dict[str, float]
    by_device_and_operator: dict[str, dict[str, float]]
    mean_ratio: float = 1.0
    mean_ratio_by_device: dict[str, float] = field(default_factory=dict)
    strange_factor: float | None = None
    usual_disagreement: float = 1.0
    disagreement_exponent: float = 0.0

    def mean_s(self, samples: Samples, predicted_s: FloatArray) -> FloatArray:
        """Returns float64 [N], the expected (mean) seconds for predicted seconds."""
        ratios = [
            self.mean_ratio_by_device.get(spec.name, self.mean_ratio) for spec in samples.devices
        ]
        return np.asarray(predicted_s * np.array(ratios)[samples.device])

    def half_width(self, samples: Samples, disagreement: FloatArray | None = None) -> FloatArray:
        """Returns float64 [N], the half width of each sample's group, in log seconds.

        Args:
            disagreement: float64 [N], disagreement of the model's parts; None = the usual one.
        """
        labels = [spec.name for spec in samples.devices]
        kinds = operator_kinds(samples)
        pairs = zip(samples.device.tolist(), kinds.tolist(), strict=True)
        width = np.array([self._of_group(labels[device], kind) for device, kind in pairs])
        if disagreement is None:
            return width
        ratio = (disagreement + _LEAST_DISAGREEMENT) / self.usual_disagreement
        return np.asarray(width * ratio**self.disagreement_exponent)

    @property
    def widest(self) -> float:
        """Half width of the group with the widest interval, in log seconds."""
        groups = [value for row in self.by_device_and_operator.values() for value in row.values()]
        return max([self.pooled, *self.by_device.values(), *self.by_operator.values(), *groups])

    def of_the_worst_device(self, labels: Collection[str] | None = None) -> LatencyCalibration:
        """Returns intervals for devices without measured errors.

        Each operator kind gets the width of the device with the widest interval for it.

        Args:
            labels: devices of `by_device` to use; None = all.
        """
        names = self.by_device if labels is None else labels
        rows = [self.by_device_and_operator[name] for name in names]
        return replace(
            self,
            pooled=max(self.by_device[name] for name in names),
            by_operator={kind: max(row[kind] for row in rows) for kind in self.by_operator},
            by_device={},
            by_device_and_operator={},
            mean_ratio_by_device={},
        )

    def _of_group(self, device: str, kind: str) -> float:
        row = self.by_device_and_operator.get(device, {})
        if kind in row:
            return row[kind]
        return self.by_device.get(device, self.by_operator.get(kind, self.pooled))


def calibrate(
    samples: Samples,
    predicted_s: FloatArray,
    disagreement: FloatArray | None = None,
    *,
    coverage: float = DEFAULT_COVERAGE,
) -> LatencyCalibration | None:
    """Calibrates intervals on predictions of measured tasks that the model was not fitted to.

    The error of a program is |log(predicted) - log(measured)|. Errors are divided by the scale of
    their (device, operator kind): the mean error of its tasks, shrunk towards the product of the
    scales of the device and the kind if it has few tasks. For a model of several parts, errors are
    first divided by a power of the parts' disagreement, fitted by least squares within these
    groups. The half width of a group is its scale times one quantile of the normalised errors, in
    which every task has the same weight.

    Errors of the programs of one task are correlated, so the number of tasks counts. To correct for
    their finite number, the quantile level is the lowest at which intervals from all tasks but one
    (scales included) cover `coverage` of the left-out task's programs, on average over tasks; it is
    at least `coverage`.

    Args:
        samples: measured programs; no weight may have been fitted to them.
        predicted_s: float64 [N], seconds.
        disagreement: float64 [N], disagreement of the model's parts; None for a model of one part.
        coverage: target share of covered programs of an unseen task, in (0, 1).

    Returns:
        The intervals; None with fewer than coverage / (1 - coverage) tasks (9 for 90 %), which
        cannot bound the interval.

    Source: split conformal prediction for groups of correlated samples (Dunn, Wasserman and
    Ramdas 2018; Lee, Barber and Willett 2023), with the leave-one-task-out level instead of their
    conservative bound.
    """
    tasks, owner = np.unique(samples.task_id, return_inverse=True)
    if len(tasks) < least_tasks(coverage):
        return None
    kinds, kind = np.unique(operator_kinds(samples).astype(str), return_inverse=True)
    kind_of_task = np.zeros(len(tasks), np.int64)
    kind_of_task[owner] = kind
    error = np.abs(np.log(predicted_s) - np.log(samples.latency_s))
    usual, exponent = 1.0, 0.0
    if disagreement is not None:
        group = samples.device * len(kinds) + kind
        usual, exponent = _growth(error, disagreement, owner, group)
        error = error / ((disagreement + _LEAST_DISAGREEMENT) / usual) ** exponent
    widths = half_widths(
        error,
        owner,
        samples.device,
        kind_of_task,
        columns=len(samples.devices),
        kinds=len(kinds),
        coverage=coverage,
    )
    labels = [spec.name for spec in samples.devices]
    names = [str(name) for name in kinds]
    present = np.unique(samples.device).tolist()
    ratios = {device: _mean_ratio(samples, predicted_s, device) for device in present}
    return LatencyCalibration(
        coverage=coverage,
        tasks=len(tasks),
        samples=len(samples),
        level=widths.level,
        pooled=widths.pooled,
        by_device={labels[d]: float(widths.by_column[d]) for d in present},
        by_operator=dict(zip(names, widths.by_row_kind.tolist(), strict=True)),
        by_device_and_operator={
            labels[d]: dict(zip(names, widths.by_cell[d].tolist(), strict=True)) for d in present
        },
        mean_ratio=float(np.mean(list(ratios.values()))),
        mean_ratio_by_device={labels[d]: ratios[d] for d in present},
        usual_disagreement=usual,
        disagreement_exponent=exponent,
    )


def _growth(
    error: FloatArray, disagreement: FloatArray, owner: IntArray, group: IntArray
) -> tuple[float, float]:
    """Returns the usual disagreement and the exponent with which errors grow with it, at least 0.

    Every task has the same weight.
    """
    weight = 1.0 / np.bincount(owner)[owner]
    x, y = np.log(disagreement + _LEAST_DISAGREEMENT), np.log(error + _LEAST_ERROR)
    usual = float(np.exp(np.average(x, weights=weight)))
    _, place = np.unique(group, return_inverse=True)
    total = np.bincount(place, weight)
    x, y = (one - (np.bincount(place, weight * one) / total)[place] for one in (x, y))
    spread = float((weight * x * x).sum())
    return usual, max(0.0, float((weight * x * y).sum()) / spread) if spread > 0.0 else 0.0


def _mean_ratio(samples: Samples, predicted_s: FloatArray, device: int) -> float:
    """Returns the median over a device's tasks of total measured over total predicted seconds.

    A mean over tasks would depend on a few outliers.
    """
    rows = samples.device == device
    _, owner = np.unique(samples.task_id[rows], return_inverse=True)
    measured = np.bincount(owner, samples.latency_s[rows])
    return float(np.median(measured / np.bincount(owner, predicted_s[rows])))


def least_tasks(coverage: float) -> int:
    """Returns the minimum number of tasks for an interval of some coverage."""
    return least_owners(coverage)


def operator_kinds(samples: Samples) -> NDArray[np.object_]:
    """Returns object [N], the kind of each sample's operator."""
    operators = samples.programs.operator[samples.program]
    kinds = {str(name): operator_kind(str(name)) for name in set(operators.tolist())}
    return np.array([kinds[str(name)] for name in operators], object)


def interval_metrics(
    samples: Samples, low_s: FloatArray, high_s: FloatArray
) -> dict[str, float | None]:
    """Returns the coverage and the width of intervals.

    `interval_coverage` is the share of measured latencies in [low, high], `interval_log_width` is
    log(high / low). Both are means over tasks of means over programs; None without samples or if an
    interval is not finite.
    """
    if len(samples) == 0 or not np.all(np.isfinite(low_s) & np.isfinite(high_s)):
        return dict.fromkeys(INTERVAL_METRICS)
    _, owner = np.unique(samples.task_id, return_inverse=True)
    is_inside = (low_s <= samples.latency_s) & (samples.latency_s <= high_s)
    return {
        "interval_coverage": float(owner_means(is_inside.astype(np.float64), owner).mean()),
        "interval_log_width": float(owner_means(np.log(high_s / low_s), owner).mean()),
    }


def add_interval_metrics(
    values: dict[str, Any], samples: Samples, low_s: FloatArray, high_s: FloatArray
) -> None:
    """Adds `interval_metrics` to a metrics object and to each device's under `by_device`."""
    values.update(interval_metrics(samples, low_s, high_s))
    for index, spec in enumerate(samples.devices):
        if spec.name in values["by_device"]:
            rows = samples.device == index
            found = interval_metrics(samples.take(rows), low_s[rows], high_s[rows])
            values["by_device"][spec.name].update(found)
