"""Columns of a GPU program's schedule that predict its time relative to its lower bound.

Every time is divided by an anchor: the lower bound on the multiprocessors that the program's blocks
fill, plus its launches. Logarithms of such ratios are comparable across GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.roofline.floor import floor_on, least_work
from cdmpp.analytic.roofline.programs import leaves_of
from cdmpp.arrays import BoolArray, FloatArray, IntArray
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.schema import ACCESS_SLOT_COUNT, LEAF_FEATURE_NAMES

#: Names of the columns, in order.
SCHEDULE_COLUMNS: tuple[str, ...] = (
    "few_warps", "operations", "least_bytes", "sectors", "iterations", "shared_bytes", "unshared",
    "thread_bytes", "traffic_64k", "traffic_4096k", "warp_fill",
)  # fmt: skip

_WARP = 32  # threads
#: Threads, blocks and shared memory that a multiprocessor holds (compute capability 7.5 has half of
#: the threads; `cdmpp.devices.occupancy` has the exact numbers).
_MOST_THREADS, _MOST_BLOCKS, _SHARED_BYTES = 2048.0, 16.0, 65536.0
#: Minimum warps for a multiprocessor to do one multiply-add per cycle and lane, and to hide the
#: latency of memory.
_ARITHMETIC_WARPS, _MEMORY_WARPS = 4.0, 8.0
#: Launches in an anchor, so that the ratio of the shortest kernels is near one.
_LAUNCHES = 3.0
#: Assumed rates: last cache over memory; bytes of shared memory per multiprocessor and cycle;
#: iterations per multiprocessor and cycle.
_CACHE_RATIO, _SHARED_RATE, _ITERATION_RATE = 3.0, 128.0, 64.0
#: Bytes per thread that fit into its registers.
_THREAD_BYTES = 256.0
#: Limits of schedules by DLight's rules or by hand: minimum threads, maximum bytes per thread, and
#: minimum blocks as a share of the multiprocessors. Random schedules often violate them.
_ORDINARY_THREADS, _ORDINARY_BYTES, _ORDINARY_BLOCKS = 64.0, 256.0, 0.25

_SLOTS = ("store", *(f"B{slot}" for slot in range(ACCESS_SLOT_COUNT)))
_EXTRA = {
    name: LEAF_EXTRA_NAMES.index(name)
    for name in (
        "execution.iterations", "thread_stride.lanes", "occupancy.blocks", "occupancy.threads",
        "occupancy.shared_bytes", "occupancy.local_bytes", "footprint.traffic_64k",
        "footprint.traffic_4096k",
        *(f"scope.{slot}.{memory}" for slot in _SLOTS for memory in ("global", "shared")),
        *(f"thread_stride.{slot}.{name}" for slot in _SLOTS
          for name in ("sectors", "bank_conflicts")),
    )
}  # fmt: skip
_TOUCHED = [LEAF_FEATURE_NAMES.index(f"{slot}.bytes") for slot in _SLOTS[1:]]


@dataclass(frozen=True)
class ScheduleColumns:
    """Schedule columns of N samples.

    Attributes:
        anchor_s: float64 [N], seconds; NaN on a CPU, and on a GPU without the needed numbers.
        floor_s: float64 [N], lower bound in seconds; NaN as `anchor_s`.
        values: float64 [N, len(SCHEDULE_COLUMNS)]; NaN as `anchor_s`.
        is_ordinary: bool [N], whether a schedule is like DLight's: enough threads in a block,
            enough blocks for the GPU, and a thread's data fits into its registers.
    """

    anchor_s: FloatArray
    floor_s: FloatArray
    values: FloatArray
    is_ordinary: BoolArray


@dataclass(frozen=True)
class _Counts:
    """Float64 [P] each: sums over the leaves of a program; the blocks and the values per block are
    those of the leaf that runs most often.
    """

    iterations: FloatArray
    sector_bytes: FloatArray
    shared_bytes: FloatArray
    traffic_64k: FloatArray
    traffic_4096k: FloatArray
    blocks: FloatArray
    threads: FloatArray
    block_bytes: FloatArray
    thread_bytes: FloatArray

    def take(self, place: IntArray) -> _Counts:
        return _Counts(**{name: values[place] for name, values in vars(self).items()})


def schedule_columns(samples: Samples) -> ScheduleColumns:
    """Returns the schedule columns of samples; measured latencies are not read."""
    rows, place = np.unique(samples.program, return_inverse=True)
    work, counts = least_work(samples.programs, rows), _counts(samples.programs, rows)
    shape = (len(samples), len(SCHEDULE_COLUMNS))
    anchor_s, floor_s = np.full(len(samples), np.nan), np.full(len(samples), np.nan)
    values, is_ordinary = np.full(shape, np.nan), np.zeros(len(samples), bool)
    for index, spec in enumerate(samples.devices):
        here = np.flatnonzero(samples.device == index)
        if not (len(here) and has_columns(spec)):
            continue
        program = place[here]
        flop = work.flop[program]
        floor = floor_on(spec, work)
        launch_s = floor.terms[program, 0]
        found = _on(
            spec, counts.take(program), flop, work.bytes[program], floor.seconds[program], launch_s
        )
        anchor_s[here], values[here], is_ordinary[here] = found
        floor_s[here] = floor.seconds[program]
    return ScheduleColumns(anchor_s, floor_s, values, is_ordinary)


def has_columns(device: DeviceSpec) -> bool:
    """Returns whether a device is a GPU with the needed numbers."""
    needed = (
        device.core_count, device.clock_hz, device.peak_fp32_flop_per_s,
        device.mem_bandwidth_bytes_per_s,
    )  # fmt: skip
    return device.kind == "gpu" and all(needed)


def _on(
    device: DeviceSpec,
    counts: _Counts,
    flop: FloatArray,
    least_bytes: FloatArray,
    floor_s: FloatArray,
    launch_s: FloatArray,
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Returns anchors, columns and whether each schedule is ordinary, on one GPU."""
    cores, clock = float(device.core_count or 0), float(device.clock_hz or 0)
    peak = float(device.peak_fp32_flop_per_s or 0)
    bandwidth = float(device.mem_bandwidth_bytes_per_s or 0)
    waves = np.ceil(counts.blocks / cores)
    fill = counts.blocks / (waves * cores)
    warps = np.ceil(counts.threads / _WARP)
    fitting = np.minimum(_MOST_THREADS / counts.threads, _MOST_BLOCKS)
    fitting = np.minimum(fitting, _SHARED_BYTES / np.maximum(counts.block_bytes, 1.0))
    resident = np.minimum(waves, np.maximum(np.floor(fitting), 1.0)) * warps
    compute_s = flop / peak / fill * np.maximum(_ARITHMETIC_WARPS / resident, 1.0)
    memory_s = np.maximum(least_bytes, 1.0) / bandwidth
    anchor_s = np.maximum(np.maximum(compute_s, floor_s), 0.5 * memory_s) + _LAUNCHES * launch_s

    def over(seconds: FloatArray, low: float, high: float) -> FloatArray:
        return np.clip(np.log(np.maximum(seconds, 1e-15) / anchor_s), low, high)

    core_s = 1.0 / (cores * clock)
    values = [
        np.minimum(np.log(resident / _MEMORY_WARPS), 0.0),
        over(compute_s, -5.0, 0.0),
        over(memory_s, -5.0, 0.0),
        over(counts.sector_bytes / (_CACHE_RATIO * bandwidth), 0.0, 8.0),
        over(counts.iterations / _ITERATION_RATE * core_s / fill, -1.0, 8.0),
        over(counts.shared_bytes / _SHARED_RATE * core_s / fill, 0.0, 6.0),
        (counts.block_bytes <= 0).astype(np.float64),
        np.clip(np.log(np.maximum(counts.thread_bytes, 1.0) / _THREAD_BYTES), 0.0, 5.0),
        over(counts.traffic_64k / bandwidth, -2.0, 8.0),
        over(counts.traffic_4096k / bandwidth, -2.0, 8.0),
        np.log(counts.threads / (_WARP * warps)),
    ]
    is_ordinary = (
        (counts.threads >= _ORDINARY_THREADS)
        & (counts.thread_bytes <= _ORDINARY_BYTES)
        & (counts.blocks >= _ORDINARY_BLOCKS * cores)
    )
    return anchor_s, np.stack(values, axis=1), is_ordinary


