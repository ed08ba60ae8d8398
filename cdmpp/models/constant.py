"""The constant baseline: the median training latency of each device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.parts.checks import check_schema, check_trainable, state_value


class ConstantCostModel(CostModel):
    """Predicts the median latency of a device's training samples; of all for an unseen device."""

    kind: ClassVar[str] = "constant"

    def __init__(self) -> None:
        self._schema: dict[str, int] | None = None
        self._median_s: dict[str, float] = {}
        self._overall_s = 0.0

    def fit(
        self,
        train: Samples,
        validation: Samples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Takes the medians of `train` and ignores the other arguments."""
        check_trainable(train)
        self._schema = dict(train.programs.feature_schema)
        self._overall_s = float(np.median(train.latency_s))
        self._median_s = {
            spec.name: float(np.median(train.latency_s[train.device == index]))
            for index, spec in enumerate(train.devices)
            if bool(np.any(train.device == index))
        }

    def predict(self, samples: Samples) -> NDArray[np.float64]:
        """Returns float64 [N], seconds."""
        samples = check_schema(self._schema, samples)
        per_device = np.array(
            [self._median_s.get(spec.name, self._overall_s) for spec in samples.devices], np.float64
        )
        return per_device[samples.device]

    def save(self, directory: Path) -> dict[str, Any]:
        """Returns the state; there are no weights to write."""
        return {
            "feature_schema": self._schema,
            "median_s": self._median_s,
            "overall_s": self._overall_s,
        }

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> ConstantCostModel:
        """Rebuilds the model from its state."""
        model = cls()
        model._schema = state_value(state, "feature_schema")
        model._median_s = dict(state_value(state, "median_s"))
        model._overall_s = float(state_value(state, "overall_s"))
        return model
