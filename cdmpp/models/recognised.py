"""Baselines for recognised operators only: the convolution and the embedding model."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from cdmpp.analytic.prior import PRIOR_SOURCES, PriorSource, prior_times
from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.scaled import ScaledCostModel


class RecognisedCostModel(ScaledCostModel):
    """Analytic seconds times the device's factor; NaN for samples that are not recognised.

    Attributes:
        source: the analytic model.
    """

    source: ClassVar[PriorSource]

    def analytic_s(self, samples: Samples) -> FloatArray:
        """Returns [N] seconds; NaN for samples that the model does not recognise."""
        times = prior_times(samples, "auto")
        is_recognised = times.source == PRIOR_SOURCES.index(self.source)
        return np.where(is_recognised, np.exp(times.log_s), np.nan)


class ConvBaseline(RecognisedCostModel):
    """The analytic convolution model, on recognised convolutions on NVIDIA GPUs."""

    kind: ClassVar[str] = "conv"
    source: ClassVar[PriorSource] = "conv"


class EmbeddingBaseline(RecognisedCostModel):
    """The analytic embedding model, on recognised lookups on GPUs."""

    kind: ClassVar[str] = "embedding"
    source: ClassVar[PriorSource] = "embedding"
