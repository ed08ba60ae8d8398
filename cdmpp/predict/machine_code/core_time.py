"""Instruction time of a compiled program on a core, without waiting for memory.

It is not a lower bound for users: models learn latencies as ratios to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.machine_code.columns import BOUNDS, MACHINE_CODE_NAMES

#: Clock of a core if the device description has none.
NOMINAL_HZ = 2.5e9
#: Width of a multiply-add unit where wider operations are done in parts.
_UNIT_BITS = {"zen4": 256}

_CYCLES = MACHINE_CODE_NAMES.index("cycles")
_PARALLEL = MACHINE_CODE_NAMES.index("parallel_loops")
_BOUNDS = [MACHINE_CODE_NAMES.index(f"bound.{name}") for name in BOUNDS]


def core_log_s(
    code: NDArray[np.float32], devices: Sequence[DeviceSpec], device: IntArray
) -> FloatArray:
    """Returns float64 [N, 1 + len(BOUNDS)], log seconds: with the slowest bound of each block, then
    with each bound alone.

    Parallel loops run on all threads of the device's label.

    Args:
        code: float32 [N, len(MACHINE_CODE_NAMES)].
        device: int64 [N], row of `devices`.
    """
    speed = np.log([cycles_per_s(one) for one in devices])[device]
    threads = np.log([one.threads or one.core_count or 1 for one in devices])[device]
    speed = speed + np.where(code[:, _PARALLEL] > 0, threads, 0.0)
    cycles = np.log(2.0) * code[:, [_CYCLES, *_BOUNDS]].astype(np.float64)
    return np.asarray(cycles - speed[:, None], np.float64)


def cycles_per_s(spec: DeviceSpec) -> float:
    """Returns the clock at which two multiply-add units reach a core's peak; without a known peak,
    the clock in the description.
    """
    if spec.peak_fp32_flop_per_s and spec.simd_bits:
        threads = spec.threads or spec.core_count or 1
        bits = min(spec.simd_bits, _UNIT_BITS.get(spec.architecture or "", spec.simd_bits))
        return spec.peak_fp32_flop_per_s / threads / (bits / 8)
    return spec.clock_hz or NOMINAL_HZ
