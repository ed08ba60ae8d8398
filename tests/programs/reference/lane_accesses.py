"""Addresses that neighbouring lanes access: the threads of a warp, or iterations of a CPU's loop.

A lane set gives some loop variables one value a lane; all others are at their minimum and values
that are read from memory count as zero. Index expressions are evaluated exactly for every lane, so
that divisions of a fused thread index are no guess.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from tests.programs.reference.intervals import UNBOUNDED, IndexNode, IntervalAnalysis

#: Threads of a warp.
WARP_LANES = 32
#: Iterations of a CPU's innermost loop that are looked at.
CPU_LANES = 16
#: Smallest part of global memory that a GPU fetches; a cache line of a CPU.
SECTOR_BYTES = 32
LINE_BYTES = 64
_BANK_COUNT = 32
_BANK_BYTES = 4

#: One number for all lanes, one a lane, or None where an operation is not analysed.
Value = int | tuple[int, ...] | None


@dataclass(frozen=True)
class LaneSet:
    """Neighbouring lanes.

    Attributes:
        count: how many there are, at least one.
        values: of the variables that differ, by name, `count` a variable.
        mask: bit set of these variables in the interval analysis.
    """

    count: int
    values: dict[str, tuple[int, ...]]
    mask: int


@dataclass(frozen=True)
class LaneAccess:
    """How the lanes access one buffer, all accesses of the store to it taken together.

    Attributes:
        stride: elements from the first lane's address to the next one's; the least access by
            magnitude.
        is_irregular: some access has no constant stride, or its indices are not analysed.
        sectors: pieces of memory of the given size that the lanes touch (the worst access); 0
            where no size is given or the indices are not analysed.
        bank_conflicts: lanes that the busiest bank of shared memory serves one after another (the
            worst access); 0 where it is not asked for or the indices are not analysed.
    """

    stride: int = 0
    is_irregular: bool = False
    sectors: int = 0
    bank_conflicts: int = 0


class LaneEvaluator:
    """Evaluates index expressions for the lanes chosen last; remembers every node's value."""

    def __init__(self, analysis: IntervalAnalysis) -> None:
        self._analysis = analysis
        self._lanes = LaneSet(1, {}, 0)
        self._known: dict[IndexNode, Value] = {}

    def choose(self, lanes: LaneSet) -> None:
        """Chooses the lanes of the following calls."""
        if lanes != self._lanes:
            self._lanes = lanes
            self._known = {}

    def access(
        self,
        accesses: Sequence[tuple[IndexNode, ...]],
        extents: Sequence[int],
        element_bytes: int,
        *,
        sector_bytes: int,
        in_banks: bool,
    ) -> LaneAccess:
        """Returns how the lanes access a buffer.

        Args:
            accesses: index nodes, one tuple (one node a dimension) an access.
            extents: of the memory that holds the buffer, one a dimension; it is laid out row by
                row.
            element_bytes: size of an element.
            sector_bytes: size of the pieces that are counted; 0 = none are.
            in_banks: whether to count bank conflicts.
        """
        strides: list[int] = []
        is_irregular = False
        sectors = conflicts = 0
        for indices in accesses:
            addresses = self._addresses(indices, extents)
            if addresses is None:
                is_irregular = True
                strides.append(0)
                continue
            stride = addresses[1] - addresses[0] if len(addresses) > 1 else 0
            strides.append(stride)
            is_irregular = is_irregular or any(
                address != addresses[0] + lane * stride for lane, address in enumerate(addresses)
            )
            if sector_bytes:
                touched = {address * element_bytes // sector_bytes for address in addresses}
                sectors = max(sectors, len(touched))
            if in_banks:
                conflicts = max(conflicts, _bank_conflicts(addresses, element_bytes))
        stride = min(strides, key=lambda stride: (abs(stride), stride))
        return LaneAccess(stride, is_irregular, sectors, conflicts)

    def _addresses(
        self, indices: Sequence[IndexNode], extents: Sequence[int]
    ) -> tuple[int, ...] | None:
        """Returns the address of every lane in elements, None where an index is not analysed."""
        address: Value = 0
        row = 1
        for dimension in range(len(indices) - 1, -1, -1):
            address = _elementwise(
                "add", address, _elementwise("mul", self._value(indices[dimension]), row)
            )
            if dimension:
                row *= extents[dimension]
        if isinstance(address, int):
            return (address,) * self._lanes.count
        return address

    def _value(self, node: IndexNode) -> Value:
        if node.op == "const":
            return int(node.value) if isinstance(node.value, int) else 0
        try:
            return self._known[node]
        except KeyError:
            value = self._known[node] = self._evaluate(node)
            return value

    def _evaluate(self, node: IndexNode) -> Value:
        op = node.op
        if op == "var":
            lanes = self._lanes.values.get(node.value)
            if lanes is not None:
                return lanes
            low = self._analysis.interval(node, 0)[0]
            return 0 if low == UNBOUNDED[0] else low
        unknown = None if node.mask & self._lanes.mask else 0
        children = node.children
        if op == "cast":
            return self._value(children[0])
        if op in ("add", "sub", "mul", "min", "max"):
            return _elementwise(op, self._value(children[0]), self._value(children[1]))
        if op in ("floordiv", "floormod", "div", "mod"):
            divisor = self._value(children[1])
            if children[1].mask & self._lanes.mask or not isinstance(divisor, int) or divisor <= 0:
                return unknown
            return _elementwise(op, self._value(children[0]), divisor)
        return unknown


def _elementwise(op: str, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    function = _FUNCTIONS[op]
    if isinstance(left, int):
        if isinstance(right, int):
            return function(left, right)
        return tuple(map(function, repeat(left), right))
    return tuple(map(function, left, repeat(right) if isinstance(right, int) else right))


def _truncated_quotient(left: int, right: int) -> int:
    return left // right if left >= 0 else -(-left // right)


def _truncated_remainder(left: int, right: int) -> int:
    return left % right if left >= 0 else -(-left % right)


_FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "max": max,
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "div": _truncated_quotient,
    "mod": _truncated_remainder,
}


def _bank_conflicts(addresses: Sequence[int], element_bytes: int) -> int:
    """Returns the most words that lanes want of one bank (a word wanted twice is served once).

    An element wider than a bank counts by its first word.
    """
    first = min(addresses)
    words = {(address - first) * element_bytes // _BANK_BYTES for address in addresses}
    busy = [0] * _BANK_COUNT
    for word in words:
        busy[word % _BANK_COUNT] += 1
    return max(busy)
