"""Feature columns of a compiled GPU program: resources, occupancy, work and the hottest loop.

Machine code shows what a loop nest does not: registers per thread, and therefore blocks per
multiprocessor, spills, unrolled loops, and the width of memory accesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdmpp.errors import DataError
from cdmpp.programs.gpu_code.cubin import KIND, KINDS, KernelCode

#: Version of the meaning of the columns.
GPU_CODE_SCHEMA_VERSION = 1
#: Values are rounded to multiples of 1 / _STEPS, which keeps tables small.
_STEPS = 256
#: Assumed iterations of a loop with an unknown trip count.
UNKNOWN_TRIPS = 8.0

_WARP = 32  # threads
_SPACES = ("shared", "global", "local")
_WIDTHS = [
    (f"{verb}_{where}", width)
    for where in ("global", "shared")
    for verb in ("load", "store")
    for width in (4, 8, 16)
]
_SUMS = ("instructions", "flops", *(f"{where}_bytes" for where in _SPACES))
_CYCLES = ("issue", "arithmetic", "shared", "global")
_FLOPS = np.zeros(len(KINDS))
_FLOPS[KIND["multiply_add"]], _FLOPS[KIND["float"]] = 2.0, 1.0

#: Names of the columns, in order.
GPU_CODE_NAMES: tuple[str, ...] = (
    "kernels", "registers", "shared_bytes", "threads", "blocks", "blocks_per_core", "occupancy",
    "waves", "last_wave", "busiest_core", "idle_lanes", "loops", "unknown_loops", "depth",
    "conditional",
    *(f"program.{name}" for name in _SUMS),
    *(f"thread.{name}" for name in _SUMS),
    *(f"cycles.{name}" for name in (*_CYCLES, "longest", "sum")),
    *(f"count.{kind}" for kind in KINDS),
    *(f"share.{kind}" for kind in KINDS),
    *(f"share.{kind}.{8 * width}" for kind, width in _WIDTHS),
    *(f"hottest.{name}" for name in ("share", "instructions", "trips", "depth", "flops_each")),
    *(f"hottest.flops_per_{where}_byte" for where in _SPACES[:2]),
    *(f"hottest.{kind}" for kind in KINDS),
    *(f"static.{kind}" for kind in KINDS),
)  # fmt: skip


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel and its launch configuration on a device.

    Attributes:
        kernel: its machine code.
        blocks: blocks of the grid.
        threads: threads of a block.
        blocks_per_core: resident blocks per multiprocessor; 0 = it cannot be launched.
        occupancy: resident warps as a share of the maximum.
        cores: multiprocessors of the device.
    """

    kernel: KernelCode
    blocks: int
    threads: int
    blocks_per_core: int
    occupancy: float
    cores: int


