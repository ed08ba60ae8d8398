"""Predictions for the programs of measure records of any format, measured or not."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.extraction.source import RecordSource
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.datasets.tenset.operator_name import operator_name
from cdmpp.datasets.tenset.record_file import read_records
from cdmpp.datasets.tenset.task_index import TaskIndex, load_tasks
from cdmpp.devices.registry import find_device, load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError, ReplayError, UsageError
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.predict.corrections import MachineCodeCorrection, SourceDeviceCorrection
from cdmpp.predict.estimates import Correction, TrainedModel
from cdmpp.predict.machine_code.model import CodeModel
from cdmpp.predict.prediction import Prediction, estimated, misfit, reads_no_code
from cdmpp.predict.requested_device import asked_device, labelled_devices
from cdmpp.predict.saved_model import ModelCard
from cdmpp.programs.ansor.json_graph import JsonGraph
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import featurise_records
from cdmpp.records import GPU_TARGET_KINDS, MeasureRecord, TensetTask, program_id_of_text
from cdmpp.text import counted, nearest

#: Compiles programs for a machine-code model: returns float32 [N, columns], NaN for programs that
#: do not compile; None if the model reads the code of none of their devices.
CompiledCode = Callable[[CodeModel, TaskIndex, Sequence[AskedProgram]], NDArray[np.float32] | None]


@dataclass(frozen=True)
class RecordPredictions:
    """The programs of a record file.

    Attributes:
        programs: predictions, fastest first.
        report: counts of read and skipped records.
        failures: reason -> number of programs that cannot be predicted.
    """

    programs: tuple[Prediction, ...]
    report: ReadReport
    failures: Mapping[str, int]

    def notes(self) -> list[str]:
        """Returns descriptions of skipped records and programs without a prediction."""
        found = [self.report.summary()] if self.report.skipped_total else []
        failures = sorted(self.failures.items(), key=lambda pair: -pair[1])
        return [
            *found,
            *(f"{counted(n, 'program')} cannot be predicted: {why}" for why, n in failures),
        ]

    def check(self, path: Path) -> None:
        """Checks that at least one program of a file has a prediction.

        Raises:
            DataError: no program has a prediction.
        """
        if not self.programs:
            reasons = ", ".join([*self.report.skipped, *self.failures])
            raise DataError(
                f"no program of {path} can be predicted{f' ({reasons})' if reasons else ''}; "
                "expected measure records of Ansor whose tasks are in the folder of "
                "--network-info (docs/how-to/bring-logs.md describes how to write it for your own "
                "workloads), an AutoTVM log or a MetaSchedule database"
            )


def predict_records(
    trained: TrainedModel,
    path: Path,
    *,
    devices: Sequence[DeviceSpec | str] = (),
    network_info: Path | None = None,
    measured_on: str | None = None,
    compiled: CompiledCode | None = None,
) -> RecordPredictions:
    """Returns the predictions of a record file's programs.

    Args:
        devices: requested devices or labels; empty = the device of each record.
        network_info: folder of the tasks; None = that of the dataset with the file, else the
            packaged one.
        measured_on: source device of the records, if their times correct predictions for other
            devices (`SourceDeviceCorrection`).
        compiled: compiles the programs for the machine-code models; None = no machine code.

    Raises:
        UsageError: see `SourceDeviceCorrection`; or records name another device than `measured_on`;
            or both `measured_on` and `compiled` are given; or the model reads the machine code of
            none of the devices.
        DataError: the file or the tasks cannot be read.
        DeviceError: a requested device is unknown, or the device of a record is unknown and the
            model has several.
    """
    if compiled is not None and measured_on is not None:
        raise UsageError(
            "--machine-code and --measured-on cannot be combined: the combination was not "
            "evaluated. Leave one of them out"
        )
    places = [_Device(trained.card, one) for one in labelled_devices(devices, trained.card)] or [
        _Device(trained.card, None)
    ]
    elsewhere = None if measured_on is None else asked_device(measured_on, trained.card)
    report = ReadReport()
    groups: dict[tuple[str, str], list[MeasureRecord]] = {}
    for record in read_records(path, report, keep_unmeasured=True):
        if measured_on is not None and find_device(record.device) not in (
            None,
            find_device(measured_on),
        ):
            raise UsageError(
                f"{path}: measured on {record.device}, got --measured-on {measured_on}; expected "
                f"--measured-on {record.device}"
            )
        groups.setdefault((record.workload_key, record.target_kind), []).append(record)
    tasks = load_tasks(network_info or _network_info(path)) if groups else None
    failures: Counter[str] = Counter()
    asked: list[AskedProgram] = []
    for (workload_key, target_kind), records in groups.items():
        task = tasks.find(workload_key, target_kind) if tasks else None
        if task is None:
            failures[f"its task{_task_name(workload_key)} is not in network_info"] += len(records)
            continue
        for program in record_programs(task, records, [place.of for place in places], elsewhere):
            if isinstance(program, str):
                failures[program] += 1
            else:
                asked.append(program)
    if not asked:
        return RecordPredictions((), report, failures)
    steps: list[Correction] = []
    if compiled is not None:
        assert tasks is not None
        known = [(compiled(one, tasks, asked), one.kind) for one in trained.readers]
        steps += [MachineCodeCorrection(code, kind) for code, kind in known if code is not None]
        if not steps:
            raise reads_no_code(trained, {one.device.name for one in asked})
    return _estimates(trained, asked, report, failures, elsewhere, steps)


def predict_source(
    trained: TrainedModel,
    source: RecordSource,
    *,
    devices: Sequence[DeviceSpec] = (),
    measured_on: str | None = None,
) -> RecordPredictions:
    """Returns predictions of the programs of a source, read like `cdmpp dataset extract`.

    Args:
        devices: requested devices; empty = the device of each record.
        measured_on: as in `predict_records`.

    Raises:
        UsageError: the source needs a choice or an environment.
        DataError: the source has no usable records.
        DeviceError: a device is unknown.
    """
    report = ReadReport()
    elsewhere = None if measured_on is None else asked_device(measured_on, trained.card)
    places = [_Device(trained.card, one) for one in devices] or [_Device(trained.card, None)]
    failures: Counter[str] = Counter()
    asked: list[AskedProgram] = []
    for plan in source.plan(report):
        groups: dict[Hashable, dict[str, MeasureRecord]] = {}
        for group, identity, record in source.records(plan, report):
            groups.setdefault(group, {}).setdefault(identity, record)
        for group, programs in groups.items():
            records = list(programs.values())
            found = source.featurise(group, records)
            for place in places:
                for identity, record, ast in zip(programs, records, found.programs, strict=True):
                    one = _asked(identity, record, ast, place.of(record), found.operator, elsewhere)
                    if isinstance(one, str):
                        failures[one] += 1
                    else:
                        asked.append(one)
    return _estimates(trained, asked, report, failures, elsewhere)


def _estimates(
    trained: TrainedModel,
    asked: Sequence[AskedProgram],
    report: ReadReport,
    failures: Mapping[str, int],
    elsewhere: DeviceSpec | None,
    steps: Sequence[Correction] = (),
) -> RecordPredictions:
    if not asked:
        return RecordPredictions((), report, failures)
    steps = list(steps)
    if elsewhere is not None:
        known_s = [np.nan if one.elsewhere_s is None else one.elsewhere_s for one in asked]
        steps.append(SourceDeviceCorrection(np.array(known_s), elsewhere))
    found = trained.estimate(assemble_samples(asked), steps)
    programs = [
        estimated(program, found, place, is_record=True) for place, program in enumerate(asked)
    ]
    programs.sort(key=lambda one: one.latency_s or 0.0)
    return RecordPredictions(tuple(programs), report, failures)


def _asked(
    identity: str,
    record: MeasureRecord,
    ast: CompactAst | ReplayError,
    device: DeviceSpec,
    operator: str,
    elsewhere: DeviceSpec | None,
    schedule: str | None = None,
) -> AskedProgram | str:
    """Returns a record's program on a device, or why it cannot be predicted."""
    reason = misfit(device, is_gpu=record.target_kind in GPU_TARGET_KINDS)
    if reason is not None:
        return reason
    if isinstance(ast, ReplayError):
        return ast.reason
    if not ast.valid:
        return ast.reject_reason or "invalid program"
    latency_s = record.latency_s
    return AskedProgram(
        program_id=identity,
        task=f"{record.workload_key}|{record.target_kind}",
        ast=ast,
        device=device,
        # A time on another device is not a measurement of the requested device.
        measured_s=latency_s if record.device == device.name else None,
        schedule=schedule,
        operator=operator,
        elsewhere_s=None if elsewhere in (None, device) else latency_s,
    )


