"""Kernels: the parts of a program that run one after another, and what each needs.

On a GPU a kernel is an outermost thread binding, on a CPU an outermost loop, or a store without
one. Its numbers are totals over everything inside, whichever leaf they are attached to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.programs.reference.lane_accesses import WARP_LANES
from tests.programs.reference.signed_log import signed_log

_AXES = "xyz"
_LOCAL_SCOPES = ("local", "warp", "wmma")


class NestLoop:
    """An enclosing loop or thread binding.

    Attributes:
        var: name of its variable.
        extent: trip count, 1 where it is not constant.
        kind: as `Loop.kind`.
        bit: its variable's bit in the interval analysis.
        axis: 0 to 2 of a thread index, else None.
        log_extent: `signed_log` of the extent.
    """

    __slots__ = ("axis", "bit", "extent", "kind", "log_extent", "var")

    def __init__(self, var: str, extent: int, kind: str, bit: int) -> None:
        self.var = var
        self.extent = extent
        self.kind = kind
        self.bit = bit
        self.axis = _AXES.index(kind[-1]) if kind.startswith("threadIdx") else None
        self.log_extent = signed_log(extent)

    @property
    def nest_kind(self) -> str:
        """One of `cdmpp.programs.added_columns.NEST_KINDS`."""
        if self.axis is not None:
            return "thread"
        return "block" if self.kind.startswith("blockIdx") else self.kind


def memory_of(scope: str, loops: Sequence[NestLoop], *, is_gpu: bool) -> str:
    """Returns the kind of memory of a buffer: `global`, `shared`, `local`, or "" if unknown.

    Where a scope leaves it open, the place of the allocation decides: on a GPU what is allocated
    for a thread is local and what is allocated for a block is shared, as TVM places it; on a CPU
    what is allocated inside a loop is local.

    Args:
        scope: of the buffer.
        loops: around its allocation, outermost first; none for a buffer that is not allocated.
        is_gpu: whether the program is compiled for a GPU.
    """
    if scope.startswith("shared"):
        return "shared"
    if scope.startswith(_LOCAL_SCOPES):
        return "local"
    if scope not in ("", "global"):
        return "global" if scope.startswith("global") else ""
    if not is_gpu:
        return "local" if loops else "global"
    for loop in reversed(loops):
        if loop.kind == "vthread" or loop.axis is not None:
            return "local"
        if loop.kind.startswith("blockIdx"):
            return "shared"
    return "global"


@dataclass
class Kernel:
    """Totals of one kernel."""

    threads: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0])
    blocks: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0])
    vthreads: float = 1.0
    shared_bytes: float = 0.0
    local_bytes: float = 0.0
    parallel_iterations: float = 1.0
    float_ops: float = 0.0
    leaves: int = 0

    def columns(self, *, is_gpu: bool) -> list[float]:
        """Returns the block `occupancy`."""
        threads, blocks = math.prod(self.threads), math.prod(self.blocks)
        work = (self.float_ops, self.float_ops / (blocks * threads), self.leaves)
        if not is_gpu:
            kernel = [0.0] * 7 + [self.local_bytes, self.parallel_iterations]
            return [signed_log(value) for value in (*kernel, self.float_ops, 0.0, self.leaves)]
        warps = math.ceil(threads / WARP_LANES)
        return [
            signed_log(threads),
            signed_log(warps),
            threads / (warps * WARP_LANES),
            signed_log(blocks),
            signed_log(blocks * threads),
            signed_log(self.vthreads),
            signed_log(self.shared_bytes),
            signed_log(self.local_bytes),
            signed_log(self.parallel_iterations),
            *map(signed_log, work),
        ]


class KernelStack:
    """The loops around the current node and the kernel they belong to.

    Attributes:
        loops: enclosing loops, outermost first.
        count: kernels so far.
    """

    def __init__(self, *, is_gpu: bool) -> None:
        self._is_gpu = is_gpu
        self._kernel: Kernel | None = None
        self._root_level = 0
        self._vthreads: list[float] = [1.0]
        self._parallel: list[float] = [1.0]
        self.loops: list[NestLoop] = []
        self.count = 0

    @property
    def depth(self) -> int:
        """Number of enclosing loops that run more than once."""
        return sum(loop.extent > 1 for loop in self.loops)

    def enter(self, loop: NestLoop) -> None:
        """Enters a loop."""
        starts = loop.kind == "vthread" or "Idx" in loop.kind if self._is_gpu else True
        if self._kernel is None and starts:
            self._kernel = Kernel()
            self._root_level = len(self.loops)
            self.count += 1
        extent = float(loop.extent)
        self.loops.append(loop)
        self._vthreads.append(self._vthreads[-1] * (extent if loop.kind == "vthread" else 1.0))
        self._parallel.append(self._parallel[-1] * (extent if loop.kind == "parallel" else 1.0))
        kernel = self._kernel
        if kernel is None:
            return
        if "Idx" in loop.kind:
            extents = kernel.blocks if loop.kind.startswith("block") else kernel.threads
            axis = _AXES.index(loop.kind[-1])
            extents[axis] = max(extents[axis], extent)
        kernel.vthreads = max(kernel.vthreads, self._vthreads[-1])
        kernel.parallel_iterations = max(kernel.parallel_iterations, self._parallel[-1])

    def leave(self) -> None:
        """Leaves the innermost loop."""
        self.loops.pop()
        self._vthreads.pop()
        self._parallel.pop()
        if len(self.loops) == self._root_level:
            self._kernel = None

    def allocate(self, memory: str, size_bytes: float) -> None:
        """Adds an allocation of the given kind of memory to the kernel around it.

        Every virtual thread has its own local memory.
        """
        if self._kernel is None:
            return
        if memory == "shared":
            self._kernel.shared_bytes += size_bytes
        elif memory == "local":
            self._kernel.local_bytes += size_bytes * self._vthreads[-1]

    def add_leaf(self, float_ops: float) -> Kernel | None:
        """Adds a store to its kernel and returns that; None outside of any."""
        kernel = self._kernel
        if kernel is None:
            if self._is_gpu:
                return None
            kernel = Kernel()
            self.count += 1
        kernel.float_ops += float_ops
        kernel.leaves += 1
        return kernel
