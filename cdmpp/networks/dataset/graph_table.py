"""Lossless storage of graphs as rows of an Arrow table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.networks.dataset.rows import GraphRow
from cdmpp.networks.graph.execution import LAYOUTS
from cdmpp.networks.graph.graph import ARGUMENTS, MEMORY, NetworkGraph

_NUMBERS = (*ARGUMENTS, *MEMORY, "flops")
#: Column -> two columns whose sum it usually is; the difference is stored, which is mostly 0.
_SUMS = {
    "input_size_with_weight": ("input_size", "weight_size"),
    "bytes": ("input_size_with_weight", "output_size"),
}
#: Column: whether a graph's `_SUMS` columns have differences.
_PACKED = "is_packed"
_HOLDS = ("hold_node", "hold_until")
#: Columns of copied elements; missing in older data sets.
_COPIES = tuple(f"node_copied_{layout}" for layout in LAYOUTS)
_ROW_COLUMNS = ("graph_id", "name", "batch", "architecture", "source", "spec", "resolution")


def table_of_graphs(rows: Sequence[GraphRow], ids: Sequence[str]) -> pa.Table:
    """Returns a table with one row per graph and a list column per number of a node.

    Args:
        rows: the graphs.
        ids: their graph ids.
    """
    graphs = [row.graph for row in rows]
    nodes = np.array([len(graph.kinds) for graph in graphs], dtype=np.int64)
    edges = np.array([len(graph.edges) for graph in graphs], dtype=np.int64)
    node_offsets = np.concatenate([[0], np.cumsum(nodes)]).astype(np.int32)
    edge_offsets = np.concatenate([[0], np.cumsum(edges)]).astype(np.int32)
    kinds = pa.array([kind for graph in graphs for kind in graph.kinds], pa.string())
    columns: dict[str, pa.Array] = {
        "graph_id": pa.array(ids, pa.string()),
        "name": pa.array([graph.name for graph in graphs], pa.string()),
        "batch": pa.array([graph.batch for graph in graphs], pa.int32()),
        "architecture": pa.array([row.architecture for row in rows], pa.string()),
        "source": pa.array([row.source for row in rows], pa.string()),
        "spec": pa.array([row.spec for row in rows], pa.string()),
        "resolution": pa.array([row.resolution for row in rows], pa.int32()),
        "kinds": pa.ListArray.from_arrays(node_offsets, kinds),
    }
    numbers = _node_numbers(graphs)
    numbers, is_packed = _packed(numbers, node_offsets)
    columns[_PACKED] = pa.array(is_packed)
    for name, values in numbers.items():
        # float64: with dictionary encoding and zstd it is as small as a narrower type.
        columns[f"node_{name}"] = pa.ListArray.from_arrays(node_offsets, pa.array(values))
    pairs = _stack([graph.edges for graph in graphs], width=2).astype(np.int32)
    # The source of an edge is usually just before its target, so the difference is stored.
    for name, places in (("target", pairs[:, 1]), ("step", pairs[:, 1] - pairs[:, 0])):
        columns[f"edge_{name}"] = pa.ListArray.from_arrays(edge_offsets, pa.array(places))
    holds = np.array([len(graph.holds) for graph in graphs], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(holds)]).astype(np.int32)
    pairs = _stack([graph.holds for graph in graphs], width=2).astype(np.int32)
    for place, name in enumerate(_HOLDS):
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(pairs[:, place]))
    for name, layout in zip(_COPIES, LAYOUTS, strict=True):
        copied = _stack([graph.copied(layout)[:, None] for graph in graphs], width=1)[:, 0]
        columns[name] = pa.ListArray.from_arrays(node_offsets, pa.array(copied))
    return pa.table(columns)


def graphs_from_table(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields the fields of the graph rows (`graph`, `architecture`, ...) of a table.

    Raises:
        DataError: a column is missing, or a graph's id differs from the stored one.
    """
    wanted = [*_ROW_COLUMNS, "kinds", "edge_target", "edge_step", *_HOLDS, _PACKED]
    wanted += [f"node_{name}" for name in _NUMBERS]
    for name in wanted:
        if name not in table.column_names:
            raise DataError(f"graphs: no column `{name}`; rewrite the data set")
    rows = table.select(list(_ROW_COLUMNS)).to_pylist()
    kinds = table["kinds"].to_pylist()
    nodes, ends = _offsets(table, "kinds"), _offsets(table, "edge_target")
    is_packed = table[_PACKED].to_numpy().astype(bool)
    numbers = _unpacked(
        {name: _flat(table, f"node_{name}") for name in _NUMBERS},
        np.repeat(is_packed, np.diff(nodes)),
    )
    targets = _flat(table, "edge_target").astype(np.int64)
    edges = np.stack([targets - _flat(table, "edge_step").astype(np.int64), targets], axis=1)
    arguments = np.stack([numbers[name] for name in ARGUMENTS], axis=1)
    memory = np.stack([numbers[name] for name in MEMORY], axis=1)
    hold_ends = _offsets(table, _HOLDS[0])
    holds = np.stack([_flat(table, name).astype(np.int64) for name in _HOLDS], axis=1)
    copies = np.zeros((int(nodes[-1]), len(_COPIES)))
    if set(_COPIES) <= set(table.column_names):
        copies = np.stack([_flat(table, name) for name in _COPIES], axis=1)
    for number, row in enumerate(rows):
        part = slice(int(nodes[number]), int(nodes[number + 1]))
        graph = NetworkGraph(
            name=row.pop("name"),
            batch=row.pop("batch"),
            kinds=tuple(kinds[number]),
            arguments=arguments[part],
            memory=memory[part],
            flops=numbers["flops"][part],
            edges=edges[int(ends[number]) : int(ends[number + 1])],
            holds=holds[int(hold_ends[number]) : int(hold_ends[number + 1])],
            copies=copies[part],
        )
        graph_id = row.pop("graph_id")
        if graph.graph_id != graph_id:
            raise DataError(
                f"graphs: {graph.name} has the content {graph.graph_id}, but its row has "
                f"{graph_id}; rewrite the data set"
            )
        yield {"graph": graph, **row}


