"""SeerNet: message passing between operators, a global node, and heads on pooled nodes.

Source: PerfSeer (arXiv 2502.01206), as far as its public text describes it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cdmpp.networks.models.batch import (
    GraphBatch,
    segment_max,
    segment_mean,
    segment_softmax_sum,
)


class SeerNet(nn.Module):
    """The network as published.

    Args:
        widths: numbers of features of a node, an edge and a graph.
        hidden: hidden width.
        blocks: number of message blocks.
        targets: number of heads; 1 for a single-target model.
    """

    def __init__(
        self, widths: tuple[int, int, int], *, hidden: int, blocks: int, targets: int
    ) -> None:
        super().__init__()
        nodes, edges, network = widths
        self.encode_nodes = nn.Linear(nodes, hidden)
        self.encode_edges = nn.Linear(edges, hidden)
        self.encode_network = nn.Linear(network, hidden)
        self.blocks = nn.ModuleList(_Block(hidden) for _ in range(blocks))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
            for _ in range(targets)
        )

    def forward(self, batch: GraphBatch) -> Tensor:
        """Returns [graphs, targets]."""
        pooled = self.trunk(batch)
        return torch.cat([head(pooled) for head in self.heads], 1)

    def trunk(self, batch: GraphBatch) -> Tensor:
        """Returns [graphs, hidden], the input of all heads."""
        nodes = self.encode_nodes(batch.nodes)
        edges = self.encode_edges(batch.edges)
        network = self.encode_network(batch.network)
        centre = segment_softmax_sum(nodes, batch.node_graph, batch.graphs)
        for block in self.blocks:
            nodes, edges, centre, network = block(batch, nodes, edges, centre, network)
        result: Tensor = network
        return result

    def shared_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters of the trunk."""
        heads = {id(parameter) for parameter in self.heads.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in heads]


class _Block(nn.Module):
    """Updates the edges, the nodes, the global node and the graph vector, in this order.

    A layer on concatenated vectors is a sum of layers on the vectors, so vectors of nodes and
    graphs are multiplied once, not once per edge.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.edge = _Joined(hidden, 4)
        self.node = _Joined(hidden, 3)
        self.centre = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.pool = nn.Linear(2 * hidden, hidden)
        self.network = _Joined(hidden, 3)

    def forward(
        self, batch: GraphBatch, nodes: Tensor, edges: Tensor, centre: Tensor, network: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns nodes, edges, centre and network after the block, each [rows, hidden]."""
        part = self.edge.part
        edges = torch.relu(
            part(0, edges)
            + part(1, nodes)[batch.source]
            + part(2, nodes)[batch.target]
            + part(3, network)[batch.edge_graph]
        )
        incoming = segment_mean(edges, batch.target, nodes.shape[0])
        part = self.node.part
        nodes = torch.relu(
            part(0, incoming)
            + part(1, nodes + centre[batch.node_graph])
            + part(2, network)[batch.node_graph]
        )
        gathered = segment_softmax_sum(nodes, batch.node_graph, batch.graphs)
        centre = self.centre(gathered + centre)
        peak = segment_max(nodes, batch.node_graph, batch.graphs)
        mean = segment_mean(nodes, batch.node_graph, batch.graphs)
        pooled = self.pool(torch.cat([peak, mean], 1))
        part = self.network.part
        network = torch.relu(part(0, pooled) + part(1, centre) + part(2, network))
        return nodes, edges, centre, network


class _Joined(nn.Module):
    """A linear layer on `parts` concatenated vectors, evaluated by part; part 0 has the bias."""

    def __init__(self, hidden: int, parts: int) -> None:
        super().__init__()
        self.layer = nn.Linear(parts * hidden, hidden)
        self._hidden = hidden

    def part(self, number: int, values: Tensor) -> Tensor:
        """Returns [rows, hidden], the contribution of one vector."""
        start = number * self._hidden
        weight = self.layer.weight[:, start : start + self._hidden]
        return nn.functional.linear(values, weight, self.layer.bias if number == 0 else None)
