"""Buffer accesses of a store: touched regions, cache lines, strides and reuse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cdmpp.programs.loops.expr import Buffer, Expr
from cdmpp.programs.loops.loop_tree import Store
from tests.programs.reference.coefficients import CoefficientFinder
from tests.programs.reference.intervals import IndexNode, IntervalAnalysis

CACHE_LINE_BYTES = 64
READ, WRITE, READ_WRITE = 0, 1, 2
LOOP_MULTIPLE_READ, SERIAL_MULTIPLE_READ_WRITE, NO_REUSE = 0, 1, 2
_UNKNOWN_WIDTH = 2**31


@dataclass
class Traffic:
    """What the stores seen so far touch in one run of a loop.

    Attributes:
        touched: elements of every buffer, one entry a store that accesses it, in program order.
        total_bytes: sum over all entries.
        read_bytes: sum over the entries that only read.
        element_bytes: sum of the entries' element sizes.
    """

    touched: dict[Buffer, list[int]] = field(default_factory=dict)
    total_bytes: int = 0
    read_bytes: int = 0
    element_bytes: int = 0

    def add(self, buffer: Buffer, elements: int, *, only_read: bool) -> int:
        """Adds one store's access and returns its bytes."""
        element_bytes = buffer.element_bytes
        size = elements * element_bytes
        self.touched.setdefault(buffer, []).append(elements)
        self.total_bytes += size
        if only_read:
            self.read_bytes += size
        self.element_bytes += element_bytes
        return size


@dataclass(frozen=True)
class EnclosingLoop:
    """A loop around a store.

    Attributes:
        bit: its variable's bit in the interval analysis.
        extent: trip count, 1 where it is not constant.
        kind: as `Loop.kind`.
        traffic: shared by all stores in the loop.
    """

    bit: int
    extent: int
    kind: str
    traffic: Traffic


@dataclass
class Access:
    """All accesses of one store to one buffer.

    Attributes:
        kind: `READ`, `WRITE` or `READ_WRITE`.
        indices: one tuple of index nodes (one a dimension) an access.
        mask: bit set of the loop variables in the indices.
    """

    buffer: Buffer
    kind: int
    indices: list[tuple[IndexNode, ...]]
    mask: int = 0


@dataclass(frozen=True)
class AccessFeatures:
    """One access slot of a leaf vector, before the logarithm; see `cdmpp.programs.schema`."""

    kind: int
    bytes: float
    unique_bytes: float
    lines: float
    unique_lines: float
    reuse_kind: int
    reuse_distance_iterations: float
    reuse_distance_bytes: float
    reuse_count: float
    stride: int

    @property
    def order(self) -> tuple[float, ...]:
        """Returns the sort key of access slots."""
        return self.reuse_distance_bytes, self.unique_bytes, self.unique_lines, self.kind


def store_accesses(store: Store, analysis: IntervalAnalysis) -> list[Access]:
    """Returns the accesses of a store: the written buffer first, then reads in expression order.

    A buffer that is written and read counts as updated in place: only the written indices are kept.
    """
    written = tuple([analysis.intern(index) for index in store.indices])
    accesses = {store.buffer: Access(store.buffer, WRITE, [written])}
    for read in _loads(store.value):
        access = accesses.get(read.value)
        if access is not None and access.kind != READ:
            access.kind = READ_WRITE
            continue
        indices = tuple([analysis.intern(index) for index in read.args])
        if access is None:
            accesses[read.value] = Access(read.value, READ, [indices])
        else:
            access.indices.append(indices)
    for access in accesses.values():
        for indices in access.indices:
            for index in indices:
                access.mask |= index.mask
    return list(accesses.values())


def _loads(expr: Expr) -> Iterator[Expr]:
    if expr.op == "load":
        yield expr
    for argument in expr.args:
        if argument.args or argument.op == "load":
            yield from _loads(argument)


def touched_region(access: Access, analysis: IntervalAnalysis, wide: int) -> list[int]:
    """Returns the extents of the smallest box that holds all accessed elements.

    Args:
        access: the accesses.
        analysis: the analysis that its indices belong to.
        wide: bit set of the loop variables that take all their values.
    """
    interval = analysis.interval
    bounds = [interval(node, wide) for node in access.indices[0]]
    for indices in access.indices[1:]:
        others = [interval(node, wide) for node in indices]
        pairs = zip(bounds, others, strict=True)
        bounds = [(min(low, least), max(high, most)) for (low, high), (least, most) in pairs]
    region = []
    for dimension, (low, high) in enumerate(bounds):
        width = high - low + 1
        # An index that is read from memory may be anything: then it is the whole dimension.
        region.append(width if width < _UNKNOWN_WIDTH else access.buffer.shape[dimension])
    return region


