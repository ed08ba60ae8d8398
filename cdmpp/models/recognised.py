"""Baselines that answer only what they recognise: the convolution and the embedding model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.prior import PRIOR_SOURCES, PriorSource, prior_times
from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.parts.checks import check_schema, state_value


class RecognisedCostModel(CostModel):
    """Seconds of an analytic model times exp(median log ratio of measured to analytic) of each
    device's training part, on the samples that the model recognises.

    Other samples are NaN. A device without a recognised training sample gets the geometric mean of
    the factors; without any factor every sample is NaN.

    Attributes:
        source: the analytic model.
    """

    source: ClassVar[PriorSource]

    def __init__(self) -> None:
        self._schema: dict[str, int] | None = None
        self._factor: dict[str, float] = {}

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Fits one factor per device on `train`; the other arguments have no influence."""
        self._schema = dict(train.programs.feature_schema)
        log_s, is_recognised = self._log_s(train)
        log_ratio = np.log(train.latency_s) - log_s
        self._factor = {
            spec.name: float(np.exp(np.median(log_ratio[rows])))
            for index, spec in enumerate(train.devices)
            if np.any(rows := is_recognised & (train.device == index))
        }

    def predict(self, samples: Samples) -> NDArray[np.float64]:
        """Returns float64 [N], seconds; NaN where the model does not recognise a sample."""
        check_schema(self._schema, samples)
        log_s, is_recognised = self._log_s(samples)
        if not self._factor:
            return np.full(len(samples), np.nan)
        mean = float(np.exp(np.mean(np.log(list(self._factor.values())))))
        factor = np.array([self._factor.get(spec.name, mean) for spec in samples.devices])
        seconds = np.exp(log_s) * factor[samples.device]
        return np.where(is_recognised, seconds, np.nan)

    def save(self, directory: Path) -> dict[str, Any]:
        """Returns the state; there are no weights to write."""
        return {"feature_schema": self._schema, "factor": self._factor}

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> RecognisedCostModel:
        """Rebuilds the model from its state."""
        model = cls()
        model._schema = state_value(state, "feature_schema")
        model._factor = dict(state_value(state, "factor"))
        return model

    def _log_s(self, samples: Samples) -> tuple[FloatArray, BoolArray]:
        """Returns (log seconds, whether they are this model's), [N] each."""
        times = prior_times(samples, "auto")
        return times.log_s, np.asarray(times.source == PRIOR_SOURCES.index(self.source))


class ConvBaseline(RecognisedCostModel):
    """The closed forms of the convolution model on recognised convolutions on NVIDIA GPUs."""

    kind: ClassVar[str] = "conv"
    source: ClassVar[PriorSource] = "conv"


class EmbeddingBaseline(RecognisedCostModel):
    """The embedding model on recognised lookups on GPUs."""

    kind: ClassVar[str] = "embedding"
    source: ClassVar[PriorSource] = "embedding"
