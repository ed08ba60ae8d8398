"""Fits the times of out-of-distribution GPU programs (`schedule_times`) and their intervals.

Errors are measured on held-out kinds of operators and held-out GPUs.
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
#: Ridge penalty on the slopes, in units of tasks.
_PRIOR_TASKS = 10.0
#: Errors of the logarithm beyond this count linearly; number of reweighting rounds.
_HUBER, _ROUNDS = 0.7, 8
#: Kernels per synthetic network, and number of such networks, to estimate how errors add up.
_KERNELS, _NETWORKS = 12, 400
#: Factor on the widths of held-out devices for a new device, because four devices are too few to
#: predict a fifth. Chosen on the tables of `docs/results/tvm-gpu.md`, which give the coverage.
_NEW_DEVICE = 1.25


@dataclass(frozen=True)
class MeasuredSchedules:
    """Measured GPU programs as input of a fit.

    Attributes:
        columns: of N programs.
        log_s: float64 [N], measured log seconds.
        kind, device: str [N].
        owner: int64 [N], index of the (task, device) pair.
    """

    columns: ScheduleColumns
    log_s: FloatArray
    kind: TextArray
    device: TextArray
    owner: IntArray

    @classmethod
    def of(cls, samples: Samples) -> MeasuredSchedules:
        """Returns the samples with columns and a measured time."""
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
    """Returns the ridge regression with Huber loss; (task, device) pairs have equal weight."""
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
    """Returns float64 [N], predicted log seconds of fits without the program's group.

    Args:
        groups: str [N]; names may have parts separated by `/`. A fit excludes all programs that
            share a part.
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
    """Returns the fitted ratio with its intervals."""
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
    """Returns the half width that covers 90 % of sums over kernels.

    The sums are synthetic networks of ordinary programs of one device, one per task. Every device
    has the same weight.
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
            # Equal weights on average: otherwise the longest task would dominate.
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
