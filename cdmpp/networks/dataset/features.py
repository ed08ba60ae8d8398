"""The published features of an operator graph: 30 per node, 5 per edge, 18 per graph.

Source: PerfSeer (arXiv 2502.01206), with its columns and their order. "log" is log(1 + x).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.networks.graph.graph import ARGUMENTS, KINDS, NetworkGraph

NODE_FEATURES = (
    *(f"is_{kind}" for kind in KINDS), *ARGUMENTS, "log_flops", "log_bytes", "log_weight_size",
    "arith_intensity", "flops_share", "bytes_share", "weight_share",
)  # fmt: skip
EDGE_FEATURES = ("log_size", "log_batch", "log_channels", "log_height", "log_width")
_TOTALS = tuple(
    f"log_{how}_{what}"
    for what in ("flops", "bytes", "weight_size")
    for how in ("total", "mean", "median", "max")
)
GRAPH_FEATURES = (
    "nodes", "edges", "density", *_TOTALS, "log_mean_edge_size", "arith_intensity", "batch",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class GraphFeatures:
    """Features of one network. Rows of nodes and edges are in the order of the graph.

    Attributes:
        nodes: float64 [nodes, 30], columns `NODE_FEATURES`; an operator outside `KINDS` has zeros
            in the ten `is_` columns.
        edges: float64 [edges, 5], columns `EDGE_FEATURES`, of the source's output tensor.
        network: float64 [18], columns `GRAPH_FEATURES`.
    """

    nodes: FloatArray
    edges: FloatArray
    network: FloatArray


def graph_features(graph: NetworkGraph) -> GraphFeatures:
    """Returns the features of a network; another numbering only reorders the rows."""
    known = {name: place for place, name in enumerate(KINDS)}
    kind = np.array([known.get(name, len(KINDS)) for name in graph.kinds], dtype=np.int64)
    one_hot = np.eye(len(KINDS) + 1)[kind][:, : len(KINDS)]
    amounts = np.stack([graph.flops, graph.column("bytes"), graph.column("weight_size")], axis=1)
    totals = np.array([_total(column) for column in amounts.T])
    nodes = np.concatenate(
        [
            one_hot,
            graph.arguments,
            np.log1p(amounts),
            _ratio(amounts[:, 0], amounts[:, 1])[:, None],
            _ratio(amounts, np.broadcast_to(totals, amounts.shape)),
        ],
        axis=1,
    )
    sizes = np.stack(
        [
            graph.column("output_size"), graph.column("batch_size"),
            graph.column("output_channels"), graph.column("output_h"), graph.column("output_w"),
        ],
        axis=1,
    )  # fmt: skip
    sources = graph.edges[:, 0]
    edges = np.log1p(sizes[sources])
    network = _network_features(graph, amounts, totals, sizes[sources, 0])
    return GraphFeatures(nodes=nodes, edges=edges, network=network)


def _network_features(
    graph: NetworkGraph, amounts: FloatArray, totals: FloatArray, edge_sizes: FloatArray
) -> FloatArray:
    count, edges = len(graph.kinds), len(graph.edges)
    statistics = np.stack(
        [totals, totals / count, np.median(amounts, axis=0), amounts.max(axis=0)], axis=1
    )
    density = edges / (count * (count - 1)) if count > 1 else 0.0
    mean_edge = _total(edge_sizes) / edges if edges else 0.0
    intensity = totals[0] / totals[1] if totals[1] > 0 else 0.0
    return np.array(
        [
            count, edges, density, *np.log1p(statistics).ravel(), np.log1p(mean_edge), intensity,
            graph.batch,
        ],
        dtype=np.float64,
    )  # fmt: skip


def _total(values: FloatArray) -> float:
    """Returns the sum, bitwise equal for every order of the values."""
    return float(np.sort(values).sum())


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    """Returns above / below; 0 if below is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)
