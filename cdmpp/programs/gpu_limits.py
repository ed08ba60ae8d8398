"""Limits of a GPU kernel; the original toolchain rejects programs that exceed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PARAMETER_COUNT = 8


@dataclass(frozen=True)
class GpuLimits:
    """Limits of a kernel, from the hardware parameters of a task.

    Attributes:
        shared_bytes: shared memory of a block, in bytes.
        threads: threads of a block.
        vthreads: extent of virtual threads.
    """

    shared_bytes: int
    threads: int
    vthreads: int


def gpu_limits(hardware_params: Sequence[int]) -> GpuLimits | None:
    """Returns the limits in a record's eight hardware parameters; None if these are missing."""
    if len(hardware_params) != _PARAMETER_COUNT:
        return None
    _, _, _, shared_bytes, _, threads, vthreads, _ = hardware_params
    return GpuLimits(shared_bytes, threads, vthreads)
