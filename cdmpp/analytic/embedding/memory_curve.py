"""Time of moving a number of bytes; small transfers do not reach the peak bandwidth.

Source: the size-dependent bandwidth ("memory characteristics") of the public repository
owensgroup/ml_perf_model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cdmpp.errors import DataError

Collective = Literal["all-to-all", "all-gather", "reduce-scatter", "all-reduce", "other"]


@dataclass(frozen=True)
class MemoryCurve:
    """Time over size in three pieces: constant, a sigmoid of log bandwidth, peak bandwidth.

    Attributes:
        flat_log2: the time is `overhead_s` up to 2 ** flat_log2 bytes.
        saturated_log2: the bandwidth is `peak_bytes_per_s` beyond 2 ** saturated_log2 bytes.
        peak_bytes_per_s: bandwidth of large transfers.
        overhead_s: time of the smallest transfers, seconds.
        height, centre, slope, base: between the two, log10 of the bandwidth in GB/s is
            height / (1 + exp(-slope (log2 size - centre))) + base.

    The pieces are not continuous.
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
            bus_factor: bytes moved per byte of payload (see `bus_factor`).
        """
        if size_bytes <= 0 or math.log2(size_bytes) <= self.flat_log2:
            return self.overhead_s
        log_size = math.log2(size_bytes)
        if log_size > self.saturated_log2:
            return size_bytes / self.peak_bytes_per_s * bus_factor + self.overhead_s
        log_rate = self.height / (1.0 + math.exp(-self.slope * (log_size - self.centre)))
        return float(size_bytes / (10.0 ** (log_rate + self.base) * 1e9) * bus_factor)


def bus_factor(collective: Collective, ranks: int) -> float:
    """Returns the bytes on the bus per byte of payload in a collective of `ranks` devices.

    Raises:
        DataError: `ranks` is below 1.
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
