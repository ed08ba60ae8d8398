"""Kernels of a CUDA source, compiled without a GPU, with their launches and occupancy."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.devices.occupancy import device_occupancy_limits, occupancy
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, ReplayError
from cdmpp.programs.gpu_code.columns import KernelLaunch
from cdmpp.programs.gpu_code.cubin import read_cubin
from cdmpp.programs.gpu_code.sizes import KernelSize
from tvm_helper.tasks.nvrtc import cubin_of

_READABLE = ("7.0", "7.5", "8.0", "8.6", "8.9")  # compute capabilities
#: Replaces TVM's prelude, which includes headers for the types of its kernels.
_TYPES = """
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint;
typedef uchar uint8_t; typedef ushort uint16_t; typedef uint uint32_t;
typedef unsigned long long uint64_t;
"""


def is_readable(device: DeviceSpec) -> bool:
    """Returns whether the machine code of a device can be read."""
    return device.compute_capability in _READABLE and device.core_count is not None


def check_readable(device: DeviceSpec) -> None:
    """Checks that the machine code of a device can be read.

    Raises:
        DeviceError: the device is not an NVIDIA GPU of compute capability 7.0 to 8.9, or its number
            of multiprocessors is unknown.
    """
    if not is_readable(device):
        raise DeviceError(
            f"{device.name} (compute capability {device.compute_capability}, {device.core_count} "
            f"multiprocessors): expected one of {', '.join(_READABLE)} with a known number of "
            "multiprocessors"
        )


def kernel_launches(
    source: str, sizes: Sequence[KernelSize], device: DeviceSpec
) -> list[KernelLaunch]:
    """Returns the compiled kernels of a CUDA source of TVM, in execution order.

    Args:
        sizes: launch size of each kernel.

    Raises:
        UsageError: NVIDIA's compiler is not installed.
        DeviceError: see `check_readable`.
        ReplayError: the source has no kernel or another number of kernels than `sizes`, or it does
            not compile.
    """
    check_readable(device)
    limits, cores = device_occupancy_limits(device), device.core_count
    start = source.find('extern "C"')
    if start < 0:
        raise ReplayError("the program has no kernel", f"{len(source)} characters of source")
    architecture = f"sm_{limits.compute_capability.replace('.', '')}"
    kernels = read_cubin(cubin_of(_TYPES + source[start:], architecture))
    if len(sizes) != len(kernels):
        raise ReplayError("some kernels were not compiled", f"{len(kernels)} of {len(sizes)}")
    launches = []
    for kernel, size in zip(kernels, sizes, strict=True):
        filled = occupancy(
            limits, size.threads, registers_per_thread=kernel.registers,
            shared_bytes_per_block=kernel.shared_bytes,
        )  # fmt: skip
        launches.append(
            KernelLaunch(
                kernel, size.blocks, size.threads, filled.blocks_per_core, filled.occupancy,
                cores or 1,
            )
        )  # fmt: skip
    return launches
