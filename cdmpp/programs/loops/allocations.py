"""Placement of buffer allocations in a loop tree that was read from TIR."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from cdmpp.programs.loops.expr import Buffer, Expr, loads_in
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    Node,
    Store,
    children,
)


def without_empty_nodes(nodes: list[Node]) -> list[Node]:
    """Removes nodes without stores."""
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Condition):
            node.else_body = without_empty_nodes(node.else_body)
        if not isinstance(node, Store):
            node.body = without_empty_nodes(node.body)
        if isinstance(node, Store) or children(node):
            kept.append(node)
    return kept


@lru_cache(maxsize=4096)
def _read_buffers(expr: Expr) -> frozenset[Buffer]:
    """Returns the buffers that an expression reads; cached, as each allocation searches all."""
    own = (expr.value,) if expr.op == "load" else ()
    return frozenset(own).union(*map(_read_buffers, expr.args))


def uses(nodes: list[Node], buffer: Buffer, *, only_stores: bool = False) -> bool:
    """Returns whether any of the nodes stores to a buffer, or reads it unless `only_stores`."""
    for node in nodes:
        if isinstance(node, Store):
            if node.buffer is buffer:
                return True
            read = (*node.indices, node.value)
            if not only_stores and any(buffer in _read_buffers(expr) for expr in read):
                return True
        elif not only_stores and isinstance(node, Condition):
            if buffer in _read_buffers(node.condition):
                return True
            if uses(children(node), buffer):
                return True
        elif uses(children(node), buffer, only_stores=only_stores):
            return True
    return False


def place_allocations(nodes: list[Node], allocated: Sequence[Buffer]) -> list[Node]:
    """Puts every allocation into the innermost list of statements with all its uses.

    It spans from the first use to the end of the list, so allocations nest as in the original.
    Buffers are placed in order of first use. Extents are the buffers' full shapes.
    """
    for buffer in _in_order_of_use(nodes, set(allocated)):
        nodes = _place(nodes, buffer, through=(Loop, Attribute, Allocation))
    return nodes


def place_outputs(nodes: list[Node], parameters: Sequence[Buffer]) -> list[Node]:
    """Puts allocations of all written parameters around the whole program."""
    for buffer in parameters:
        if uses(nodes, buffer, only_stores=True):
            nodes = _place(nodes, buffer, through=(Allocation,))
    return nodes


def _place(nodes: list[Node], buffer: Buffer, *, through: tuple[type, ...]) -> list[Node]:
    """Inserts an allocation into the nodes; it may move below nodes of the types in `through`."""
    using = [i for i, node in enumerate(nodes) if uses([node], buffer)]
    only = nodes[using[0]]
    if len(using) == 1 and isinstance(only, through) and not isinstance(only, Condition | Store):
        only.body = _place(only.body, buffer, through=through)
        return nodes
    return [*nodes[: using[0]], Allocation(buffer, buffer.shape, nodes[using[0] :])]


def _in_order_of_use(nodes: list[Node], buffers: set[Buffer]) -> list[Buffer]:
    """Returns the used buffers in order of first use; a store's target comes before its reads."""
    found: dict[Buffer, None] = {}

    def read(expr: Expr) -> None:
        found.update(dict.fromkeys(one.value for one in loads_in(expr) if one.value in buffers))

    def visit(node: Node) -> None:
        if isinstance(node, Store):
            if node.buffer in buffers:
                found[node.buffer] = None
            for expr in (*node.indices, node.value):
                read(expr)
        elif isinstance(node, Condition):
            read(node.condition)
        for child in children(node):
            visit(child)

    for node in nodes:
        visit(node)
    return list(found)
