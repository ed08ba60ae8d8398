"""Machine code of scheduled GPU programs by NVIDIA's compiler, without a GPU."""

from __future__ import annotations

from typing import Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import ReplayError, last_line
from cdmpp.programs.gpu_code.columns import KernelLaunch
from cdmpp.programs.gpu_code.sizes import kernel_sizes
from tvm_helper.compat import Schedule, Target, tirx, tvm
from tvm_helper.tasks.gpu_kernels import check_readable, kernel_launches
from tvm_helper.tasks.target import device_target
from tvm_helper.tir.loop_tree import loop_tree_from_tir
from tvm_helper.tir.packing import runnable

_WIDEST = (2, 4)  # supported numbers of elements of a vector


def gpu_launches(module: Any, device: DeviceSpec) -> list[KernelLaunch]:
    """Returns the compiled kernels of a scheduled module, in execution order.

    Raises:
        UsageError: NVIDIA's compiler is not installed.
        DeviceError: the device is not an NVIDIA GPU of compute capability 7.0 to 8.9, or its number
            of multiprocessors is unknown.
        ReplayError: the program does not compile.
    """
    check_readable(device)
    source = cuda_source(module, device_target(device))
    return kernel_launches(source, kernel_sizes(loop_tree_from_tir(module)), device)


def cuda_source(module: Any, target: Target) -> str:
    """Returns the CUDA source of a scheduled module's kernels.

    Raises:
        ReplayError: TVM does not compile the module.
    """
    try:
        compiled = tvm.compile(_without_odd_vectors(runnable(module)), target=target).mod
        return "".join(str(one.inspect_source("cuda")) for one in compiled.imports)
    except Exception as error:  # TVM's passes raise many types
        raise ReplayError("it does not compile for cuda", last_line(error)) from None


def _without_odd_vectors(module: Any) -> Any:
    """Returns a module whose vectors have two or four elements; other vector loops are unrolled.

    GPUs have no accesses of three or more than four elements, and TVM writes invalid CUDA for the
    indices of such vectors (`make_longlong3` of six numbers).
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
