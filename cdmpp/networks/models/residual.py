"""Our model: learned corrections of fitted rooflines and of fitted analytic memory.

Time is a sum over operators, each its fitted roofline times a ratio that a small network finds for
it (`TimeNet`), learned from times of networks and, where they were measured, from times of their
operators; memory and utilisation are their base times a ratio (`HoldNet`). Boosted trees
correct the same base; how much of either counts is chosen on the validation part. All losses are on
logs, so that every network counts the same, fast or slow.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.files.torch_weights import load_networks, save_networks
from cdmpp.networks.dataset.samples import MEMORIES, TARGETS, TIMES, UTILISATIONS, NetworkSamples
from cdmpp.networks.models.additive_net import HoldNet, TimeNet
from cdmpp.networks.models.base import FloatArray, NetworkModel, Progress, known_targets
from cdmpp.networks.models.batch import GraphBatch, GraphTensors, collate, segment_sum
from cdmpp.networks.models.boosters import Boosters
from cdmpp.networks.models.fit import fit_network, torch_session
from cdmpp.networks.models.residual_base import CONTEXT_COLUMNS, Base, Scaling

_HOLDS = (*MEMORIES, *UTILISATIONS)
#: Which targets a network of each name has.
_PARTS = {"time": TIMES, "hold": _HOLDS}
#: Below this error of a log the loss is quadratic, above it grows like the error.
_TURN = 0.05
#: The same for a single operator, whose time varies more.
_OPERATOR_TURN = 0.2
#: Shares of the trees that are tried on the validation part.
_TREE_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class ResidualModel(NetworkModel):
    """The mean, on the log scale, of several pairs of networks, and of trees."""

    kind: ClassVar[str] = "residual"

    def fit(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        *,
        seed: int,
        on_progress: Progress | None = None,
    ) -> None:
        """Fits the base, then networks and trees on what it leaves."""
        options = self.options.residual
        self._targets = known_targets(train, validation)
        self._base = Base.fit(train)
        self._scale = Scaling.fit(train)
        self._networks: dict[str, nn.Module] = {}
        for member in range(options.members):
            for name, columns in _PARTS.items():
                if not set(columns) & set(self._targets):
                    continue
                own_seed = 1000 * seed + member
                with torch_session(own_seed, options.fit.threads):
                    network = self._new_network(name)
                    trainee = _Trainee(
                        train, validation, self._scale, self._base, columns,
                        operator_weight=options.operator_weight,
                    )  # fmt: skip
                    told = on_progress and partial(_tell, on_progress, f"{name}.{member}")
                    fit_network(
                        network, trainee, trainee.count, options.fit, seed=own_seed,
                        on_progress=told,
                    )  # fmt: skip
                self._networks[f"{name}.{member}"] = network.double()
        self._boosters = Boosters({}, options.trees.threads)
        self._tree_share = np.zeros(len(TARGETS))
        if options.has_trees:
            self._boosters = Boosters.fit(
                (self._base.tree_rows(train), np.log(train.targets) - self._base.logs(train)),
                (
                    self._base.tree_rows(validation),
                    np.log(validation.targets) - self._base.logs(validation),
                ),
                TARGETS,
                options.trees,
                seed=seed,
            )
            self._tree_share = self._best_shares(validation)

    def predict(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6]."""
        if len(samples) == 0:
            return np.zeros((0, len(TARGETS)))
        logs = self._network_logs(samples)
        if self._tree_share.any():
            share = self._tree_share
            logs = np.where(share > 0, (1 - share) * logs + share * self._tree_logs(samples), logs)
        values = np.exp(logs)
        values[:, list(UTILISATIONS)] = np.minimum(values[:, list(UTILISATIONS)], 1.0)
        unknown = [column for column in range(len(TARGETS)) if column not in self._targets]
        values[:, unknown] = np.nan
        return values

    def operator_seconds(self, samples: NetworkSamples) -> list[FloatArray]:
        """Returns [N] float64 [nodes, 2], what the networks say that each operator takes."""
        networks = [net for name, net in self._networks.items() if name.startswith("time.")]
        result = []
        for rows in self._scale.tensors(samples, self._base, torch.float64):
            batch = collate([rows])
            with torch.no_grad():
                logs = [torch.log(net.operator_seconds(batch)) for net in networks]  # type: ignore[operator]
            result.append(torch.stack(logs).mean(0).exp().numpy())
        return result

    def parameter_count(self) -> int:
        """Returns the parameters of all networks."""
        return sum(p.numel() for network in self._networks.values() for p in network.parameters())

    def tree_shares(self) -> dict[str, float]:
        """Returns target -> how much of the prediction the trees make."""
        return dict(zip(TARGETS, self._tree_share.tolist(), strict=True))

    def save(self, directory: Path) -> dict[str, Any]:
        """Writes the weights and the trees that count."""
        save_networks(self._networks, directory)
        used = {
            name: booster
            for name, booster in self._boosters.by_name.items()
            if self._tree_share[TARGETS.index(name)] > 0
        }
        return {
            "targets": [TARGETS[column] for column in self._targets],
            "networks": list(self._networks),
            "trees": Boosters(used, self._boosters.threads).save(directory),
            "tree_share": self._tree_share.tolist(),
            "base": self._base.to_json(),
            "scaling": self._scale.to_json(),
        }

    def load(self, directory: Path, state: dict[str, Any]) -> None:
        """Reads the weights and the trees."""
        self._targets = [TARGETS.index(name) for name in state["targets"]]
        self._base = Base.from_json(state["base"])
        self._scale = Scaling.from_json(state["scaling"])
        self._networks = {
            key: self._new_network(key.partition(".")[0]) for key in state["networks"]
        }
        load_networks(self._networks, directory)
        for network in self._networks.values():
            network.double()
        threads = self.options.residual.trees.threads
        self._boosters = Boosters.load(directory, state["trees"], threads=threads)
        self._tree_share = np.array(state["tree_share"], np.float64)

    def _network_logs(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6], logs of the targets; the base where there is no network."""
        logs = self._base.logs(samples)
        rows = self._scale.tensors(samples, self._base, torch.float64)
        for name, columns in _PARTS.items():
            networks = [net for key, net in self._networks.items() if key.startswith(f"{name}.")]
            if not networks:
                continue
            with torch.no_grad():
                found = torch.stack([_run(network, rows) for network in networks]).mean(0).numpy()
            own = list(columns)
            if name == "time":
                logs[:, own] = found
            else:
                logs[:, own] += self._base.spread[own] * found
        return logs

    def _tree_logs(self, samples: NetworkSamples) -> FloatArray:
        """Returns float64 [N, 6]; the base where there are no trees."""
        logs = self._base.logs(samples)
        rows = self._base.tree_rows(samples)
        for name in self._boosters.by_name:
            logs[:, TARGETS.index(name)] += self._boosters.predict(name, rows)
        return logs

    def _best_shares(self, validation: NetworkSamples) -> FloatArray:
        """Returns float64 [6], the share of the trees with the least mean error of the logs."""
        first, second = self._network_logs(validation), self._tree_logs(validation)
        wanted = np.log(validation.targets)
        best = np.zeros(len(TARGETS))
        for name in self._boosters.by_name:
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
        nodes, network = len(self._scale.nodes.mean), len(self._scale.network.mean)
        if name == "hold":
            return HoldNet(
                nodes, network, hidden=options.hidden, dropout=options.dropout,
                targets=len(_HOLDS),
            )  # fmt: skip
        return TimeNet(
            nodes, CONTEXT_COLUMNS if options.has_context else 0, hidden=options.hidden,
            rounds=options.rounds, dropout=options.dropout,
        )  # fmt: skip


class _Trainee:
    """Huber losses of logs; missing targets do not count."""

    def __init__(
        self,
        train: NetworkSamples,
        validation: NetworkSamples,
        scaling: Scaling,
        base: Base,
        columns: tuple[int, ...],
        *,
        operator_weight: float,
    ) -> None:
        own = list(columns)
        self._is_time = columns == TIMES
        self._operator_weight = operator_weight if self._is_time else 0.0
        spread = np.ones(len(own)) if self._is_time else base.spread[own]
        self._spread = torch.tensor(spread, dtype=torch.float32)
        self._rows, self._wanted = self._prepared(train, scaling, base, own)
        self._held, self._held_wanted = self._prepared(validation, scaling, base, own)
        self.count = len(self._rows)

    def losses(self, network: nn.Module, rows: list[int]) -> Tensor:
        """Returns [targets]."""
        return self._losses(network, [self._rows[row] for row in rows], self._wanted[rows])

    def validation_loss(self, network: nn.Module) -> float:
        """Returns the sum over the targets."""
        return float(self._losses(network, self._held, self._held_wanted).sum())

    def _losses(self, network: nn.Module, rows: list[GraphTensors], wanted: Tensor) -> Tensor:
        if not self._operator_weight:
            return self._huber(_run(network, rows), wanted)
        batch = collate(rows)
        seconds: Tensor = network.operator_seconds(batch)  # type: ignore[operator]
        found = TimeNet.log_sums(batch, seconds)
        return self._huber(found, wanted) + self._operator_weight * _operator_losses(batch, seconds)

    def _huber(self, found: Tensor, wanted: Tensor) -> Tensor:
        """Returns [targets], on the log scale of the targets."""
        is_there = torch.isfinite(wanted)
        error = torch.where(is_there, (found - torch.nan_to_num(wanted)) * self._spread, 0.0)
        loss = nn.functional.huber_loss(
            error, torch.zeros_like(error), delta=_TURN, reduction="none"
        )
        return loss.sum(0) / is_there.sum(0).clamp(min=1) / _TURN

    def _prepared(
        self, samples: NetworkSamples, scaling: Scaling, base: Base, columns: list[int]
    ) -> tuple[list[GraphTensors], Tensor]:
        wanted = np.log(samples.targets[:, columns])
        if not self._is_time:
            wanted = (wanted - base.logs(samples)[:, columns]) / base.spread[columns]
        rows = np.flatnonzero(np.isfinite(wanted).any(axis=1))
        tensors = scaling.tensors(samples.take(rows), base, torch.float32)
        return tensors, torch.tensor(wanted[rows], dtype=torch.float32)


def _operator_losses(batch: GraphBatch, seconds: Tensor) -> Tensor:
    """Returns [modes], mean over networks; an operator counts as its share of its network's time.

    Args:
        seconds: [nodes, modes], what a network says.
    """
    is_there = torch.isfinite(batch.measured)
    measured = torch.where(is_there, batch.measured, 0.0)
    total = segment_sum(measured, batch.node_graph, batch.graphs)
    share = measured / total.clamp(min=1e-12)[batch.node_graph]
    safe = torch.where(is_there, batch.measured, seconds.detach())
    error = torch.log(seconds) - torch.log(safe)
    loss = nn.functional.huber_loss(
        error, torch.zeros_like(error), delta=_OPERATOR_TURN, reduction="none"
    )
    networks = (total > 0).sum(0).clamp(min=1)
    return (share * loss).sum(0) / networks / _OPERATOR_TURN


def _run(network: nn.Module, rows: list[GraphTensors], size: int = 128) -> Tensor:
    """Returns [rows, targets]."""
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return torch.cat([network(collate(part)) for part in parts])


def _tell(on_progress: Progress, name: str, entry: dict[str, Any]) -> None:
    on_progress({"network": name, **entry})
