"""Milliseconds from counters and waves: the original's three regimes, and a smooth form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cdmpp.analytic.conv.blocks import BlockLaunch
from cdmpp.analytic.conv.least_squares import LinearFit, relative_fit
from cdmpp.analytic.conv.seer.counters import Counters
from cdmpp.analytic.conv.seer.table import KernelType
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError

TimeForm = Literal["original", "smooth"]

#: Minimum rows of a type for its own coefficients; with fewer, all rows are used.
MIN_ROWS = 8
_SMOOTH_NAMES = ("instructions", "wave", "reads", "writes", "constant")
_LARGEST_POWER = 64.0
_MOST_SMOOTH_ROWS = 1500
_MOST_EVALUATIONS = 120


@dataclass(frozen=True)
class RegimeTimes:
    """The original's formulas: one linear form per kernel type.

    Attributes:
        fits: kernel type -> coefficients.
        pooled: types with too few rows, which are fitted to the rows of all types.
    """

    fits: dict[KernelType, LinearFit]
    pooled: tuple[KernelType, ...]
    form: Literal["original"] = "original"

    def predict(self, kernel_type: IntArray, counters: Counters, launch: BlockLaunch) -> FloatArray:
        """Returns float64 [R], milliseconds."""
        time_ms = np.zeros(len(kernel_type))
        for kind, fit in self.fits.items():
            rows = np.flatnonzero(kernel_type == int(kind))
            columns, _ = regime_columns(kind, counters[rows], launch[rows])
            time_ms[rows] = fit.predict(columns)
        return time_ms


@dataclass(frozen=True)
class SmoothTimes:
    """T = (Tc^p + Td^p)^(1/p) + c, continuous over the types.

    Tc = waves (a resident instructions + b), Td = d reads + e writes of the whole kernel.

    Attributes:
        coefficients: a, b, d, e, c.
        power: p, at least 1; large = the larger of Tc and Td, 1 = their sum.
        rmspe: on the fitted rows, a fraction.
        row_count: number of fitted rows.
    """

    coefficients: FloatArray
    power: float
    rmspe: float
    row_count: int
    form: Literal["smooth"] = "smooth"

    def predict(self, kernel_type: IntArray, counters: Counters, launch: BlockLaunch) -> FloatArray:
        """Returns float64 [R], milliseconds; the type is ignored."""
        del kernel_type
        return self.predict_columns(_smooth_columns(counters, launch))

    def predict_columns(self, columns: FloatArray) -> FloatArray:
        """Returns float64 [R], milliseconds from the columns of `fit_smooth_columns`."""
        return _smooth_ms(self.coefficients, self.power, columns)

    def dominant(self, columns: FloatArray) -> IntArray:
        """Returns int64 [R], `KernelType` of the largest of compute, memory and constant part."""
        parts = columns * self.coefficients
        sums = np.stack([parts[:, :2].sum(axis=1), parts[:, 2:4].sum(axis=1), parts[:, 4]])
        return np.asarray(sums.argmax(axis=0), np.int64)


TimeModel = RegimeTimes | SmoothTimes


def regime_columns(
    kind: KernelType, counters: Counters, launch: BlockLaunch
) -> tuple[FloatArray, tuple[str, ...]]:
    """Returns (float64 [R, C], names), the columns whose weighted sum is the time of a type.

    Only the compute term counts whole waves. The number of blocks is (waves - 1 + fill) x resident,
    so the DRAM terms are the whole kernel's traffic.
    """
    waves = launch.waves.astype(np.float64)
    one = np.ones(len(waves))
    per_wave = waves * launch.resident
    blocks = launch.blocks.astype(np.float64)
    if kind == KernelType.COMPUTE_BOUND:
        columns = (per_wave * counters.instructions, waves)
        return np.stack(columns, axis=1), ("instructions", "wave")
    if kind == KernelType.DRAM_BOUND:
        columns = (blocks * (counters.reads + counters.writes), one)
        return np.stack(columns, axis=1), ("traffic", "constant")
    return (
        np.stack(
            (
                blocks * counters.reads,
                blocks * counters.writes,
                per_wave * counters.instructions,
                one,
            ),
            axis=1,
        ),
        ("reads", "writes", "instructions", "constant"),
    )


def fit_regimes(
    kernel_type: IntArray, counters: Counters, launch: BlockLaunch, time_ms: FloatArray
) -> RegimeTimes:
    """Fits the coefficients of every type.

    A type with fewer than `MIN_ROWS` rows is fitted to the rows of all types and listed in
    `pooled`; the original leaves its coefficients at one.

    Raises:
        DataError: no rows.
    """
    fits: dict[KernelType, LinearFit] = {}
    pooled = []
    for kind in KernelType:
        rows = np.flatnonzero(kernel_type == int(kind))
        if len(rows) < MIN_ROWS:
            pooled.append(kind)
            rows = np.arange(len(time_ms))
        columns, names = regime_columns(kind, counters[rows], launch[rows])
        fits[kind] = relative_fit(columns, time_ms[rows], names)
    return RegimeTimes(fits, tuple(pooled))


def fit_smooth(counters: Counters, launch: BlockLaunch, time_ms: FloatArray) -> SmoothTimes:
    """Fits the smooth form and its power by least relative error.

    Raises:
        DataError: no rows, or a time that is not above 0.
    """
    return fit_smooth_columns(_smooth_columns(counters, launch), time_ms)


def fit_smooth_columns(columns: FloatArray, time_ms: FloatArray) -> SmoothTimes:
    """Fits the smooth form to float64 [R, 5] columns: two of the compute time, two of the memory
    time, and one of the constant.

    Raises:
        DataError: no rows, or a time that is not above 0.
    """
    from scipy.optimize import least_squares

    if not len(time_ms) or not (time_ms > 0).all():
        raise DataError(f"a smooth fit got {len(time_ms)} rows; expected some, all above 0 ms")
    # With power 1 the form is linear: this gives the scale of every coefficient and the start.
    start = relative_fit(columns, time_ms, _SMOOTH_NAMES).coefficients
    scale = 1.0 / np.maximum((columns / time_ms[:, None]).max(axis=0), 1e-300)
    # Six parameters need no more rows than this; the rows are evenly spaced in order of time.
    order = np.argsort(time_ms, kind="stable")
    rows = order[np.unique(np.linspace(0, len(order) - 1, _MOST_SMOOTH_ROWS).astype(np.int64))]
    searched, searched_ms = columns[rows], time_ms[rows]
    first = np.sqrt(np.maximum(start / scale, 1e-6))

    def residual(parameters: FloatArray) -> FloatArray:
        power = 1.0 + parameters[-1] ** 2
        found = _smooth_ms(parameters[:-1] ** 2 * scale, power, searched)
        return np.asarray(found / searched_ms - 1.0, np.float64)

    best = min(
        (
            least_squares(residual, [*first, power], x_scale="jac", max_nfev=_MOST_EVALUATIONS)
            for power in (0.7, 2.0)
        ),
        key=lambda result: float(result.cost),
    )
    coefficients = best.x[:-1] ** 2 * scale
    power = float(min(1.0 + best.x[-1] ** 2, _LARGEST_POWER))
    error = _smooth_ms(coefficients, power, columns) / time_ms - 1.0
    return SmoothTimes(coefficients, power, float(np.sqrt(np.mean(error**2))), len(time_ms))


def _smooth_columns(counters: Counters, launch: BlockLaunch) -> FloatArray:
    waves = launch.waves.astype(np.float64)
    blocks = launch.blocks.astype(np.float64)
    return np.stack(
        (
            waves * launch.resident * counters.instructions,
            waves,
            blocks * counters.reads,
            blocks * counters.writes,
            np.ones(len(waves)),
        ),
        axis=1,
    )


def _smooth_ms(coefficients: FloatArray, power: float, columns: FloatArray) -> FloatArray:
    parts = columns * coefficients
    compute = parts[:, 0] + parts[:, 1]
    memory = parts[:, 2] + parts[:, 3]
    larger = np.maximum(np.maximum(compute, memory), 1e-300)
    power = min(power, _LARGEST_POWER)
    # Dividing by the larger one first keeps high powers in the range of a float.
    joined = ((compute / larger) ** power + (memory / larger) ** power) ** (1.0 / power)
    return np.asarray(larger * joined + parts[:, 4], np.float64)
