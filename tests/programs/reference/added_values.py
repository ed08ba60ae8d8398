"""The additional columns of every leaf (names: `cdmpp.programs.added_columns`).

`ExtraWalk` goes along with the walk that makes the leaf vectors and uses what that one has found:
the accesses of a store and the order of its access slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from cdmpp.programs.added_columns import (
    CAPACITIES,
    EXTRA_BLOCKS,
    LEAF_EXTRA_COUNT,
    MEMORIES,
    NEAR_CAPACITY,
    NEST_KINDS,
    NEST_LEVEL_COUNT,
    PAGE_ENTRIES,
)
from cdmpp.programs.loops.expr import Buffer, Expr
from cdmpp.programs.schema import ACCESS_SLOT_COUNT
from tests.programs.reference.accesses import CACHE_LINE_BYTES, Access, Touched
from tests.programs.reference.cache_lines import Cover, added, cover
from tests.programs.reference.executed import Range, held_share, integer_ops, otherwise
from tests.programs.reference.intervals import IntervalAnalysis
from tests.programs.reference.lane_accesses import (
    CPU_LANES,
    LINE_BYTES,
    SECTOR_BYTES,
    WARP_LANES,
    LaneEvaluator,
    LaneSet,
)
from tests.programs.reference.operations import guard_count
from tests.programs.reference.parts_of_program import Kernel, KernelStack, NestLoop, memory_of
from tests.programs.reference.signed_log import signed_log

_LIKELY = "tir.likely"
_T = TypeVar("_T")


@dataclass
class _Allocated:
    """Where a buffer lives: its region's extents, their product, and the kind of memory."""

    extents: tuple[int, ...]
    elements: int
    memory: str


@dataclass
class _Program:
    """Totals of a program."""

    float_ops: float = 0.0
    integer_ops: float = 0.0
    leaves: int = 0
    depth: int = 0
    input_bytes: int = 0
    inputs: set[Buffer] = field(default_factory=set)


