"""The loop tree: a lowered tensor program as nested loops, allocations, conditions and stores.

It is the one form that every source of programs is turned into (replayed Tenset records, TIR
modules) and the only input of the compact AST. Buffers keep their full, un-flattened indices;
regions are given by allocations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cdmpp.programs.loops.expr import Buffer, Expr

LoopKind = Literal[
    "serial", "parallel", "vectorized", "unrolled", "vthread",
    "blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z",
]  # fmt: skip


@dataclass
class Loop:
    """A loop or a thread binding over `[minimum, minimum + extent)`.

    Attributes:
        var: unique name of the loop variable.
        extent: trip count; an `Expr` where it is not constant (such programs are rejected, not
            dropped).
    """

    var: str
    minimum: int | Expr
    extent: int | Expr
    kind: LoopKind
    body: list[Node] = field(default_factory=list)


@dataclass
class Allocation:
    """A buffer that lives inside `body`; `extents` is the region in use, one entry a dimension."""

    buffer: Buffer
    extents: tuple[int | Expr, ...]
    body: list[Node] = field(default_factory=list)


@dataclass
class Condition:
    """A guarded body (`else_body` is empty where there is no else branch)."""

    condition: Expr
    body: list[Node] = field(default_factory=list)
    else_body: list[Node] = field(default_factory=list)


@dataclass
class Attribute:
    """An annotation of everything in `body`, e.g. `pragma_auto_unroll_max_step` = 64."""

    key: str
    value: int | str
    body: list[Node] = field(default_factory=list)


@dataclass
class Store:
    """One buffer store; becomes one leaf of the compact AST.

    Attributes:
        is_across_threads: whether the value is what the threads of a block have of it, combined.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    is_across_threads: bool = False


Node: TypeAlias = Loop | Allocation | Condition | Attribute | Store


@dataclass
class LoopTree:
    """A whole program.

    Attributes:
        parameters: buffers passed in from outside (inputs and outputs), in signature order.
        body: top-level nodes.
        is_gpu: whether the program is compiled for a GPU target.
        uncounted: calls that do work beside the stores, which is not known.
    """

    parameters: tuple[Buffer, ...]
    body: list[Node]
    is_gpu: bool = False
    uncounted: tuple[str, ...] = ()


def children(node: Node) -> list[Node]:
    """Returns the nodes directly below `node`, in program order."""
    if isinstance(node, Store):
        return []
    if isinstance(node, Condition):
        return node.body + node.else_body
    return node.body


def stores_with_path(tree: LoopTree) -> Iterator[tuple[Store, tuple[Node, ...]]]:
    """Yields every store in program order with its enclosing nodes, outermost first."""

    def visit(
        nodes: list[Node], path: tuple[Node, ...]
    ) -> Iterator[tuple[Store, tuple[Node, ...]]]:
        for node in nodes:
            if isinstance(node, Store):
                yield node, path
            else:
                yield from visit(children(node), (*path, node))

    yield from visit(tree.body, ())
