"""What NVIDIA's compiler makes of scheduled GPU programs, without a GPU."""

from __future__ import annotations

from typing import Any

from cdmpp.devices.occupancy import device_occupancy_limits, occupancy
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, ReplayError, last_line
from cdmpp.features.gpu_code.columns import KernelLaunch
from cdmpp.features.gpu_code.cubin import read_cubin
from cdmpp.features.gpu_code.sizes import kernel_sizes
from tvm_helper.compat import Schedule, Target, tirx, tvm
from tvm_helper.programs.build import runnable
from tvm_helper.programs.nvrtc import cubin_of
from tvm_helper.programs.target import device_target
from tvm_helper.tir.loop_tree import loop_tree_from_tir

_READABLE = ("7.0", "7.5", "8.0", "8.6", "8.9")  # compute capabilities
_WIDEST = (2, 4)  # elements that a kernel reads at once
#: In the place of TVM's own beginning, which includes headers for the types of its kernels.
_TYPES = """
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint;
typedef uchar uint8_t; typedef ushort uint16_t; typedef uint uint32_t;
typedef unsigned long long uint64_t;
"""


def gpu_launches(module: Any, device: DeviceSpec) -> list[KernelLaunch]:
    """Returns the compiled kernels of a scheduled module, in the order in which they run.

    Raises:
        UsageError: NVIDIA's compiler is not installed.
        DeviceError: the device is no NVIDIA GPU of compute capability 7.0 to 8.9, or its number of
            multiprocessors is not known.
        ReplayError: the program does not compile.
    """
    limits = device_occupancy_limits(device)
    if limits.compute_capability not in _READABLE or device.core_count is None:
        raise DeviceError(
            f"{device.name} (compute capability {limits.compute_capability}, {device.core_count} "
            f"multiprocessors): expected one of {', '.join(_READABLE)} and their known number"
        )
    target = device_target(device)
    kernels = read_cubin(cubin_of(cuda_source(module, target), str(target.attrs["arch"])))
    sizes = kernel_sizes(loop_tree_from_tir(module))
    if len(sizes) != len(kernels):
        raise ReplayError("not every kernel is compiled", f"{len(kernels)} of {len(sizes)}")
    launches = []
    for kernel, size in zip(kernels, sizes, strict=True):
        filled = occupancy(
            limits, size.threads, registers_per_thread=kernel.registers,
            shared_bytes_per_block=kernel.shared_bytes,
        )  # fmt: skip
        launches.append(
            KernelLaunch(
                kernel, size.blocks, size.threads, filled.blocks_per_core, filled.occupancy,
                device.core_count,
            )
        )  # fmt: skip
    return launches


def cuda_source(module: Any, target: Target) -> str:
    """Returns the CUDA source of a scheduled module's kernels; it includes nothing.

    Raises:
        ReplayError: TVM does not compile the module, or it has no kernel.
    """
    try:
        compiled = tvm.compile(_without_odd_vectors(runnable(module)), target=target).mod
        source = "".join(str(one.inspect_source("cuda")) for one in compiled.imports)
    except Exception as error:  # TVM raises whatever its passes do
        raise ReplayError("it does not compile for cuda", last_line(error)) from None
    start = source.find('extern "C"')
    if start < 0:
        raise ReplayError("the program has no kernel", f"{len(source)} characters of source")
    return _TYPES + source[start:]


def _without_odd_vectors(module: Any) -> Any:
    """Returns a module whose vectors have two or four elements; loops over others are unrolled.

    No GPU reads more or three of them at once, and TVM writes indices of such vectors that are no
    CUDA (`make_longlong3` of six numbers).
    """
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    root = schedule.get_sblock("root")
    for block in schedule.get_child_blocks(root):
        for loop in schedule.get_loops(block):
            found = schedule.get(loop)
            extent = getattr(found.extent, "value", None)
            if found.kind == tirx.ForKind.VECTORIZED and extent not in _WIDEST:
                schedule.unroll(loop)
    return schedule.mod
