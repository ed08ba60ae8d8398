"""Analytic priors of learned models, calibrated on the training part."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.prior import PRIOR_SOURCES, PriorModelName, PriorTimes, prior_times
from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.nets.options import PriorKind


@dataclass(frozen=True)
class Prior:
    """An analytic model with one factor per source, fitted on a training part.

    Attributes:
        model: the analytic model.
        log_factor: source -> median log ratio of measured to analytic time; the median of all
            samples for a source without training samples.
        mean: mean of the calibrated log seconds.
        scale: 1 / standard deviation of the calibrated log seconds; 0 if they are constant.
        counts: source -> number of training samples.
        fallbacks: reason for using the roofline -> number of training samples.
    """

    model: PriorModelName
    log_factor: dict[str, float]
    mean: float
    scale: float
    counts: dict[str, int] = field(metadata={"entry": "training_samples"})
    fallbacks: dict[str, int] = field(metadata={"entry": "roofline_because"})

    @classmethod
    def fit(cls, train: Samples, model: PriorModelName) -> Prior:
        """Fits the calibration to N ≥ 1 training samples."""
        times = prior_times(train, model)
        log_ratio = np.log(train.latency_s) - times.log_s
        everywhere = float(np.median(log_ratio))
        log_factor: dict[str, float] = {}
        for index, name in enumerate(PRIOR_SOURCES):
            own = log_ratio[times.source == index]
            log_factor[name] = float(np.median(own)) if len(own) else everywhere
        calibrated = _calibrated(times, log_factor)
        deviation = float(calibrated.std())
        return cls(
            model,
            log_factor,
            float(calibrated.mean()),
            1.0 / deviation if deviation > 1e-6 else 0.0,
            times.counts(),
            times.fallbacks,
        )

    def log_s(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], calibrated log seconds."""
        return _calibrated(prior_times(samples, self.model), self.log_factor)

    def columns(self, samples: Samples) -> NDArray[np.float32]:
        """Returns float32 [N, 2]: calibrated log seconds, raw and standardised."""
        log_s = self.log_s(samples)
        return np.stack([log_s, self.scale * (log_s - self.mean)], axis=1).astype(np.float32)


def fit_prior(train: Samples, kind: PriorKind, model: PriorModelName) -> Prior | None:
    """Returns the fitted prior for a model's options; None for kind `none`."""
    return None if kind == "none" else Prior.fit(train, model)


def _calibrated(times: PriorTimes, log_factor: dict[str, float]) -> FloatArray:
    factors = np.array([log_factor[name] for name in PRIOR_SOURCES])
    return np.asarray(times.log_s + factors[times.source], np.float64)
