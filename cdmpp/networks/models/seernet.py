"""SeerNet as a model: one network a target, or one for all targets with PCGrad."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.files.torch_weights import load_networks, save_networks
from cdmpp.networks.dataset.encode import EncodedGraph
from cdmpp.networks.dataset.samples import TARGETS, NetworkSamples
from cdmpp.networks.graph.graph import KINDS
from cdmpp.networks.models.base import FloatArray, NetworkModel, Progress, known_targets
from cdmpp.networks.models.batch import GraphBatch, GraphTensors, Standard, collate
from cdmpp.networks.models.fit import fit_network, torch_session
from cdmpp.networks.models.options import SeerNetOptions
from cdmpp.networks.models.pcgrad import pcgrad_backward
from cdmpp.networks.models.seernet_net import SeerNet

#: The published targets are in milliseconds, megabytes and percent.
_UNITS = np.array([1e3, 1e3, 1e-6, 1e-6, 1e2, 1e2])
#: Predictions are not below this share of the least training value.
_LEAST_SHARE = 0.5


class SeerNetModel(NetworkModel):
    """Six single-target networks.

    Differs from the paper: operators of other kinds are a bucket of their own, gradients are
    clipped at a norm of 5, and predictions are made in float64.
    """

    kind: ClassVar[str] = "seernet"
    is_multi: ClassVar[bool] = False

    @property
    def own_options(self) -> SeerNetOptions:
        """The options of this model."""
        return self.options.seernet_multi if self.is_multi else self.options.seernet

    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        on_progress: Progress | None = None,
    ) -> None:
        """Fits the network(s) with the published recipe."""
        options = self.own_options
        self._targets = known_targets(train, validation)
        self._scale = _Scaling.fit(train, has_kinds=options.has_kinds)
        groups = [self._targets] if self.is_multi else [[target] for target in self._targets]
        self._networks: dict[str, SeerNet] = {}
        for targets in groups:
            name = "all" if self.is_multi else TARGETS[targets[0]]
            with torch_session(seed, options.fit.threads):
                network = self._new_network(len(targets))
                trainee = _Trainee(train, validation, self._scale, targets)
                backward = None
                if self.is_multi:
                    backward = partial(
                        pcgrad_backward,
                        shared=network.shared_parameters(),
                        own=[list(head.parameters()) for head in network.heads],
                        generator=torch.Generator().manual_seed(seed),
                    )
                told = None if on_progress is None else partial(_tell, on_progress, name)
                fit_network(
                    network,
                    trainee,
                    trainee.count,
                    options.fit,
                    seed=seed,
                    backward=backward,
                    on_progress=told,
                )
            self._networks[name] = network

    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6]."""
        result = np.full((len(samples), len(TARGETS)), np.nan)
        if len(samples) == 0:
            return result
        graphs = [self._scale.tensors(graph, torch.float64) for graph in samples.encoded]
        standard = np.full_like(result, np.nan)
        for name, network in self._networks.items():
            columns = self._targets if self.is_multi else [TARGETS.index(name)]
            with torch.no_grad():
                standard[:, columns] = _run(network.double(), graphs).numpy()
        return self._scale.values(standard)

    def parameter_count(self) -> int:
        """Returns the parameters of one network."""
        network = next(iter(self._networks.values()))
        return sum(parameter.numel() for parameter in network.parameters())

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the weights."""
        save_networks(self._networks, directory)
        return {"targets": [TARGETS[t] for t in self._targets], "scaling": self._scale.to_json()}

    def load(self, directory: Path, state: dict[str, Any]) -> None:
        """Reads the weights."""
        self._targets = [TARGETS.index(name) for name in state["targets"]]
        self._scale = _Scaling.from_json(state["scaling"])
        names = ["all"] if self.is_multi else list(state["targets"])
        heads = len(self._targets) if self.is_multi else 1
        self._networks = {name: self._new_network(heads) for name in names}
        load_networks(self._networks, directory)

    def _new_network(self, targets: int) -> SeerNet:
        options = self.own_options
        return SeerNet(
            self._scale.widths, hidden=options.hidden, blocks=options.blocks, targets=targets
        )


class SeerNetMultiModel(SeerNetModel):
    """One trunk, one head a target, gradients reconciled by PCGrad."""

    kind: ClassVar[str] = "seernet-multi"
    is_multi: ClassVar[bool] = True


@dataclass(frozen=True)
class _Scaling:
    """Standardisation of features and of log(1 + target), fitted on the training part."""

    nodes: Standard
    edges: Standard
    network: Standard
    targets: Standard
    least: FloatArray
    has_kinds: bool

    @classmethod
    def fit(cls, train: NetworkSamples, *, has_kinds: bool) -> _Scaling:
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
        """Features of a node, an edge and a graph."""
        return len(self.nodes.mean), len(self.edges.mean), len(self.network.mean)

    def tensors(self, graph: EncodedGraph, dtype: torch.dtype) -> GraphTensors:
        """Returns a graph's standardised features."""
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
        """Returns float64 [N, 6] standardised log(1 + target)."""
        return self.targets.apply(np.log1p(samples.targets * _UNITS))

    def values(self, standard: FloatArray) -> FloatArray:
        """Returns float64 [N, 6] in SI units."""
        values = np.maximum(np.expm1(self.targets.undo(standard)), self.least)
        return np.asarray(np.where(np.isnan(standard), np.nan, values) / _UNITS)

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "nodes": self.nodes.to_json(),
            "edges": self.edges.to_json(),
            "network": self.network.to_json(),
            "targets": self.targets.to_json(),
            "least": self.least.tolist(),
            "has_kinds": self.has_kinds,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> _Scaling:
        """Returns what `to_json` was given."""
        names = ("nodes", "edges", "network", "targets")
        standards = {name: Standard.from_json(value[name]) for name in names}
        return cls(**standards, least=np.array(value["least"]), has_kinds=value["has_kinds"])


