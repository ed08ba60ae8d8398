"""Tables of machine code of measure records, from recompiled programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.autotvm.logs import (
    autotvm_program_id,
    find_logs,
    is_autotvm_log,
    log_device,
    read_autotvm_log,
)
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.extraction.machine_code import CompiledProgram, MachineCode, known_columns
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import find_device_files, find_devices, is_tenset_dir
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.devices.registry import find_device, get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.processes.campaign import CampaignProgress, Clock, OnProgress, show_nothing
from cdmpp.processes.pool import run_in_processes
from cdmpp.programs.ansor.dag import parse_dag
from cdmpp.programs.code_layout import CodeKind
from cdmpp.programs.gpu_code.columns import gpu_code_columns
from cdmpp.programs.machine_code.columns import machine_code_columns
from cdmpp.records import GPU_TARGET_KINDS, program_id_of_text
from tvm_helper.legacy.gpu_code import autotvm_columns
from tvm_helper.measure.target import target_text
from tvm_helper.tasks.gpu_kernels import is_readable
from tvm_helper.tasks.nvrtc import load_compiler

#: Number of programs of one task per call of a process.
_PROGRAMS = 8
#: Programs between two writes of the tables.
_STEP = 500
#: Fields of a target that do not affect the code of a schedule.
_NOT_IN_CODE = ("num-cores", "keys", "tag")

#: Identity of a program, and its steps or its record.
_Program = tuple[str, Any]
#: Workload key and kind of target.
_Key = tuple[str, str]


@dataclass
class _Wanted:
    """Programs to compile for one target, or for one GPU.

    Attributes:
        kind: kind of the devices.
        targets: label of a device -> its target.
        programs: task -> identity -> steps, or the record of an AutoTVM log.
    """

    kind: CodeKind
    targets: dict[str, str]
    programs: dict[_Key, dict[str, Any]]


def write_records_code(
    dataset: Path,
    out_dir: Path,
    devices: Sequence[str] | None = None,
    *,
    network_info: Path | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = show_nothing,
) -> list[MachineCode]:
    """Compiles the programs of a dataset for the devices that measured them, and writes one table
    per CPU target or GPU into the extracted dataset; continues incomplete tables.

    Leaves out programs that failed on every device (some take a compiler hours), that do not
    compile or only call a library, and programs of AutoTVM logs that were not extracted.

    Args:
        dataset: folder in Tenset's layout, or AutoTVM logs of GPUs.
        out_dir: the extracted dataset.
        devices: labels; None = all. Devices whose code cannot be read are left out.
        network_info: folder of the tasks; None = the one in the dataset.
        jobs: number of processes; None = one per CPU.
        on_progress: called after every group of programs.

    Raises:
        UsageError: the folder has another layout, no device has readable code, or NVIDIA's
            compiler is not installed.
        DataError: records, tasks or a device are missing, or a table cannot be written.
    """
    labels = _compilable(dataset, devices)
    call_of: Callable[..., tuple[Any, ...] | None] = _log_call
    if is_autotvm_log(dataset):
        wanted = _wanted_of_logs(dataset, out_dir, labels)
    else:
        wanted = _wanted(dataset, labels)
        call_of = partial(_task_call, load_tasks(network_info or dataset / "network_info"))
    tables = {name: known_columns(out_dir, one.targets) for name, one in wanted.items()}
    calls: list[tuple[Any, ...]] = []
    names: list[str] = []
    for name, one in wanted.items():
        for key, programs in one.programs.items():
            missing = [program for program in programs.items() if program[0] not in tables[name]]
            for start in range(0, len(missing), _PROGRAMS):
                call = call_of(one, key, missing[start : start + _PROGRAMS])
                if call is not None:
                    calls.append(call)
                    names.append(name)
    total = sum(len(call[-1]) for call in calls)
    done = failed = saved = 0
    clock = Clock(total)
    for place, found in run_in_processes(
        _called, calls, jobs=min(jobs or os.cpu_count() or 1, len(calls) or 1)
    ):
        for identity, columns in found:
            done += 1
            clock.add()
            if columns is None:
                failed += 1
            else:
                tables[names[place]][identity] = columns
        on_progress(CampaignProgress("compiling", done, total, failed, clock.seconds_left()))
        if done - saved >= _STEP:
            _save(out_dir, wanted, tables)
            saved = done
    return _save(out_dir, wanted, tables)


def _task_call(
    tasks: TaskIndex, one: _Wanted, key: _Key, programs: Sequence[_Program]
) -> tuple[Any, ...] | None:
    """Returns the function that compiles programs of a task and its arguments, with the programs
    last; None for an unknown task.
    """
    task = tasks.find(*key)
    if task is None:
        return None
    label, target = next(iter(one.targets.items()))
    if one.kind == "gpu":
        return compiled_gpu_columns, task.dag_json, get_device(label), programs
    return compiled_columns, task.dag_json, target, programs


def _log_call(one: _Wanted, key: _Key, programs: Sequence[_Program]) -> tuple[Any, ...]:
    """Returns the function and arguments for programs of AutoTVM, which need no task."""
    return autotvm_columns, get_device(next(iter(one.targets))), programs


def _called(
    function: Callable[..., list[CompiledProgram]], *arguments: Any
) -> list[CompiledProgram]:
    return function(*arguments)


def check_compilable(dataset: Path, devices: Sequence[str] | None = None) -> None:
    """Checks that `write_records_code` can compile the programs of at least one device.

    Raises:
        UsageError, DataError: see `write_records_code`.
    """
    _compilable(dataset, devices)


def _compilable(dataset: Path, devices: Sequence[str] | None) -> list[str]:
    """Returns the labels of devices with readable code: known CPUs (not for AutoTVM logs) and
    NVIDIA GPUs.
    """
    is_log = is_autotvm_log(dataset)
    if not is_log and not is_tenset_dir(dataset):
        raise UsageError(
            f"--machine-code is for folders in Tenset's layout and for AutoTVM logs of GPUs; "
            f"{dataset} is neither. For a measured campaign: cdmpp measure --machine-code --out DIR"
        )
    found = [log_device(log) for log in find_logs(dataset)] if is_log else find_devices(dataset)
    labels = list(devices or found)
    specs = [spec for spec in map(find_device, labels) if spec is not None]
    gpus = [spec.name for spec in specs if is_readable(spec)]
    cpus = [spec.name for spec in specs if spec.kind == "cpu" and not is_log]
    if not gpus and not cpus:
        raise UsageError(
            f"--machine-code: {', '.join(labels)}: expected a known "
            f"{'' if is_log else 'CPU or '}NVIDIA GPU of compute capability 7.0 to 8.9; leave "
            "the option out"
        )
    if gpus:
        load_compiler()
    return cpus + gpus


def compiled_columns(
    dag_json: str, target: str, programs: Sequence[_Program]
) -> list[CompiledProgram]:
    """Returns the machine-code columns of programs of one task for a CPU; None for a program
    without columns.

    Args:
        dag_json: the task's computation.
        target: TVM's target as JSON.
        programs: (identity, transform steps) of each program.
    """
    from tvm_helper.compat import Target
    from tvm_helper.tasks.machine_code import code_of
    from tvm_helper.tir.schedule_of_record import replay

    dag, compile_for = parse_dag(dag_json), Target(json.loads(target))
    return _compiled(
        programs, lambda steps: machine_code_columns(code_of(replay(dag, steps).mod, compile_for))
    )


def compiled_gpu_columns(
    dag_json: str, device: DeviceSpec, programs: Sequence[_Program]
) -> list[CompiledProgram]:
    """Returns the machine-code columns of programs of one task for a GPU; None for a program
    without columns.

    Args:
        dag_json: the task's computation.
        programs: (identity, transform steps) of each program.
    """
    from tvm_helper.tasks.gpu_code import gpu_launches
    from tvm_helper.tir.schedule_of_record import replay

    dag = parse_dag(dag_json)
    return _compiled(
        programs, lambda steps: gpu_code_columns(gpu_launches(replay(dag, steps).mod, device))
    )


def _compiled(
    programs: Sequence[_Program], columns_of: Callable[[Any], Any]
) -> list[CompiledProgram]:
    found: list[CompiledProgram] = []
    for identity, steps in programs:
        try:
            found.append((identity, columns_of(steps)))
        except DataError:
            found.append((identity, None))
    return found


def _wanted(dataset: Path, labels: Sequence[str]) -> dict[str, _Wanted]:
    """Returns name of the target's processor, or label of the GPU -> programs to compile."""
    found: dict[str, _Wanted] = {}
    for label in labels:
        spec = get_device(label)
        target = target_text(spec)
        described = {k: v for k, v in json.loads(target).items() if k not in _NOT_IN_CODE}
        name = str(described.get("mcpu") or described.get("mtriple") or described["kind"])
        if spec.kind == "gpu":  # the columns depend on the GPU, not only on the target
            name = label
        one = found.setdefault(name, _Wanted("gpu" if spec.kind == "gpu" else "cpu", {}, {}))
        one.targets[label] = target
        report = ReadReport()
        for path in find_device_files(dataset, label):
            for record in read_records(path, report):
                is_of_gpu = record.target_kind in GPU_TARGET_KINDS
                if is_of_gpu != (one.kind == "gpu") or record.latency_s is None:
                    continue
                key, kind = record.workload_key, record.target_kind
                identity = program_id_of_text("tenset", key, record.schedule, kind)
                one.programs.setdefault((key, kind), {})[identity] = record.steps
    return found


def _wanted_of_logs(dataset: Path, out_dir: Path, labels: Sequence[str]) -> dict[str, _Wanted]:
    """Returns label of the GPU -> extracted programs of its log."""
    extracted = {
        identity
        for table in read_table(out_dir, "programs", ["program_id"])
        for identity in table["program_id"].to_pylist()
    }
    found: dict[str, _Wanted] = {}
    for path in find_logs(dataset):
        label = log_device(path)
        if label not in labels:
            continue
        one = found[label] = _Wanted("gpu", {label: target_text(get_device(label))}, {})
        for record in read_autotvm_log(path, ReadReport()):
            identity = autotvm_program_id(record)
            if record.is_ok and identity in extracted:
                key = record.workload_key, record.target_kind
                one.programs.setdefault(key, {})[identity] = record
    return found


def _save(
    out_dir: Path, wanted: dict[str, _Wanted], tables: dict[str, dict[str, NDArray[np.float32]]]
) -> list[MachineCode]:
    found = [MachineCode(one.targets, tables[name], one.kind) for name, one in wanted.items()]
    for name, table in zip(wanted, found, strict=True):
        table.save(out_dir, name=name)
    return found