class ExtraWalk:
    """One walk over a program. Calls come in program order, as the walk enters and leaves nodes."""

    def __init__(self, analysis: IntervalAnalysis, *, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        self._evaluator = LaneEvaluator(analysis)
        self._kernels = KernelStack(is_gpu=is_gpu)
        self._loops = self._kernels.loops
        self._thread_axes: dict[str, int] = {}
        self._thread_mask = 0
        self._depth = self._terms = 0
        self._ranges: dict[str, Range | None] = {}
        self._shares: list[float] = []
        self._allocated: dict[Buffer, _Allocated] = {}
        self._program = _Program()
        self._rows: list[list[float]] = []
        self._kernel_of_row: list[Kernel | None] = []

    @contextmanager
    def loop(self, var: str, extent: int, kind: str, bit: int) -> Iterator[None]:
        """Enters a loop that is not a unit loop, or a thread binding."""
        loop = NestLoop(var, extent, kind, bit)
        if loop.axis is not None:
            self._thread_mask |= bit
            self._thread_axes[var] = loop.axis
        self._kernels.enter(loop)
        yield
        self._kernels.leave()

    @contextmanager
    def condition(self, condition: Expr) -> Iterator[None]:
        """Enters what a condition guards."""
        terms = _term_count(condition)
        self._depth += 1
        self._terms += terms
        self._shares.append(held_share(condition, self._ranges))
        yield
        self._shares.pop()
        self._depth -= 1
        self._terms -= terms

    def otherwise(self) -> None:
        """Enters the branch that runs where the innermost condition does not hold."""
        self._shares[-1] = otherwise(self._shares[-1])

    def declare(self, var: str, minimum: int | Expr, extent: int | Expr) -> None:
        """Notes the values of a loop variable."""
        self._ranges[var] = None
        if isinstance(minimum, int) and isinstance(extent, int):
            self._ranges[var] = float(minimum), float(minimum) + max(extent, 1) - 1

    def allocate(self, buffer: Buffer, extents: Sequence[int | Expr]) -> None:
        """Notes an allocation around everything that follows and uses the buffer."""
        known = tuple([extent if isinstance(extent, int) else 1 for extent in extents])
        elements = math.prod(known)
        memory = memory_of(buffer.scope, self._loops, is_gpu=self._is_gpu)
        self._allocated[buffer] = _Allocated(known, elements, memory)
        self._kernels.allocate(memory, float(elements) * buffer.element_bytes)

    def add(
        self,
        value: Expr,
        accesses: Sequence[Access],
        slots: Sequence[Access],
        *,
        touched: Touched,
        iterations: float,
        float_ops: int,
        selects: int,
        unroll_max_step: int,
        is_across_threads: bool,
    ) -> None:
        """Appends the row of a store.

        Args:
            value: what is stored.
            accesses: of the store, the written buffer first.
            slots: the accesses that have a slot in the leaf vector, in slot order.
            touched: what the accesses touch in one run of each enclosing loop.
            iterations: product of the extents of the enclosing loops.
            float_ops: floating point operations of one evaluation of the value.
            selects: select operations of the same.
            unroll_max_step: of the unroll pragma around the store; 0 = none.
            is_across_threads: as of the store.
        """
        for access in accesses:
            self._note_input(access.buffer)
        described = [accesses[0], *slots]
        unused = ACCESS_SLOT_COUNT - len(slots)
        lanes = self._lanes()
        row: list[float] = []
        for access in described:
            memory = self._memory(access.buffer)
            row += [float(memory == name) for name in MEMORIES]
        row += [0.0] * (unused * len(MEMORIES))
        row += [signed_log(access.buffer.element_bytes) for access in described]
        row += [0.0] * unused
        row.append(float(accesses[0].buffer.dtype.startswith(("float", "bfloat"))))
        for access in described:
            found = self._allocated.get(access.buffer)
            size = 0 if found is None else found.elements * access.buffer.element_bytes
            row += (signed_log(size), float(found is None))
        row += [0.0] * (unused * 2)
        row += map(signed_log, (self._depth, self._terms, selects, guard_count(value)))
        row += self._stride_columns(described, lanes)
        row += [0.0] * (LEAF_EXTRA_COUNT - len(row))
        row[EXTRA_BLOCKS["loop_nest"]] = self._nest_columns(accesses[0].mask, unroll_max_step)
        element_bytes = sum(access.buffer.element_bytes for access in accesses)
        row[EXTRA_BLOCKS["footprint"]] = self._footprint_columns(
            touched.bytes_by_loop, element_bytes
        )
        row[EXTRA_BLOCKS["lines"]] = self._line_columns(accesses, touched)
        row[EXTRA_BLOCKS["sets"]] = self._set_columns(accesses, touched)
        runs = iterations
        for share in self._shares:
            runs *= share
        row[EXTRA_BLOCKS["execution"]] = [signed_log(runs), float(is_across_threads)]
        counts = integer_ops(value)
        columns = [*(signed_log(runs * count) for count in counts), 0.0]
        row[EXTRA_BLOCKS["integer"]] = columns
        self._program.integer_ops += runs * sum(counts)
        work = iterations * float_ops
        self._program.float_ops += work
        self._program.leaves += 1
        self._program.depth = max(self._program.depth, self._kernels.depth)
        self._kernel_of_row.append(self._kernels.add_leaf(work))
        self._rows.append(row)

    def rows(self) -> list[list[float]]:
        """Returns the rows of all stores, with the totals that are known only at the end."""
        program = self._program
        totals = (
            program.float_ops, program.leaves, program.depth, self._kernels.count,
            program.input_bytes,
        )  # fmt: skip
        for row, kernel in zip(self._rows, self._kernel_of_row, strict=True):
            if kernel is not None:
                row[EXTRA_BLOCKS["occupancy"]] = kernel.columns(is_gpu=self._is_gpu)
            row[EXTRA_BLOCKS["program"]] = [signed_log(total) for total in totals]
            row[EXTRA_BLOCKS["integer"].stop - 1] = signed_log(program.integer_ops)
        return self._rows

    def _note_input(self, buffer: Buffer) -> None:
        if buffer not in self._allocated and buffer not in self._program.inputs:
            self._program.inputs.add(buffer)
            self._program.input_bytes += math.prod(buffer.shape) * buffer.element_bytes

    def _memory(self, buffer: Buffer) -> str:
        found = self._allocated.get(buffer)
        return memory_of(buffer.scope, (), is_gpu=self._is_gpu) if found is None else found.memory

    def _lanes(self) -> LaneSet | None:
        """Returns the lanes around a store, None where there are none."""
        if self._is_gpu:
            return self._warp()
        for loop in reversed(self._loops):
            if loop.extent > 1:
                count = min(loop.extent, CPU_LANES)
                return LaneSet(count, {loop.var: tuple(range(count))}, loop.bit)
        return None

    def _warp(self) -> LaneSet | None:
        """Returns the first warp; every thread index stands for the same threads, at any depth."""
        extents = [0, 0, 0]
        for loop in self._loops:
            if loop.axis is not None:
                extents[loop.axis] = loop.extent
        if not any(extents):
            return None
        x, y, z = (max(extent, 1) for extent in extents)
        count = min(x * y * z, WARP_LANES)
        threads = range(count)
        of_axis = (
            tuple(thread % x for thread in threads),
            tuple(thread // x % y for thread in threads),
            tuple(thread // x // y for thread in threads),
        )
        values = {var: of_axis[axis] for var, axis in self._thread_axes.items()}
        return LaneSet(count, values, self._thread_mask)

    def _stride_columns(self, described: Sequence[Access], lanes: LaneSet | None) -> list[float]:
        width = EXTRA_BLOCKS["thread_stride"].stop - EXTRA_BLOCKS["thread_stride"].start
        if lanes is None:
            return [0.0] * width
        self._evaluator.choose(lanes)
        columns = [signed_log(lanes.count)]
        for access in described:
            memory = self._memory(access.buffer)
            found = self._evaluator.access(
                access.indices,
                self._extents(access.buffer),
                access.buffer.element_bytes,
                sector_bytes=self._sector_bytes(memory),
                in_banks=self._is_gpu and memory == "shared",
            )
            kinds = (found.stride == 0, found.stride == 1, found.stride not in (0, 1))
            columns.append(signed_log(found.stride))
            columns += [float(kind and not found.is_irregular) for kind in kinds]
            columns += (
                float(found.is_irregular),
                signed_log(found.sectors),
                signed_log(found.bank_conflicts),
            )
        return columns + [0.0] * (width - len(columns))

    def _extents(self, buffer: Buffer) -> tuple[int, ...]:
        found = self._allocated.get(buffer)
        if found is None or len(found.extents) != len(buffer.shape):
            return buffer.shape
        return found.extents

    def _sector_bytes(self, memory: str) -> int:
        if not self._is_gpu:
            return LINE_BYTES
        return SECTOR_BYTES if memory == "global" else 0

    def _nest_columns(self, written: int, unroll_max_step: int) -> list[float]:
        """Returns the columns of the enclosing loops, innermost first.

        A serial loop counts as unrolled where the pragma's limit covers it: not more copies of the
        store than that, and nothing but serial, unrolled and vectorised loops inside.
        """
        columns: list[float] = []
        copies = 1.0
        may_unroll = True
        levels = [loop for loop in reversed(self._loops) if loop.extent > 1][:NEST_LEVEL_COUNT]
        for loop in levels:
            kind = loop.nest_kind
            if kind in ("serial", "unrolled"):
                copies *= loop.extent
            elif kind != "vectorized":
                may_unroll = False
            if kind == "serial" and may_unroll and copies <= unroll_max_step:
                kind = "unrolled"
            columns.append(loop.log_extent)
            columns += [float(kind == name) for name in NEST_KINDS]
            columns.append(float(not written & loop.bit))
        unused = NEST_LEVEL_COUNT - len(levels)
        return columns + [0.0] * (unused * (len(NEST_KINDS) + 2))

    def _footprint_columns(self, bytes_by_loop: Sequence[int], element_bytes: int) -> list[float]:
        """Returns the bytes that one run of each enclosing loop touches, innermost first, and the
        bytes that a memory of each capacity has to fetch."""
        levels = self._levels(bytes_by_loop)
        columns = [signed_log(touched) for _, touched in levels[:NEST_LEVEL_COUNT]]
        columns += [0.0] * (NEST_LEVEL_COUNT - len(columns))
        sizes = [(extent, touched, touched) for extent, touched in levels]
        columns += [_fetched(sizes, element_bytes, capacity) for capacity in CAPACITIES]
        return columns

    def _line_columns(self, accesses: Sequence[Access], touched: Touched) -> list[float]:
        """Returns the bytes of the cache lines that one run of each enclosing loop touches, what a
        memory of each capacity has to fetch in lines, the same where lines that share a set of the
        cache need more room, and the pages that tables of two sizes have to fetch."""
        levels = self._levels(self._covers(accesses, touched))
        columns = [signed_log(one.line_bytes) for _, one in levels[:NEST_LEVEL_COUNT]]
        columns += [0.0] * (NEST_LEVEL_COUNT - len(columns))
        least = CACHE_LINE_BYTES * len(accesses)
        sizes = [(extent, one.line_bytes, one.line_bytes) for extent, one in levels]
        near = [(extent, one.near_bytes, one.line_bytes) for extent, one in levels]
        far = [(extent, one.far_bytes, one.line_bytes) for extent, one in levels]
        pages = [(extent, one.pages, one.pages) for extent, one in levels]
        columns += [_fetched(sizes, least, capacity) for capacity in CAPACITIES]
        for capacity in CAPACITIES:
            columns.append(_fetched(near if capacity <= NEAR_CAPACITY else far, least, capacity))
        columns += [_fetched(pages, len(accesses), entries) for entries in PAGE_ENTRIES]
        return columns

    def _covers(self, accesses: Sequence[Access], touched: Touched) -> list[Cover]:
        """Returns what one run of each enclosing loop covers, innermost first."""
        extents = [self._extents(access.buffer) for access in accesses]
        of_access: list[Cover] = []
        before: list[list[int]] = []
        covers = []
        for regions in touched.regions:
            of_access = [
                of_access[number]
                if before and region is before[number]
                else cover(region, extents[number], accesses[number].buffer.element_bytes)
                for number, region in enumerate(regions)
            ]
            before = regions
            covers.append(added(of_access))
        return covers

    def _set_columns(self, accesses: Sequence[Access], touched: Touched) -> list[float]:
        """Returns the loads of the sets of two caches by one run of each enclosing loop."""
        levels = self._levels(self._covers(accesses, touched))[:NEST_LEVEL_COUNT]
        columns = [
            signed_log(value)
            for _, one in levels
            for load in one.loads
            for value in (load.fullest, load.beyond)
        ]
        width = EXTRA_BLOCKS["sets"].stop - EXTRA_BLOCKS["sets"].start
        columns += [0.0] * (width - len(columns))
        return [0.0] * width if self._is_gpu else columns

    def _levels(self, by_loop: Sequence[_T]) -> list[tuple[int, _T]]:
        """Returns (extent, value) of the loops that run more than once, innermost first."""
        return [
            (loop.extent, value)
            for loop, value in zip(reversed(self._loops), by_loop, strict=True)
            if loop.extent > 1
        ]


def _fetched(levels: Sequence[tuple[int, float, float]], least: float, capacity: int) -> float:
    """Returns signed_log of what a memory of a capacity has to fetch.

    It holds what the outermost loop that fits touches, and fetches it again in every iteration of
    the loops around that one.

    Args:
        levels: (extent, room that one run needs, what it fetches) of the loops, innermost first.
        least: what is fetched where no loop fits.
        capacity: of the memory, in units of the room.
    """
    runs = 1.0
    held = float(least)
    for extent, room, fetched in reversed(levels):
        if room <= capacity:
            held = float(fetched)
            break
        runs *= extent
    return signed_log(runs * held)


def _term_count(condition: Expr) -> int:
    """Returns how many conditions have to hold."""
    if condition.op == "call" and condition.value == _LIKELY:
        return _term_count(condition.args[0])
    if condition.op == "and":
        return sum(_term_count(argument) for argument in condition.args)
    return 1
