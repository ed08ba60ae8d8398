"""The loop tree: a lowered tensor program as nested loops, allocations, conditions and stores.

All sources of programs (replayed Tenset records, TIR modules) are converted to it, and the compact
AST is computed from it. Buffers have full, unflattened indices; allocations define regions.
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
        extent: trip count; an `Expr` if it is not constant (such programs are kept but rejected).
    """

    var: str
    minimum: int | Expr
    extent: int | Expr
    kind: LoopKind
    body: list[Node] = field(default_factory=list)


@dataclass
class Allocation:
    """A buffer allocated around `body`; `extents` is the used region, one entry per dimension."""

    buffer: Buffer
    extents: tuple[int | Expr, ...]
    body: list[Node] = field(default_factory=list)


@dataclass
class Condition:
    """A guarded body (`else_body` is empty without an else branch)."""

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
    """A buffer store; it becomes a leaf of the compact AST.

    Attributes:
        is_across_threads: whether the value is combined over the threads of a block.
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
        parameters: input and output buffers, in signature order.
        body: top-level nodes.
        is_gpu: whether the program is compiled for a GPU target.
        uncounted: calls that do an unknown amount of work beside the stores.
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
