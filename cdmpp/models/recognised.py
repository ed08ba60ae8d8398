"""Baselines that answer only what they recognise: the convolution and the embedding model."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from cdmpp.analytic.prior import PRIOR_SOURCES, PriorSource, prior_times
from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.scaled import ScaledCostModel


class RecognisedCostModel(ScaledCostModel):
    """Seconds of an analytic model times the factor of the device, NaN on samples that the model
    does not recognise.

    Attributes:
        source: the analytic model.
    """

    source: ClassVar[PriorSource]

    def analytic_s(self, samples: Samples) -> FloatArray:
        """Returns [N] seconds; NaN where the model does not recognise a sample."""
        times = prior_times(samples, "auto")
        is_recognised = times.source == PRIOR_SOURCES.index(self.source)
        return np.where(is_recognised, np.exp(times.log_s), np.nan)


class ConvBaseline(RecognisedCostModel):
    """The closed forms of the convolution model on recognised convolutions on NVIDIA GPUs."""

    kind: ClassVar[str] = "conv"
    source: ClassVar[PriorSource] = "conv"


class EmbeddingBaseline(RecognisedCostModel):
    """The embedding model on recognised lookups on GPUs."""

    kind: ClassVar[str] = "embedding"
    source: ClassVar[PriorSource] = "embedding"
