"""AutoTVM logs as a source of an extraction.

The logs are read twice: once to find which lines belong to which task, then task by task, so that a
program that several devices measured is featurised once and memory does not grow with the logs.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cdmpp.datasets.autotvm.logs import (
    AutotvmTask,
    autotvm_program_id,
    find_logs,
    log_device,
    read_autotvm_log,
    task_of,
)
from cdmpp.datasets.extraction.source import Featurised, RecordSource, ShardPlan, files_digest
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import DataError
from cdmpp.records import MeasureRecord

#: Records after which a shard is closed; a task never spans two shards.
SHARD_RECORDS = 1024

TaskKey: TypeAlias = tuple[str, str]
#: Lines of one task: log number -> line numbers.
_Lines: TypeAlias = "dict[int, array[int]]"


@dataclass
class AutotvmLogs(RecordSource):
    """A log (`DEVICE.json[.gz]`) or a folder of logs.

    Attributes:
        place: the log or folder.
        labels: devices to read; None = all.
        featuriser: lowers programs of one task.
        per_task: take so many programs of each task and device that ran without error, drawn by a
            hash of the program; None = every line, failures included.
        shard_records: records after which a shard is closed.
    """

    place: Path
    labels: Sequence[str] | None
    featuriser: Callable[[AutotvmTask, list[MeasureRecord]], Featurised]
    per_task: int | None = None
    shard_records: int = SHARD_RECORDS

    def devices(self) -> list[str]:
        """As `RecordSource.devices`."""
        return sorted({log_device(path) for path in self._logs()})

    def _logs(self) -> list[Path]:
        logs = find_logs(self.place)
        if self.labels is None:
            return logs
        found = {log_device(path): path for path in logs}
        wanted = sorted(set(self.labels))
        missing = [label for label in wanted if label not in found]
        if missing:
            raise DataError(
                f"{self.place}: no AutoTVM log of device {missing[0]!r}; devices found: "
                f"{', '.join(sorted(found))}; the file's name is the device"
            )
        return [found[label] for label in wanted]

    def plan(self, report: ReadReport) -> list[ShardPlan]:
        """As `RecordSource.plan`."""
        logs = self._logs()
        tasks = _find_lines(logs, report, self.per_task)
        if not tasks:
            raise DataError(f"{self.place}: no usable record; the reader says:\n{report.summary()}")
        groups: list[list[_Lines]] = [[]]
        for task in tasks.values():
            if groups[-1] and sum(map(_count, [*groups[-1], task])) > self.shard_records:
                groups.append([])
            groups[-1].append(task)
        return [_plan(number, group, logs) for number, group in enumerate(groups)]

    def records(
        self, plan: ShardPlan, report: ReadReport
    ) -> Iterator[tuple[TaskKey, str, MeasureRecord]]:
        """As `RecordSource.records`; `plan` has counted all of them."""
        for (_, path), lines in zip(plan.files, plan.lines, strict=True):
            for record in read_autotvm_log(path, ReadReport(), only=frozenset(lines)):
                key = (record.workload_key, record.target_kind)
                yield key, autotvm_program_id(record), record

    def featurise(self, group: TaskKey, records: list[MeasureRecord]) -> Featurised:
        """As `RecordSource.featurise`."""
        return self.featuriser(task_of(records[0]), records)


def _count(task: _Lines) -> int:
    return sum(map(len, task.values()))


def _plan(number: int, tasks: Sequence[_Lines], logs: Sequence[Path]) -> ShardPlan:
    used = sorted({log for task in tasks for log in task})
    files = tuple((log_device(logs[log]), logs[log]) for log in used)
    lines = tuple(array("L") for _ in used)
    for task in tasks:
        for log, numbers in task.items():
            lines[used.index(log)].extend(numbers)
    digest = files_digest(files, [sorted(numbers) for numbers in lines])
    return ShardPlan(number, files, sum(map(_count, tasks)), digest, lines)


def _find_lines(
    logs: Sequence[Path], report: ReadReport, per_task: int | None
) -> dict[TaskKey, _Lines]:
    """Returns the lines to extract by task, in the order in which the tasks first occur."""
    tasks: dict[TaskKey, _Lines] = {}

    def add(key: TaskKey, log: int, line: int) -> None:
        tasks.setdefault(key, {}).setdefault(log, array("L")).append(line)

    for number, path in enumerate(logs):
        drawn: dict[TaskKey, list[tuple[int, int]]] = {}
        for record in read_autotvm_log(path, report):
            key = (record.workload_key, record.target_kind)
            if per_task is None:
                add(key, number, record.line)
            elif record.is_ok:
                _draw(drawn.setdefault(key, []), record, per_task)
        for key, lines in drawn.items():
            for line in sorted(line for _, line in lines):
                add(key, number, line)
    return tasks


def _draw(heap: list[tuple[int, int]], record: MeasureRecord, count: int) -> None:
    """Keeps the `count` programs with the lowest digests (as a heap with the highest on top)."""
    rank = int(autotvm_program_id(record)[:15], 16)
    if any(other == -rank for other, _ in heap):
        return  # a repeated measurement
    if len(heap) < count:
        heapq.heappush(heap, (-rank, record.line))
    elif -rank > heap[0][0]:
        heapq.heapreplace(heap, (-rank, record.line))
