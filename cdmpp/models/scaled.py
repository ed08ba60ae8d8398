"""Base class of cost models that multiply an analytic time by one factor per device."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.parts.checks import check_schema, check_trainable, state_value


class ScaledCostModel(CostModel):
    """Multiplies analytic seconds by a factor per device.

    The factor is exp(median log ratio of measured to analytic seconds) of the device's training
    samples. A device without usable training samples gets the geometric mean of the factors;
    without any factor every sample is NaN.
    """

    def __init__(self) -> None:
        self._schema: dict[str, int] | None = None
        self._factor: dict[str, float] = {}

    @abstractmethod
    def analytic_s(self, samples: Samples) -> FloatArray:
        """Returns [N] seconds; NaN if the analytic model has no time for a sample."""

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Fits one factor per device to `train` and ignores the other arguments."""
        check_trainable(train)
        self._schema = dict(train.programs.feature_schema)
        log_ratio = np.log(train.latency_s) - np.log(self.analytic_s(train))
        self._factor = {
            spec.name: float(np.exp(np.median(log_ratio[rows])))
            for index, spec in enumerate(train.devices)
            if np.any(rows := np.isfinite(log_ratio) & (train.device == index))
        }

    def predict(self, samples: Samples) -> FloatArray:
        """Returns float64 [N], seconds; NaN for samples without an analytic time."""
        samples = check_schema(self._schema, samples)
        if not self._factor:
            return np.full(len(samples), np.nan)
        mean = float(np.exp(np.mean(np.log(list(self._factor.values())))))
        factor = np.array([self._factor.get(spec.name, mean) for spec in samples.devices])
        return np.asarray(self.analytic_s(samples) * factor[samples.device], np.float64)

    def save(self, directory: Path) -> dict[str, Any]:
        """Returns the state; there are no weights to write."""
        return {"feature_schema": self._schema, "factor": self._factor}

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> Self:
        """Rebuilds the model from its state."""
        model = cls()
        model._schema = state_value(state, "feature_schema")
        model._factor = dict(state_value(state, "factor"))
        return model
