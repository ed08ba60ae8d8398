"""Batches of graphs with concatenated nodes and edges, and segment reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cdmpp.arrays import FloatArray


@dataclass(frozen=True)
class Standard:
    """Mean and scale of columns; a constant column becomes 0.

    Attributes:
        mean: float64 [columns].
        scale: float64 [columns]; NaN for a constant column.
    """

    mean: FloatArray
    scale: FloatArray

    @classmethod
    def fit(cls, rows: FloatArray) -> Standard:
        """Returns the statistics of [rows, columns]; NaN values are ignored."""
        mean = np.nanmean(rows, axis=0)
        scale = np.nanstd(rows, axis=0)
        return cls(mean, np.where(scale > 1e-9 * np.maximum(np.abs(mean), 1.0), scale, np.nan))

    def apply(self, rows: FloatArray) -> FloatArray:
        """Returns standardised [rows, columns], with mean 0 and deviation 1 on the fitted rows."""
        return (rows - self.mean) / np.where(np.isnan(self.scale), np.inf, self.scale)

    def undo(self, rows: FloatArray) -> FloatArray:
        """Returns the inverse of `apply`; a constant column is its mean."""
        return rows * np.nan_to_num(self.scale) + self.mean


@dataclass(frozen=True)
class GraphTensors:
    """Standardised tensors of one graph.

    Attributes:
        nodes: [nodes, features].
        edges: [edges, features].
        network: [features].
        links: int64 [edges, 2], source and target node.
        base: [nodes, modes], base seconds of the operators; [nodes, 0] if the model has no base.
        measured: [nodes, modes], measured seconds of the operators, NaN = not measured; [nodes, 0]
            if the model does not use them.
    """

    nodes: Tensor
    edges: Tensor
    network: Tensor
    links: Tensor
    base: Tensor
    measured: Tensor


@dataclass(frozen=True)
class GraphBatch:
    """A batch of graphs.

    Attributes:
        nodes: [nodes of all graphs, features].
        edges: [edges of all graphs, features].
        network: [graphs, features].
        source, target: int64 [edges], nodes of each edge.
        node_graph: int64 [nodes], the graph of each node.
        edge_graph: int64 [edges], the graph of each edge.
        base, measured: [nodes, modes], see `GraphTensors`.
    """

    nodes: Tensor
    edges: Tensor
    network: Tensor
    source: Tensor
    target: Tensor
    node_graph: Tensor
    edge_graph: Tensor
    base: Tensor
    measured: Tensor

    @property
    def graphs(self) -> int:
        """Number of graphs."""
        return int(self.network.shape[0])


def collate(graphs: Sequence[GraphTensors]) -> GraphBatch:
    """Returns a batch of graphs."""
    node_counts = torch.tensor([graph.nodes.shape[0] for graph in graphs])
    edge_counts = torch.tensor([graph.links.shape[0] for graph in graphs])
    numbers = torch.arange(len(graphs))
    first = torch.cumsum(node_counts, 0) - node_counts
    edge_graph = torch.repeat_interleave(numbers, edge_counts)
    links = torch.cat([graph.links for graph in graphs]) + first[edge_graph][:, None]
    return GraphBatch(
        nodes=torch.cat([graph.nodes for graph in graphs]),
        edges=torch.cat([graph.edges for graph in graphs]),
        network=torch.stack([graph.network for graph in graphs]),
        source=links[:, 0],
        target=links[:, 1],
        node_graph=torch.repeat_interleave(numbers, node_counts),
        edge_graph=edge_graph,
        base=torch.cat([graph.base for graph in graphs]),
        measured=torch.cat([graph.measured for graph in graphs]),
    )


def segment_sum(values: Tensor, segment: Tensor, count: int) -> Tensor:
    """Returns [count, width], sums over the rows of each segment.

    Args:
        values: [rows, width].
        segment: int64 [rows].
    """
    return values.new_zeros(count, values.shape[1]).index_add(0, segment, values)


def segment_mean(values: Tensor, segment: Tensor, count: int) -> Tensor:
    """Returns [count, width], means; 0 for an empty segment."""
    ones = values.new_ones(len(segment), 1)
    return segment_sum(values, segment, count) / segment_sum(ones, segment, count).clamp(min=1.0)


def segment_max(values: Tensor, segment: Tensor, count: int) -> Tensor:
    """Returns [count, width], maxima; 0 for an empty segment."""
    index = segment[:, None].expand_as(values)
    start = values.new_zeros(count, values.shape[1])
    return start.scatter_reduce(0, index, values, "amax", include_self=False)


def segment_softmax_sum(values: Tensor, segment: Tensor, count: int) -> Tensor:
    """Returns [count, width], sums weighted with the softmax of the values in each column."""
    peak = segment_max(values.detach(), segment, count)
    weight = torch.exp(values - peak[segment])
    total = segment_sum(weight, segment, count).clamp(min=1e-30)
    return segment_sum(weight * values, segment, count) / total
