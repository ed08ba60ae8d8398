"""Invertible transforms of seconds to the labels of a network, fitted on training parts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray

#: Slope added to a score calibration, in log seconds per standard deviation of the score: it makes
#: the calibration strictly ascending.
_LEAST_SLOPE = 1e-4


@dataclass(frozen=True)
class LogLabels:
    """Standardised log seconds.

    Attributes:
        mean: mean of log seconds.
        scale: standard deviation of log seconds, positive.
        log_factor: added to the log of every prediction (see `least_mape_factor`).
    """

    mean: float
    scale: float
    log_factor: float = 0.0

    @classmethod
    def fit(cls, latency_s: FloatArray) -> LogLabels:
        """Returns the labels fitted to float64 [N], N ≥ 1."""
        log_latency = np.log(latency_s)
        return cls(float(log_latency.mean()), float(log_latency.std()) or 1.0)

    def encode(self, latency_s: FloatArray) -> FloatArray:
        """Returns float64 [N], zero mean and unit deviation on the training part."""
        return (np.log(latency_s) - self.mean) / self.scale

    def decode(self, output: FloatArray) -> FloatArray:
        """Returns float64 [N], seconds."""
        return np.asarray(np.exp(output * self.scale + self.mean + self.log_factor))

    def with_least_mape(self, predicted_s: FloatArray, measured_s: FloatArray) -> LogLabels:
        """Returns labels that scale predictions to the lowest MAPE on these samples."""
        factor = least_mape_factor(predicted_s, measured_s)
        return replace(self, log_factor=self.log_factor + math.log(factor))


@dataclass(frozen=True)
class BoxCoxLabels:
    """Standardised Box-Cox transform of seconds.

    Attributes:
        exponent: lambda; 0 = logarithm.
        mean: mean of the transformed training labels.
        scale: standard deviation of the transformed training labels, positive.
    """

    exponent: float
    mean: float
    scale: float

    @classmethod
    def fit(cls, latency_s: FloatArray) -> BoxCoxLabels:
        """Returns the labels fitted to float64 [N] with the maximum-likelihood exponent.

        The exponent of constant latencies is 0.
        """
        from scipy import stats

        varies = float(np.ptp(latency_s)) > 0.0
        exponent = float(stats.boxcox_normmax(latency_s, method="mle")) if varies else 0.0
        transformed = _box_cox(latency_s, exponent)
        return cls(exponent, float(transformed.mean()), float(transformed.std()) or 1.0)

    def encode(self, latency_s: FloatArray) -> FloatArray:
        """Returns float64 [N], zero mean and unit deviation on the training part."""
        return (_box_cox(latency_s, self.exponent) - self.mean) / self.scale

    def decode(self, output: FloatArray) -> FloatArray:
        """Returns float64 [N], seconds in [1e-9, 1e6].

        An output outside the range of the transform becomes 1e-6 seconds, an infinite latency 1e6
        seconds.
        """
        transformed = np.asarray(output, np.float64) * self.scale + self.mean
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            if self.exponent == 0.0:
                latency_s = np.exp(transformed)
            else:
                latency_s = np.exp(np.log1p(self.exponent * transformed) / self.exponent)
        return np.asarray(np.clip(np.nan_to_num(latency_s, nan=1e-6, posinf=1e6), 1e-9, 1e6))


@dataclass(frozen=True)
class ScoreLabels:
    """Scores that order the programs of one task, calibrated to seconds afterwards.

    log seconds = a strictly ascending function of the score - log of the device's peak FLOP/s, so
    the order on one device is that of the scores. Scores of different tasks are not comparable, so
    the seconds are inaccurate; such a model is for the order within a task.

    Attributes:
        score: knots, ascending; a higher score means slower.
        log_work: log seconds plus log FLOP/s at the knots, ascending.
        spread: standard deviation of the scores, positive.
    """

    score: tuple[float, ...]
    log_work: tuple[float, ...]
    spread: float

    @classmethod
    def fit(cls, score: FloatArray, latency_s: FloatArray, log_rate: FloatArray) -> ScoreLabels:
        """Fits the calibration to N scores of measured samples.

        Args:
            log_rate: float64 [N], log of the peak FLOP/s of each sample's device.
        """
        from sklearn.isotonic import IsotonicRegression

        isotonic = IsotonicRegression(out_of_bounds="clip")
        isotonic.fit(score, np.log(latency_s) + log_rate)
        return cls(
            tuple(float(value) for value in isotonic.X_thresholds_),
            tuple(float(value) for value in isotonic.y_thresholds_),
            float(np.std(score)) or 1.0,
        )

    def decode(self, score: FloatArray, log_rate: FloatArray) -> FloatArray:
        """Returns float64 [N], seconds."""
        log_work = np.interp(score, self.score, self.log_work)
        return np.asarray(np.exp(log_work + _LEAST_SLOPE * score / self.spread - log_rate))


def least_log_error_factor(predicted_s: FloatArray, measured_s: FloatArray) -> float:
    """Returns the f > 0 that minimises the mean of |log(f x predicted / measured)|."""
    return float(np.exp(np.median(np.log(measured_s / predicted_s))))


def least_mape_factor(predicted_s: FloatArray, measured_s: FloatArray) -> float:
    """Returns the f > 0 that minimises the mean of |f x predicted - measured| / measured.

    It is the median of measured / predicted weighted by predicted / measured.
    """
    ratio = measured_s / predicted_s
    order = np.argsort(ratio, kind="stable")
    weight = np.cumsum(1.0 / ratio[order])
    return float(ratio[order][np.searchsorted(weight, weight[-1] / 2.0)])


def labels_from_json(value: dict[str, Any]) -> LogLabels | BoxCoxLabels | ScoreLabels:
    """Rebuilds labels from their `dataclasses.asdict`."""
    if "exponent" in value:
        return BoxCoxLabels(**value)
    if "log_work" in value:
        return ScoreLabels(tuple(value["score"]), tuple(value["log_work"]), value["spread"])
    return LogLabels(**value)


def _box_cox(latency_s: FloatArray, exponent: float) -> FloatArray:
    log_latency = np.log(latency_s)
    if exponent == 0.0:
        return np.asarray(log_latency)
    return np.asarray(np.expm1(exponent * log_latency) / exponent)
