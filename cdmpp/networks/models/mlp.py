"""Perceptron on the graph and device features, for all targets together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.arrays import FloatArray
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples
from cdmpp.networks.models.base import Fitting, NetworkModel
from cdmpp.networks.models.baselines import network_rows
from cdmpp.networks.models.batch import Standard
from cdmpp.networks.models.fit import GraphPart, fit_network, squared_losses


@dataclass(frozen=True)
class MlpScaling:
    """Standardisation of the features and of the log targets."""

    inputs: Standard
    outputs: Standard


class GraphMlp(NetworkModel):
    """Perceptron that minimises mean squared errors of standardised log targets."""

    kind: ClassVar[str] = "mlp"
    found_class = MlpScaling

    def _fit(self, train: NetworkSamples, validation: NetworkSamples, fitting: Fitting) -> None:
        self.found = MlpScaling(
            Standard.fit(network_rows(train)),
            Standard.fit(np.log(train.targets[:, self.columns])),
        )
        self.networks = {
            "mlp": fit_network(
                "mlp", lambda: self._new_network("mlp"), self._part(train), self._part(validation),
                _losses, self.options.mlp.fit, fitting,
            )
        }  # fmt: skip

    def _predict(self, samples: NetworkSamples) -> FloatArray:
        result = np.full((len(samples), len(TARGETS)), np.nan)
        rows = torch.tensor(self.found.inputs.apply(network_rows(samples)), dtype=torch.float64)
        with torch.no_grad():
            found = self.networks["mlp"].double()(rows).numpy()
        result[:, self.columns] = np.exp(self.found.outputs.undo(found))
        return result

    def _network_names(self) -> list[str]:
        return ["mlp"]

    def _new_network(self, name: str) -> nn.Module:
        options = self.options.mlp
        width, layers = len(self.found.inputs.mean), []
        for _ in range(options.layers):
            layers += [nn.Linear(width, options.hidden), nn.ReLU()]
            width = options.hidden
        return nn.Sequential(*layers, nn.Linear(width, len(self.columns)))

    def _part(self, samples: NetworkSamples) -> GraphPart:
        rows = self.found.inputs.apply(network_rows(samples))
        wanted = self.found.outputs.apply(np.log(samples.targets[:, self.columns]))
        return GraphPart(
            list(torch.tensor(rows, dtype=torch.float32)), torch.tensor(wanted, dtype=torch.float32)
        )


def _losses(network: nn.Module, rows: list[Tensor], wanted: Tensor) -> Tensor:
    return squared_losses(network(torch.stack(rows)), wanted)