@dataclass(frozen=True)
class _Counted:
    """A launch with the work of one of its threads, from the trip counts of the loops.

    Attributes:
        runs: float64 [N], executions of each instruction.
        depth: int64 [N], number of loops around each instruction.
        kinds: float64 [kinds], executed instructions.
        moved: float64 [spaces], bytes.
    """

    launch: KernelLaunch
    runs: NDArray[np.float64]
    depth: NDArray[np.int64]
    kinds: NDArray[np.float64]
    moved: NDArray[np.float64]

    @property
    def sums(self) -> NDArray[np.float64]:
        """float64 [sums], totals of a thread."""
        return np.array([self.kinds.sum(), self.kinds @ _FLOPS, *self.moved])

    @property
    def cycles(self) -> NDArray[np.float64]:
        """float64 [4], cycle bounds of the multiprocessor with the most blocks.

        Per cycle it issues four warp instructions, two of them arithmetic, and moves 128 bytes of
        shared memory and 64 bytes of its cache (Volta; `docs/explanation/machine-code.md`).
        """
        at = self.launch
        warps = -(-at.threads // _WARP) * -(-at.blocks // at.cores)
        shared, of_global, local = self.moved * _WARP
        arithmetic = self.kinds[: KIND["special"]].sum()
        return warps * np.array(
            [self.kinds.sum() / 4, arithmetic / 2, shared / 128, (of_global + local) / 64]
        )


def gpu_code_columns(launches: Sequence[KernelLaunch]) -> NDArray[np.float32]:
    """Returns float32 [len(GPU_CODE_NAMES)], the columns of a program's kernels.

    `program.*` and `cycles.*` are sums over the kernels; all others describe the kernel with the
    most cycles. Counts and numbers of blocks, threads and bytes are logarithms, log2(x + 1). All
    values are multiples of 1/256.

    Raises:
        DataError: there is no kernel.
    """
    if not launches:
        raise DataError("the program has no kernel; expected at least one")
    all_counted = [_counted(launch) for launch in launches]
    one = max(all_counted, key=lambda counted: float(counted.cycles.max()))
    kernel, total = one.launch.kernel, float(one.kinds.sum()) + 1.0
    work = sum(
        (counted.sums * counted.launch.blocks * counted.launch.threads for counted in all_counted),
        np.zeros(len(_SUMS)),
    )
    cycles = sum((counted.cycles for counted in all_counted), np.zeros(len(_CYCLES)))
    longest = sum(float(counted.cycles.max()) for counted in all_counted)
    unknown = sum(loop.trips is None for loop in kernel.loops)
    columns = [
        len(launches), *_resources(one.launch),
        len(kernel.loops), unknown / max(len(kernel.loops), 1), one.depth.max(initial=0),
        one.runs[kernel.is_conditional].sum() / total,
        *_log(work), *_log(one.sums), *_log([*cycles, longest, cycles.sum()]),
        *_log(one.kinds), *one.kinds / total,
        *(one.runs[(kernel.kind == KIND[kind]) & (kernel.width == width)].sum() / total
          for kind, width in _WIDTHS),
        *_hottest(one),
        *_log(np.bincount(kernel.kind, minlength=len(KINDS))),
    ]  # fmt: skip
    return np.asarray(np.rint(np.asarray(columns, np.float64) * _STEPS) / _STEPS, np.float32)


def _log(values: ArrayLike) -> NDArray[np.float64]:
    return np.log2(np.asarray(values, np.float64) + 1.0)


def _counted(launch: KernelLaunch) -> _Counted:
    kernel = launch.kernel
    runs, depth = np.ones(len(kernel.kind)), np.zeros(len(kernel.kind), np.int64)
    for loop in kernel.loops:
        inside = slice(loop.first, loop.last + 1)
        runs[inside] *= loop.trips or UNKNOWN_TRIPS
        depth[inside] += 1
    kinds = np.bincount(kernel.kind, runs, len(KINDS)).astype(np.float64)
    return _Counted(launch, runs, depth, kinds, _moved(kernel, runs))


def _moved(kernel: KernelCode, runs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns float64 [spaces], bytes moved by a thread from and to each memory."""
    by_kind = np.bincount(kernel.kind, runs * kernel.width, len(KINDS))
    return np.array(
        [by_kind[KIND[f"load_{where}"]] + by_kind[KIND[f"store_{where}"]] for where in _SPACES]
    )


def _resources(launch: KernelLaunch) -> list[float]:
    """Returns the columns of a block's resources and of the utilisation of the device."""
    waves = launch.blocks / (launch.cores * max(launch.blocks_per_core, 1))
    busiest = -(-launch.blocks // launch.cores)
    lanes = -(-launch.threads // _WARP) * _WARP
    sizes = _log([launch.kernel.shared_bytes, launch.threads, launch.blocks])
    return [
        launch.kernel.registers, *sizes, launch.blocks_per_core, launch.occupancy,
        float(_log([waves])[0]), waves / math.ceil(waves),
        launch.blocks / launch.cores / busiest, 1.0 - launch.threads / lanes,
    ]  # fmt: skip


def _hottest(one: _Counted) -> list[float]:
    """Returns the columns of the innermost loop with the most executed instructions.

    Without loops they describe the whole code.
    """
    kernel = one.launch.kernel
    innermost = [
        loop
        for loop in kernel.loops
        if not any(
            loop.first <= other.first and other.last <= loop.last
            for other in kernel.loops
            if other is not loop
        )
    ]
    spans = [(slice(loop.first, loop.last + 1), loop.trips or UNKNOWN_TRIPS) for loop in innermost]
    inside, trips = max(
        spans or [(slice(None), 1.0)], key=lambda span: float(one.runs[span[0]].sum())
    )
    mask = np.zeros(len(kernel.kind))
    mask[inside] = 1.0
    kinds = np.bincount(kernel.kind, mask, len(KINDS))
    flops, size = float(kinds @ _FLOPS), max(float(kinds.sum()), 1.0)
    moved = _moved(kernel, mask)[:2]
    return [
        float(one.runs[inside].sum() / max(one.runs.sum(), 1.0)), *_log([size, trips]),
        int(one.depth[inside].max(initial=0)), flops / size, *_log(flops / (moved + 1.0)),
        *kinds / size,
    ]  # fmt: skip
