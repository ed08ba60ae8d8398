"""Instruction time of a compiled GPU program, without waiting for memory.

It is not a lower bound for users: models learn latencies as ratios to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.gpu_code.columns import GPU_CODE_NAMES

#: Clock of a multiprocessor if the device description has none.
NOMINAL_HZ = 1.5e9

_TIMES = ("longest", "issue", "arithmetic", "shared", "global", "sum")
_CYCLES = [GPU_CODE_NAMES.index(f"cycles.{name}") for name in _TIMES]


def gpu_log_s(
    code: NDArray[np.float32], devices: Sequence[DeviceSpec], device: IntArray
) -> FloatArray:
    """Returns float64 [N, len(_TIMES)], log seconds of the multiprocessor with the most blocks: by
    its slowest bound, by each bound alone, and by the sum of the bounds.

    Args:
        code: float32 [N, len(GPU_CODE_NAMES)].
        device: int64 [N], row of `devices`.
    """
    speed = np.log([one.clock_hz or NOMINAL_HZ for one in devices])[device]
    cycles = np.log(2.0) * code[:, _CYCLES].astype(np.float64)
    return np.asarray(cycles - speed[:, None], np.float64)
