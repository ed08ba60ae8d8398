"""Base class of the whole-network models."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.config import from_dict, to_dict
from cdmpp.errors import DataError
from cdmpp.files.stored import from_json, to_json
from cdmpp.models.base import FittedModel
from cdmpp.models.loop.progress import OnTrain
from cdmpp.models.registry import network_model_class
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples
from cdmpp.networks.models.boosters import Boosters
from cdmpp.networks.models.options import GraphTreeOptions, NetworkOptions

if TYPE_CHECKING:  # importing torch takes a second
    from torch import nn


#: Default kind of model.
DEFAULT_MODEL = "residual"


@dataclass(frozen=True)
class Fitting:
    """State of one call of `fit`.

    Attributes:
        seed: seed of the fit.
        identity: digest of the model's options, the seed and the samples, which identifies an
            interrupted fit.
        run_dir: folder of checkpoints, with a subfolder per network; None = no checkpoints.
        on_progress: called after every step.
        history: one entry per network and epoch, filled during the fit.
    """

    seed: int
    identity: str
    run_dir: Path | None
    on_progress: OnTrain | None
    history: list[dict[str, Any]] = field(default_factory=list)


class NetworkModel(FittedModel[NetworkSamples]):
    """Predicts the six targets of networks.

    A subclass has fitted parameters (`found`, a dataclass of `found_class`), torch networks
    (`networks`) and trees (`boosters`).

    Attributes:
        kind: registered name.
        columns: indices of the predicted targets in `TARGETS`.
        history: one entry per network and epoch of the latest `fit`; empty after `load`.
    """

    found_class: ClassVar[Any]

    def __init__(self, options: NetworkOptions | None = None) -> None:
        self.options = options or NetworkOptions()
        self.columns: list[int] = []
        self.found: Any = None
        self.networks: dict[str, nn.Module] = {}
        self.boosters = Boosters({})
        self.history: list[dict[str, Any]] = []

    @property
    def tree_options(self) -> GraphTreeOptions:
        """Options of the trees."""
        return self.options.trees

    @abstractmethod
    def _fit(self, train: NetworkSamples, validation: NetworkSamples, fitting: Fitting) -> None:
        """Sets `found`, `networks` and `boosters`."""

    @abstractmethod
    def _predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6] with N at least 1; only `columns` are used."""

    def _network_names(self) -> list[str]:
        return []

    def _new_network(self, name: str) -> nn.Module:
        raise NotImplementedError

    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        run_dir: Path | None = None,
        on_progress: OnTrain | None = None,
    ) -> None:
        """Fits the model; the validation part is for early stopping and model selection.

        Raises:
            DataError: no target is measured in both parts.
        """
        self.columns = known_targets(train, validation)
        identity = _identity(self.kind, self.options, seed, train, validation)
        fitting = Fitting(seed, identity, run_dir, on_progress)
        self._fit(train, validation, fitting)
        self.history = fitting.history

    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6], columns `TARGETS`, positive; NaN for a target that was not
        fitted.
        """
        result = np.full((len(samples), len(TARGETS)), np.nan)
        if len(samples):
            result[:, self.columns] = self._predict(samples)[:, self.columns]
        return result

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes weights and trees into `directory`; returns the remaining state as JSON values."""
        if self.networks:
            from cdmpp.files.torch_weights import save_networks

            save_networks(self.networks, directory)
        names = {"targets": [TARGETS[column] for column in self.columns]}
        return {**to_json(self.found), **names, "trees": self.boosters.save(directory)}

    @classmethod
    def load(cls, directory: Path, state: dict[str, Any]) -> Self:
        """Returns the model that `save` wrote.

        Args:
            state: result of `save`, with the `options` added.

        Raises:
            DataError: a file is missing or damaged.
        """
        model = cls(from_dict(NetworkOptions, state["options"]))
        model.columns = [TARGETS.index(name) for name in state.get("targets", TARGETS)]
        model.found = from_json(cls.found_class, state)
        model.networks = {name: model._new_network(name) for name in model._network_names()}
        if model.networks:
            from cdmpp.files.torch_weights import load_networks

            load_networks(model.networks, directory)
        model.boosters = Boosters.load(directory, model._tree_names(state))
        return model

    @staticmethod
    def _tree_names(state: dict[str, Any]) -> list[str]:
        return list(state.get("trees", ()))


def new_model(kind: str, options: NetworkOptions | None = None) -> NetworkModel:
    """Returns an unfitted model.

    Raises:
        UsageError: the kind is unknown.
    """
    model: NetworkModel = network_model_class(kind)(options)
    return model


def known_targets(train: NetworkSamples, validation: NetworkSamples) -> list[int]:
    """Returns the columns of the targets that are measured in both parts.

    Raises:
        DataError: no target is measured in both parts.
    """
    found = [np.isfinite(part.targets).any(axis=0) for part in (train, validation)]
    columns = np.flatnonzero(found[0] & found[1]).tolist()
    if not columns:
        raise DataError(
            f"no target of {', '.join(TARGETS)} is in both the training and the validation part; "
            "measure more networks with `cdmpp networks measure`"
        )
    return [int(column) for column in columns]


def _identity(kind: str, options: NetworkOptions, seed: int, *parts: NetworkSamples) -> str:
    content = hashlib.sha256(repr((kind, to_dict(options), seed)).encode())
    for part in parts:
        content.update(repr(part.sample_names).encode())
        content.update(part.targets.tobytes())
    return content.hexdigest()
