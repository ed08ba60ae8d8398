"""The tables of machine code of measure records: what TVM's compiler makes of their programs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.extraction.machine_code import MachineCode, known_columns
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import find_device_files, find_devices, is_tenset_dir
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.devices.registry import find_device, get_device
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.features.machine_code.columns import machine_code_columns
from cdmpp.processes.campaign import CampaignProgress, Clock, OnProgress, show_nothing
from cdmpp.processes.pool import run_in_processes
from cdmpp.records import GPU_TARGET_KINDS, program_id_of_text
from tvm_helper.measure.target import target_text
from tvm_helper.records.dag import parse_dag

#: Programs of one task that a process compiles in one go.
_PROGRAMS = 8
#: Programs between two writes of the tables.
_STEP = 500
#: What of a target the code of a schedule does not depend on.
_NOT_IN_CODE = ("num-cores", "keys", "tag")

#: Identity and steps of a program.
_Program = tuple[str, Any]


@dataclass
class _Wanted:
    """What is compiled for one target.

    Attributes:
        targets: label of each device -> its target.
        programs: (workload key, kind of target) -> identity -> steps.
    """

    targets: dict[str, str]
    programs: dict[tuple[str, str], dict[str, Any]]


def write_records_code(
    dataset: Path,
    out_dir: Path,
    devices: Sequence[str] | None = None,
    *,
    network_info: Path | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = show_nothing,
) -> list[MachineCode]:
    """Compiles the programs of a folder in Tenset's layout for the CPUs that measured them, and
    writes a table a target beside their extracted dataset; goes on where it was.

    Programs that failed on every device are left out (some take a compiler hours), as are those
    that do not compile or only call a library.

    Args:
        devices: labels; None = all. Those of GPUs are left out.
        network_info: folder of the tasks; None = in the dataset.
        jobs: processes; None = one per CPU.

    Raises:
        UsageError: the folder has another layout, or the devices are GPUs.
        DataError: records, tasks or a device are missing, or a table cannot be written.
    """
    wanted = _wanted(dataset, _compilable(dataset, devices))
    tasks = load_tasks(network_info or dataset / "network_info")
    tables = {name: known_columns(out_dir, one.targets) for name, one in wanted.items()}
    calls: list[tuple[str, str, list[_Program]]] = []
    names: list[str] = []
    for name, one in wanted.items():
        for key, programs in one.programs.items():
            task = tasks.find(*key)
            if task is None:
                continue
            known = tables[name]
            missing = [(each, steps) for each, steps in programs.items() if each not in known]
            for start in range(0, len(missing), _PROGRAMS):
                part = missing[start : start + _PROGRAMS]
                calls.append((task.dag_json, next(iter(one.targets.values())), part))
                names.append(name)
    total = sum(len(part) for _, _, part in calls)
    done = failed = saved = 0
    clock = Clock(total)
    for place, found in run_in_processes(
        compiled_columns, calls, jobs=min(jobs or os.cpu_count() or 1, len(calls) or 1)
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


def check_compilable(dataset: Path, devices: Sequence[str] | None = None) -> None:
    """Checks that there are records of a CPU, whose programs `write_records_code` can compile.

    Raises:
        UsageError, DataError: as there.
    """
    _compilable(dataset, devices)


def _compilable(dataset: Path, devices: Sequence[str] | None) -> list[str]:
    """Returns the labels of known CPUs."""
    if not is_tenset_dir(dataset):
        raise UsageError(
            f"--machine-code is for folders in Tenset's layout; {dataset} is none. For a measured "
            "campaign: cdmpp measure --machine-code --out DIR"
        )
    labels = list(devices or find_devices(dataset))
    specs = {label: find_device(label) for label in labels}
    cpus = [label for label, one in specs.items() if one is not None and one.kind == "cpu"]
    if not cpus:
        raise UsageError(
            f"--machine-code: {', '.join(labels)}: no known CPU among them; leave it out"
        )
    return cpus


def compiled_columns(
    dag_json: str, target: str, programs: Sequence[_Program]
) -> list[tuple[str, NDArray[np.float32] | None]]:
    """Returns the columns of programs of one task, None of those that have none.

    Args:
        dag_json: the task's computation.
        target: TVM's JSON.
        programs: identity and transform steps of each.
    """
    from tvm_helper.compat import Target
    from tvm_helper.programs.machine_code import code_of
    from tvm_helper.tir.schedule_of_record import replay

    dag, compile_for = parse_dag(dag_json), Target(json.loads(target))
    found: list[tuple[str, NDArray[np.float32] | None]] = []
    for identity, steps in programs:
        try:
            columns = machine_code_columns(code_of(replay(dag, steps).mod, compile_for))
        except (ReplayError, DataError):
            columns = None
        found.append((identity, columns))
    return found


def _wanted(dataset: Path, labels: Sequence[str]) -> dict[str, _Wanted]:
    """Returns what is compiled, by the name of the target's processor."""
    found: dict[str, _Wanted] = {}
    for label in labels:
        target = target_text(get_device(label))
        described = {k: v for k, v in json.loads(target).items() if k not in _NOT_IN_CODE}
        name = str(described.get("mcpu") or described.get("mtriple") or described["kind"])
        one = found.setdefault(name, _Wanted({}, {}))
        one.targets[label] = target
        report = ReadReport()
        for path in find_device_files(dataset, label):
            for record in read_records(path, report):
                if record.target_kind in GPU_TARGET_KINDS or record.latency_s is None:
                    continue
                key, kind = record.workload_key, record.target_kind
                identity = program_id_of_text("tenset", key, record.schedule, kind)
                one.programs.setdefault((key, kind), {})[identity] = record.steps
    return found


def _save(
    out_dir: Path, wanted: dict[str, _Wanted], tables: dict[str, dict[str, NDArray[np.float32]]]
) -> list[MachineCode]:
    found = [MachineCode(one.targets, tables[name]) for name, one in wanted.items()]
    for name, table in zip(wanted, found, strict=True):
        table.save(out_dir, name=name)
    return found
