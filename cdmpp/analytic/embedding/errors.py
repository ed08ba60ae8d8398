"""Errors of kernel predictions, as the embedding literature reports them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.errors import DataError

#: Buckets in percent, each without its right end; the last bucket is open.
HISTOGRAM_EDGES = (0, 5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 300, 400)
#: Added to each error under the logarithm, as in the original's later version: otherwise one exact
#: prediction would make the geometric mean 0.
HIT_FLOOR = 4e-4


@dataclass(frozen=True)
class KernelErrors:
    """Errors |predicted - measured| / measured over a set of kernels, as fractions.

    Attributes:
        n: number of kernels.
        gmae: geometric mean of the errors (of error + 4e-4).
        mean, std: of the errors; the standard deviation divides by n - 1; None for one kernel.
        median: of the errors.
        signed_mean: mean of (predicted - measured) / measured.
        histogram: share of kernels in each bucket of `HISTOGRAM_EDGES`; the last bucket is open.
    """

    n: int
    gmae: float
    mean: float
    std: float | None
    median: float
    signed_mean: float
    histogram: tuple[float, ...]


def kernel_errors(
    measured_s: FloatArray, predicted_s: FloatArray, *, hit_floor: float = HIT_FLOOR
) -> KernelErrors:
    """Returns the errors of predictions.

    Args:
        measured_s, predicted_s: float64 [N], seconds; the measured ones positive.
        hit_floor: added under the logarithm; 0 as in the original's first version.

    Raises:
        DataError: empty or unequal inputs, or a measured time that is not positive.
    """
    measured, predicted = np.asarray(measured_s, float), np.asarray(predicted_s, float)
    if len(measured) == 0 or len(measured) != len(predicted):
        raise DataError(
            f"errors: {len(measured)} measurements and {len(predicted)} predictions; expected "
            "the same number of both, at least one"
        )
    if not np.all(measured > 0):
        raise DataError("errors: a measured time is not positive; drop failed measurements first")
    signed = (predicted - measured) / measured
    error = np.abs(signed)
    with np.errstate(divide="ignore"):
        gmae = float(np.exp(np.mean(np.log(error + hit_floor))))
    return KernelErrors(
        n=len(error),
        gmae=gmae,
        mean=float(error.mean()),
        std=float(error.std(ddof=1)) if len(error) > 1 else None,
        median=float(np.median(error)),
        signed_mean=float(signed.mean()),
        histogram=error_histogram(error),
    )


def error_histogram(error: FloatArray) -> tuple[float, ...]:
    """Returns the share of errors (fractions) in each bucket; the shares add up to 1.

    Differs from the original, which has no bucket for errors from 400 % up.
    """
    edges = np.array([*HISTOGRAM_EDGES, math.inf]) / 100.0
    counts = np.diff(np.searchsorted(np.sort(error), edges, side="left"))
    return tuple(float(count) / len(error) for count in counts)


def histogram_labels() -> tuple[str, ...]:
    """Returns the names of the buckets, e.g. `5-10 %`."""
    inner = [f"{low}-{high} %" for low, high in pairwise(HISTOGRAM_EDGES)]
    return (*inner, f"{HISTOGRAM_EDGES[-1]} % and more")
