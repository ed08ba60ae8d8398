"""Base classes of all models and of cost models, which predict seconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.models.loop.progress import OnTrain

Part = TypeVar("Part")


class FittedModel(ABC, Generic[Part]):
    """Base class of models that are fitted to samples. Every kind of model is one subclass.

    Attributes:
        kind: name under which the model is registered and saved (`transformer`, `gbdt`, ...).
    """

    kind: ClassVar[str]

    @abstractmethod
    def fit(
        self,
        train: Part,
        validation: Part,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Fits the model to `train`, which also gives all statistics.

        Args:
            validation: may only be used for early stopping and calibration.
            run_dir: folder of the checkpoints; training resumes from an existing one.
            on_progress: called after every step of models that train in steps.
        """

    @abstractmethod
    def predict(self, samples: Part) -> NDArray[np.float64]:
        """Returns float64 [N] or [N, targets]. Measurements in `samples` are never read."""

    @abstractmethod
    def save(self, directory: Path) -> dict[str, Any]:
        """Writes weights into `directory` (no pickle) and returns the JSON state for `load`."""

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> FittedModel[Part]:
        """Rebuilds the model that `save` wrote."""


class CostModel(FittedModel[Samples]):
    """Predicts the latency of programs on devices: float64 [N], seconds."""

    def leaf_shares(self, samples: Samples) -> list[NDArray[np.float64]] | None:
        """Returns float64 [leaves] per sample: each leaf's share of the latency, sum 1.

        None if the model does not sum over leaves.
        """
        return None

    def predict_with_disagreement(
        self, samples: Samples
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Returns float64 [N], seconds, and the disagreement of the model's parts.

        The disagreement is float64 [N], the standard deviation of the parts' predictions in log
        seconds; None for a model of one part.
        """
        return self.predict(samples), None

    def tunable_part(self) -> CostModel:
        """Returns the part of the model that is fine-tuned; by default the whole model."""
        return self

    def prior_facts(self) -> dict[str, Any] | None:
        """Returns the analytic prior of the model as JSON; None without one.

        The JSON includes the number of training samples of each of its sources.
        """
        return None

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> CostModel:
        """Rebuilds the model that `save` wrote."""
