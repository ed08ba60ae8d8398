"""The contract of the whole-network models, and who they are."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError, UsageError
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples
from cdmpp.networks.models.options import NetworkOptions

FloatArray = NDArray[np.float64]
Progress = Callable[[dict[str, Any]], None]

#: Our model, the one that is trained unless another is asked for.
DEFAULT_MODEL = "residual"
#: Kind -> its module and class, in the order of tables.
_CLASSES: Mapping[str, tuple[str, str]] = {
    "residual": ("residual", "ResidualModel"),
    "seernet": ("seernet", "SeerNetModel"),
    "seernet-multi": ("seernet", "SeerNetMultiModel"),
    "trees": ("baselines", "GraphTrees"),
    "mlp": ("mlp", "GraphMlp"),
    "operator-linear": ("baselines", "OperatorLinear"),
    "roofline": ("baselines", "RooflineFactor"),
    "constant": ("baselines", "ConstantLine"),
}
MODELS = tuple(_CLASSES)


class NetworkModel(ABC):
    """Predicts the six targets of networks.

    Attributes:
        kind: its name in `MODELS`.
    """

    kind: ClassVar[str]

    def __init__(self, options: NetworkOptions | None = None) -> None:
        self.options = options or NetworkOptions()

    @abstractmethod
    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        on_progress: Progress | None = None,
    ) -> None:
        """Fits the model; the validation part only chooses when to stop."""

    @abstractmethod
    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6], columns `TARGETS`, positive; NaN for a target that no training
        sample has.
        """

    @abstractmethod
    def save(self, directory: Path) -> dict[str, Any]:
        """Writes what JSON cannot hold into `directory`; returns the rest."""

    @abstractmethod
    def load(self, directory: Path, state: dict[str, Any]) -> None:
        """Becomes the model that `save` wrote.

        Raises:
            DataError: a file is missing or damaged.
        """


def new_model(kind: str, options: NetworkOptions | None = None) -> NetworkModel:
    """Returns an unfitted model.

    Raises:
        UsageError: there is no such model.
    """
    if kind not in _CLASSES:
        raise UsageError(f"unknown model {kind!r}; expected one of {', '.join(MODELS)}")
    module, name = _CLASSES[kind]
    model_class = getattr(importlib.import_module(f"cdmpp.networks.models.{module}"), name)
    model: NetworkModel = model_class(options)
    return model


def known_targets(train: NetworkSamples, validation: NetworkSamples) -> list[int]:
    """Returns the columns of the targets that can be fitted: some sample of both parts has them.

    Raises:
        DataError: there is none.
    """
    found = [np.isfinite(part.targets).any(axis=0) for part in (train, validation)]
    columns = np.flatnonzero(found[0] & found[1]).tolist()
    if not columns:
        raise DataError(
            f"no target of {', '.join(TARGETS)} is in both the training and the validation part; "
            "measure more networks with `cdmpp networks measure`"
        )
    return [int(column) for column in columns]
