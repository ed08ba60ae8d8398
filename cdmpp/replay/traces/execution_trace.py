"""Execution traces of torch's ExecutionTraceObserver: operators with tensors, hence data edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cdmpp.analytic.kernels.work import operator_flop
from cdmpp.errors import DataError
from cdmpp.files.json_stream import array_batches
from cdmpp.replay.graph import Operator, OperatorGraph
from cdmpp.replay.traces.host_operators import is_view, plain_name

_ROOTS = ("[pytorch|profiler|execution_trace|", "ProfilerStep#")


@dataclass(frozen=True)
class _Node:
    """A call; tensors are (storage, device, bytes)."""

    id: int
    parent: int
    name: str
    function: int
    inputs: tuple[tuple[int, str, float], ...]
    outputs: tuple[tuple[int, str, float], ...]
    shapes: tuple[tuple[int, ...], ...]


def read_execution_trace(path: Path, times_s: Mapping[int, float] | None = None) -> OperatorGraph:
    """Reads the top-level operators of an execution trace and the tensors that pass between them.

    An operator comes after the last one that wrote a storage which it reads. Its bytes are those of
    its tensors, its operations follow from its name and shapes where they are known; views compute
    nothing, and are left out together with operators that touch no tensor.

    Args:
        times_s: number of the record function -> measured seconds, from a chrome trace of the same
            run.

    Raises:
        DataError: unreadable, cut off, or without operators.
    """
    path = Path(path)
    nodes: dict[int, _Node] = {}
    count = 0
    for count, value in enumerate(chain.from_iterable(array_batches(path, "nodes")), start=1):
        node = _node(value, f"{path}: node {count}")
        nodes[node.id] = node
    top = [node for node in nodes.values() if _is_top(node, nodes)]
    top.sort(key=lambda node: node.id)
    operators = _operators(top, times_s or {})
    if not operators:
        raise DataError(
            f"{path}: {count} nodes, none of them an operator with tensors; expected what an "
            "ExecutionTraceObserver wrote between start() and stop()"
        )
    return OperatorGraph(name=path.name.partition(".")[0], operators=operators, source=str(path))


def _operators(top: Sequence[_Node], times_s: Mapping[int, float]) -> tuple[Operator, ...]:
    writer: dict[tuple[int, str], str] = {}
    found = []
    for node in top:
        name = plain_name(node.name)
        tensors = (*node.inputs, *node.outputs)
        if not tensors or (is_view(name) and node.function not in times_s):
            continue
        identity = str(node.id)
        after = dict.fromkeys(
            writer[storage, device] for storage, device, _ in node.inputs
            if (storage, device) in writer
        )  # fmt: skip
        device = next((place for _, place, _ in node.outputs), tensors[0][1])
        distinct = {(storage, place): size for storage, place, size in tensors}
        found.append(
            Operator(
                id=identity, name=name, kind=name, after=tuple(after), device=device,
                shapes=tuple("x".join(map(str, shape)) or "scalar" for shape in node.shapes),
                flop=operator_flop(name, node.shapes), bytes=sum(distinct.values()) or None,
                time_s=times_s.get(node.function),
            )
        )  # fmt: skip
        for storage, place, _ in node.outputs:
            writer[storage, place] = identity
        if name.endswith("_") and node.inputs:  # in place: it writes its first tensor
            writer[node.inputs[0][:2]] = identity
    return tuple(found)


def _is_top(node: _Node, nodes: Mapping[int, _Node]) -> bool:
    if node.name.startswith(_ROOTS):
        return False
    parent = nodes.get(node.parent)
    return parent is None or parent.name.startswith(_ROOTS)


def _node(value: Any, where: str) -> _Node:
    """Reads a node of the present schema or of the older one with flat fields."""
    try:
        inputs, outputs = value["inputs"], value["outputs"]
        if isinstance(inputs, dict):
            read = _tensors(inputs["values"], inputs["shapes"], inputs["types"])
            written = _tensors(outputs["values"], outputs["shapes"], outputs["types"])
            shapes = inputs["shapes"]
            attributes = {entry["name"]: entry["value"] for entry in value.get("attrs", [])}
            parent, function = value["ctrl_deps"], attributes.get("rf_id", -1)
        else:
            shapes = value["input_shapes"]
            read = _tensors(inputs, shapes, value["input_types"])
            written = _tensors(outputs, value["output_shapes"], value["output_types"])
            parent, function = value["parent"], value.get("rf_id", -1)
        return _Node(
            int(value["id"]), int(parent), str(value["name"]), int(function), read, written,
            tuple(tuple(int(n) for n in shape) for shape in shapes if _is_shape(shape)),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"{where}: {type(error).__name__} {error}; expected id, name, ctrl_deps or parent, "
            "inputs and outputs as ExecutionTraceObserver writes them"
        ) from None


def _tensors(
    values: Sequence[Any], shapes: Sequence[Any], types: Sequence[Any]
) -> tuple[tuple[int, str, float], ...]:
    """Returns (storage, device, bytes) of the tensors among some arguments, lists looked into."""
    found: list[tuple[int, str, float]] = []
    for value, shape, kind in zip(values, shapes, types, strict=False):
        if not isinstance(value, list) or not isinstance(kind, str):
            continue
        if kind.startswith("Tensor"):
            # tensor, storage, offset, elements, bytes of one, device
            size = float(value[3]) * float(value[4])
            device = str(value[5]) if len(value) > 5 else "cpu"
            found.append((int(value[1]), device, size))
        elif kind.startswith("GenericList["):
            inner = kind[len("GenericList[") : -1].split(",")
            found += _tensors(value, shape, inner)
    return tuple(found)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and bool(shape) and all(
        isinstance(n, int) and 0 <= n < math.inf for n in shape
    )  # fmt: skip
