"""The roofline of a tensor program: the larger of its compute time and its memory time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdmpp.arrays import FloatArray, IntArray, items_of
from cdmpp.datasets.samples import ProgramArrays
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.schema import LEAF_FEATURE_NAMES

#: Used for an unknown arithmetic peak; models that use it fit a factor per device on top.
NOMINAL_FLOP_PER_S = 1.0e11
#: Used for an unknown memory bandwidth, as a share of the arithmetic peak (bytes per operation).
NOMINAL_BYTES_PER_FLOP = 0.1

_BUFFER_SLOTS = 5
_CHUNK_LEAVES = 200_000


def _columns(*names: str) -> list[int]:
    return [LEAF_FEATURE_NAMES.index(name) for name in names]


_FLOAT_OPERATIONS = _columns(
    "float_mad", "float_addsub", "float_mul", "float_divmod", "float_cmp", "float_mathfunc",
    "float_otherfunc",
)  # fmt: skip
_UNIQUE_BYTES = _columns(*(f"B{slot}.unique_bytes" for slot in range(_BUFFER_SLOTS)))
_TOUCHED_BYTES = _columns(*(f"B{slot}.bytes" for slot in range(_BUFFER_SLOTS)))
_PARALLEL_EXTENTS = _columns(
    "parallel_prod", *(f"{index}Idx_{axis}_len" for index in ("block", "thread") for axis in "xyz")
)


@dataclass(frozen=True)
class LeafWork:
    """Work of each leaf, decoded from the leaf features.

    Attributes:
        flop: float64 [L], floating-point operations over all iterations.
        bytes: float64 [L], distinct bytes that the leaf reads and writes.
        touched_bytes: float64 [L], bytes that the leaf reads and writes, repeats included.
        parallelism: float64 [L], iterations of its parallel loops, blocks and threads, at least 1.
    """

    flop: FloatArray
    bytes: FloatArray
    touched_bytes: FloatArray
    parallelism: FloatArray


def leaf_work(leaf_features: NDArray[np.float32]) -> LeafWork:
    """Returns the work of each leaf.

    Features are stored as log2(x + 1). The result adds the distinct bytes of the (up to five)
    buffers of a leaf; a buffer that two leaves share counts in both.

    Args:
        leaf_features: float32 [L, 164], possibly memory-mapped; read in chunks.
    """
    count = len(leaf_features)
    flop = np.zeros(count)
    moved = np.zeros(count)
    touched = np.zeros(count)
    parallelism = np.ones(count)
    for start in range(0, count, _CHUNK_LEAVES):
        chunk = np.asarray(leaf_features[start : start + _CHUNK_LEAVES])
        part = slice(start, start + len(chunk))
        flop[part] = _undo_log(chunk[:, _FLOAT_OPERATIONS]).sum(axis=1)
        moved[part] = _undo_log(chunk[:, _UNIQUE_BYTES]).sum(axis=1)
        touched[part] = _undo_log(chunk[:, _TOUCHED_BYTES]).sum(axis=1)
        parallelism[part] = np.maximum(_undo_log(chunk[:, _PARALLEL_EXTENTS]), 1.0).prod(axis=1)
    return LeafWork(flop, moved, touched, parallelism)


def device_rates(device: DeviceSpec) -> tuple[float, float]:
    """Returns (FLOP/s, bytes/s) of a device, with nominal values for unknown ones."""
    flop_per_s = device.peak_fp32_flop_per_s or NOMINAL_FLOP_PER_S
    return flop_per_s, device.mem_bandwidth_bytes_per_s or flop_per_s * NOMINAL_BYTES_PER_FLOP


def bound_s(device: DeviceSpec, flop: ArrayLike, moved_bytes: ArrayLike) -> FloatArray:
    """Returns the roofline on a device in seconds: the larger of operations / peak and bytes /
    bandwidth. `cdmpp.analytic.roofline.floor` has the lower bound.
    """
    flop_per_s, bytes_per_s = device_rates(device)
    return np.maximum(np.asarray(flop) / flop_per_s, np.asarray(moved_bytes) / bytes_per_s)


def roofline_s(programs: ProgramArrays, device: DeviceSpec, work: LeafWork) -> FloatArray:
    """Returns float64 [P], seconds: max(operations / peak, bytes / bandwidth) of each program.

    Args:
        work: `leaf_work(programs.leaf_features)`.
    """
    return bound_s(device, program_sums(programs, work.flop), program_sums(programs, work.bytes))


def program_sums(programs: ProgramArrays, values: FloatArray) -> FloatArray:
    """Returns float64 [P], the sum of a per-leaf value over the leaves of each program."""
    offset = programs.leaf_offset
    total = np.zeros(len(offset) - 1)
    # Differences of a running sum would lose small programs beside large ones.
    occupied = np.flatnonzero(np.diff(offset) > 0)
    if len(occupied):
        total[occupied] = np.add.reduceat(values, offset[occupied])
    return total


def leaves_of(programs: ProgramArrays, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Returns int64 [L] each: the leaves of the given programs in order, and the index in `rows` of
    each leaf's program.
    """
    return items_of(programs.leaf_offset, rows)


def _undo_log(values: NDArray[np.float32]) -> FloatArray:
    return np.exp2(values.astype(np.float64)) - 1.0
