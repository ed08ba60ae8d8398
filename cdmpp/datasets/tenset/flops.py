"""Number of arithmetic operations of a task, counted on its compute graph."""

from __future__ import annotations

import math
import re

from cdmpp.datasets.tenset.dag_graph import BINARY_TYPES, compute_ops, expression_children
from cdmpp.programs.ansor.json_graph import JsonGraph

_FREE_TYPES = frozenset({"tir.Var", "IntImm", "FloatImm", "tir.ProducerLoad"})


def flop_count(graph: JsonGraph) -> float | None:
    """Returns the number of operations of the whole computation; None if they cannot be counted.

    Every compute operation counts its output elements times the operations of its body. An
    operation counts if an operand has the output's type class (so index arithmetic does not); a
    reduction multiplies by its extents; a select counts its condition and its more expensive
    branch; a call counts its arguments only.

    Source: the definition of the flop count that Tenset and Ansor print with a task.

    Raises:
        DataError: the graph is malformed.
    """
    total = 0.0
    for op in compute_ops(graph):
        if op.axis_extents is None:
            return None
        declared = graph.mapping(graph.reference(op.number, "attrs")).get("FLOP")
        if declared is not None:
            total += graph.integer(declared) or 0
            continue
        if not op.body:
            return None
        counter = _Counter(graph, _type_class(graph.attribute(op.body[0], "dtype")))
        operations = [counter.count(body) for body in op.body]
        if any(count is None for count in operations):
            return None
        total += math.prod(op.axis_extents) * sum(count or 0.0 for count in operations)
    return total


def _type_class(dtype: str) -> str:
    """Returns the letters of a dtype name; `bool` belongs to the unsigned integers."""
    letters = re.sub(r"[0-9x]+$", "", dtype)
    return "uint" if letters == "bool" else letters


class _Counter:
    """Counts operations of one type class; every shared node is visited once."""

    def __init__(self, graph: JsonGraph, type_class: str) -> None:
        self._graph = graph
        self._class = type_class
        self._known: dict[int, float | None] = {}

    def count(self, number: int) -> float | None:
        """Returns the operations of an expression; None if it is not supported."""
        if number not in self._known:
            try:
                self._known[number] = self._count(number)
            except RecursionError:
                return None
        return self._known[number]

    def _count(self, number: int) -> float | None:
        graph = self._graph
        kind = graph.type_key(number)
        if kind in _FREE_TYPES:
            return 0.0
        if kind == "tir.Reduce":
            return self._count_reduce(number)
        if kind not in BINARY_TYPES and kind not in (
            "tir.Call",
            "tir.Cast",
            "tir.Not",
            "tir.Select",
        ):
            return None
        children = expression_children(graph, number)
        parts = [self.count(child) for child in children]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if kind == "tir.Select":
            return known[0] + max(known[1:])
        own = 0.0
        if kind in BINARY_TYPES or kind == "tir.Not":
            own = float(any(self._class == self._class_of(child) for child in children))
        return own + sum(known)

    def _count_reduce(self, number: int) -> float | None:
        graph = self._graph
        extents = [
            graph.integer(graph.reference(graph.reference(axis, "dom"), "extent"))
            for axis in graph.items(graph.reference(number, "axis"))
        ]
        combiner = graph.reference(number, "combiner")
        bodies = graph.items(graph.reference(combiner, "result")) + graph.items(
            graph.reference(number, "source")
        )
        parts = [self.count(body) for body in bodies]
        known = [part for part in parts if part is not None]
        constant = [extent for extent in extents if extent is not None]
        if len(known) < len(parts) or len(constant) < len(extents):
            return None
        return math.prod(constant) * sum(known)

    def _class_of(self, number: int) -> str:
        return _type_class(self._graph.attribute(number, "dtype"))
