"""Machine code of AutoTVM's GPU programs, compiled from CUDA source that the old TVM writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cdmpp.datasets.autotvm.logs import AutotvmTask, task_of
from cdmpp.datasets.extraction.machine_code import CompiledProgram
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.gpu_code.columns import KernelLaunch, gpu_code_columns
from cdmpp.programs.gpu_code.sizes import kernel_sizes
from cdmpp.records import MeasureRecord
from tvm_helper.legacy.client import LegacyTvm, shared_process
from tvm_helper.legacy.featurise import lowered
from tvm_helper.legacy.tir import loop_tree_from_json
from tvm_helper.tasks.gpu_kernels import check_readable, kernel_launches


def autotvm_columns(
    device: DeviceSpec, programs: Sequence[tuple[str, MeasureRecord]]
) -> list[CompiledProgram]:
    """Returns the machine-code columns of programs of one task; None if a program fails to compile.

    Args:
        programs: (identity, record) of each program.

    Raises:
        UsageError: there is no side environment, or NVIDIA's compiler is not installed.
        DeviceError: the machine code of the device cannot be read.
    """
    records = [record for _, record in programs]
    launches = autotvm_launches(shared_process(), task_of(records[0]), records, device)
    return [
        (identity, None if isinstance(found, ReplayError) else gpu_code_columns(found))
        for (identity, _), found in zip(programs, launches, strict=True)
    ]


def autotvm_launches(
    tvm: LegacyTvm, task: AutotvmTask, records: Sequence[MeasureRecord], device: DeviceSpec
) -> list[list[KernelLaunch] | ReplayError]:
    """Returns the compiled kernels of each program of a task, or the reason of the failure.

    As in tuning, the filter transform of a Winograd convolution is left out.

    Raises:
        UsageError: NVIDIA's compiler is not installed.
        DeviceError: the machine code of the device cannot be read.
    """
    check_readable(device)

    def compiled(answer: dict[str, Any]) -> list[KernelLaunch] | ReplayError:
        try:
            sizes = kernel_sizes(loop_tree_from_json(answer["tir"]))
            return kernel_launches(answer["source"], sizes, device)
        except ReplayError as error:
            return error
        except (DataError, RecursionError) as error:
            return ReplayError("no loop tree", str(error))

    _, programs = lowered(tvm, task, records, compiled, with_source=True)
    return programs
