"""What the instructions of a compiled GPU program take on a device, were its data always there.

Not a bound that a user is told: latencies are learned as ratios to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.devices.spec import DeviceSpec
from cdmpp.features.gpu_code.columns import GPU_CODE_NAMES

FloatArray = NDArray[np.float64]

#: Cycles a second of a multiprocessor of which nothing is known.
NOMINAL_HZ = 1.5e9

_CYCLES = [
    GPU_CODE_NAMES.index(f"cycles.{name}")
    for name in ("longest", "issue", "arithmetic", "shared", "global", "sum")
]
_WAVES = GPU_CODE_NAMES.index("waves")
_INSTRUCTIONS = GPU_CODE_NAMES.index("thread.instructions")
#: Cycles from an instruction of a thread to the next that needs its result (Volta, Turing).
_CHAIN = 4.0
#: Columns are rounded: a wave that is so much fuller than full is none more.
_FULL = 1.0 - 2.0**-8


def gpu_log_s(
    code: NDArray[np.float32], devices: Sequence[DeviceSpec], device: NDArray[np.int64]
) -> FloatArray:
    """Returns float64 [N, 1 + len(_CYCLES) + 1], logarithms of seconds of the multiprocessor with
    most blocks: by the slowest of its bounds, then by each alone; the last is what the instructions
    of a thread take one after the other, in each wave of blocks.

    Args:
        code: float32 [N, len(GPU_CODE_NAMES)].
        device: int64 [N], row of `devices`.
    """
    speed = np.log([one.clock_hz or NOMINAL_HZ for one in devices])[device]
    cycles = np.log(2.0) * code[:, _CYCLES].astype(np.float64)
    waves, instructions = (
        np.exp2(code[:, place].astype(np.float64)) - 1.0 for place in (_WAVES, _INSTRUCTIONS)
    )
    chain = np.log(np.ceil(_FULL * waves) * instructions * _CHAIN + 1.0)[:, None]
    longest = np.maximum(cycles[:, :1], chain)
    return np.asarray(np.concatenate([longest, cycles, chain], axis=1) - speed[:, None], np.float64)
