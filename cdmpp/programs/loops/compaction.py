"""Region compaction: computes the bounding box of all accesses of each allocation by intervals.

The box moves with the loops around the allocation. It is fixed over the loops inside the allocation
and over threads that share the memory. The terms of the outer loops are equal in every access and
are subtracted before an index is bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cdmpp.programs.loops.expr import Buffer, Expr, loads_in
from cdmpp.programs.loops.loop_tree import Allocation, Condition, Loop, LoopKind, Node, Store
from cdmpp.programs.loops.simplify import Linear, Simplifier


def compact_allocations(nodes: Sequence[Node]) -> None:
    """Sets the extents of all allocations to the accessed region, in place.

    An extent is that of the buffer if an access cannot be bounded.

    Args:
        nodes: a whole simplified program with unique loop variables.
    """
    _Compaction().visit(nodes)


@dataclass
class _Box:
    """The region of one allocation.

    Attributes:
        moving: loop variables that the region moves with.
        origins: terms of these variables in the first access, one entry per dimension.
        lows: minimum index relative to the origin, one entry per dimension.
        highs: maximum index relative to the origin, one entry per dimension.
    """

    moving: frozenset[str]
    origins: list[Linear] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)

    def extents(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not self.origins:
            return shape
        return tuple(map(_extent, self.origins, self.lows, self.highs, shape))


def _extent(origin: Linear, low: float, high: float, size: int) -> int:
    if origin.is_constant:  # the index itself, which is inside the buffer
        low, high = max(low, 0), min(high, size - 1)
    width = high - low + 1
    return size if math.isinf(width) else max(1, min(int(width), size))


class _Compaction:
    def __init__(self) -> None:
        self._simplifier = Simplifier()
        self._loops: list[Loop] = []
        self._boxes: dict[Buffer, _Box] = {}
        self._variables: dict[Expr, frozenset[str] | None] = {}

    def visit(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Store):
                self._touch(node.buffer, node.indices)
                for expr in (*node.indices, node.value):
                    self._reads(expr)
            elif isinstance(node, Loop):
                with self._inside(node):
                    self.visit(node.body)
            elif isinstance(node, Allocation):
                box = self._boxes[node.buffer] = _Box(self._moving(node.buffer.scope))
                self.visit(node.body)
                node.extents = box.extents(node.buffer.shape)
            elif isinstance(node, Condition):
                self._reads(node.condition)
                with self._simplifier.assume(node.condition):
                    self.visit(node.body)
                self.visit(node.else_body)
            else:
                self.visit(node.body)

    @contextmanager
    def _inside(self, loop: Loop) -> Iterator[None]:
        low, high = self._bounds(loop.minimum)[0], self._bounds(loop.minimum)[1]
        self._simplifier.bind(loop.var, low, high + self._bounds(loop.extent)[1] - 1)
        self._loops.append(loop)
        yield
        self._loops.pop()

    def _bounds(self, value: int | Expr) -> tuple[float, float]:
        return (value, value) if isinstance(value, int) else self._simplifier.expr_bounds(value)

    def _moving(self, scope: str) -> frozenset[str]:
        return frozenset(loop.var for loop in self._loops if not shares_memory(loop.kind, scope))

    def _reads(self, expr: Expr) -> None:
        for read in loads_in(expr):
            self._touch(read.value, read.args)

    def _touch(self, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        box = self._boxes.get(buffer)
        if box is None:
            return
        is_first = not box.origins
        for dimension, index in enumerate(indices):
            form = self._simplifier.linear(index)
            if is_first:
                box.origins.append(self._origin(form, box.moving))
                box.lows.append(math.inf)
                box.highs.append(-math.inf)
            offset = self._simplifier.add(form, box.origins[dimension], -1)
            low, high = self._simplifier.bounds_of(offset)
            box.lows[dimension] = min(box.lows[dimension], low)
            box.highs[dimension] = max(box.highs[dimension], high)

    def _origin(self, form: Linear, moving: frozenset[str]) -> Linear:
        """Returns the terms of an index that depend only on variables in `moving`."""
        terms = {}
        for term, coefficient in form.terms.items():
            variables = self._variables_of(term[0])
            if variables is not None and variables <= moving:
                terms[term] = coefficient
        return Linear(terms)

    def _variables_of(self, expr: Expr) -> frozenset[str] | None:
        """Returns the variables in an expression; None if it reads memory."""
        if expr.op == "var":
            return frozenset((expr.value,))
        if expr.op == "load":
            return None
        if expr not in self._variables:
            found: frozenset[str] | None = frozenset()
            for argument in expr.args:
                inner = self._variables_of(argument)
                found = None if found is None or inner is None else found | inner
            self._variables[expr] = found
        return self._variables[expr]


def shares_memory(kind: LoopKind, scope: str) -> bool:
    """Returns whether all iterations of a loop share one copy of a buffer.

    Threads of a block share `shared` memory; blocks and threads share `global` memory.
    """
    if kind.startswith("blockIdx"):
        return scope == "global"
    if kind.startswith("threadIdx") or kind == "vthread":
        return scope == "global" or scope.startswith("shared")
    return False
