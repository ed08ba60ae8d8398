"""The `residual` model: learned corrections of fitted rooflines and fitted analytic memory.

Time is the sum over operators of the fitted roofline times a ratio from a small network
(`TimeNet`), which is trained on times of networks and on measured times of their operators. Memory
and utilisation are their base times a ratio (`HoldNet`). Boosted trees correct the same base; their
weight is selected on the validation part. All losses are on logs, so fast and slow networks have
equal weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.arrays import FloatArray
from cdmpp.networks.dataset.samples import MEMORIES, TARGETS, TIMES, UTILISATIONS, NetworkSamples
from cdmpp.networks.models.additive_net import HoldNet, TimeNet
from cdmpp.networks.models.base import Fitting, NetworkModel
from cdmpp.networks.models.batch import GraphBatch, GraphTensors, collate, segment_sum
from cdmpp.networks.models.boosters import Boosters
from cdmpp.networks.models.fit import (
    GraphPart,
    Losses,
    fit_network,
    known_errors,
    known_means,
    run_graphs,
)
from cdmpp.networks.models.options import GraphTreeOptions
from cdmpp.networks.models.residual_base import CONTEXT_COLUMNS, Base, Scaling

_HOLDS = (*MEMORIES, *UTILISATIONS)
#: Name of a network -> its targets.
_PARTS = {"time": TIMES, "hold": _HOLDS}
#: Delta of the Huber loss on logs.
_TURN = 0.05
#: Delta of the Huber loss on logs of operator times, which vary more.
_OPERATOR_TURN = 0.2
#: Candidate weights of the trees, selected on the validation part.
_TREE_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class ResidualFound:
    """Fitted parameters besides weights and trees.

    Attributes:
        base: base predictions.
        scaling: standardisation of the inputs.
        tree_share: float64 [6], weight of the trees in each target.
    """

    base: Base
    scaling: Scaling
    tree_share: FloatArray


class ResidualModel(NetworkModel):
    """Weighted mean, on the log scale, of an ensemble of networks and of trees."""

    kind: ClassVar[str] = "residual"
    found_class = ResidualFound

    @property
    def tree_options(self) -> GraphTreeOptions:
        """Options of the trees."""
        return self.options.residual.trees

    def _fit(self, train: NetworkSamples, validation: NetworkSamples, fitting: Fitting) -> None:
        options = self.options.residual
        base = Base.fit(train)
        self.found = ResidualFound(base, Scaling.fit(train), np.zeros(len(TARGETS)))
        for name in self._network_names():
            part, _, member = name.partition(".")
            self.networks[name] = fit_network(
                name, partial(self._new_network, name), self._part(train, part),
                self._part(validation, part), self._losses(part), options.fit, fitting,
                seed=1000 * fitting.seed + int(member),
            ).double()  # fmt: skip
        if options.has_trees:
            grown, watched = (
                (base.tree_rows(part), np.log(part.targets) - base.logs(part))
                for part in (train, validation)
            )
            self.boosters = Boosters.fit(
                grown, watched, TARGETS, self.tree_options, seed=fitting.seed
            )
            share = self._best_shares(validation)
            self.found = ResidualFound(base, self.found.scaling, share)
            used = self.boosters.by_name.items()
            kept = {name: trees for name, trees in used if share[TARGETS.index(name)] > 0}
            self.boosters = Boosters(kept)

    def _predict(self, samples: NetworkSamples) -> FloatArray:
        logs, share = self._network_logs(samples), self.found.tree_share
        if share.any():
            logs = np.where(share > 0, (1 - share) * logs + share * self._tree_logs(samples), logs)
        values = np.exp(logs)
        values[:, list(UTILISATIONS)] = np.minimum(values[:, list(UTILISATIONS)], 1.0)
        return np.asarray(values)

    def operator_seconds(self, samples: NetworkSamples) -> list[FloatArray]:
        """Returns [N] float64 [nodes, 2], the networks' predicted seconds of each operator."""
        networks = self._networks_of("time")
        result = []
        for rows in self.found.scaling.tensors(samples, self.found.base, torch.float64):
            batch = collate([rows])
            with torch.no_grad():
                logs = [torch.log(net.operator_seconds(batch)) for net in networks]  # type: ignore[operator]
            result.append(torch.stack(logs).mean(0).exp().numpy())
        return result

    def _network_names(self) -> list[str]:
        parts = [name for name, columns in _PARTS.items() if set(columns) & set(self.columns)]
        members = range(self.options.residual.members)
        return [f"{name}.{member}" for member in members for name in parts]

    def _networks_of(self, part: str) -> list[nn.Module]:
        return [net for name, net in self.networks.items() if name.startswith(f"{part}.")]

    def _network_logs(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6], log targets by the networks; the base without a network."""
        base = self.found.base
        logs: FloatArray = base.logs(samples)
        rows = self.found.scaling.tensors(samples, base, torch.float64)
        for name, columns in _PARTS.items():
            networks = [network.double() for network in self._networks_of(name)]
            if not networks:
                continue
            with torch.no_grad():
                found = torch.stack([run_graphs(net, rows) for net in networks]).mean(0).numpy()
            own = list(columns)
            if name == "time":
                logs[:, own] = found
            else:
                logs[:, own] += base.spread[own] * found
        return logs

    def _tree_logs(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6], log targets by the trees; the base without trees."""
        logs: FloatArray = self.found.base.logs(samples)
        rows = self.found.base.tree_rows(samples)
        for name in self.boosters.by_name:
            logs[:, TARGETS.index(name)] += self.boosters.predict(name, rows)
        return logs

    def _best_shares(self, validation: NetworkSamples) -> FloatArray:
        """Returns float64 [6], the weight of the trees with the smallest mean log error."""
        first, second = self._network_logs(validation), self._tree_logs(validation)
        wanted = np.log(validation.targets)
        best = np.zeros(len(TARGETS))
        for name in self.boosters.by_name:
            column = TARGETS.index(name)
            errors = [
                np.nanmean(
                    np.abs((1 - s) * first[:, column] + s * second[:, column] - wanted[:, column])
                )
                for s in _TREE_SHARES
            ]
            best[column] = _TREE_SHARES[int(np.argmin(errors))]
        return best

    def _new_network(self, name: str) -> nn.Module:
        options = self.options.residual
        scaling = self.found.scaling
        nodes, network = len(scaling.nodes.mean), len(scaling.network.mean)
        if name.startswith("hold"):
            return HoldNet(
                nodes, network, hidden=options.hidden, dropout=options.dropout,
                targets=len(_HOLDS),
            )  # fmt: skip
        return TimeNet(
            nodes, CONTEXT_COLUMNS if options.has_context else 0, hidden=options.hidden,
            rounds=options.rounds, dropout=options.dropout,
        )  # fmt: skip

    def _part(self, samples: NetworkSamples, name: str) -> GraphPart:
        """Returns the samples with the log targets of a network."""
        base, columns = self.found.base, list(_PARTS[name])
        wanted = np.log(samples.targets[:, columns])
        if name == "hold":
            wanted = (wanted - base.logs(samples)[:, columns]) / base.spread[columns]
        rows = np.flatnonzero(np.isfinite(wanted).any(axis=1))
        graphs = self.found.scaling.tensors(samples.take(rows), base, torch.float32)
        return GraphPart(graphs, torch.tensor(wanted[rows], dtype=torch.float32))

    def _losses(self, name: str) -> Losses:
        """Returns the loss function of a network: Huber losses on the log scale."""
        weight, columns = self.options.residual.operator_weight, list(_PARTS[name])
        spread = np.ones(len(columns)) if name == "time" else self.found.base.spread[columns]
        scale = torch.tensor(spread, dtype=torch.float32)

        def of_targets(found: Tensor, wanted: Tensor) -> Tensor:
            return known_means(_huber(known_errors(found, wanted) * scale, _TURN), wanted) / _TURN

        def losses(network: nn.Module, graphs: list[GraphTensors], wanted: Tensor) -> Tensor:
            if name == "hold" or not weight:
                return of_targets(run_graphs(network, graphs), wanted)
            batch = collate(graphs)
            seconds: Tensor = network.operator_seconds(batch)  # type: ignore[operator]
            found = TimeNet.log_sums(batch, seconds)
            return of_targets(found, wanted) + weight * _operator_losses(batch, seconds)

        return losses


def _operator_losses(batch: GraphBatch, seconds: Tensor) -> Tensor:
    """Returns [modes], means over networks of operator losses, weighted by an operator's share of
    its network's time.

    Args:
        seconds: [nodes, modes], predicted seconds.
    """
    is_there = torch.isfinite(batch.measured)
    measured = torch.where(is_there, batch.measured, 0.0)
    total = segment_sum(measured, batch.node_graph, batch.graphs)
    share = measured / total.clamp(min=1e-12)[batch.node_graph]
    safe = torch.where(is_there, batch.measured, seconds.detach())
    loss = _huber(torch.log(seconds) - torch.log(safe), _OPERATOR_TURN)
    networks = (total > 0).sum(0).clamp(min=1)
    return (share * loss).sum(0) / networks / _OPERATOR_TURN


def _huber(error: Tensor, turn: float) -> Tensor:
    zeros = torch.zeros_like(error)
    return nn.functional.huber_loss(error, zeros, delta=turn, reduction="none")