def _counts(programs: ProgramArrays, rows: IntArray) -> _Counts:
    leaves, owner = leaves_of(programs, rows)
    picked = np.asarray(programs.leaf_extra[leaves[:, None], list(_EXTRA.values())], np.float64)
    extra = dict(zip(_EXTRA, _undo_log(picked).T, strict=True))
    touched = _undo_log(np.asarray(programs.leaf_features[leaves[:, None], _TOUCHED], np.float64))
    runs = np.maximum(extra["execution.iterations"], 1.0)
    lanes = np.maximum(extra["thread_stride.lanes"], 1.0)
    of_global, of_shared = np.zeros(len(owner)), np.zeros(len(owner))
    for place, slot in enumerate(_SLOTS):
        is_there = np.ones(len(owner), bool) if slot == "store" else touched[:, place - 1] > 0
        pieces, lines = extra[f"thread_stride.{slot}.sectors"], extra[f"scope.{slot}.global"]
        waiting = np.maximum(extra[f"thread_stride.{slot}.bank_conflicts"], 1.0)
        of_global += np.where(is_there & (lines > 0), runs / lanes * pieces * 32.0, 0.0)
        is_shared = is_there & (extra[f"scope.{slot}.shared"] > 0)
        of_shared += np.where(is_shared, runs / _WARP * waiting * 128.0, 0.0)
    order = np.lexsort((runs, owner))
    busiest = order[np.flatnonzero(np.diff(owner[order], append=len(rows)))]

    def total(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(owner, values, len(rows)), np.float64)

    def of_busiest(name: str, least: float) -> FloatArray:
        found = np.full(len(rows), least)
        found[owner[busiest]] = np.maximum(np.rint(extra[name][busiest]), least)
        return found

    return _Counts(
        iterations=total(runs),
        sector_bytes=total(of_global),
        shared_bytes=total(of_shared),
        traffic_64k=total(extra["footprint.traffic_64k"]),
        traffic_4096k=total(extra["footprint.traffic_4096k"]),
        blocks=of_busiest("occupancy.blocks", 1.0),
        threads=of_busiest("occupancy.threads", 1.0),
        block_bytes=of_busiest("occupancy.shared_bytes", 0.0),
        thread_bytes=of_busiest("occupancy.local_bytes", 0.0),
    )


def _undo_log(values: NDArray[np.float64]) -> FloatArray:
    return np.asarray(np.exp2(np.abs(values)) - 1.0, np.float64)
