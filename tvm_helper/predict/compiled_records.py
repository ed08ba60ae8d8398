"""Machine code of the programs of records, for models that read it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.tenset.task_index import TaskIndex
from cdmpp.devices.spec import DeviceSpec
from cdmpp.models.assemble import AskedProgram
from cdmpp.predict.machine_code.model import CodeModel
from cdmpp.programs.code_layout import CODE_LAYOUTS
from tvm_helper.measure.records_code import compiled_columns, compiled_gpu_columns
from tvm_helper.tasks.machine_code import reads_code
from tvm_helper.tasks.target import device_target


def compiled_code(
    reader: CodeModel, tasks: TaskIndex, asked: Sequence[AskedProgram]
) -> NDArray[np.float32] | None:
    """Returns float32 [N, columns]: machine-code columns, NaN for programs that do not compile or
    whose device has no target. None if the reader supports no device of the programs.
    """
    devices = {one.device.name: one.device for one in asked}
    targets = {name: _target(reader, one) for name, one in devices.items()}
    if not any(targets.values()):
        return None
    code = np.full((len(asked), len(CODE_LAYOUTS[reader.kind].names)), np.nan, np.float32)
    for place, one in enumerate(asked):
        workload_key, _, kind = one.task.rpartition("|")
        task, target = tasks.find(workload_key, kind), targets[one.device.name]
        if target is None or task is None or one.schedule is None:
            continue
        program = [(one.program_id, json.loads(one.schedule))]
        if reader.kind == "gpu":
            ((_, columns),) = compiled_gpu_columns(task.dag_json, one.device, program)
        else:
            ((_, columns),) = compiled_columns(task.dag_json, target, program)
        if columns is not None:
            code[place] = columns
    return code


def _target(reader: CodeModel, device: DeviceSpec) -> str | None:
    if device.name in reader.targets:
        return reader.targets[device.name]
    target = device_target(device)
    return str(target) if reads_code(reader.targets, device.name, target) else None
