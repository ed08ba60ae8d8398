"""Features of a GPU for the kernel models, as arrays over rows: rates of its pipes and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.device_numbers import numbers_of
from cdmpp.analytic.roofline.floor import least_kernel_s
from cdmpp.arrays import FloatArray
from cdmpp.devices.spec import DeviceSpec

#: Maximum bytes per clock from the L2 to a core. Source: NVIDIA's A100 white paper (5,120 bytes per
#: clock for 108 multiprocessors, each with a port of 64 bytes).
_L2_PORT_BYTES = 64.0
#: Compute capabilities with matrix units for groups of warps, and the one with exponentials at
#: twice the rate. Source: NVIDIA's PTX ISA (wgmma of sm_90a, tcgen05 of sm_100 and sm_103), and its
#: note on Blackwell Ultra.
_GROUPED, _FAST_EXP = ("9.0", "10.0", "10.3"), "10.3"
_EXP_PER_CLOCK = 16.0


@dataclass(frozen=True)
class Chip:
    """Numbers of one GPU, SI units; 0 = missing pipe or unknown value.

    Attributes:
        bf16_flop_per_s, fp8_flop_per_s, fp4_flop_per_s: dense peaks of the matrix units.
        fp32_flop_per_s: peak of the other arithmetic.
        core_count: number of multiprocessors.
        l2_bytes_per_s: maximum rate from the L2 to all cores together.
        link_bytes_per_s: rate to the other GPUs, in each direction, over all links.
        least_s: minimum seconds of a kernel.
        is_grouped: 1 = the matrix units take groups of warps. Kernels for these units do not run on
            other GPUs, where the same name denotes a simpler kernel.
        exp_per_clock: exponentials per core and clock.
    """

    bf16_flop_per_s: float
    fp8_flop_per_s: float
    fp4_flop_per_s: float
    fp32_flop_per_s: float
    core_count: float
    clock_hz: float
    dram_bytes_per_s: float
    l2_bytes: float
    l2_bytes_per_s: float
    link_bytes_per_s: float
    least_s: float
    is_grouped: float
    exp_per_clock: float


def chip_of(device: DeviceSpec) -> Chip:
    """Returns the features of a GPU.

    Raises:
        DeviceError: not a GPU, or the registry lacks a value that every kernel needs.
    """
    wanted = {
        "peak_bf16_flop_per_s": device.peak_bf16_flop_per_s or device.peak_tensor_flop_per_s,
        "peak_fp32_flop_per_s": device.peak_fp32_flop_per_s,
        "core_count": device.core_count,
        "clock_hz": device.clock_hz,
        "mem_bandwidth_bytes_per_s": device.mem_bandwidth_bytes_per_s,
        "l2_bytes": device.l2_bytes,
    }
    value = numbers_of(device, wanted, what="kernel model")
    return Chip(
        bf16_flop_per_s=value["peak_bf16_flop_per_s"],
        fp8_flop_per_s=device.peak_fp8_flop_per_s or 0.0,
        fp4_flop_per_s=device.peak_fp4_flop_per_s or 0.0,
        fp32_flop_per_s=value["peak_fp32_flop_per_s"],
        core_count=value["core_count"],
        clock_hz=value["clock_hz"],
        dram_bytes_per_s=value["mem_bandwidth_bytes_per_s"],
        l2_bytes=value["l2_bytes"],
        l2_bytes_per_s=_L2_PORT_BYTES * value["core_count"] * value["clock_hz"],
        link_bytes_per_s=device.link_bandwidth_bytes_per_s or 0.0,
        least_s=least_kernel_s(device),
        is_grouped=float(device.compute_capability in _GROUPED),
        exp_per_clock=_EXP_PER_CLOCK * (1.0 + (device.compute_capability == _FAST_EXP)),
    )


def chip_rows(chips: Sequence[Chip], place: NDArray[np.intp]) -> Mapping[str, FloatArray]:
    """Returns field of `Chip` -> float64 [N].

    Args:
        place: int [N], the chip of each row.
    """
    return {
        one.name: np.array([getattr(chip, one.name) for chip in chips])[place]
        for one in fields(Chip)
    }
