"""Times of GPU programs unlike all measured ones: so many times a lower bound.

The ratio of time to bound is fitted to programs of searches, good ones and random draws, by what a
schedule says (`schedule_columns`). How far it is off is measured on kinds of operators and on GPUs
that a fit left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.roofline.schedule_columns import (
    SCHEDULE_COLUMNS,
    ScheduleColumns,
    schedule_columns,
)
from cdmpp.arrays import BoolArray, FloatArray, IntArray, TextArray
from cdmpp.conformal import half_widths, owner_quantile
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.tenset.operator_kinds import operator_kind
from cdmpp.files.places import package_folder
from cdmpp.files.stored import read_model

#: Of a fitted file.
SCHEDULE_TIMES_FORMAT = 1
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
class RatioFit:
    """log(seconds / anchor) as a linear function of the columns.

    Attributes:
        mean, deviation: float64 [columns], of the columns in the fit.
        slope: float64 [columns], of a column in deviations.
        intercept: of the ratio's logarithm.
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    slope: NDArray[np.float64]
    intercept: float

    def log_s(self, columns: ScheduleColumns) -> FloatArray:
        """Returns float64 [N], log seconds, none below the lower bound; NaN without an anchor."""
        ratio = self.intercept + (columns.values - self.mean) / self.deviation @ self.slope
        log_s = np.log(columns.anchor_s) + ratio
        return np.asarray(np.maximum(log_s, np.log(columns.floor_s)), np.float64)


@dataclass(frozen=True)
class RatioWidths:
    """Half widths of 90 % intervals of the logarithm.

    Attributes:
        ordinary, other: kind of operator -> half width, of ordinary schedules and of others
            (`ScheduleColumns`).
        unseen_kind: of ordinary schedules and of others, for kinds of which none was measured.
        network: of the sum over a network's kernels.
    """

    ordinary: dict[str, float]
    other: dict[str, float]
    unseen_kind: tuple[float, float]
    network: float

    def of(self, kinds: TextArray, is_ordinary: BoolArray) -> FloatArray:
        """Returns float64 [N]."""
        return np.array([
            (self.ordinary if good else self.other).get(
                str(kind), self.unseen_kind[0 if good else 1]
            )
            for kind, good in zip(kinds, is_ordinary, strict=True)
        ], np.float64)  # fmt: skip

    def times(self, factor: float) -> RatioWidths:
        """Returns wider ones."""
        ordinary, other = (
            {kind: factor * width for kind, width in one.items()}
            for one in (self.ordinary, self.other)
        )
        good, bad = self.unseen_kind
        return RatioWidths(ordinary, other, (factor * good, factor * bad), factor * self.network)


@dataclass(frozen=True)
class ScheduleTimes:
    """The fitted ratio with what it is off by.

    Attributes:
        devices: labels that it was fitted on.
        columns: their names.
        tasks: (task, device) pairs.
        fit: of all of them.
        known: on these devices, of kinds of operators that were left out.
        new: on devices that were left out.
    """

    devices: tuple[str, ...]
    columns: tuple[str, ...]
    tasks: int
    fit: RatioFit
    known: RatioWidths
    new: RatioWidths

    def widths_on(self, device: str) -> RatioWidths:
        """Returns the widths for a device."""
        return self.known if device in self.devices else self.new


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


def kinds_of(samples: Samples) -> TextArray:
    """Returns str [N], the kind of each sample's operator."""
    operators = samples.programs.operator[samples.program]
    return np.array([operator_kind(str(name)) for name in operators], np.str_)


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
        _widths(measured, left_out_log_s(measured, measured.device), unseen).times(_NEW_DEVICE),
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


@lru_cache
def packaged_schedule_times() -> ScheduleTimes:
    """Returns the packaged fit.

    Raises:
        DataError: it cannot be read.
    """
    return read_model(
        ScheduleTimes, packaged_path(), what="model of GPU schedules",
        again="reinstall cdmpp", format=SCHEDULE_TIMES_FORMAT,
    )  # fmt: skip


def packaged_path() -> Path:
    """Returns the file of the packaged fit."""
    return package_folder("cdmpp.pretrained") / "gpu_schedules" / "ratio.json"
