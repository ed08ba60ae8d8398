"""Conversion between published graph files and `GraphRow`."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.files.json_text import parse_json
from cdmpp.files.restricted_pickle import loads_restricted
from cdmpp.networks.dataset.graph_pickle import GRAPH_PICKLES, GraphStub, plain
from cdmpp.networks.dataset.rows import GraphRow
from cdmpp.networks.graph.graph import ARGUMENTS, MEMORY, NetworkGraph
from cdmpp.networks.graph.operator import mean_side

_SOURCE = "published"
#: Columns that depend on the batch size and are excluded from an architecture's id.
_PER_BATCH = (
    "bytes", "batch_size", "input_size_with_weight", "input_size", "output_size",
)  # fmt: skip


def graph_row(data: bytes, where: str, name: str) -> GraphRow:
    """Returns the network of a graph file.

    Args:
        data: content of the file, a pickle or JSON.
        where: name of the file in error messages.
        name: name of the network if the file has none.

    Raises:
        DataError: the file is not such a graph, a number is missing or invalid, or the graph has a
            cycle.
    """
    if data.lstrip()[:1] == b"{":
        try:
            value: Any = parse_json(data)
        except ValueError as error:
            raise DataError(f"{where}: not readable as JSON ({error}); fetch it again") from None
    else:
        value = loads_restricted(data, where, GRAPH_PICKLES)
    features, edges, about = _parts(value, where)
    order, numbered = _topological(list(features), edges, where)
    kinds, arguments, memory, flops = [], [], [], []
    for node in order:
        feature = _mapping(features[node], "feature", f"{where}: node {node!r}")
        at = f"{where}: node {node!r}"
        kinds.append(str(feature.get("type", "")) or "Unnamed")
        given = _mapping(feature.get("args", {}), "args", at)
        arguments.append([_number(given.get(key, 0), key, at) for key in ARGUMENTS])
        sizes = _mapping(feature.get("memory_info"), "memory_info", at)
        memory.append([_number(sizes.get(key), key, at) for key in MEMORY])
        flops.append(_number(feature.get("flops"), "flops", at))
    matrix = np.array(memory, np.float64).reshape(-1, len(MEMORY))
    graph = NetworkGraph(
        name=str(about.get("name") or name),
        batch=_batch(matrix, where),
        kinds=tuple(kinds),
        arguments=np.array(arguments, np.float64).reshape(-1, len(ARGUMENTS)),
        memory=matrix,
        flops=np.array(flops, np.float64),
        edges=numbered,
    )
    resolution = about.get("resolution", _resolution(graph))
    return GraphRow(
        graph=graph,
        architecture=str(about.get("architecture") or architecture_of(graph)),
        source=str(about.get("source") or _SOURCE),
        spec=about.get("spec") if isinstance(about.get("spec"), str) else None,
        resolution=resolution if isinstance(resolution, int) else None,
    )


def graph_value(row: GraphRow) -> dict[str, Any]:
    """Returns a network as a JSON value in networkx's node-link form, which `graph_row` reads."""
    graph = row.graph
    nodes = []
    for number, kind in enumerate(graph.kinds):
        flops, traffic = float(graph.flops[number]), float(graph.column("bytes")[number])
        feature = {
            "type": kind,
            "args": _named(ARGUMENTS, graph.arguments[number]),
            "memory_info": _named(MEMORY, graph.memory[number]),
            "flops": _short(flops),
            "arith_intensity": flops / traffic if traffic else 0.0,
        }
        nodes.append({"id": number, "feature": feature})
    about = {
        "name": graph.name, "architecture": row.architecture, "source": row.source,
        "spec": row.spec, "resolution": row.resolution,
    }  # fmt: skip
    edges = [{"source": source, "target": target} for source, target in graph.edges.tolist()]
    return {"directed": True, "multigraph": False, "graph": about, "nodes": nodes, "edges": edges}


def architecture_of(graph: NetworkGraph) -> str:
    """Returns an id of the network that is equal at every batch size."""
    kept = [place for place, name in enumerate(MEMORY) if name not in _PER_BATCH]
    content = hashlib.sha256(json.dumps(graph.kinds).encode())
    for array in (graph.arguments, graph.memory[:, kept], graph.edges):
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()[:16]


