"""Loop tree -> compact AST."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNT, LEAF_FEATURE_COUNT, CompactAst
from cdmpp.programs.loops.expr import Expr, expr_text
from cdmpp.programs.loops.loop_tree import Allocation, Loop, LoopTree, Node, Store, children
from tests.programs.reference.leaf import leaf_rows

#: Marks leaving a node in the serialised tree.
LEAVE = -1


def compact_ast(tree: LoopTree) -> CompactAst:
    """Returns the compact AST of a program, one leaf a store in program order.

    Nodes are the root, loops and thread bindings of extent above 1 (or not constant), allocations
    and stores, numbered in pre-order; `valid` is False where the original extractor gives up (see
    `reject_reason`).
    """
    serialised, positions = serialise(tree.body)
    rows, extra = leaf_rows(tree)
    reason = reject_reason(tree)
    features = np.asarray(rows, dtype=np.float32).reshape(len(rows), LEAF_FEATURE_COUNT)
    return CompactAst(
        leaf_features=features,
        leaf_extra=np.asarray(extra, dtype=np.float32).reshape(len(rows), LEAF_EXTRA_COUNT),
        leaf_position=np.asarray(positions, dtype=np.int32),
        tree=np.asarray(serialised, dtype=np.int32),
        valid=reason is None,
        reject_reason=reason,
    )


def serialise(nodes: Sequence[Node]) -> tuple[list[int], list[int]]:
    """Returns (serialised tree, positions of the stores' numbers in it) of top-level nodes."""
    serialised = [0]
    positions: list[int] = []
    count = 1

    def visit(node: Node) -> None:
        nonlocal count
        makes_node = isinstance(node, Allocation | Store) or (
            isinstance(node, Loop) and node.extent != 1
        )
        if isinstance(node, Store):
            positions.append(len(serialised))
        if makes_node:
            serialised.append(count)
            count += 1
        for child in children(node):
            visit(child)
        if makes_node:
            serialised.append(LEAVE)

    for node in nodes:
        visit(node)
    serialised.append(LEAVE)
    return serialised, positions


def reject_reason(tree: LoopTree) -> str | None:
    """Returns why the original extractor rejects the program, or None.

    Only extents are checked here: each must be a positive constant. The limits of a GPU kernel need
    the task's hardware parameters: see `cdmpp.programs.gpu_limits`.
    """
    pending = list(reversed(tree.body))
    while pending:
        node = pending.pop()
        extents: tuple[int | Expr, ...] = ()
        if isinstance(node, Loop):
            extents = (node.extent,)
        elif isinstance(node, Allocation):
            extents = node.extents
        for extent in extents:
            if isinstance(extent, Expr):
                return f"extent is not constant: {expr_text(extent)}"
            if extent < 1:
                return f"extent is not positive: {extent}"
        pending.extend(reversed(children(node)))
    return None
