"""Limits of a GPU kernel, above which the original toolchain refuses to build a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PARAMETER_COUNT = 8


@dataclass(frozen=True)
class GpuLimits:
    """What a kernel may use; from the hardware parameters of a task.

    Attributes:
        shared_bytes: shared memory of a block, in bytes.
        threads: threads of a block.
        vthreads: extent of a virtual thread.
    """

    shared_bytes: int
    threads: int
    vthreads: int


def gpu_limits(hardware_params: Sequence[int]) -> GpuLimits | None:
    """Returns the limits in a record's eight hardware parameters, None where they are absent."""
    if len(hardware_params) != _PARAMETER_COUNT:
        return None
    _, _, _, shared_bytes, _, threads, vthreads, _ = hardware_params
    return GpuLimits(shared_bytes, threads, vthreads)