def _parts(value: Any, where: str) -> tuple[dict[Any, Any], list[tuple[Any, Any]], dict[str, Any]]:
    """Returns node -> feature, the edges and the attributes of the graph."""
    if isinstance(value, GraphStub):
        state = getattr(value, "state", None)
        state = state if isinstance(state, dict) else {}
        nodes = state.get("_node", state.get("node"))
        after = next((state[k] for k in ("_succ", "succ", "_adj", "adj") if k in state), None)
        if isinstance(nodes, dict) and isinstance(after, dict):
            edges = [
                (source, target)
                for source, targets in after.items()
                for target in (targets if isinstance(targets, dict) else ())
            ]
            return {node: _feature(about) for node, about in nodes.items()}, edges, {}
    links = value.get("edges", value.get("links")) if isinstance(value, dict) else None
    if isinstance(value, dict) and isinstance(value.get("nodes"), list) and isinstance(links, list):
        try:
            features = {node["id"]: node.get("feature") for node in value["nodes"]}
            edges = [(link["source"], link["target"]) for link in links]
        except (TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{where}: nodes or edges without {error}; fetch it again") from None
        about = value.get("graph")
        return features, edges, about if isinstance(about, dict) else {}
    raise DataError(
        f"{where}: {type(value).__name__}, expected a networkx graph, or nodes and edges as JSON"
    )


def _feature(about: Any) -> Any:
    return about.get("feature") if isinstance(about, dict) else None


def _topological(
    nodes: Sequence[Any], edges: Sequence[tuple[Any, Any]], where: str
) -> tuple[list[Any], NDArray[np.int64]]:
    """Returns the nodes in topological order (the file's order if it is one), and the edges as
    positions in it.
    """
    place = {node: number for number, node in enumerate(nodes)}
    if not nodes:
        raise DataError(f"{where}: a graph without nodes")
    for edge in edges:
        for node in edge:
            if isinstance(node, (list, dict)) or node not in place:
                raise DataError(f"{where}: an edge has the unknown node {node!r:.60}")
    waiting = [0] * len(nodes)
    after: list[list[int]] = [[] for _ in nodes]
    pairs = sorted({(place[source], place[target]) for source, target in edges})
    for source, target in pairs:
        waiting[target] += 1
        after[source].append(target)
    ready = [number for number, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for target in after[number]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, target)
    if len(order) != len(nodes):
        raise DataError(f"{where}: the graph has a cycle; expected none")
    position = {number: rank for rank, number in enumerate(order)}
    numbered = sorted((position[source], position[target]) for source, target in pairs)
    matrix = np.array(numbered, np.int64).reshape(-1, 2)
    return [nodes[number] for number in order], matrix


def _mapping(value: Any, what: str, where: str) -> Mapping[str, Any]:
    value = plain(value)
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: `{what}` is {type(value).__name__}, expected names and values")
    return value


def _number(value: Any, what: str, where: str) -> float:
    """Returns a number that may be stored as text; a list is averaged by `mean_side`."""
    if isinstance(value, (list, tuple)):
        return mean_side([_number(part, what, where) for part in value])
    try:
        if value is None or isinstance(value, (bytes, bytearray)):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{where}: `{what}` is {value!r:.60}, expected a number") from None
    if not math.isfinite(number):
        raise DataError(f"{where}: `{what}` is {number}, expected a finite number")
    return number


def _batch(memory: NDArray[np.float64], where: str) -> int:
    batches = sorted(set(memory[:, MEMORY.index("batch_size")].tolist()) - {0.0})
    if len(batches) != 1 or not batches[0].is_integer() or batches[0] < 1:
        raise DataError(
            f"{where}: the nodes' batch sizes are {batches[:4]}, expected one whole number"
        )
    return int(batches[0])


def _resolution(graph: NetworkGraph) -> int | None:
    width, height = graph.column("input_w")[0], graph.column("input_h")[0]
    return int(width) if width == height and width > 1 else None


def _named(names: Sequence[str], values: NDArray[np.float64]) -> dict[str, float | int]:
    return {name: _short(value) for name, value in zip(names, values.tolist(), strict=True)}


def _short(value: float) -> float | int:
    return int(value) if value.is_integer() else value
