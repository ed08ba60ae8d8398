"""Graphs and labels for tests, drawn with a seed."""

from __future__ import annotations

import numpy as np

from cdmpp.networks.dataset.rows import GraphRow, LabelRow
from cdmpp.networks.graph.execution import MODES
from cdmpp.networks.graph.graph import ARGUMENTS, KINDS, MEMORY, NetworkGraph


def random_graph(
    rng: np.random.Generator, nodes: int, *, batch: int = 4, name: str = "network"
) -> NetworkGraph:
    """Returns a graph in which every node but the first has one to three sources."""
    memory = rng.integers(1, 1 << 20, (nodes, len(MEMORY))).astype(np.float64)
    column = MEMORY.index
    memory[:, column("batch_size")] = batch
    memory[:, column("input_size_with_weight")] = (
        memory[:, column("input_size")] + memory[:, column("weight_size")]
    )
    memory[:, column("bytes")] = (
        memory[:, column("input_size_with_weight")] + memory[:, column("output_size")]
    )
    edges = {
        (int(source), target)
        for target in range(1, nodes)
        for source in rng.integers(0, target, rng.integers(1, 4))
    }
    return NetworkGraph(
        name=name,
        batch=batch,
        kinds=tuple(str(kind) for kind in rng.choice([*KINDS, "Gelu", "Softmax"], nodes)),
        arguments=rng.integers(0, 8, (nodes, len(ARGUMENTS))).astype(np.float64),
        memory=memory,
        flops=rng.integers(0, 1 << 40, nodes).astype(np.float64),
        edges=np.array(sorted(edges), np.int64).reshape(-1, 2),
    )


def renumbered(graph: NetworkGraph, rng: np.random.Generator) -> tuple[NetworkGraph, list[int]]:
    """Returns the graph in another topological order, and old number by new number."""
    waiting = np.zeros(len(graph.kinds), int)
    np.add.at(waiting, graph.edges[:, 1], 1)
    ready = [node for node in range(len(graph.kinds)) if waiting[node] == 0]
    order: list[int] = []
    while ready:
        node = ready.pop(int(rng.integers(len(ready))))
        order.append(node)
        for target in graph.edges[graph.edges[:, 0] == node, 1].tolist():
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    place = np.argsort(order)
    edges = sorted((int(place[a]), int(place[b])) for a, b in graph.edges.tolist())
    other = NetworkGraph(
        graph.name, graph.batch, tuple(graph.kinds[node] for node in order),
        graph.arguments[order], graph.memory[order], graph.flops[order],
        np.array(edges, np.int64).reshape(-1, 2), place[graph.holds],
    )  # fmt: skip
    return other, order


def rows_and_labels(count: int, seed: int = 0) -> tuple[list[GraphRow], list[LabelRow]]:
    """Returns graphs, four of them an architecture, and both labels of each on `rtx3090`."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        batch = 2 ** (number % 4)
        graph = random_graph(rng, int(rng.integers(1, 12)), batch=batch, name=f"net-{number}")
        spec = None if number % 2 else f'{{"number": {number}}}'
        rows.append(
            GraphRow(graph, f"a{number // 4}", "generated", spec, 32 if number % 3 else None)
        )
    labels = []
    for row in rows:
        for mode in MODES:
            times = tuple(rng.uniform(1e-3, 1.0, 7).tolist())
            labels.append(
                LabelRow(
                    row.graph.graph_id, "rtx3090", mode, float(np.median(times)), min(times),
                    max(times), times, float(rng.integers(1 << 30)), None, float(rng.random()),
                    threads=1, torch_version="2.13.0", measured_at="2026-01-01T00:00:00Z",
                )
            )  # fmt: skip
    return rows, labels
