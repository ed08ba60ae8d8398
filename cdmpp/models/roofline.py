"""The roofline as a cost model: the analytic time times one efficiency factor per device."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from cdmpp.analytic.roofline.programs import leaf_work, roofline_s
from cdmpp.arrays import FloatArray
from cdmpp.datasets.samples import Samples
from cdmpp.models.scaled import ScaledCostModel

#: Lower bound on the time, which keeps the logarithm of an empty program finite.
_LEAST_S = 1e-9


class RooflineCostModel(ScaledCostModel):
    """Roofline seconds times the factor of the device.

    An unknown peak or bandwidth is replaced by a nominal one; the factor absorbs the difference.
    """

    kind: ClassVar[str] = "roofline"

    def analytic_s(self, samples: Samples) -> FloatArray:
        """Returns [N] seconds of the roofline, above 0."""
        work = leaf_work(samples.programs.leaf_features)
        seconds = np.full(len(samples), _LEAST_S)
        for index, spec in enumerate(samples.devices):
            rows = samples.device == index
            seconds[rows] = roofline_s(samples.programs, spec, work)[samples.program[rows]]
        return np.asarray(np.maximum(seconds, _LEAST_S), np.float64)
