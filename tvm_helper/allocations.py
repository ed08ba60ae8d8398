"""Where a buffer is allocated in a loop tree that was read from TIR."""

from __future__ import annotations

from collections.abc import Mapping

from cdmpp.features.expr import Buffer, Expr
from cdmpp.features.loop_tree import (
    Allocation,
    Attribute,
    Condition,
    Loop,
    Node,
    Store,
    children,
)


def without_empty_nodes(nodes: list[Node]) -> list[Node]:
    """Returns the nodes that hold a store."""
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Condition):
            node.else_body = without_empty_nodes(node.else_body)
        if not isinstance(node, Store):
            node.body = without_empty_nodes(node.body)
        if isinstance(node, Store) or children(node):
            kept.append(node)
    return kept


def _reads(expr: Expr, buffer: Buffer) -> bool:
    if expr.op == "load" and expr.value is buffer:
        return True
    return any(_reads(argument, buffer) for argument in expr.args)


def uses(nodes: list[Node], buffer: Buffer, *, only_stores: bool = False) -> bool:
    """Returns whether a buffer is stored to (or read) anywhere in the nodes."""
    for node in nodes:
        if isinstance(node, Store):
            if node.buffer is buffer:
                return True
            read = (*node.indices, node.value)
            if not only_stores and any(_reads(expr, buffer) for expr in read):
                return True
        elif not only_stores and isinstance(node, Condition):
            if _reads(node.condition, buffer):
                return True
            if uses(children(node), buffer):
                return True
        elif uses(children(node), buffer, only_stores=only_stores):
            return True
    return False


def place_allocations(
    nodes: list[Node], allocated: Mapping[Buffer, tuple[int | Expr, ...]]
) -> list[Node]:
    """Puts every allocation around the statements of the innermost list that has all its uses.

    It spans from the first use to the end of that list: allocations nest like the original's.
    """
    for buffer, extents in allocated.items():
        if uses(nodes, buffer):
            nodes = place_allocation(nodes, buffer, extents, through=(Loop, Attribute, Allocation))
    return nodes


def place_allocation(
    nodes: list[Node],
    buffer: Buffer,
    extents: tuple[int | Expr, ...],
    *,
    through: tuple[type, ...],
) -> list[Node]:
    """Returns nodes with an allocation put in, below nodes of the types in `through`."""
    using = [i for i, node in enumerate(nodes) if uses([node], buffer)]
    only = nodes[using[0]]
    if len(using) == 1 and isinstance(only, through) and not isinstance(only, Condition | Store):
        only.body = place_allocation(only.body, buffer, extents, through=through)
        return nodes
    return [*nodes[: using[0]], Allocation(buffer, extents, nodes[using[0] :])]
