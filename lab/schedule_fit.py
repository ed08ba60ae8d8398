"""Fits the times of GPU programs unlike all measured ones (`schedule_times`), and their intervals.

How far the fit is off is measured on kinds of operators and on GPUs that a fit left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.roofline.schedule_columns import (
    SCHEDULE_COLUMNS,
    ScheduleColumns,
    schedule_columns,
)
from cdmpp.analytic.roofline.schedule_times import RatioFit, RatioWidths, ScheduleTimes, kinds_of
from cdmpp.arrays import FloatArray, IntArray, TextArray
from cdmpp.conformal import half_widths, owner_quantile
from cdmpp.datasets.samples import Samples

_COVERAGE = 0.9
#: A slope counts as if so many tasks had said that a column does not matter.
_PRIOR_TASKS = 10.0
#: Errors of the logarithm beyond this count linearly; rounds of reweighting for it.
_HUBER, _ROUNDS = 0.7, 8
#: Kernels of the networks that are put together to see how errors add up, and how many of these.
_KERNELS, _NETWORKS = 12, 400
#: On a new device, over what devices left out needed: four devices say little of a fifth. Chosen on
#: the tables of `docs/results/tvm-gpu.md`, which have what it holds.
_NEW_DEVICE = 1.25


@dataclass(frozen=True)
class MeasuredSchedules:
    """Measured GPU programs as a fit sees them.

    Attributes:
        columns: of N programs.
        log_s: float64 [N], measured log seconds.
        kind, device: str [N].
        owner: int64 [N], number of the (task, device) pair.
    """

    columns: ScheduleColumns
    log_s: FloatArray
    kind: TextArray
    device: TextArray
    owner: IntArray

    @classmethod
    def of(cls, samples: Samples) -> MeasuredSchedules:
        """Returns the samples that have columns and a measured time."""
        columns = schedule_columns(samples)
        is_there = np.isfinite(samples.latency_s) & np.isfinite(columns.anchor_s)
        device = np.array([spec.name for spec in samples.devices], np.str_)[samples.device]
        pair = samples.task_id * len(samples.devices) + samples.device
        found = cls(columns, np.log(samples.latency_s), kinds_of(samples), device, pair)
        return found.take(np.flatnonzero(is_there))

    def take(self, rows: IntArray) -> MeasuredSchedules:
        """Returns some of the programs."""
        columns = ScheduleColumns(**{name: one[rows] for name, one in vars(self.columns).items()})
        owner = np.unique(self.owner[rows], return_inverse=True)[1].astype(np.int64)
        return MeasuredSchedules(
            columns, self.log_s[rows], self.kind[rows], self.device[rows], owner
        )


def fit_ratio(measured: MeasuredSchedules) -> RatioFit:
    """Returns the ridge regression of least Huber loss; every (task, device) has one weight."""
    values = measured.columns.values
    target = measured.log_s - np.log(measured.columns.anchor_s)
    weight = 1.0 / np.bincount(measured.owner)[measured.owner]
    mean = np.average(values, axis=0, weights=weight)
    deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight)) + 1e-6
    rows = np.column_stack([np.ones(len(values)), (values - mean) / deviation])
    prior = _PRIOR_TASKS * np.eye(rows.shape[1])
    prior[0, 0] = 0.0
    solution, counts = np.zeros(rows.shape[1]), weight
    for _ in range(_ROUNDS):
        solution = np.linalg.solve(
            (rows * counts[:, None]).T @ rows + prior, rows.T @ (counts * target)
        )
        error = np.abs(target - rows @ solution)
        counts = weight * np.minimum(1.0, _HUBER / np.maximum(error, 1e-9))
    return RatioFit(mean, deviation, solution[1:], float(solution[0]))


def left_out_log_s(measured: MeasuredSchedules, groups: TextArray) -> FloatArray:
    """Returns float64 [N], log seconds of fits that left the program's group out.

    Args:
        groups: str [N]; parts of a name after `/` are groups too: a fit leaves out what shares any.
    """
    found = np.zeros(len(measured.log_s))
    parts = np.array([name.split("/") for name in groups.tolist()])
    for name in np.unique(groups):
        own = groups == name
        others = (parts != np.array(name.split("/"))).all(axis=1)
        fit = fit_ratio(measured.take(np.flatnonzero(others)))
        found[own] = fit.log_s(measured.take(np.flatnonzero(own)).columns)
    return found


def fit_schedule_times(measured: MeasuredSchedules) -> ScheduleTimes:
    """Returns the ratio with its intervals."""
    both = np.char.add(np.char.add(measured.kind, "/"), measured.device)
    of_both = left_out_log_s(measured, both)
    unseen = _pooled(measured, of_both)
    devices = tuple(sorted(set(measured.device.tolist())))
    return ScheduleTimes(
        devices, SCHEDULE_COLUMNS, int(measured.owner.max()) + 1, fit_ratio(measured),
        _widths(measured, left_out_log_s(measured, measured.kind), unseen),
        _wider(_widths(measured, left_out_log_s(measured, measured.device), unseen), _NEW_DEVICE),
    )  # fmt: skip


def _pooled(measured: MeasuredSchedules, log_s: FloatArray) -> tuple[float, float]:
    error, good = np.abs(log_s - measured.log_s), measured.columns.is_ordinary
    parts = []
    for rows in (np.flatnonzero(good), np.flatnonzero(~good)):
        owner = np.unique(measured.owner[rows], return_inverse=True)[1].astype(np.int64)
        parts.append(owner_quantile(error[rows], owner, _COVERAGE))
    return parts[0], parts[1]


def _widths(
    measured: MeasuredSchedules, log_s: FloatArray, unseen: tuple[float, float]
) -> RatioWidths:
    kinds, number = np.unique(measured.kind, return_inverse=True)
    first = np.unique(measured.owner, return_index=True)[1]
    found = half_widths(
        np.abs(log_s - measured.log_s),
        measured.owner,
        (~measured.columns.is_ordinary).astype(np.int64),
        number[first].astype(np.int64),
        columns=2,
        kinds=len(kinds),
        coverage=_COVERAGE,
    )
    names = kinds.tolist()
    return RatioWidths(
        dict(zip(names, found.by_cell[0].tolist(), strict=True)),
        dict(zip(names, found.by_cell[1].tolist(), strict=True)),
        unseen,
        network_width(measured, log_s),
    )


def network_width(measured: MeasuredSchedules, log_s: FloatArray, *, seed: int = 0) -> float:
    """Returns the half width that holds 90 % of sums over kernels: of networks put together from
    ordinary programs of one device, one a task, all devices alike.
    """
    rng = np.random.default_rng(seed)
    good = np.flatnonzero(measured.columns.is_ordinary)
    errors, owner = [], []
    for number, device in enumerate(np.unique(measured.device[good]).tolist()):
        rows = good[measured.device[good] == device]
        tasks = np.unique(measured.owner[rows])
        for _ in range(_NETWORKS):
            drawn = rng.choice(tasks, _KERNELS)
            chosen = [rng.choice(rows[measured.owner[rows] == task]) for task in drawn]
            # Kernels count alike: the longest task of the data would decide otherwise.
            ratio = np.exp(log_s[chosen] - measured.log_s[chosen])
            weight = rng.dirichlet(np.ones(_KERNELS))
            errors.append(abs(float(np.log(weight @ ratio))))
            owner.append(number)
    return owner_quantile(np.array(errors), np.array(owner, np.int64), _COVERAGE)


def _wider(widths: RatioWidths, factor: float) -> RatioWidths:
    ordinary, other = (
        {kind: factor * width for kind, width in one.items()}
        for one in (widths.ordinary, widths.other)
    )
    good, bad = widths.unseen_kind
    return RatioWidths(ordinary, other, (factor * good, factor * bad), factor * widths.network)
