"""Calibrates the GPU formulas of `gpu.py` on measurements: a robust fit of three scalars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.analytic.embedding.cache_hits import zipf_popularity
from cdmpp.analytic.embedding.cpu import CpuPoint
from cdmpp.analytic.embedding.devices import KernelDevice
from cdmpp.analytic.embedding.gpu import KernelOptions, LookupEstimate, estimate
from cdmpp.arrays import FloatArray
from cdmpp.errors import DataError

_LEAST_SHARE, _MOST_SHARE = 0.005, 2.0
_LEAST_LAUNCH_S, _MOST_LAUNCH_S = 1e-8, 1e-3


@dataclass(frozen=True)
class Calibration:
    """Achievable rates of a device, for the version `lru`.

    Attributes:
        dram_share, l2_share: achieved share of either bandwidth.
        launch_s: time of an empty kernel.
        n: number of measurements in the fit.
    """

    dram_share: float
    l2_share: float
    launch_s: float
    n: int

    def options(self, base: KernelOptions) -> KernelOptions:
        """Returns `base` with these values."""
        return replace(
            base, dram_share=self.dram_share, l2_share=self.l2_share, launch_s=self.launch_s
        )


def predict_gpu(
    points: Sequence[CpuPoint], device: KernelDevice, options: KernelOptions
) -> FloatArray:
    """Returns float64 [N], seconds of each point; only the version `lru` uses the Zipf exponent."""
    found = [estimate_point(point, device, options).latency_s for point in points]
    return np.array(found, np.float64)


def estimate_point(point: CpuPoint, device: KernelDevice, options: KernelOptions) -> LookupEstimate:
    """Returns traffic and time of one point; only the version `lru` uses the Zipf exponent.

    Raises:
        UsageError: the version does not describe the pass or kernel.
    """
    if options.version == "lru" and point.zipf_exponent > 0:
        popularity = zipf_popularity(point.shape.rows, point.zipf_exponent)
        options = replace(options, popularity=popularity)
    return estimate(point.shape, device, point.which, options=options)


def calibrate(
    points: Sequence[CpuPoint],
    measured_s: FloatArray,
    device: KernelDevice,
    options: KernelOptions | None = None,
) -> Calibration:
    """Returns the scalars that minimise the soft L1 norm of log(predicted / measured).

    Raises:
        DataError: fewer than four measurements, or one that is not positive.
    """
    from scipy.optimize import least_squares

    options = options or KernelOptions()
    measured = np.asarray(measured_s, np.float64)
    if len(points) != len(measured) or len(points) < 4 or not np.all(measured > 0):
        raise DataError(
            f"calibration: {len(points)} points and {len(measured)} times; expected the same "
            "number of both, at least four, all positive"
        )
    # Traffic does not depend on the scalars, so it is counted once.
    parts = [_parts(point, device, options) for point in points]
    dram, l2, compute = (np.array(column) for column in zip(*parts, strict=True))

    def residuals(values: FloatArray) -> FloatArray:
        dram_share, l2_share, launch_s = np.exp(values)
        busy = np.maximum(np.maximum(dram / dram_share, l2 / l2_share), compute)
        return np.asarray(np.log((launch_s + busy) / measured), np.float64)

    low = np.log([_LEAST_SHARE, _LEAST_SHARE, _LEAST_LAUNCH_S])
    high = np.log([_MOST_SHARE, _MOST_SHARE, _MOST_LAUNCH_S])
    # Several starts: the slope of a share is zero while another term is the maximum.
    starts = [
        np.log([dram_share, l2_share, float(np.clip(measured.min() / 2, 2e-8, 5e-4))])
        for dram_share in (0.3, 0.9)
        for l2_share in (0.1, 0.5)
    ]
    fits = [
        least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
        for start in starts
    ]
    best = min(fits, key=lambda fit: float(fit.cost))
    dram_share, l2_share, launch_s = (math.exp(value) for value in best.x)
    return Calibration(dram_share, l2_share, launch_s, len(points))


def _parts(
    point: CpuPoint, device: KernelDevice, options: KernelOptions
) -> tuple[float, float, float]:
    chosen = replace(options, version="lru", dram_share=1.0, l2_share=1.0, launch_s=0.0)
    found = estimate_point(point, device, chosen)
    return (
        device.dram_time_s(found.dram_bytes),
        found.l2_bytes / device.l2_bytes_per_s,
        found.multiply_adds / device.flop_per_s,
    )
