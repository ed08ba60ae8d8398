"""A plain perceptron on the 18 graph features, all targets at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.files.torch_weights import load_networks, save_networks
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples
from cdmpp.networks.models.base import FloatArray, NetworkModel, Progress, known_targets
from cdmpp.networks.models.baselines import network_rows
from cdmpp.networks.models.batch import Standard
from cdmpp.networks.models.fit import fit_network, torch_session


class GraphMlp(NetworkModel):
    """Mean squared errors of standardised logs."""

    kind: ClassVar[str] = "mlp"

    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        on_progress: Progress | None = None,
    ) -> None:
        """Fits the perceptron."""
        options = self.options.mlp
        self._targets = known_targets(train, validation)
        self._inputs = Standard.fit(network_rows(train))
        self._outputs = Standard.fit(np.log(train.targets[:, self._targets]))
        with torch_session(seed, options.fit.threads):
            self._network = self._new_network()
            trainee = _Trainee(*self._prepared(train), *self._prepared(validation))
            fit_network(
                self._network, trainee, len(train), options.fit, seed=seed, on_progress=on_progress
            )

    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6]."""
        result = np.full((len(samples), len(TARGETS)), np.nan)
        if len(samples):
            rows = torch.tensor(self._inputs.apply(network_rows(samples)), dtype=torch.float64)
            with torch.no_grad():
                found = self._network.double()(rows).numpy()
            result[:, self._targets] = np.exp(self._outputs.undo(found))
        return result

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the weights."""
        save_networks({"mlp": self._network}, directory)
        return {
            "targets": [TARGETS[column] for column in self._targets],
            "inputs": self._inputs.to_json(),
            "outputs": self._outputs.to_json(),
        }

    def load(self, directory: Path, state: dict[str, Any]) -> None:
        """Reads the weights."""
        self._targets = [TARGETS.index(name) for name in state["targets"]]
        self._inputs = Standard.from_json(state["inputs"])
        self._outputs = Standard.from_json(state["outputs"])
        self._network = self._new_network()
        load_networks({"mlp": self._network}, directory)

    def _new_network(self) -> nn.Module:
        options = self.options.mlp
        width, layers = len(self._inputs.mean), []
        for _ in range(options.layers):
            layers += [nn.Linear(width, options.hidden), nn.ReLU()]
            width = options.hidden
        return nn.Sequential(*layers, nn.Linear(width, len(self._targets)))

    def _prepared(self, samples: NetworkSamples) -> tuple[Tensor, Tensor]:
        rows = self._inputs.apply(network_rows(samples))
        wanted = self._outputs.apply(np.log(samples.targets[:, self._targets]))
        return torch.tensor(rows, dtype=torch.float32), torch.tensor(wanted, dtype=torch.float32)


class _Trainee:
    """Missing targets do not count."""

    def __init__(self, rows: Tensor, wanted: Tensor, held: Tensor, held_wanted: Tensor) -> None:
        self._rows, self._wanted, self._held, self._held_wanted = rows, wanted, held, held_wanted

    def losses(self, network: nn.Module, rows: list[int]) -> Tensor:
        """Returns [targets]."""
        return self._squared(network(self._rows[rows]), self._wanted[rows])

    def validation_loss(self, network: nn.Module) -> float:
        """Returns the sum over the targets."""
        return float(self._squared(network(self._held), self._held_wanted).sum())

    @staticmethod
    def _squared(found: Tensor, wanted: Tensor) -> Tensor:
        is_there = torch.isfinite(wanted)
        error = torch.where(is_there, found - torch.nan_to_num(wanted), 0.0)
        return (error**2).sum(0) / is_there.sum(0).clamp(min=1)