class _Trainee:
    """Mean squared errors of standardised targets; missing targets do not count."""

    def __init__(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        scaling: _Scaling,
        targets: list[int],
    ) -> None:
        self._graphs, self._wanted = self._prepared(train, scaling, targets)
        self._held, self._held_wanted = self._prepared(validation, scaling, targets)
        self.count = len(self._graphs)

    def losses(self, network: nn.Module, rows: list[int]) -> Tensor:
        """Returns [targets]."""
        found = network(collate([self._graphs[row] for row in rows]))
        return _squared(found, self._wanted[rows])

    def validation_loss(self, network: nn.Module) -> float:
        """Returns the sum over the targets."""
        return float(_squared(_run(network, self._held), self._held_wanted).sum())

    @staticmethod
    def _prepared(
        samples: NetworkSamples, scaling: _Scaling, targets: list[int]
    ) -> tuple[list[GraphTensors], Tensor]:
        standard = scaling.standard(samples)[:, targets]
        rows = np.flatnonzero(np.isfinite(standard).any(axis=1))
        encoded = samples.encoded
        tensors = [scaling.tensors(encoded[row], torch.float32) for row in rows.tolist()]
        return tensors, torch.tensor(standard[rows], dtype=torch.float32)


def _squared(found: Tensor, wanted: Tensor) -> Tensor:
    """Returns [targets], mean squared differences where there is something wanted."""
    is_there = torch.isfinite(wanted)
    difference = torch.where(is_there, found - torch.nan_to_num(wanted), 0.0)
    return (difference**2).sum(0) / is_there.sum(0).clamp(min=1)


def _run(network: nn.Module, graphs: list[GraphTensors], size: int = 128) -> Tensor:
    """Returns [graphs, targets]."""
    parts = [graphs[start : start + size] for start in range(0, len(graphs), size)]
    batches: list[GraphBatch] = [collate(part) for part in parts]
    return torch.cat([network(batch) for batch in batches])


def _tell(on_progress: Progress, name: str, entry: dict[str, Any]) -> None:
    on_progress({"network": name, **entry})
