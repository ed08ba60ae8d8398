"""AutoTVM logs as a source of an extraction.

The logs are read twice: first to find the lines of each task, then task by task, so that a program
measured on several devices is featurised once and memory does not grow with the logs.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from cdmpp.datasets.autotvm.logs import (
    AutotvmTask,
    autotvm_program_id,
    find_logs,
    log_device,
    read_autotvm_log,
    target_hardware,
    task_of,
)
from cdmpp.datasets.extraction.source import Featurised, RecordSource, ShardPlan, files_digest
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError, UsageError
from cdmpp.records import MeasureRecord

#: Maximum number of records of a shard with several tasks; a task never spans two shards.
SHARD_RECORDS = 1024
_LEFT_OUT = "records of another device or target, left out"

TaskKey: TypeAlias = tuple[str, str]
#: Lines of one task: log number -> line numbers.
_Lines: TypeAlias = "dict[int, array[int]]"


@dataclass(frozen=True)
class _Log:
    """The records of one device in a file.

    Attributes:
        hardware: hardware named by their targets; empty = all records of the file.
        count: number of records; 0 = not counted.
    """

    label: str
    path: Path
    hardware: str = ""
    count: int = 0

    def takes(self, record: MeasureRecord, target: str | None) -> bool:
        if target is not None and target not in record.target:
            return False
        return not self.hardware or target_hardware(record.target) == self.hardware


@dataclass
class AutotvmLogs(RecordSource):
    """A log (`DEVICE.json`, plain or compressed) or a folder of logs.

    A log whose targets name several devices is several logs; `labels` or `target` must choose.

    Attributes:
        place: the log or folder.
        labels: devices to read; None = all.
        featuriser: lowers and featurises programs of one task.
        per_task: maximum number of programs of each task and device, drawn by hash from those that
            ran without error; None = every line, including failures.
        shard_records: maximum number of records of a shard with several tasks.
        target: text that the target of a record must contain; None = all records.
    """

    place: Path
    labels: Sequence[str] | None
    featuriser: Callable[[AutotvmTask, list[MeasureRecord]], Featurised]
    per_task: int | None = None
    shard_records: int = SHARD_RECORDS
    target: str | None = None
    _known: list[_Log] | None = field(default=None, repr=False)

    def devices(self) -> list[str]:
        """See `RecordSource.devices`."""
        return sorted({log.label for log in self._logs()})

    def _logs(self) -> list[_Log]:
        """Returns the logs of the wanted devices.

        Raises:
            DataError: a device has no log.
            UsageError: a file has records of several devices, and none is chosen.
        """
        if self._known is None:
            self._known = _wanted_logs(self.place, self.labels, self.target)
        return self._known

    def plan(self, report: ReadReport) -> list[ShardPlan]:
        """See `RecordSource.plan`."""
        logs = self._logs()
        tasks = _find_lines(logs, report, self.per_task, self.target)
        if not tasks:
            raise DataError(f"{self.place}: no usable record found:\n{report.summary()}")
        groups: list[list[_Lines]] = [[]]
        for task in tasks.values():
            if groups[-1] and sum(map(_count, [*groups[-1], task])) > self.shard_records:
                groups.append([])
            groups[-1].append(task)
        return [_plan(number, group, logs) for number, group in enumerate(groups)]

    def records(
        self, plan: ShardPlan, report: ReadReport
    ) -> Iterator[tuple[TaskKey, str, MeasureRecord]]:
        """See `RecordSource.records`; `plan` has counted all records."""
        for (label, path), lines in zip(plan.files, plan.lines, strict=True):
            only = frozenset(lines)
            for record in read_autotvm_log(path, ReadReport(), only=only, device=label):
                key = (record.workload_key, record.target_kind)
                yield key, autotvm_program_id(record), record

    def featurise(self, group: TaskKey, records: list[MeasureRecord]) -> Featurised:
        """See `RecordSource.featurise`."""
        return self.featuriser(task_of(records[0]), records)


def check_devices(place: Path, labels: Sequence[str] | None, target: str | None) -> None:
    """Checks that logs have the wanted devices, and that no file mixes devices.

    Raises:
        DataError: a device has no log.
        UsageError: a file has records of several devices, and none is chosen.
    """
    _wanted_logs(place, labels, target)


def _wanted_logs(place: Path, labels: Sequence[str] | None, target: str | None) -> list[_Log]:
    parts = [_logs_in(path, target) for path in find_logs(place)]
    if labels is None:
        for logs in parts:
            if len(logs) > 1:
                raise _mixed(logs)
        return [log for logs in parts for log in logs]
    found = {log.label: log for logs in parts for log in logs}
    wanted = sorted(set(labels))
    missing = [label for label in wanted if label not in found]
    if missing:
        raise DataError(
            f"{place}: no AutoTVM log of device {missing[0]!r}; devices found: "
            f"{', '.join(sorted(found))}; the device is the name of the file, unless its targets "
            "name several"
        )
    return [found[label] for label in wanted]


def log_labels(place: Path) -> tuple[set[str], bool]:
    """Returns the labels of the devices in logs, and whether devices share a log.

    Raises:
        DataError: there is no log.
    """
    parts = [_logs_in(path, None) for path in find_logs(place)]
    return {log.label for logs in parts for log in logs}, any(len(one) > 1 for one in parts)


def _logs_in(path: Path, target: str | None) -> list[_Log]:
    """Returns a file as one log, or as one log for each device that its targets name."""
    counts = Counter(
        target_hardware(record.target)
        for record in read_autotvm_log(path, ReadReport())
        if target is None or target in record.target
    )
    named = {name: count for name, count in sorted(counts.items()) if name}
    if len(named) > 1 or (len(named) == 1 and target is not None):
        return [_Log(name, path, name, count) for name, count in named.items()]
    return [_Log(log_device(path), path)]


def _mixed(logs: Sequence[_Log]) -> UsageError:
    listed = ", ".join(f"{log.label} {log.count}" for log in logs)
    return UsageError(
        f"{logs[0].path}: records of {len(logs)} models ({listed}): choose with --target TEXT (a "
        f"part of the target), or read each under its label: --device "
        f"{','.join(log.label for log in logs)}"
    )


def _count(task: _Lines) -> int:
    return sum(map(len, task.values()))


def _plan(number: int, tasks: Sequence[_Lines], logs: Sequence[_Log]) -> ShardPlan:
    used = sorted({log for task in tasks for log in task})
    files = tuple((logs[log].label, logs[log].path) for log in used)
    lines = tuple(array("L") for _ in used)
    for task in tasks:
        for log, numbers in task.items():
            lines[used.index(log)].extend(numbers)
    digest = files_digest(files, [sorted(numbers) for numbers in lines])
    return ShardPlan(number, files, sum(map(_count, tasks)), digest, lines)


def _find_lines(
    logs: Sequence[_Log], report: ReadReport, per_task: int | None, target: str | None
) -> dict[TaskKey, _Lines]:
    """Returns task -> lines to extract, in the order in which the tasks first occur."""
    tasks: dict[TaskKey, _Lines] = {}

    def add(key: TaskKey, log: int, line: int) -> None:
        tasks.setdefault(key, {}).setdefault(log, array("L")).append(line)

    seen: set[Path] = set()
    for number, log in enumerate(logs):
        drawn: dict[TaskKey, list[tuple[int, int]]] = {}
        own = ReadReport() if log.path in seen else report
        seen.add(log.path)
        for record in read_autotvm_log(log.path, own, device=log.label):
            if not log.takes(record, target):
                own.records -= 1
                own.failed -= record.error_code != 0
                own.notes[_LEFT_OUT] += 1
                continue
            key = (record.workload_key, record.target_kind)
            if per_task is None:
                add(key, number, record.line)
            elif record.is_ok:
                _draw(drawn.setdefault(key, []), record, per_task)
        for key, lines in drawn.items():
            for line in sorted(line for _, line in lines):
                add(key, number, line)
        if own is not report:  # another label of a file that is counted already
            report.records += own.records
            report.failed += own.failed
            report.notes[_LEFT_OUT] -= own.records
    report.notes = +report.notes
    return tasks


def _draw(heap: list[tuple[int, int]], record: MeasureRecord, count: int) -> None:
    """Keeps the `count` programs with the lowest digests in `heap`, the highest first."""
    rank = int(autotvm_program_id(record)[:15], 16)
    if any(other == -rank for other, _ in heap):
        return  # a repeated measurement
    if len(heap) < count:
        heapq.heappush(heap, (-rank, record.line))
    elif -rank > heap[0][0]:
        heapq.heapreplace(heap, (-rank, record.line))
