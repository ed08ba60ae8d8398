"""The contract of all models, and that of cost models: samples in, seconds out."""

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
    """Learns from samples and predicts. Every kind of model is one subclass.

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
        """Learns from `train`; `validation` may only be used for early stopping. Statistics come
        from `train`.

        Args:
            run_dir: where checkpoints go; training resumes from one that is there.
            on_progress: called after every step of kinds that have steps.
        """

    @abstractmethod
    def predict(self, samples: Part) -> NDArray[np.float64]:
        """Returns float64 [N] or [N, targets]. What was measured of `samples` is never read."""

    @abstractmethod
    def save(self, directory: Path) -> dict[str, Any]:
        """Writes weights into `directory` (no pickle) and returns the JSON-able state that `load`
        needs.
        """

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> FittedModel[Part]:
        """Rebuilds the model that `save` wrote."""


class CostModel(FittedModel[Samples]):
    """Predicts the latency of programs on devices: float64 [N], seconds."""

    def leaf_shares(self, samples: Samples) -> list[NDArray[np.float64]] | None:
        """Returns for each sample float64 [leaves], the part of the latency that each leaf adds,
        sum 1; None where the model does not add up leaves.
        """
        return None

    def predict_with_disagreement(
        self, samples: Samples
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Returns float64 [N], seconds, and float64 [N], the standard deviation of what the model's
        parts say, log seconds; None for a model of one part.
        """
        return self.predict(samples), None

    def tunable_part(self) -> CostModel:
        """Returns what of the model is fine-tuned; most models are one piece."""
        return self

    def prior_facts(self) -> dict[str, Any] | None:
        """Returns the analytic model inside the model as JSON, with the number of training samples
        of each of its sources; None without one.
        """
        return None

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> CostModel:
        """Rebuilds the model that `save` wrote."""
