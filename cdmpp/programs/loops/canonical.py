"""Canonical form of lowered loop trees: simple indices, placed and compacted allocations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdmpp.programs.loops.allocations import place_allocations, place_outputs, without_empty_nodes
from cdmpp.programs.loops.compaction import compact_allocations
from cdmpp.programs.loops.expr import Buffer, Expr, int_const, substitute
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    LoopTree,
    Node,
    Store,
)
from cdmpp.programs.loops.simplify import Simplifier


def canonical(tree: LoopTree, allocated: Sequence[Buffer]) -> LoopTree:
    """Returns a program in the canonical form of the compact AST.

    Args:
        tree: loops, conditions, attributes and stores, as lowered; modified in place.
        allocated: buffers that the program allocates, in any order.
    """
    body = without_empty_nodes(simplified(tree).body)
    body = place_allocations(body, allocated)
    compact_allocations(body)
    return LoopTree(tree.parameters, place_outputs(body, tree.parameters), tree.is_gpu)


def simplified(tree: LoopTree) -> LoopTree:
    """Returns the program with simplified extents, indices, values and conditions.

    Conditions that always hold and code that never runs are removed; the variable of a loop with
    one iteration is replaced by its value. TVM's simplification differs between versions; this one
    is the same for all sources of programs.
    """
    return LoopTree(tree.parameters, _Pass().nodes(tree.body), tree.is_gpu)


class _Pass:
    def __init__(self) -> None:
        self._simplifier = Simplifier()
        self._values: dict[str, Expr] = {}

    def nodes(self, nodes: list[Node]) -> list[Node]:
        return [made for node in nodes for made in self._node(node)]

    def _node(self, node: Node) -> list[Node]:
        if isinstance(node, Store):
            indices = tuple(self._expr(index) for index in node.indices)
            return [replace(node, indices=indices, value=self._expr(node.value))]
        if isinstance(node, Condition):
            return self._condition(node)
        if isinstance(node, Loop):
            return self._loop(node)
        body = self.nodes(node.body)
        if not body:
            return []
        if isinstance(node, Attribute):
            return [Attribute(node.key, node.value, body)]
        return [Allocation(node.buffer, tuple(map(self._number, node.extents)), body)]

    def _loop(self, loop: Loop) -> list[Node]:
        minimum, extent = self._number(loop.minimum), self._number(loop.extent)
        if extent == 1:
            self._values[loop.var] = int_const(minimum) if isinstance(minimum, int) else minimum
        low, high = self._bounds(minimum)
        self._simplifier.bind(loop.var, low, high + self._bounds(extent)[1] - 1)
        body = self.nodes(loop.body)
        self._values.pop(loop.var, None)
        return [Loop(loop.var, minimum, extent, loop.kind, body)] if body else []

    def _condition(self, node: Condition) -> list[Node]:
        condition = self._expr(node.condition)
        if condition.op == "const":
            return self.nodes(node.body if condition.value else node.else_body)
        with self._simplifier.assume(condition):
            body = self.nodes(node.body)
        else_body = self.nodes(node.else_body)
        return [Condition(condition, body, else_body)] if body or else_body else []

    def _expr(self, expr: Expr) -> Expr:
        if self._values:
            expr = substitute(expr, self._values)
        return self._simplifier.simplify(expr)

    def _number(self, value: int | Expr) -> int | Expr:
        if isinstance(value, int):
            return value
        simple = self._expr(value)
        return int(simple.value) if simple.op == "const" else simple

    def _bounds(self, value: int | Expr) -> tuple[float, float]:
        return (value, value) if isinstance(value, int) else self._simplifier.expr_bounds(value)
