"""How long moving a number of bytes takes: small transfers never reach the peak bandwidth.

Source: the size-dependent bandwidth ("memory characteristics") of the public repository
owensgroup/ml_perf_model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError

FloatArray = NDArray[np.float64]
Collective = Literal["all-to-all", "all-gather", "reduce-scatter", "all-reduce", "other"]

_LATENCY_JUMP = 0.10
_NEAR_PEAK = 0.95
_FIRST_SEARCHED = 5
_DEFAULT_FLAT = 4
_LEAST_SIZES = 8


@dataclass(frozen=True)
class MemoryCurve:
    """Time over size in three pieces: constant, a sigmoid of log bandwidth, peak bandwidth.

    Attributes:
        flat_log2: up to 2 ** flat_log2 bytes the time is `overhead_s`.
        saturated_log2: beyond 2 ** saturated_log2 bytes the bandwidth is `peak_bytes_per_s`.
        peak_bytes_per_s: bandwidth of large transfers.
        overhead_s: time of the smallest transfers, seconds.
        height, centre, slope, base: log10 of the bandwidth in GB/s between the two is
            height / (1 + exp(-slope (log2 size - centre))) + base.

    The pieces do not join: `SmoothMemoryCurve` does.
    """

    flat_log2: float
    saturated_log2: float
    peak_bytes_per_s: float
    overhead_s: float
    height: float
    centre: float
    slope: float
    base: float

    def time_s(self, size_bytes: float, *, bus_factor: float = 1.0) -> float:
        """Returns seconds.

        Args:
            size_bytes: 0 or more.
            bus_factor: bytes that really move a byte of payload (see `bus_factor`).
        """
        if size_bytes <= 0 or math.log2(size_bytes) <= self.flat_log2:
            return self.overhead_s
        log_size = math.log2(size_bytes)
        if log_size > self.saturated_log2:
            return size_bytes / self.peak_bytes_per_s * bus_factor + self.overhead_s
        log_rate = self.height / (1.0 + math.exp(-self.slope * (log_size - self.centre)))
        return float(size_bytes / (10.0 ** (log_rate + self.base) * 1e9) * bus_factor)


@dataclass(frozen=True)
class SmoothMemoryCurve:
    """Time over size in one piece, growing everywhere.

    time = overhead + size / (peak (1 - exp(-(size / knee) ** power))).

    Attributes:
        overhead_s: seconds before anything moves.
        peak_bytes_per_s: bandwidth of large transfers.
        knee_bytes: size at which 63 % of the peak is reached.
        power: 0 to 1, how fast the peak is approached.

    Differs from the original: the three pieces there jump where they meet.
    """

    overhead_s: float
    peak_bytes_per_s: float
    knee_bytes: float
    power: float

    def time_s(self, size_bytes: float, *, bus_factor: float = 1.0) -> float:
        """Returns seconds, as `MemoryCurve.time_s`."""
        if size_bytes <= 0:
            return self.overhead_s
        share = -math.expm1(-((size_bytes / self.knee_bytes) ** self.power))
        return self.overhead_s + size_bytes * bus_factor / (self.peak_bytes_per_s * share)


def fit_memory_curve(size_bytes: Sequence[float], latency_s: Sequence[float]) -> MemoryCurve:
    """Returns the three-piece curve of a sweep over growing sizes.

    Flat up to the point before the latency first jumps by more than 10 % (relative central
    difference, searched from the sixth point on); saturated from two points after the last one
    below 95 % of the best bandwidth.

    Raises:
        DataError: fewer than 8 sizes, not growing, or a time that is not positive.
    """
    from scipy.optimize import curve_fit

    size, latency = _sweep(size_bytes, latency_s)
    rate = size / latency
    jump = np.zeros(len(size))
    jump[1:-1] = (latency[2:] - latency[:-2]) / 2.0 / latency[1:-1]
    later = np.flatnonzero(jump[_FIRST_SEARCHED:] > _LATENCY_JUMP)
    flat = int(later[0]) + _FIRST_SEARCHED - 1 if len(later) else _DEFAULT_FLAT
    below = np.flatnonzero(rate < _NEAR_PEAK * rate.max())
    saturated = min(len(size) - 1, int(below[-1]) + 2 if len(below) else 0)
    log_size, log_rate = np.log2(size), np.log10(rate / 1e9)
    between = slice(flat, max(saturated, flat + 4) + 1)
    start = (np.ptp(log_rate) + 0.1, float(np.median(log_size[between])), 0.5, log_rate.min())
    try:
        fitted, _ = curve_fit(
            _sigmoid, log_size[between], log_rate[between], p0=start, maxfev=20_000
        )
    except RuntimeError as error:
        raise DataError(
            f"memory sweep: no sigmoid fits it ({error}); use the smooth curve"
        ) from None
    return MemoryCurve(
        float(log_size[flat]),
        float(log_size[saturated]),
        float(rate.max()),
        float(latency[max(0, flat - 1)]),
        *(float(value) for value in fitted),
    )


def fit_smooth_curve(size_bytes: Sequence[float], latency_s: Sequence[float]) -> SmoothMemoryCurve:
    """Returns the smooth curve of a sweep: least squares of the log times.

    Raises:
        DataError: as `fit_memory_curve`.
    """
    from scipy.optimize import least_squares

    size, latency = _sweep(size_bytes, latency_s)
    peak = float((size / latency).max())

    def curve(values: FloatArray) -> SmoothMemoryCurve:
        overhead, rate, knee, power = values
        return SmoothMemoryCurve(
            math.exp(overhead), math.exp(rate), math.exp(knee), 1.0 / (1.0 + math.exp(-power))
        )

    def residuals(values: FloatArray) -> FloatArray:
        found = curve(values)
        return np.array([math.log(found.time_s(s)) for s in size]) - np.log(latency)

    start = np.array([math.log(latency[0]) - 0.7, math.log(peak), math.log(peak * latency[0]), 2.0])
    low = np.array([math.log(latency[0]) - 20, math.log(peak) - 3, math.log(size[0]) - 20, -5])
    high = np.array([math.log(latency[0]) + 1, math.log(peak) + 3, math.log(size[-1]), 30])
    start = np.clip(start, low + 1e-6, high - 1e-6)
    return curve(np.asarray(least_squares(residuals, start, bounds=(low, high)).x, np.float64))


def bus_factor(collective: Collective, ranks: int) -> float:
    """Returns the bytes on the bus for a byte of payload in a collective of `ranks` devices.

    Raises:
        DataError: no ranks.
    """
    if ranks < 1:
        raise DataError(f"collective of {ranks} ranks: expected at least 1")
    match collective:
        case "all-to-all" | "all-gather" | "reduce-scatter":
            return (ranks - 1) / ranks
        case "all-reduce":
            return 2 * (ranks - 1) / ranks
        case "other":
            return 1.0


def all_to_all_bytes(sent_bytes: Sequence[int]) -> int:
    """Returns the message size that stands for an uneven all-to-all.

    The rank with the largest of (what the others send, its own share times the other ranks).

    Args:
        sent_bytes: bytes of each rank.
    """
    total, others = sum(sent_bytes), len(sent_bytes) - 1
    return max(max(total - own, own * others) for own in sent_bytes)


def _sigmoid(x: FloatArray, height: float, centre: float, slope: float, base: float) -> FloatArray:
    return np.asarray(height / (1.0 + np.exp(-slope * (x - centre))) + base, np.float64)


def _sweep(
    size_bytes: Sequence[float], latency_s: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    size, latency = np.asarray(size_bytes, np.float64), np.asarray(latency_s, np.float64)
    if len(size) < _LEAST_SIZES or len(size) != len(latency):
        raise DataError(
            f"memory sweep: {len(size)} sizes and {len(latency)} times; expected as many of both, "
            f"at least {_LEAST_SIZES}"
        )
    if size[0] <= 0 or latency.min() <= 0 or np.any(np.diff(size) <= 0):
        raise DataError("memory sweep: sizes must be positive and grow, times be positive")
    return size, latency
