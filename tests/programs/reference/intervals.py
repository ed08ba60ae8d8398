"""Interval analysis of index expressions, shared by all stores of a program.

Expressions are interned: equal subexpressions of a program are one `IndexNode`, and a node
remembers its interval for every set of its variables that was wide at once. Widening the loops of a
store one by one, from the innermost outwards, so costs one computation a node and variable in it,
however many stores and loops there are.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from cdmpp.programs.loops.expr import Expr

#: Inclusive (lowest, highest) value.
Interval: TypeAlias = tuple[int, int]

_ANALYSED = frozenset(("add", "sub", "mul", "min", "max", "floordiv", "floormod", "div", "mod"))
_INT_MIN = -(2**31)
_INT_MAX = 2**31 - 1
#: What is known of a value that the analysis does not look into.
UNBOUNDED: Interval = (_INT_MIN, _INT_MAX)


class IndexNode:
    """One interned expression.

    Attributes:
        op: operation, as `Expr.op`.
        value: as `Expr.value`.
        children: operands.
        mask: bit set of the loop variables in the expression.
    """

    __slots__ = ("cache", "children", "mask", "op", "value")

    def __init__(self, op: str, value: Any, children: tuple[IndexNode, ...], mask: int) -> None:
        self.op = op
        self.value = value
        self.children = children
        self.mask = mask
        self.cache: dict[int, Interval] = {}


class IntervalAnalysis:
    """Intervals of expressions over loop variables, each at its minimum or over its whole range."""

    def __init__(self) -> None:
        self._variables: dict[str, IndexNode] = {}
        self._interned: dict[tuple[Any, ...], IndexNode] = {}
        self._by_identity: dict[int, tuple[Expr, IndexNode]] = {}
        self._ranges: dict[IndexNode, tuple[IndexNode, IndexNode]] = {}

    def declare(self, name: str, minimum: int | Expr, extent: int | Expr) -> int:
        """Declares a loop variable over `[minimum, minimum + extent)` and returns its bit."""
        low, count = self._bound(minimum), self._bound(extent)
        bit = 1 << len(self._variables)
        node = IndexNode("var", name, (), bit | low.mask | count.mask)
        self._variables[name] = node
        self._ranges[node] = (low, count)
        return bit

    def _bound(self, value: int | Expr) -> IndexNode:
        return self.intern(value if isinstance(value, Expr) else Expr("const", "int32", (), value))

    def intern(self, expr: Expr) -> IndexNode:
        """Returns the node of an expression whose loop variables are declared."""
        known = self._by_identity.get(id(expr))
        if known is not None:
            return known[1]
        if expr.op == "var":
            node = self._variables.get(expr.value)
            if node is None:
                self._variables[expr.value] = node = IndexNode("var", expr.value, (), 0)
        else:
            children = tuple([self.intern(argument) for argument in expr.args])
            key = (expr.op, expr.value, expr.dtype, children)
            node = self._interned.get(key)
            if node is None:
                mask = 0
                for child in children:
                    mask |= child.mask
                from_float = expr.op == "cast" and expr.args[0].dtype.startswith("float")
                node = IndexNode("call" if from_float else expr.op, expr.value, children, mask)
                self._interned[key] = node
        self._by_identity[id(expr)] = (expr, node)
        return node

    def interval(self, node: IndexNode, wide: int) -> Interval:
        """Returns bounds of the expression.

        Args:
            node: from `intern`.
            wide: bit set of the variables that take all values; the others stay at their minimum.

        Returns:
            Bounds that contain every value; `UNBOUNDED` where an operation is not analysed.
        """
        if node.op == "const":
            return node.value, node.value
        key = node.mask & wide
        found = node.cache.get(key)
        if found is None:
            found = node.cache[key] = self._evaluate(node, wide)
        return found

    def _evaluate(self, node: IndexNode, wide: int) -> Interval:
        op = node.op
        if op == "var":
            return self._variable(node, wide)
        children = node.children
        if op == "select":
            one, other = self.interval(children[1], wide), self.interval(children[2], wide)
            return min(one[0], other[0]), max(one[1], other[1])
        if op == "cast":
            return self.interval(children[0], wide)
        if op not in _ANALYSED:
            return UNBOUNDED
        low, high = self.interval(children[0], wide)
        other_low, other_high = self.interval(children[1], wide)
        if op == "add":
            return low + other_low, high + other_high
        if op == "sub":
            return low - other_high, high - other_low
        if op == "mul":
            ends = (low * other_low, low * other_high, high * other_low, high * other_high)
            return min(ends), max(ends)
        if op == "min":
            return min(low, other_low), min(high, other_high)
        if op == "max":
            return max(low, other_low), max(high, other_high)
        return _divided(op, (low, high), (other_low, other_high))

    def _variable(self, node: IndexNode, wide: int) -> Interval:
        bounds = self._ranges.get(node)
        if bounds is None:
            return UNBOUNDED
        low, high = self.interval(bounds[0], wide)
        own_bit = node.mask & ~(bounds[0].mask | bounds[1].mask)
        if wide & own_bit:
            high += max(self.interval(bounds[1], wide)[1], 1) - 1
        return low, high


def _divided(op: str, value: Interval, divisor: Interval) -> Interval:
    """Returns bounds of a quotient or remainder; only of positive divisors."""
    low, high = value
    least, most = divisor
    if least <= 0:
        return UNBOUNDED
    if op == "floordiv":
        ends = (low // least, low // most, high // least, high // most)
        return min(ends), max(ends)
    if op == "floormod":
        if low < 0:
            return 0, most - 1
        return (low, high) if high < least else (0, min(high, most - 1))
    if op == "div":
        ends = tuple(_truncated(end, by) for end in (low, high) for by in (least, most))  # type: ignore[assignment]
        return min(ends), max(ends)
    if op == "mod":
        if low >= 0:
            return (low, high) if high < least else (0, min(high, most - 1))
        return max(low, 1 - most), min(max(high, 0), most - 1)
    return UNBOUNDED


def _truncated(value: int, divisor: int) -> int:
    return value // divisor if value >= 0 else -(-value // divisor)
