"""SeerNet as a model: one network per target, or one for all targets with PCGrad."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.arrays import FloatArray
from cdmpp.networks.dataset.encode import EncodedGraph
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples
from cdmpp.networks.graph.graph import KINDS
from cdmpp.networks.models.base import Fitting, NetworkModel
from cdmpp.networks.models.batch import GraphTensors, Standard
from cdmpp.networks.models.fit import GraphPart, fit_network, run_graphs, squared_losses
from cdmpp.networks.models.options import SeerNetOptions
from cdmpp.networks.models.pcgrad import pcgrad_backward
from cdmpp.networks.models.seernet_net import SeerNet

#: Factors from SI units to the published milliseconds, megabytes and percent.
_UNITS = np.array([1e3, 1e3, 1e-6, 1e-6, 1e2, 1e2])
#: Lower bound of predictions, relative to the smallest training value.
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class SeerNetFound:
    """Fitted parameters besides weights."""

    scaling: SeerNetScaling


class SeerNetModel(NetworkModel):
    """One single-target network per target.

    Differs from the paper: operators of other kinds have no one-hot column, gradients are clipped
    at a norm of 5, and predictions are in float64.
    """

    kind: ClassVar[str] = "seernet"
    is_multi: ClassVar[bool] = False
    found_class = SeerNetFound

    @property
    def own_options(self) -> SeerNetOptions:
        """Options of this model."""
        return self.options.seernet_multi if self.is_multi else self.options.seernet

    def _fit(self, train: NetworkSamples, validation: NetworkSamples, fitting: Fitting) -> None:
        options = self.own_options
        self.found = SeerNetFound(SeerNetScaling.fit(train, has_kinds=options.has_kinds))
        for name in self._network_names():
            backward = None
            if self.is_multi:
                generator = torch.Generator().manual_seed(fitting.seed)
                backward = partial(_reconciled, generator=generator)
            columns = self._columns_of(name)
            self.networks[name] = fit_network(
                name, partial(self._new_network, name), self._part(train, columns),
                self._part(validation, columns), _losses, options.fit, fitting, backward=backward,
            )  # fmt: skip

    def _predict(self, samples: NetworkSamples) -> FloatArray:
        scaling = self.found.scaling
        graphs = [scaling.tensors(graph, torch.float64) for graph in samples.encoded]
        standard = np.full((len(samples), len(TARGETS)), np.nan)
        for name, network in self.networks.items():
            with torch.no_grad():
                found = run_graphs(network.double(), graphs).numpy()
            standard[:, self._columns_of(name)] = found
        return np.asarray(scaling.values(standard))

    def _network_names(self) -> list[str]:
        return ["all"] if self.is_multi else [TARGETS[column] for column in self.columns]

    def _columns_of(self, name: str) -> list[int]:
        return self.columns if self.is_multi else [TARGETS.index(name)]

    def _new_network(self, name: str) -> nn.Module:
        options, targets = self.own_options, len(self._columns_of(name))
        return SeerNet(
            self.found.scaling.widths, hidden=options.hidden, blocks=options.blocks, targets=targets
        )

    def _part(self, samples: NetworkSamples, columns: list[int]) -> GraphPart:
        scaling, encoded = self.found.scaling, samples.encoded
        wanted = scaling.standard(samples)[:, columns]
        rows = np.flatnonzero(np.isfinite(wanted).any(axis=1))
        graphs = [scaling.tensors(encoded[row], torch.float32) for row in rows.tolist()]
        return GraphPart(graphs, torch.tensor(wanted[rows], dtype=torch.float32))


class SeerNetMultiModel(SeerNetModel):
    """One trunk and one head per target, trained with PCGrad."""

    kind: ClassVar[str] = "seernet-multi"
    is_multi: ClassVar[bool] = True


@dataclass(frozen=True)
class SeerNetScaling:
    """Standardisation of features and of log(1 + target), fitted on the training part.

    Attributes:
        least: float64 [6], lower bounds of predictions in the published units.
        has_kinds: see `SeerNetOptions`.
    """

    nodes: Standard
    edges: Standard
    network: Standard
    targets: Standard
    least: FloatArray
    has_kinds: bool

    @classmethod
    def fit(cls, train: NetworkSamples, *, has_kinds: bool) -> SeerNetScaling:
        graphs = [train.graphs[number] for number in np.unique(train.graph).tolist()]
        first = 0 if has_kinds else len(KINDS)
        values = train.targets * _UNITS
        missing = ~np.isfinite(values).any(axis=0)
        filled = np.where(missing, 1.0, values)
        return cls(
            nodes=Standard.fit(np.concatenate([graph.nodes[:, first:] for graph in graphs])),
            edges=Standard.fit(np.concatenate([np.zeros((1, 5)), *(g.edges for g in graphs)])),
            network=Standard.fit(np.stack([graph.network for graph in graphs])),
            targets=Standard.fit(np.log1p(filled)),
            least=_LEAST_SHARE * np.nanmin(filled, axis=0),
            has_kinds=has_kinds,
        )

    @property
    def widths(self) -> tuple[int, int, int]:
        """Numbers of features of a node, an edge and a graph."""
        return len(self.nodes.mean), len(self.edges.mean), len(self.network.mean)

    def tensors(self, graph: EncodedGraph, dtype: torch.dtype) -> GraphTensors:
        """Returns the standardised features of a graph."""
        first = 0 if self.has_kinds else len(KINDS)
        return GraphTensors(
            nodes=torch.tensor(self.nodes.apply(graph.nodes[:, first:]), dtype=dtype),
            edges=torch.tensor(self.edges.apply(graph.edges), dtype=dtype),
            network=torch.tensor(self.network.apply(graph.network), dtype=dtype),
            links=torch.tensor(graph.graph.edges, dtype=torch.int64),
            base=torch.zeros(len(graph.nodes), 0, dtype=dtype),
            measured=torch.zeros(len(graph.nodes), 0, dtype=dtype),
        )

    def standard(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6], standardised log(1 + target)."""
        return self.targets.apply(np.log1p(samples.targets * _UNITS))

    def values(self, standard: FloatArray) -> FloatArray:
        """Returns float64 [N, 6], targets in SI units."""
        values = np.maximum(np.expm1(self.targets.undo(standard)), self.least)
        return np.asarray(np.where(np.isnan(standard), np.nan, values) / _UNITS)


def _losses(network: nn.Module, graphs: list[GraphTensors], wanted: Tensor) -> Tensor:
    return squared_losses(run_graphs(network, graphs), wanted)


def _reconciled(network: SeerNet, losses: Tensor, *, generator: torch.Generator) -> None:
    """Sets the gradients of all targets by PCGrad."""
    own = [list(head.parameters()) for head in network.heads]
    pcgrad_backward(losses, network.shared_parameters(), own, generator)