def access_stride(access: Access, loop: EnclosingLoop, finder: CoefficientFinder) -> int:
    """Returns how many elements an iteration moves the address (the least access); 0 if none."""
    smallest: int | None = None
    for indices in access.indices:
        row = 1
        for dimension in range(len(indices) - 1, -1, -1):
            if indices[dimension].mask & loop.bit:
                step = abs(finder.coefficient(indices[dimension], loop.bit)) * row
                smallest = step if smallest is None else min(smallest, step)
                break
            row *= access.buffer.shape[dimension]
    return smallest or 0


def access_features(
    access: Access,
    loops: Sequence[EnclosingLoop],
    *,
    iterations: float,
    written_region: Sequence[int],
    finder: CoefficientFinder,
) -> AccessFeatures:
    """Returns the features of one accessed buffer.

    Args:
        access: the accesses.
        loops: enclosing loops, outermost first, whose traffic already includes this store.
        iterations: product of the extents of the loops.
        written_region: box that the store writes over all loops; the original compares its extents
            with the shape of every accessed buffer.
        finder: cache of coefficients.
    """
    element_bytes = access.buffer.element_bytes
    stride = 0
    unique_bytes = float(element_bytes)
    lines = unique_lines = 1.0
    if loops:
        unique_bytes *= loops[0].traffic.touched[access.buffer][0]
        ratio = 1
        moving = 0
        for loop in reversed(loops):
            moving = access_stride(access, loop, finder)
            if moving:
                stride = moving if loop is loops[-1] else 0
                break
            ratio *= loops[-1].extent
        share = min(1.0, moving * element_bytes / CACHE_LINE_BYTES)
        lines = max(iterations / ratio * share, 1.0)
        unique_lines = max(unique_bytes / _contiguous_bytes(access.buffer, written_region), 1.0)
    reuse_kind, iteration_distance, byte_distance, count = _reuse(access, loops)
    return AccessFeatures(
        access.kind,
        iterations * element_bytes,
        unique_bytes,
        lines,
        unique_lines,
        reuse_kind,
        iteration_distance,
        byte_distance,
        count,
        stride,
    )


def _contiguous_bytes(buffer: Buffer, region: Sequence[int]) -> float:
    """Returns the bytes of the innermost full dimension, at most a cache line."""
    width = buffer.element_bytes
    for dimension in range(min(len(region), len(buffer.shape)) - 1, -1, -1):
        if region[dimension] == buffer.shape[dimension]:
            width *= region[dimension]
            break
    return min(width, CACHE_LINE_BYTES)


def _reuse(access: Access, loops: Sequence[EnclosingLoop]) -> tuple[int, float, float, float]:
    """Returns (kind, distance in iterations, distance in bytes, count) of the innermost reuse.

    A loop whose variable is not in the indices repeats the same elements, together with such loops
    directly around it. A loop in which several stores touch the buffer brings it back once an
    iteration; that takes precedence.
    """
    iterations = distance = 1.0
    repeats = 0
    for level in range(len(loops) - 1, -1, -1):
        loop = loops[level]
        traffic = loop.traffic
        repeated = not access.mask & loop.bit
        if repeats and not repeated:
            break
        entries = traffic.touched[access.buffer]
        if len(entries) > 1:
            count = math.prod([outer.extent for outer in loops[: level + 1]])
            nearest = min(entries) / loop.extent
            return SERIAL_MULTIPLE_READ_WRITE, nearest, traffic.read_bytes / loop.extent, count
        if repeated:
            if level == len(loops) - 1:
                distance = float(traffic.element_bytes)
            repeats = max(repeats, 1) * loop.extent
        else:
            iterations *= loop.extent
            distance = float(traffic.total_bytes)
    return (LOOP_MULTIPLE_READ, iterations, distance, repeats) if repeats else (NO_REUSE, 0, 0, 0)


@dataclass(frozen=True)
class Touched:
    """What a store touches in one run of each enclosing loop, innermost first.

    Attributes:
        bytes_by_loop: of all accesses together.
        regions: a loop's list has one box (extents) an access; a box that does not grow with a loop
            is the same object as that of the loop inside.
        written: box that the store writes over all loops.
    """

    bytes_by_loop: list[int]
    regions: list[list[list[int]]]
    written: list[int]


def touch(
    accesses: Sequence[Access], loops: Sequence[EnclosingLoop], analysis: IntervalAnalysis
) -> Touched:
    """Adds a store's accesses to the traffic of its loops and returns what they touch."""
    bytes_by_loop = []
    regions: list[list[list[int]]] = []
    current: list[list[int]] = [[] for _ in accesses]
    sizes = [0] * len(accesses)
    wide = 0
    for level, loop in enumerate(reversed(loops)):
        wide |= loop.bit
        total = 0
        for number, access in enumerate(accesses):
            if level == 0 or access.mask & loop.bit:
                current[number] = touched_region(access, analysis, wide)
                sizes[number] = max(0, math.prod(current[number]))
            total += loop.traffic.add(access.buffer, sizes[number], only_read=access.kind == READ)
        bytes_by_loop.append(total)
        regions.append(list(current))
    return Touched(bytes_by_loop, regions, current[0])
