"""Measured convolution kernels: one row per launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.conv.algorithms import ALGORITHM_COUNT
from cdmpp.analytic.conv.blocks import BlockLaunch
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.rows import Rows
from cdmpp.arrays import FloatArray, IntArray

#: Minimum level (0 to 10) of a saturated pipe.
SATURATED_LEVEL = 8


class KernelType(IntEnum):
    """What bounds a kernel."""

    COMPUTE_BOUND = 0
    DRAM_BOUND = 1
    UNDER_UTILISED = 2


@dataclass(frozen=True)
class ConvTable(Rows):
    """Launches of convolution kernels with their counters; NaN = not measured.

    Attributes:
        shapes: shapes of the layers.
        algorithm: int64 [R], cuDNN's number.
        time_ms: float64 [R].
        fp32_instructions: float64 [R], thread-level instructions of the whole kernel.
        dram_reads: float64 [R], transactions of 32 bytes of the whole kernel.
        dram_writes: float64 [R], the same.
        resident: float64 [R], blocks that the device holds at once.
        blocks: float64 [R], launched blocks.
        fp32_level: float64 [R], use of the fp32 pipe, 0 to 10.
        dram_level: float64 [R], use of the DRAM, 0 to 10.
    """

    shapes: ConvShapes
    algorithm: IntArray
    time_ms: FloatArray
    fp32_instructions: FloatArray
    dram_reads: FloatArray
    dram_writes: FloatArray
    resident: FloatArray
    blocks: FloatArray
    fp32_level: FloatArray
    dram_level: FloatArray

    @property
    def launch(self) -> BlockLaunch:
        """The measured launch of every row; requires `blocks` and `resident` in all rows."""
        return BlockLaunch(self.blocks.astype(np.int64), self.resident.astype(np.int64))

    @property
    def is_counted(self) -> NDArray[np.bool_]:
        """bool [R], whether every counter of the row was measured."""
        columns = (
            self.fp32_instructions, self.dram_reads, self.dram_writes, self.resident, self.blocks,
            self.fp32_level, self.dram_level,
        )  # fmt: skip
        return np.asarray(np.isfinite(np.stack(columns)).all(axis=0), np.bool_)

    @property
    def instructions_per_block(self) -> FloatArray:
        """float64 [R], fp32 instructions of one block."""
        return self.fp32_instructions / self.blocks

    @property
    def reads_per_block(self) -> FloatArray:
        """float64 [R], DRAM read transactions of one block."""
        return self.dram_reads / self.blocks

    @property
    def writes_per_block(self) -> FloatArray:
        """float64 [R], DRAM write transactions of one block."""
        return self.dram_writes / self.blocks

    @property
    def kernel_type(self) -> IntArray:
        """int64 [R], `KernelType` by the measured levels: first compute, then DRAM."""
        return np.where(
            self.fp32_level >= SATURATED_LEVEL,
            int(KernelType.COMPUTE_BOUND),
            np.where(
                self.dram_level >= SATURATED_LEVEL,
                int(KernelType.DRAM_BOUND),
                int(KernelType.UNDER_UTILISED),
            ),
        ).astype(np.int64)


@dataclass(frozen=True)
class PickTable:
    """Layers measured with every algorithm.

    Attributes:
        shapes: shapes of the layers.
        time_ms: float64 [R, 8], by cuDNN's algorithm number; NaN or inf = not available.
        cudnn_pick: int64 [R], first choice of cuDNN's heuristic; -1 = not recorded.
    """

    shapes: ConvShapes
    time_ms: FloatArray
    cudnn_pick: IntArray

    @property
    def best(self) -> IntArray:
        """int64 [R], the algorithm measured fastest."""
        available = np.where(np.isfinite(self.time_ms), self.time_ms, np.inf)
        return np.asarray(np.argmin(available, axis=1), np.int64)

    @property
    def best_ms(self) -> FloatArray:
        """float64 [R], time of the algorithm measured fastest."""
        return np.asarray(self.time_ms[np.arange(len(self.shapes)), self.best], np.float64)


def pick_table(tables: Sequence[ConvTable]) -> PickTable:
    """Merges the layers of all tables, with the fastest time of each layer and algorithm."""
    rows = ConvTable.concatenate(tables)
    keys = np.stack([rows.shapes.matrix((name,))[:, 0] for name in _IDENTITY], axis=1)
    _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    times = np.full((len(first), ALGORITHM_COUNT), np.inf)
    np.minimum.at(times, (rank[place.ravel()], rows.algorithm), rows.time_ms)
    shapes = rows.shapes[first[order]]
    return PickTable(shapes, times, np.full(len(shapes), -1, np.int64))


_IDENTITY = ("batch", "in_channels", "in_width", "out_channels", "kernel", "stride", "padding")
