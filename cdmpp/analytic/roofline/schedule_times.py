"""Times of out-of-distribution GPU programs, as a fitted multiple of a lower bound.

`python -m lab run tvm-gpu --package` fits the ratio of time to bound to good and random programs of
searches, as a function of their schedules (`schedule_columns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.roofline.schedule_columns import ScheduleColumns
from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.tenset.operator_kinds import operator_kind
from cdmpp.files.places import package_folder
from cdmpp.files.stored import read_model

#: Format of a fitted file.
SCHEDULE_TIMES_FORMAT = 1


@dataclass(frozen=True)
class RatioFit:
    """log(seconds / anchor) as a linear function of the columns.

    Attributes:
        mean, deviation: float64 [columns], mean and standard deviation of each column in the fit.
        slope: float64 [columns], per standard deviation of a column.
        intercept: of log(seconds / anchor).
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    slope: NDArray[np.float64]
    intercept: float

    def log_s(self, columns: ScheduleColumns) -> FloatArray:
        """Returns float64 [N], log seconds, at least the lower bound; NaN without an anchor."""
        ratio = self.intercept + (columns.values - self.mean) / self.deviation @ self.slope
        log_s = np.log(columns.anchor_s) + ratio
        return np.asarray(np.maximum(log_s, np.log(columns.floor_s)), np.float64)


@dataclass(frozen=True)
class RatioWidths:
    """Half widths of 90 % intervals of the logarithm.

    Attributes:
        ordinary, other: kind of operator -> half width, for ordinary schedules and for all others
            (`ScheduleColumns`).
        unseen_kind: half widths of ordinary and of other schedules, for kinds without measurements.
        network: half width for the sum over a network's kernels.
    """

    ordinary: dict[str, float]
    other: dict[str, float]
    unseen_kind: tuple[float, float]
    network: float

    def of(self, kinds: TextArray, is_ordinary: BoolArray) -> FloatArray:
        """Returns float64 [N], the half width of each sample."""
        return np.array([
            (self.ordinary if good else self.other).get(
                str(kind), self.unseen_kind[0 if good else 1]
            )
            for kind, good in zip(kinds, is_ordinary, strict=True)
        ], np.float64)  # fmt: skip


@dataclass(frozen=True)
class ScheduleTimes:
    """The fitted ratio and the widths of its intervals.

    Attributes:
        devices: labels of the devices in the fit.
        columns: names of the columns.
        tasks: number of (task, device) pairs.
        fit: fitted to all tasks.
        known: widths on the devices of the fit, from held-out kinds of operators.
        new: widths on other devices, from held-out devices.
    """

    devices: tuple[str, ...]
    columns: tuple[str, ...]
    tasks: int
    fit: RatioFit
    known: RatioWidths
    new: RatioWidths

    def widths_on(self, device: str) -> RatioWidths:
        """Returns the interval widths on a device."""
        return self.known if device in self.devices else self.new


def kinds_of(samples: Samples) -> TextArray:
    """Returns str [N], the kind of operator of each sample."""
    operators = samples.programs.operator[samples.program]
    return np.array([operator_kind(str(name)) for name in operators], np.str_)


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
