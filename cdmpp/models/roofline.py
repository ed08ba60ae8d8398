"""The roofline as a cost model: the analytic time times one efficiency factor per device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.roofline.programs import leaf_work, roofline_s
from cdmpp.datasets.samples import Samples
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.parts.checks import check_schema, check_trainable, state_value

#: No program takes less; keeps the logarithm of an empty program finite.
_LEAST_S = 1e-9


class RooflineCostModel(CostModel):
    """Roofline seconds times exp(median log ratio of measured to roofline) of each device's
    training part.

    Where a device's peak or bandwidth is unknown, a nominal stand-in takes its place and the factor
    absorbs the difference. An unseen device gets the geometric mean of the factors.
    """

    kind: ClassVar[str] = "roofline"

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
        check_trainable(train)
        self._schema = dict(train.programs.feature_schema)
        log_ratio = np.log(train.latency_s) - np.log(_sample_roofline_s(train))
        self._factor = {
            spec.name: float(np.exp(np.median(log_ratio[train.device == index])))
            for index, spec in enumerate(train.devices)
            if bool(np.any(train.device == index))
        }

    def predict(self, samples: Samples) -> NDArray[np.float64]:
        """Returns float64 [N], seconds."""
        check_schema(self._schema, samples)
        mean = float(np.exp(np.mean(np.log(list(self._factor.values())))))
        factor = np.array([self._factor.get(spec.name, mean) for spec in samples.devices])
        return np.asarray(_sample_roofline_s(samples) * factor[samples.device], np.float64)

    def save(self, directory: Path) -> dict[str, Any]:
        """Returns the state; there are no weights to write."""
        return {"feature_schema": self._schema, "factor": self._factor}

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> RooflineCostModel:
        """Rebuilds the model from its state."""
        model = cls()
        model._schema = state_value(state, "feature_schema")
        model._factor = dict(state_value(state, "factor"))
        return model


def _sample_roofline_s(samples: Samples) -> NDArray[np.float64]:
    work = leaf_work(samples.programs.leaf_features)
    seconds = np.full(len(samples), _LEAST_S)
    for index, spec in enumerate(samples.devices):
        rows = samples.device == index
        seconds[rows] = roofline_s(samples.programs, spec, work)[samples.program[rows]]
    return np.asarray(np.maximum(seconds, _LEAST_S), np.float64)
