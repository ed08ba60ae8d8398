"""The compute operations of a task, read from its JSON graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdmpp.errors import DataError
from cdmpp.programs.ansor.json_graph import JsonGraph

BINARY_TYPES = frozenset(
    f"tir.{name}"
    for name in (
        "Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max",
        "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or",
    )
)  # fmt: skip


@dataclass(frozen=True)
class ComputeOp:
    """One compute operation.

    Attributes:
        number: node number in the graph.
        name: name given by the author, e.g. `Conv2dOutput`.
        tag: operator tag, e.g. `conv2d_nhwc`; may be empty.
        axis_extents: extents of the output axes; None if one is not constant.
        reduce_axis_count: number of reduction axes.
        body: node numbers of the bodies, one per output.
    """

    number: int
    name: str
    tag: str
    axis_extents: tuple[int, ...] | None
    reduce_axis_count: int
    body: tuple[int, ...]


def expression_children(graph: JsonGraph, number: int) -> list[int]:
    """Returns the node numbers of an expression's operands, but not the tensor of a load."""
    kind = graph.type_key(number)
    if kind in BINARY_TYPES:
        names: tuple[str, ...] = ("a", "b")
    elif kind == "tir.Not":
        names = ("a",)
    elif kind == "tir.Cast":
        names = ("value",)
    elif kind == "tir.Select":
        names = ("condition", "true_value", "false_value")
    elif kind == "tir.Call":
        return graph.items(graph.reference(number, "args"))
    elif kind == "tir.ProducerLoad":
        return graph.items(graph.reference(number, "indices"))
    elif kind == "tir.Reduce":
        combiner = graph.reference(number, "combiner")
        return [
            *graph.items(graph.reference(combiner, "result")),
            *graph.items(graph.reference(number, "source")),
            graph.reference(number, "condition"),
        ]
    else:
        return []
    return [graph.reference(number, name) for name in names]


def walk_expression(graph: JsonGraph, number: int) -> Iterator[int]:
    """Yields every node number of an expression once, the expression itself first."""
    seen = {number}
    stack = [number]
    while stack:
        current = stack.pop()
        yield current
        for child in reversed(expression_children(graph, current)):
            if child not in seen:
                seen.add(child)
                stack.append(child)


def compute_ops(graph: JsonGraph) -> list[ComputeOp]:
    """Returns the compute operations, producers before consumers.

    Raises:
        DataError: the graph is malformed.
    """
    try:
        return _compute_ops(graph)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise DataError(
            f"malformed computation graph ({type(error).__name__}: {error}); fetch network_info "
            "again"
        ) from None


def _compute_ops(graph: JsonGraph) -> list[ComputeOp]:
    order: list[ComputeOp] = []
    state: dict[int, bool] = {}  # node -> whether it is already in `order`
    stack = [graph.reference(tensor, "op") for tensor in reversed(graph.items(graph.root))]
    while stack:
        number = stack[-1]
        if number in state or graph.type_key(number) != "ComputeOp":
            stack.pop()
            if state.get(number) is False:
                state[number] = True
                order.append(_read_op(graph, number))
            continue
        state[number] = False
        producers = [
            graph.reference(graph.reference(node, "producer"), "op")
            for body in graph.items(graph.reference(number, "body"))
            for node in walk_expression(graph, body)
            if graph.type_key(node) == "tir.ProducerLoad"
        ]
        stack.extend(producer for producer in reversed(producers) if producer not in state)
    return order


def _read_op(graph: JsonGraph, number: int) -> ComputeOp:
    extents = [
        graph.integer(graph.reference(graph.reference(axis, "dom"), "extent"))
        for axis in graph.items(graph.reference(number, "axis"))
    ]
    constant = tuple(extent for extent in extents if extent is not None)
    return ComputeOp(
        number=number,
        name=graph.attribute(number, "name"),
        tag=graph.attribute(number, "tag"),
        axis_extents=constant if len(constant) == len(extents) else None,
        reduce_axis_count=len(graph.items(graph.reference(number, "reduce_axis"))),
        body=tuple(graph.items(graph.reference(number, "body"))),
    )