def _node_numbers(graphs: Sequence[NetworkGraph]) -> dict[str, NDArray[np.float64]]:
    arguments = _stack([graph.arguments for graph in graphs], width=len(ARGUMENTS))
    memory = _stack([graph.memory for graph in graphs], width=len(MEMORY))
    numbers = {name: arguments[:, place] for place, name in enumerate(ARGUMENTS)}
    numbers |= {name: memory[:, place] for place, name in enumerate(MEMORY)}
    numbers["flops"] = _stack([graph.flops[:, None] for graph in graphs], width=1)[:, 0]
    return numbers


def _packed(
    numbers: dict[str, NDArray[np.float64]], offsets: NDArray[np.int32]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    """Replaces the `_SUMS` columns by differences, except in graphs where that is not lossless.

    Returns:
        The columns, and bool [graphs], whether a graph's columns are replaced.
    """
    rests = dict(numbers)
    for name, parts in _SUMS.items():
        rests[name] = numbers[name] - numbers[parts[0]] - numbers[parts[1]]
    every = np.ones(int(offsets[-1]), dtype=bool)
    restored = _unpacked(rests, every)
    is_exact = every.copy()
    for name in _SUMS:
        is_exact &= restored[name].view(np.int64) == np.ascontiguousarray(numbers[name]).view(
            np.int64
        )
    is_packed = np.array([bool(is_exact[a:b].all()) for a, b in itertools.pairwise(offsets)], bool)
    chosen = np.repeat(is_packed, np.diff(offsets))
    packed = {
        name: np.where(chosen, rests[name], values) if name in _SUMS else values
        for name, values in numbers.items()
    }
    return packed, is_packed


def _unpacked(
    numbers: dict[str, NDArray[np.float64]], is_packed: NDArray[np.bool_]
) -> dict[str, NDArray[np.float64]]:
    """Returns the columns with sums restored where `is_packed` [nodes] is true."""
    restored = dict(numbers)
    for name, parts in _SUMS.items():
        total = numbers[name] + restored[parts[0]] + restored[parts[1]]
        restored[name] = np.where(is_packed, total, numbers[name])
    return restored


def _offsets(table: pa.Table, name: str) -> NDArray[np.int64]:
    """Returns int64 [rows + 1], offsets of the lists of a column."""
    counts = table[name].combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _stack(arrays: Sequence[NDArray[Any]], *, width: int) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros((0, width))


def _flat(table: pa.Table, name: str) -> NDArray[np.float64]:
    column = table[name].combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)