def record_programs(
    task: TensetTask,
    records: Sequence[MeasureRecord],
    devices_of: Sequence[Callable[[MeasureRecord], DeviceSpec]],
    elsewhere: DeviceSpec | None = None,
) -> list[AskedProgram | str]:
    """Returns the program of each record of a task, or the reason why it cannot be predicted.

    The programs of all records on the first device come first, then those on the next one.

    Args:
        devices_of: one function per requested device; it returns the device of a record.
        elsewhere: source device of the records' times; None = they do not correct predictions.
    """
    operator = operator_name(JsonGraph(task.dag_json))
    asts = featurise_records(task, records)
    names = [
        program_id_of_text("tenset", one.workload_key, one.schedule, one.target_kind)
        for one in records
    ]
    return [
        _asked(name, record, ast, device_of(record), operator, elsewhere, record.schedule)
        for device_of in devices_of
        for name, record, ast in zip(names, records, asts, strict=True)
    ]


class _Device:
    """The device of a record: the requested one, else the record's if known, else the model's only
    device.
    """

    def __init__(self, card: ModelCard, asked: DeviceSpec | None) -> None:
        self._card = card
        self._asked = asked
        self._specs: dict[str, DeviceSpec] = {}

    def of(self, record: MeasureRecord) -> DeviceSpec:
        if self._asked is not None:
            return self._asked
        label = self._label(record.device)
        if label not in self._specs:
            self._specs[label] = asked_device(label, self._card)
        return self._specs[label]

    def _label(self, label: str) -> str:
        trained = [spec.name for spec in self._card.devices]
        if label in trained or find_device(label) is not None:
            return label
        if len(trained) == 1:
            return trained[0]
        near = nearest(label, {*trained, *load_registry()})
        raise DeviceError(
            f"unknown device {label!r} in a record{near}. Choose one with --device LABEL; the "
            f"model was trained on {', '.join(trained)}"
        )


def _task_name(workload_key: str) -> str:
    """Returns the name of a registered workload (` 'my_matmul'`); empty if the key is a hash."""
    try:
        name = json.loads(workload_key)[0]
    except (ValueError, LookupError, TypeError):
        return ""
    is_hash = not isinstance(name, str) or re.fullmatch("[0-9a-f]{32}", name)
    return "" if is_hash else f" {name[:40]!r}"


def _network_info(path: Path) -> Path:
    for parent in path.resolve().parents:
        beside = parent.parent / "network_info"
        if parent.name in ("measure_records", "to_measure_programs") and beside.is_dir():
            return beside
    return default_dataset_dir() / "network_info"
