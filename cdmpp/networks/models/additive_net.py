"""Networks of the `residual` model: time per operator, and memory and utilisation per graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cdmpp.networks.models.batch import GraphBatch, segment_max, segment_mean, segment_sum

_MODES = 2
#: Maximum absolute log ratio of an operator.
_MOST = 6.0


class TimeNet(nn.Module):
    """Time as a sum over operators, with message passing between neighbours.

    The time of an operator is its base (a fitted roofline) times exp(a). The network predicts a for
    inference and for training; it is 0 before training. Time thus scales with batch and size like
    the bases, and is proportional to the length of a network.

    Args:
        nodes: number of columns of an operator.
        context: number of columns of the whole network that are inputs of every operator; 0 = none.
        hidden: hidden width.
        rounds: number of message rounds.
        dropout: dropout rate.
    """

    def __init__(
        self,
        nodes: int,
        context: int,
        *,
        hidden: int,
        rounds: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self._context = context
        self.encode = nn.Linear(nodes + context, hidden)
        self.inner = _Step(hidden, hidden, dropout)
        self.rounds = nn.ModuleList(_Step(3 * hidden, hidden, dropout) for _ in range(rounds))
        self.ratio = nn.Linear(hidden, _MODES)
        nn.init.zeros_(self.ratio.weight)
        nn.init.zeros_(self.ratio.bias)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Returns [graphs, 2], log seconds of inference and of training."""
        return self.log_sums(batch, self.operator_seconds(batch))

    @staticmethod
    def log_sums(batch: GraphBatch, seconds: Tensor) -> Tensor:
        """Returns [graphs, 2], log seconds of networks from the seconds of their operators."""
        return torch.log(segment_sum(seconds, batch.node_graph, batch.graphs))

    def operator_seconds(self, batch: GraphBatch) -> Tensor:
        """Returns [nodes, 2], seconds of each operator in inference and in training."""
        values = batch.nodes
        if self._context:
            values = torch.cat([values, batch.network[:, : self._context][batch.node_graph]], 1)
        hidden = torch.relu(self.encode(values))
        hidden = self.inner(hidden, hidden)
        for step in self.rounds:
            count = hidden.shape[0]
            incoming = segment_mean(hidden[batch.source], batch.target, count)
            outgoing = segment_mean(hidden[batch.target], batch.source, count)
            hidden = step(hidden, torch.cat([hidden, incoming, outgoing], 1))
        return batch.base * torch.exp(self.ratio(hidden).clamp(-_MOST, _MOST))


class HoldNet(nn.Module):
    """Corrections of memory and utilisation from the totals and the pooled operators.

    Args:
        nodes: number of columns of an operator.
        network: number of columns of the whole network.
        hidden: hidden width.
        dropout: dropout rate.
        targets: number of corrections.
    """

    def __init__(
        self, nodes: int, network: int, *, hidden: int, dropout: float, targets: int
    ) -> None:
        super().__init__()
        self.encode = nn.Linear(nodes, hidden)
        self.join = nn.Linear(2 * hidden + network, 2 * hidden)
        self.step = _Step(2 * hidden, 2 * hidden, dropout)
        self.correct = nn.Linear(2 * hidden, targets)
        nn.init.zeros_(self.correct.weight)
        nn.init.zeros_(self.correct.bias)

    def forward(self, batch: GraphBatch) -> Tensor:
        """Returns [graphs, targets], standardised corrections of log targets."""
        nodes = torch.relu(self.encode(batch.nodes))
        peak = segment_max(nodes, batch.node_graph, batch.graphs)
        mean = segment_mean(nodes, batch.node_graph, batch.graphs)
        hidden = torch.relu(self.join(torch.cat([peak, mean, batch.network], 1)))
        result: Tensor = self.correct(self.step(hidden, hidden))
        return result


class _Step(nn.Module):
    """Residual block: adds two layers applied to `values` to a hidden vector."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, hidden)
        )

    def forward(self, hidden: Tensor, values: Tensor) -> Tensor:
        """Returns [rows, hidden]."""
        result: Tensor = torch.relu(hidden + self.layers(values))
        return result
