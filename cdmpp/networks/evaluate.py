"""Errors of whole-network predictions per target."""

from __future__ import annotations

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.metrics import absolute_percentage_error, spearman
from cdmpp.networks.dataset.samples import TARGETS, TIMES, NetworkSamples
from cdmpp.networks.intervals import interval_metrics

#: Metrics of one target; fractions, not percent.
METRICS = (
    "n", "mape", "median_ape", "rmspe", "within_5pct", "within_10pct", "spearman",
    "mean_log_error", "median_ratio", "interval_coverage", "interval_log_width",
)  # fmt: skip
NOISE_FLOOR = "noise-floor"


def judge(
    samples: NetworkSamples,
    predicted: FloatArray,
    bounds: tuple[FloatArray, FloatArray] | None = None,
) -> dict[str, dict[str, float | int | None]]:
    """Returns target -> metrics; without measurements n is 0 and the others are None.

    Args:
        predicted: float64 [N, 6].
        bounds: lower and upper ends of the intervals, each float64 [N, 6]; None = no intervals.
    """
    result = {}
    for column, name in enumerate(TARGETS):
        measured = samples.targets[:, column]
        rows = np.flatnonzero(np.isfinite(measured) & np.isfinite(predicted[:, column]))
        found: dict[str, float | int | None] = dict.fromkeys(METRICS)
        found["n"] = len(rows)
        if len(rows):
            found.update(error_metrics(measured[rows], predicted[rows, column]))
            if bounds is not None:
                low, high = bounds[0][:, column], bounds[1][:, column]
                found.update(interval_metrics(samples, column, low, high))
        result[name] = found
    return result


def error_metrics(measured: FloatArray, predicted: FloatArray) -> dict[str, float]:
    """Returns the errors of one target, and Spearman's rank correlation.

    Args:
        measured, predicted: float64 [N], positive, N at least 1.
    """
    error = absolute_percentage_error(measured, predicted)
    ratio = predicted / measured
    return {
        **_shares(error),
        "spearman": spearman(measured, predicted) if len(measured) > 1 else 0.0,
        "mean_log_error": float(np.abs(np.log(ratio)).mean()),
        "median_ratio": float(np.median(ratio)),
    }


def noise_floor(samples: NetworkSamples) -> dict[str, dict[str, float | int | None]]:
    """Returns target -> error of a perfect model due to measurement noise, see `repeat_error`.

    Only times have repeats. Drift between processes is not included, so the noise is
    underestimated.
    """
    result = {}
    for column, name in enumerate(TARGETS):
        found: dict[str, float | int | None] = {**dict.fromkeys(METRICS), "n": 0}
        if column in TIMES:
            known = samples.spread[:, TIMES.index(column)]
            known = known[np.isfinite(known)]
            found["n"] = len(known)
            if len(known):
                found.update(_shares(known))
        result[name] = found
    return result


def _shares(error: FloatArray) -> dict[str, float]:
    return {
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "rmspe": float(np.sqrt(np.mean(error**2))),
        "within_5pct": float(np.mean(error <= 0.05)),
        "within_10pct": float(np.mean(error <= 0.10)),
    }
