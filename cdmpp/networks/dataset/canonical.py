"""Canonical order of a network's operators, independent of their numbering."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.networks.graph.graph import NetworkGraph


def canonical_order(graph: NetworkGraph) -> NDArray[np.int64]:
    """Returns int64 [nodes], the operators' numbers in canonical order. `renumbered` with it gives
    equal graphs for every numbering.

    The order is a valid execution order, depth first: a branch ends before the next one starts.
    Branches are sorted by digests of their operators, ancestors and descendants; operators with
    equal digests are interchangeable.
    """
    count = len(graph.kinds)
    inputs, outputs = graph.sources(), graph.readers()
    keys = _keys(graph, inputs, outputs)
    waiting = [len(sources) for sources in inputs]
    roots = [node for node in range(count) if waiting[node] == 0]
    stack = sorted(roots, key=keys.__getitem__, reverse=True)
    order = []
    while stack:
        node = stack.pop()
        order.append(node)
        ready = []
        for target in outputs[node]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
        stack += sorted(ready, key=keys.__getitem__, reverse=True)
    return np.array(order, np.int64)


def renumbered(graph: NetworkGraph, order: NDArray[np.int64]) -> NetworkGraph:
    """Returns the network with its operators in another order.

    Args:
        order: int64 [nodes], the current number of each operator of the result; every operator
            must come after its inputs.

    Raises:
        DataError: an operator comes before its inputs.
    """
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    edges, holds = place[graph.edges], place[graph.holds]
    return NetworkGraph(
        name=graph.name,
        batch=graph.batch,
        kinds=tuple(graph.kinds[node] for node in order.tolist()),
        arguments=graph.arguments[order],
        memory=graph.memory[order],
        flops=graph.flops[order],
        edges=edges[np.lexsort((edges[:, 1], edges[:, 0]))],
        holds=holds[np.lexsort((holds[:, 1], holds[:, 0]))],
        accounts=tuple(graph.accounts[node] for node in order.tolist()) if graph.accounts else (),
    )


def _keys(
    graph: NetworkGraph, inputs: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> list[bytes]:
    """Returns a digest of each operator with all its ancestors and descendants."""
    count = len(graph.kinds)
    rows = np.concatenate([graph.arguments, graph.memory, graph.flops[:, None]], 1)
    own = [_digest(graph.kinds[node].encode(), rows[node].tobytes()) for node in range(count)]
    before: list[bytes] = []
    for node in range(count):
        before.append(_digest(own[node], *sorted(before[source] for source in inputs[node])))
    behind = [b""] * count
    for node in reversed(range(count)):
        behind[node] = _digest(own[node], *sorted(behind[target] for target in outputs[node]))
    return [_digest(first, second) for first, second in zip(before, behind, strict=True)]


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).digest()
